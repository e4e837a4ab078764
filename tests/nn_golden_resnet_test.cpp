// nn_golden_resnet_test.cpp - SGD steps of residual networks follow PyTorch's, step for step.
//
// What the files hold and how the larger networks' weights follow from a formula is described in
// golden/golden_resnet.py.
#include <cstdint>

#include "golden/reader.h"
#include <gtest/gtest.h>

#include "tarn/autograd/functions.h"
#include "tarn/core/backend.h"
#include "tarn/core/factory.h"
#include "tarn/nn/models/resnet.h"
#include "tarn/optim/sgd.h"

namespace tarn::golden {
namespace {

/// splitmix64 of (stream << 32) + i, top 24 bits, in [-1, 1): golden_resnet.py's `formula`.
std::vector<double> formula(int64_t count, uint64_t stream) {
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    uint64_t z = ((stream << 32) + i) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    values[i] = static_cast<double>(z >> 40) / 8388608.0 - 1.0;
  }
  return values;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

/// golden_resnet.py's `initialise` for one parameter, rounded to f32 as there.
Tensor start_value(const std::string& name, const Shape& sizes, uint64_t stream) {
  std::vector<double> values = formula(sizes.numel(), stream);
  double scale = 0.25, shift = ends_with(name, "weight") ? 1 : 0;
  if (sizes.dim() > 1) {
    const double fan_in = static_cast<double>(sizes.numel() / sizes[0]);
    scale = static_cast<float>(std::sqrt(6.0 / fan_in));
    shift = 0;
  }
  for (double& v : values) v = static_cast<float>(shift + v * scale);
  return from_vector(values, sizes);
}

/// Batch `step`: a fixed pattern per class, plus noise.
std::pair<Tensor, Tensor> batch(const Shape& shape, int64_t step) {
  const int64_t item = shape.numel() / shape[0];
  const std::vector<double> patterns = formula(10 * item, 1000);
  std::vector<double> x = formula(shape.numel(), 2000 + static_cast<uint64_t>(step));
  std::vector<int64_t> y;
  for (int64_t n = 0; n < shape[0]; ++n) {
    y.push_back((n * 7 % 10 + step) % 10);
    for (int64_t i = 0; i < item; ++i) {
      double& v = x[static_cast<size_t>(n * item + i)];
      v = static_cast<float>(patterns[static_cast<size_t>(y.back() * item + i)] + v);
    }
  }
  return {from_vector(x, shape), from_vector(y, {shape[0]})};
}

struct Limits {
  double loss;      // absolute
  double gradient;  // relative, in the norm of each tensor
  double end;       // relative, in the norm of each parameter or statistic
};

/// Runs the steps of a golden file and compares losses, gradients and the end state.
void check_run(const std::string& file_name, nn::Module& net, DType dtype, Limits limits,
               Device device = kCPU) {
  const File file(file_name);
  const Json run = file.json("run"), sgd = run.at("sgd");
  const Shape shape(run.at("shape").get<std::vector<int64_t>>());
  const auto names = run.at("parameters").get<std::vector<std::string>>();
  const int64_t steps = run.at("steps"), samples = run.at("samples");
  const TensorDict parameters = net.named_parameters();
  ASSERT_EQ(parameters.size(), names.size());
  TensorDict start;
  for (size_t i = 0; i < names.size(); ++i) {
    start.add(names[i], start_value(names[i], parameters.at(names[i]).sizes(), i));
    if (file.has("start." + names[i])) {
      EXPECT_TRUE(near(start.at(names[i]).to(DType::kF32), file.at("start." + names[i]), {}));
    }
  }
  net.to(dtype).train();
  net.to(device);
  net.load_state_dict(start, /*strict=*/false);
  optim::SGD optimizer(
      net.parameters(),
      {.lr = sgd.at("lr"), .momentum = sgd.at("momentum"), .weight_decay = sgd.at("weight_decay")});
  // What the file keeps of a tensor: all of it, or every d-th entry.
  const auto kept = [&](const Tensor& x) {
    const int64_t stride = samples ? (x.numel() + samples - 1) / samples : 1;
    const Tensor flat = x.detach().contiguous().flatten();
    return flat.slice(0, 0, x.numel(), stride).to_vector<double>();
  };
  const auto losses = file.at("losses").to_vector<double>();
  const auto norms = file.at("grad_norms").to_vector<double>();
  for (int64_t step = 0; step < steps; ++step) {
    const auto [x, y] = batch(shape, step);
    optimizer.zero_grad();
    const Tensor loss = cross_entropy(net(x.to(dtype).to(device)), y.to(device));
    EXPECT_NEAR(loss.item(), losses[static_cast<size_t>(step)], limits.loss) << "step " << step;
    loss.backward();
    for (size_t i = 0; i < names.size(); ++i) {
      const Tensor gradient = parameters.at(names[i]).grad();
      ASSERT_TRUE(gradient.defined()) << names[i];
      const double norm = norms[static_cast<size_t>(step) * names.size() + i];
      EXPECT_NEAR(tarn::norm(gradient).item() / norm, 1,
                  limits.gradient * static_cast<double>(step + 1))
          << "norm of the gradient of " << names[i] << ", step " << step;
      if (step > 0) continue;
      const double error =
          relative_error(kept(gradient), file.at("grad." + names[i]).to_vector<double>());
      EXPECT_LE(error, limits.gradient) << "gradient of " << names[i];
    }
    optimizer.step();
  }
  for (const auto& [name, value] : net.state_dict()) {
    if (!is_floating(value.dtype())) continue;
    EXPECT_LE(relative_error(kept(value), file.at("end." + name).to_vector<double>()), limits.end)
        << name << " after " << steps << " steps";
  }
}

TEST(GoldenResNet, resnet8_with_padded_shortcuts_in_f32) {
  nn::models::CifarResNet net({.depth = 8, .shortcut = nn::models::Shortcut::kPad});
  check_run("resnet8_a", net, DType::kF32, {1e-5, 1e-4, 1e-4});
}

TEST(GoldenResNet, resnet8_with_projections_in_f32) {
  nn::models::CifarResNet net({.depth = 8, .shortcut = nn::models::Shortcut::kProjection});
  check_run("resnet8_b", net, DType::kF32, {1e-5, 1e-4, 1e-4});
}

TEST(GoldenResNet, resnet8_on_a_gpu) {
  if (!has_backend(DeviceType::kCUDA)) GTEST_SKIP() << "no GPU";
  const Device cuda(DeviceType::kCUDA);
  nn::models::CifarResNet padded({.depth = 8, .shortcut = nn::models::Shortcut::kPad});
  check_run("resnet8_a", padded, DType::kF32, {1e-5, 1e-4, 1e-4}, cuda);
  nn::models::CifarResNet projected({.depth = 8, .shortcut = nn::models::Shortcut::kProjection});
  check_run("resnet8_b", projected, DType::kF32, {1e-5, 1e-4, 1e-4}, cuda);
}

TEST(GoldenResNet, resnet8_in_f64) {
  nn::models::CifarResNet net({.depth = 8, .shortcut = nn::models::Shortcut::kProjection});
  check_run("resnet8_b", net, DType::kF64, {1e-10, 1e-9, 1e-9});
}

TEST(GoldenResNet, resnet18_with_the_cifar_stem_in_f32) {
  nn::models::ResNet net({.depth = 18, .classes = 10, .cifar_stem = true});
  check_run("resnet18_cifar", net, DType::kF32, {1e-5, 1e-4, 1e-4});
}

// Fifty layers on few pixels amplify the rounding of f32 to 5e-3 of a gradient, in PyTorch as here.
TEST(GoldenResNet, resnet50_with_the_imagenet_stem_in_f64) {
  nn::models::ResNet net({.depth = 50, .classes = 10});
  check_run("resnet50_imagenet", net, DType::kF64, {1e-8, 1e-8, 1e-8});
}

}  // namespace
}  // namespace tarn::golden
