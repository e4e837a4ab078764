// cuda_optim_test.cpp - optimizers on the GPU take the CPU's steps, bit by bit.
#include "gpu_compare.h"
#include "numeric_tools.h"

#include "tarn/core/kernels.h"
#include "tarn/optim/adam.h"
#include "tarn/optim/ema.h"
#include "tarn/optim/rmsprop.h"
#include "tarn/optim/sgd.h"

namespace tarn {
namespace {

using testing::random_tensor;

constexpr DType kFloats[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};

/// Sizes that leave a rest behind vectors and chunks; more tensors than one launch takes.
std::vector<Shape> many_sizes() {
  std::vector<Shape> sizes = {{1}, {3}, {64}, {4096}, {4097}, {3, 5, 7}, {12345}, {0}};
  for (int i = 0; i < 150; ++i) sizes.push_back({1 + i % 11});
  return sizes;
}

/// On a machine without fused multiply-add the CPU rounds twice where the GPU rounds once.
double steps_ulps() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("fma") ? 0 : 64;
#else
  return 0;
#endif
}

/// Ten steps of an optimizer over the same parameters and gradients on both devices.
template <class Make>
void check_steps(const std::string& what, DType dtype, Make make) {
  std::vector<Tensor> cpu, gpu;
  const std::vector<Shape> sizes = many_sizes();
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Tensor p = random_tensor(sizes[i], i + 1, dtype);
    cpu.push_back(p);
    gpu.push_back(raw::to(p, kCuda));
    cpu.back().set_requires_grad(true);
    gpu.back().set_requires_grad(true);
  }
  const auto first = make(cpu), second = make(gpu);
  for (int step = 0; step < 10; ++step) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const Tensor g = random_tensor(sizes[i], 1000 * (step + 1) + i, dtype);
      cpu[i].set_grad(g);
      gpu[i].set_grad(raw::to(g, kCuda));
    }
    const double grad_scale = step % 2 ? 0.37 : 1;
    first->step(grad_scale);
    second->step(grad_scale);
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    expect_agree(gpu[i].detach(), cpu[i].detach(), steps_ulps(),
                 what + ", parameter " + std::to_string(i), 1.0);
  }
}

/// In every dtype: halves have f32 masters.
template <class O, class Options>
void check_options(const std::string& what, const Options& options) {
  for (DType dtype : kFloats) {
    check_steps(what, dtype, [&](const std::vector<Tensor>& params) {
      return std::make_unique<O>(params, options);
    });
  }
}

TEST(CudaOptim, ten_steps_of_sgd_are_the_cpus) {
  TARN_NEEDS_GPU();
  using optim::SGD, optim::SGDOptions;
  check_options<SGD>("plain", SGDOptions{.lr = 0.1, .weight_decay = 0.01});
  check_options<SGD>("momentum", SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.1});
  check_options<SGD>(
      "nesterov",
      SGDOptions{
          .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true, .maximize = true});
}

TEST(CudaOptim, ten_steps_of_adam_are_the_cpus) {
  TARN_NEEDS_GPU();
  using optim::Adam, optim::AdamOptions, optim::AdamW, optim::AdamWOptions;
  check_options<AdamW>("adamw", AdamWOptions{.lr = 0.01, .weight_decay = 0.1});
  check_options<Adam>("adam", AdamOptions{.lr = 0.01, .weight_decay = 0.1});
  check_options<Adam>("amsgrad", AdamOptions{.lr = 0.01, .amsgrad = true});
}

TEST(CudaOptim, ten_steps_of_rmsprop_and_adagrad_are_the_cpus) {
  TARN_NEEDS_GPU();
  using optim::RMSprop, optim::RMSpropOptions, optim::Adagrad, optim::AdagradOptions;
  for (bool centered : {false, true}) {
    for (double momentum : {0.0, 0.9}) {
      check_options<RMSprop>(
          "rmsprop", RMSpropOptions{.lr = 0.01, .momentum = momentum, .centered = centered});
    }
  }
  check_options<Adagrad>("adagrad", AdagradOptions{.lr = 0.1, .weight_decay = 0.01});
}

TEST(CudaOptim, infinite_and_nan_values_take_the_cpus_steps) {
  TARN_NEEDS_GPU();
  using namespace optim;  // NOLINT: a list of all of them
  const double inf = INFINITY;
  const auto check = [&](const std::string& what, auto make) {
    Tensor cpu = typed({inf, -inf, NAN, 1, 1, 1}, DType::kF32), gpu = raw::to(cpu, kCuda);
    const Tensor g = typed({1, 1, 1, inf, -inf, NAN}, DType::kF32);
    cpu.set_requires_grad();
    gpu.set_requires_grad();
    const auto first = make({cpu}), second = make({gpu});
    for (int step = 0; step < 3; ++step) {
      cpu.set_grad(g);
      gpu.set_grad(raw::to(g, kCuda));
      first->step();
      second->step();
    }
    expect_agree(gpu.detach(), cpu.detach(), 0, what);
    EXPECT_EQ(gpu.to_vector<double>()[0], inf) << what;
  };
  using List = std::vector<Tensor>;
  check("sgd", [](const List& p) { return std::make_unique<SGD>(p); });
  check("momentum", [](const List& p) {
    return std::make_unique<SGD>(p, SGDOptions{.momentum = .9, .nesterov = true});
  });
  check("adam", [](const List& p) { return std::make_unique<Adam>(p); });
  check("adamw",
        [](const List& p) { return std::make_unique<AdamW>(p, AdamWOptions{.weight_decay = 0}); });
  check("rmsprop", [](const List& p) {
    return std::make_unique<RMSprop>(p, RMSpropOptions{.centered = true});
  });
  check("adagrad", [](const List& p) { return std::make_unique<Adagrad>(p); });
}

