// nn_golden_layers_test.cpp - convolutions, pools, losses and batch norms against PyTorch, in f64.
#include "golden/torch_ops.h"
#include <gtest/gtest.h>

namespace tarn::golden {
namespace {

TEST(GoldenLayers, values_and_gradients_agree_with_pytorch) {
  const File file("layers");
  const OpTable table = torch_ops();
  for (const Json& entry : file.json("cases")) {
    const Case c(file, entry);
    SCOPED_TRACE(entry.value("note", std::string()));
    ASSERT_TRUE(table.count(c.op())) << c.op();
    try {
      check_case(c, table.at(c.op()));
    } catch (const std::exception& error) {
      ADD_FAILURE() << c.id() << ": " << error.what();
    }
  }
}

/// One step of a batch norm trajectory: outputs, gradients, running statistics.
void check_batch_norm_step(const File& file, const Json& entry, size_t step, const Tensor& mean,
                           const Tensor& var) {
  const std::string key = entry.at("id"), at = key + "/" + std::to_string(step) + "/";
  const Json& options = entry.at("options");
  const bool affine = options.value("affine", true);
  const bool tracked = options.value("track_running_stats", true);
  const bool training = entry.at("training")[step].get<bool>() || !tracked;
  // momentum None: the cumulative mean of the batches.
  const bool cumulative = options.contains("momentum") && options.at("momentum").is_null();
  const double momentum =
      cumulative ? 1.0 / static_cast<double>(step + 1) : options.value("momentum", 0.1);
  Tensor x = file.at(at + "x").clone().set_requires_grad(), weight, bias;
  if (affine) {
    weight = file.at(key + "/weight").clone().set_requires_grad();
    bias = file.at(key + "/bias").clone().set_requires_grad();
  }
  const Tensor out =
      batch_norm(x, mean, var, weight, bias, training, momentum, options.value("eps", 1e-5));
  out.backward(file.at(at + "cot"));
  std::map<std::string, Tensor> got = {{"out", out}, {"grad_x", x.grad()}};
  if (affine) got["grad_weight"] = weight.grad(), got["grad_bias"] = bias.grad();
  if (tracked) got["running_mean"] = mean, got["running_var"] = var;
  for (const auto& [name, tensor] : got) {
    EXPECT_TRUE(near(tensor, file.at(at + name), {1e-9, 1e-11})) << at << name;
  }
}

TEST(GoldenLayers, batch_norm_follows_pytorch_through_training_and_evaluation) {
  const File file("layers");
  for (const Json& entry : file.json("batch_norm")) {
    Tensor mean, var;
    if (entry.at("options").value("track_running_stats", true)) {
      const Shape sizes{entry.at("features").get<int64_t>()};
      mean = zeros(sizes, {.dtype = DType::kF64});
      var = ones(sizes, {.dtype = DType::kF64});
    }
    for (size_t step = 0; step < entry.at("training").size(); ++step) {
      check_batch_norm_step(file, entry, step, mean, var);
    }
  }
}

}  // namespace
}  // namespace tarn::golden
