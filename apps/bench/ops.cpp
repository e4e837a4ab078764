// ops.cpp - the cases of the operator benchmark; the same ones as in peer_torch.py.
#include "tarn/apps/bench/ops.h"

#include <cmath>
#include <functional>
#include <set>

#include "tarn/apps/bench/filter.h"
#include "tarn/apps/bench/timing.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/allocator.h"
#include "tarn/core/backend.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_attention.h"
#include "tarn/core/raw_conv.h"

namespace tarn::bench {
namespace {

using Inputs = std::vector<Tensor>;
using Sizes = std::vector<int64_t>;

// A case computes from its inputs, in whatever dtype they have, so that it can check itself.
struct Case {
  std::string name;
  Sizes shape;
  std::function<Inputs()> inputs;  // f32; cast to the dtype that is timed
  std::function<Tensor(const Inputs&)> run;
  double elements_moved = 0;
  double flops = 0;
};

// Size of the difference to the f64 result, relative to the largest value of that result.
double relative_error(const Tensor& got, const Tensor& want) {
  const std::vector<double> a = got.to_vector<double>(), b = want.to_vector<double>();
  double worst = 0, scale = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(a[i] - b[i]));
    scale = std::max(scale, std::abs(b[i]));
  }
  return scale > 0 ? worst / scale : worst;
}

void check(const Case& c, const std::vector<Tensor>& inputs, DType dtype) {
  // The reference starts from the rounded inputs, so only the operation's own error counts. Very
  // large cases are covered by the smaller ones of the same name.
  int64_t work = static_cast<int64_t>(c.elements_moved);
  if (work > (4 << 20) || c.flops > 3e8) return;
  std::vector<Tensor> wide;
  for (const Tensor& x : inputs) wide.push_back(x.to(DType::kF64));
  const double error = relative_error(c.run(inputs), c.run(wide));
  const double bound = dtype == DType::kF32 ? 2e-5 : 2e-2;
  TARN_CHECK(error <= bound, "bench: ", c.name, " ", Shape(c.shape), " in ", dtype, " is off by ",
             error, " relative to f64; expected at most ", bound);
}

using Cases = std::vector<Case>;

// Normal numbers of these shapes.
std::function<Inputs()> normal(std::vector<Sizes> shapes) {
  return [shapes = std::move(shapes)] {
    Inputs inputs;
    for (const Sizes& s : shapes) inputs.push_back(randn(s));
    return inputs;
  };
}

void add_elementwise(Cases& cases) {
  for (int64_t n : {1 << 16, 1 << 20, 1 << 24}) {
    const double m = static_cast<double>(n);
    const Sizes s{n};
    const auto one = normal({s}), two = normal({s, s});
    cases.push_back({"add", s, two, [](const auto& x) { return x[0] + x[1]; }, 3 * m});
    cases.push_back({"mul", s, two, [](const auto& x) { return x[0] * x[1]; }, 3 * m});
    cases.push_back({"exp", s, one, [](const auto& x) { return exp(x[0]); }, 2 * m});
    cases.push_back({"gelu", s, one, [](const auto& x) { return gelu(x[0]); }, 2 * m});
    cases.push_back({"sum", s, one, [](const auto& x) { return sum(x[0]); }, m});
  }
}

void add_rows(Cases& cases) {
  const std::pair<int64_t, int64_t> sizes[] = {{512, 768}, {4096, 1024}, {256, 50257}};
  for (const auto& [rows, cols] : sizes) {
    const Sizes s{rows, cols}, row{cols};
    const double moved = 2.0 * static_cast<double>(rows * cols);
    cases.push_back(
        {"softmax", s, normal({s}), [](const auto& x) { return softmax(x[0], -1); }, moved});
    cases.push_back({"layer_norm", s, normal({s, row, row}),
                     [n = cols](const auto& x) { return layer_norm(x[0], {n}, x[1], x[2]); },
                     moved});
  }
}

void add_batch_norm(Cases& cases) {
  const Sizes sizes[] = {{64, 64, 32, 32}, {64, 512, 4, 4}, {8, 64, 112, 112}};
  for (const Sizes& s : sizes) {
    const auto inputs = [s] {
      return Inputs{randn(s).contiguous(MemoryFormat::kChannelsLast), ones({s[1]}), zeros({s[1]})};
    };
    cases.push_back({"batch_norm", s, inputs,
                     [](const auto& x) {
                       return batch_norm(x[0], Tensor(), Tensor(), x[1], x[2], true, 0.1, 1e-5);
                     },
                     2.0 * static_cast<double>(Shape(s).numel())});
  }
}

void add_matmul(Cases& cases) {
  const std::array<int64_t, 3> sizes[] = {{64, 64, 64},       {256, 256, 256}, {1024, 1024, 1024},
                                          {2048, 2048, 2048}, {32, 784, 128},  {256, 768, 3072}};
  for (const auto& [m, k, n] : sizes) {
    const Sizes left{m, k}, right{k, n};
    cases.push_back({"matmul",
                     {m, k, n},
                     normal({left, right}),
                     [](const auto& x) { return matmul(x[0], x[1]); },
                     0,
                     2.0 * static_cast<double>(m * k * n)});
  }
}