TEST(CudaOptim, steps_after_a_gradient_on_another_device_was_refused_are_right) {
  TARN_NEEDS_GPU();
  for (const Device device : {kCPU, kCuda}) {
    Tensor a = zeros({1}, {.device = device}), b = zeros({1}, {.device = device});
    a.set_requires_grad();
    b.set_requires_grad();
    optim::SGD sgd({a, b}, {.lr = 1});
    const auto set_grads = [&](double scale, Device of_b) {
      a.set_grad(full({1}, scale, {.device = device}));
      b.set_grad(full({1}, 10 * scale, {.device = of_b}));
    };
    set_grads(1, device);
    sgd.step();
    EXPECT_THROW(set_grads(1, device == kCPU ? kCuda : kCPU), DeviceError);
    set_grads(2, device);
    sgd.step();
    EXPECT_EQ(a.item(), -3);
    EXPECT_EQ(b.item(), -30);
  }
}

TEST(CudaOptim, averages_of_tensors_on_several_devices_are_each_its_own) {
  TARN_NEEDS_GPU();
  TensorDict tensors;
  for (const Device device : available_devices()) {
    tensors.add(device.str(), zeros({3}, {.device = device}));
    tensors.add(device.str() + " in f64", zeros({2}, {.dtype = DType::kF64, .device = device}));
  }
  optim::Ema ema(tensors, {.decay = .5});
  double value = 0;
  for (auto& [name, x] : tensors) x.fill_(++value);
  ema.update();
  value = 0;
  for (const auto& [name, x] : tensors) {
    ++value;
    for (double v : ema.state_dict()[name].to_vector<double>()) EXPECT_EQ(v, value / 2) << name;
  }
}

/// The table's slots, on tensors of all dtypes at once.
std::vector<Both> mixed_tensors() {
  std::vector<Both> all;
  uint64_t seed = 1;
  for (const Shape& sizes : many_sizes()) {
    all.emplace_back(random_tensor(sizes, seed, kFloats[seed % 4]));
    ++seed;
  }
  // Unaligned: one element into a storage.
  const Both wide(random_tensor({5001}, 77, DType::kF32));
  all.push_back(wide.map([](const Tensor& t) { return raw::slice(t, 0, 1, 5001); }));
  return all;
}

std::vector<Tensor> side(const std::vector<Both>& all, bool gpu) {
  std::vector<Tensor> list;
  for (const Both& b : all) list.push_back(gpu ? b.gpu : b.cpu);
  return list;
}

/// f(kernels, tensors, stream) on both devices.
template <class F>
void on_both_devices(const std::vector<Both>& all, F f) {
  f(kernels(kCPU).optim, side(all, false), current_stream(kCPU));
  f(kernels(kCuda).optim, side(all, true), current_stream(kCuda));
}

TEST(CudaOptim, scale_clamp_and_lerp_give_the_cpus_bits) {
  TARN_NEEDS_GPU();
  const std::vector<Both> all = mixed_tensors();
  std::vector<Both> others;
  for (const Both& b : all) {
    others.emplace_back(random_tensor(b.cpu.sizes(), 5, b.cpu.dtype()));
  }
  on_both_devices(all, [](const OptimKernels& k, const std::vector<Tensor>& t, Stream stream) {
    k.scale(t, 1.7, stream);
    k.clamp(t, 0.8, stream);
  });
  kernels(kCPU).optim.lerp(side(all, false), side(others, false), 0.3, current_stream(kCPU));
  kernels(kCuda).optim.lerp(side(all, true), side(others, true), 0.3, current_stream(kCuda));
  for (size_t i = 0; i < all.size(); ++i) {
    expect_agree(all[i], steps_ulps(), "tensor " + std::to_string(i), 1.0);
  }
}

void check_norms(const std::vector<Both>& all, double ulps) {
  const int64_t n = static_cast<int64_t>(all.size());
  for (double p : {1.0, 2.0, static_cast<double>(INFINITY)}) {
    const Tensor cpu = full({n}, -1, {.dtype = DType::kF64});
    const Tensor gpu = full({n}, -1, {.dtype = DType::kF64, .device = kCuda});
    kernels(kCPU).optim.norms(side(all, false), p, cpu, current_stream(kCPU));
    kernels(kCuda).optim.norms(side(all, true), p, gpu, current_stream(kCuda));
    expect_agree(gpu, cpu, std::isinf(p) ? 0 : ulps, tarn::detail::concat("p = ", p));
  }
}

TEST(CudaOptim, norms_agree_with_the_cpu) {
  TARN_NEEDS_GPU();
  check_norms(mixed_tensors(), 16);
}

TEST(CudaOptim, norms_keep_nan_and_do_not_leave_the_range_of_f64) {
  TARN_NEEDS_GPU();
  const double inf = INFINITY;
  std::vector<Both> all;
  for (const std::vector<double>& values : {std::vector<double>{1e300, -1e300, 1, 1e-300},
                                            {3e-310, 4e-310},
                                            {1e-200, 2e-200},
                                            {0, -0.0},
                                            {inf, 1},
                                            {NAN, 1e300},
                                            {1, NAN, 2},
                                            {NAN, inf},
                                            {1e-170, 1e-160, 1e160, 2e160},
                                            {4e-324}}) {
    all.emplace_back(typed(values, DType::kF64));
    all.emplace_back(typed(values, DType::kF32));
  }
  check_norms(all, 16);
}

}  // namespace
}  // namespace tarn