void add_conv(Cases& cases) {
  // n, c, h = w, k, kernel, stride
  const std::array<int64_t, 6> sizes[] = {{64, 64, 32, 64, 3, 1},  {64, 128, 16, 128, 3, 1},
                                          {64, 256, 8, 256, 3, 1}, {64, 512, 4, 512, 3, 1},
                                          {64, 64, 32, 128, 3, 2}, {8, 64, 56, 256, 1, 1},
                                          {8, 3, 224, 64, 7, 2}};
  for (const auto& [n, c, hw, k, kernel, stride] : sizes) {
    const int64_t pad = kernel / 2, out = (hw + 2 * pad - kernel) / stride + 1;
    const Conv2dOptions options{.stride_h = stride, .stride_w = stride, .pad_h = pad, .pad_w = pad};
    const Sizes image{n, c, hw, hw}, kernels{k, c, kernel, kernel}, result{n, k, out, out};
    const auto forward = [=] {
      return Inputs{randn(image).contiguous(MemoryFormat::kChannelsLast), randn(kernels)};
    };
    const auto backward = [=] {
      Inputs inputs = forward();
      inputs.push_back(randn(result).contiguous(MemoryFormat::kChannelsLast));
      return inputs;
    };
    const double flops = 2.0 * static_cast<double>(n * k * out * out * c * kernel * kernel);
    const Sizes shape{n, c, hw, hw, k, kernel, stride};
    cases.push_back({"conv2d", shape, forward,
                     [options](const auto& in) { return conv2d(in[0], in[1], {}, options); }, 0,
                     flops});
    cases.push_back(
        {"conv2d_backward", shape, backward,
         [options](const auto& in) {
           raw::conv2d_backward_data(in[2], in[1], in[0].sizes(), options);
           return raw::conv2d_backward_weight(in[0], in[2], in[1].sizes(), options, false).first;
         },
         0, 2 * flops});
  }
}

void add_attention(Cases& cases) {
  // The last three show in their MiB that memory grows with the length, not with its square.
  const std::array<int64_t, 4> sizes[] = {
      {4, 6, 256, 64}, {1, 12, 1024, 64}, {1, 1, 2048, 64}, {1, 1, 4096, 64}, {1, 1, 8192, 64}};
  for (const auto& [b, h, t, d] : sizes) {
    const Sizes s{b, h, t, d};
    const double flops = 2.0 * static_cast<double>(b * h * t * t * d);  // causal: half the scores
    cases.push_back({"attention", s, normal({s, s, s}),
                     [](const auto& x) {
                       return scaled_dot_product_attention(x[0], x[1], x[2], {.causal = true});
                     },
                     0, flops});
    const double scale = 1 / std::sqrt(static_cast<double>(d));
    cases.push_back(
        {"attention_step",  // forward and backward
         s, normal({s, s, s, s}),
         [scale](const auto& x) {
           const AttentionCall call = raw::attention_call(x[0], x[1], x[2], {}, scale, true, 0, {});
           const raw::AttentionResult r = raw::scaled_dot_product_attention(call);
           const Tensor gq = empty_like(x[0]), gk = empty_like(x[1]), gv = empty_like(x[2]);
           raw::scaled_dot_product_attention_backward(call, r.out, r.logsumexp, x[3], gq, gk, gv);
           return gk;
         },
         0, 3.5 * flops});
  }
}

// The most that a run holds beyond what is held now.
double run_mib(const std::function<void()>& run, Device device) {
  const int64_t before = memory_stats(device).allocated;
  reset_peak_memory(device);
  run();
  synchronize(device);
  return static_cast<double>(memory_stats(device).peak_allocated - before) / (1 << 20);
}

OpResult time_case(const Case& c, DType dtype, Device device) {
  std::vector<Tensor> inputs;
  for (const Tensor& x : c.inputs()) inputs.push_back(x.to(dtype).to(device));
  check(c, inputs, dtype);
  const double seconds = time_call([&] { c.run(inputs); }, [&] { synchronize(device); });
  OpResult r{c.name, c.shape, seconds * 1e6};
  r.gbps = c.elements_moved * static_cast<double>(item_size(dtype)) / seconds / 1e9;
  r.gflops = c.flops / seconds / 1e9;
  r.mib = run_mib([&] { c.run(inputs); }, device);
  return r;
}

constexpr const char *kTiny = "add_16", *kTinyRecorded = "add_16_recorded";

void time_tiny(const std::string& filter, Device device, std::vector<OpResult>& results,
               void (*report)(const OpResult&)) {
  const Tensor a = randn({16}).to(device), b = randn({16}).to(device);
  Tensor tracked = a.clone();
  tracked.set_requires_grad();
  const auto run = [&](const char* name, const Tensor& x, bool record) {
    if (!matches(name, filter)) return;
    const GradModeGuard mode(record);
    const double seconds = time_call([&] { (void)(x + b); }, [&] { synchronize(device); });
    results.push_back({name, {16}, seconds * 1e6, 3 * 16 * 4 / seconds / 1e9, 0});
    if (report) report(results.back());
  };
  run(kTiny, a, false);
  run(kTinyRecorded, tracked, true);
}

Cases all_cases() {
  Cases cases;
  add_elementwise(cases);
  add_rows(cases);
  add_batch_norm(cases);
  add_matmul(cases);
  add_conv(cases);
  add_attention(cases);
  return cases;
}

}  // namespace

std::vector<std::string> op_names() {
  std::set<std::string> names{kTiny, kTinyRecorded};
  for (const Case& c : all_cases()) names.insert(c.name);
  return {names.begin(), names.end()};
}

std::vector<OpResult> bench_ops(const std::string& filter, DType dtype, Device device,
                                void (*report)(const OpResult&)) {
  const NoGradGuard no_grad;
  std::vector<OpResult> results;
  for (const Case& c : all_cases()) {
    if (!matches(c.name, filter)) continue;
    results.push_back(time_case(c, dtype, device));
    if (report) report(results.back());
  }
  time_tiny(filter, device, results, report);
  return results;
}

}  // namespace tarn::bench
