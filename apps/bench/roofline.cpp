// roofline.cpp - time on paper: for each kernel the larger of bytes / bandwidth and FLOPs / peak.
#include "tarn/apps/bench/roofline.h"

#include <algorithm>
#include <cstdio>

#include "tarn/apps/bench/train.h"
#include "tarn/autograd/functions.h"
#include "tarn/optim/sgd.h"

namespace tarn::bench {
namespace {

// NVIDIA's data sheets; GFLOP/s and GB/s.
constexpr Machine kMachines[] = {
    {.name = "h200", .gbps = 4800, .f32 = 66900, .f64 = 33500, .tf32 = 494700, .half = 989400},
    {.name = "h100", .gbps = 3350, .f32 = 66900, .f64 = 33500, .tf32 = 494700, .half = 989400},
    {.name = "a100", .gbps = 2039, .f32 = 19500, .f64 = 9700, .tf32 = 156000, .half = 312000},
};

double peak_flops(const Machine& m, const Cost& cost, DType dtype, bool tf32) {
  if (dtype == DType::kF64) return m.f64 * 1e9;
  if (!cost.products) return m.f32 * 1e9;
  if (is_half(dtype)) return m.half * m.product_share * 1e9;
  return (tf32 ? m.tf32 : m.f32) * m.product_share * 1e9;
}

RooflineRow row_of(const std::string& slot, DType dtype, const Cost& cost, const Machine& m,
                   bool tf32) {
  RooflineRow row{slot + " " + dtype_name(dtype), cost};
  const double memory = cost.bytes / (m.gbps * m.memory_share * 1e9);
  const double compute = cost.flops / peak_flops(m, cost, dtype, tf32);
  row.memory_bound = memory >= compute;
  row.seconds = std::max({memory, compute, static_cast<double>(cost.calls) * m.launch_us * 1e-6});
  return row;
}

}  // namespace

const Machine& find_machine(const std::string& name) {
  std::string known;
  for (const Machine& m : kMachines) {
    if (name == m.name) return m;
    known += (known.empty() ? "" : ", ") + std::string(m.name);
  }
  detail::fail<ValueError>("roofline: --machine must be one of ", known, "; got '", name, "'");
}

Roofline account_step(const RooflineSettings& s) {
  const Machine& machine = find_machine(s.machine);
  TARN_CHECK_AS(ValueError, !s.model.starts_with("gpt"),
                "roofline: accounts for resnet18, resnet50 and mlp; got ", s.model);
  DryRun dry;
  TrainWork work =
      make_work({.model = s.model, .stem = s.stem, .input = s.input, .batch = s.batch});
  if (s.dtype == "bfloat16") {
    work.net->to(DType::kBF16);
    work.x = work.x.to(DType::kBF16);
  }
  optim::SGD sgd(work.net->parameters(), {.lr = 0.01, .momentum = work.momentum});
  Roofline result;
  result.name = work.name;
  for (int pass = 0; pass < 2; ++pass) {  // the first makes the momentum buffers
    dry.reset();
    sgd.zero_grad();
    class_loss(*work.net, work.x, work.y).backward();
    sgd.step();
  }
  for (const auto& [key, cost] : dry.account()) {
    result.rows.push_back(row_of(key.first, key.second, cost, machine, s.tf32));
    result.seconds += result.rows.back().seconds;
  }
  std::sort(result.rows.begin(), result.rows.end(),
            [](const RooflineRow& a, const RooflineRow& b) { return a.seconds > b.seconds; });
  return result;
}

void print_roofline(const Roofline& roofline, const RooflineSettings& s) {
  const Machine& m = find_machine(s.machine);
  std::printf("%s %s%s on %s, on paper\n\n", roofline.name.c_str(), s.dtype.c_str(),
              s.tf32 ? " (TF32)" : "", m.name);
  std::printf("%-34s %6s %9s %10s %10s  %-8s %9s %6s\n", "kernel", "calls", "GB", "GFLOP",
              "FLOP/byte", "bound by", "ms", "share");
  Cost all;
  for (const RooflineRow& row : roofline.rows) {
    const Cost& c = row.cost;
    all += c;
    std::printf("%-34s %6lld %9.3f %10.1f %10.1f  %-8s %9.3f %5.1f %%\n", row.kernel.c_str(),
                static_cast<long long>(c.calls), c.bytes / 1e9, c.flops / 1e9,
                c.flops / std::max(c.bytes, 1.0), row.memory_bound ? "memory" : "compute",
                row.seconds * 1e3, 100 * row.seconds / roofline.seconds);
  }
  std::printf("%-34s %6lld %9.3f %10.1f %10s  %-8s %9.3f\n\n", "one step",
              static_cast<long long>(all.calls), all.bytes / 1e9, all.flops / 1e9, "", "",
              roofline.seconds * 1e3);
  std::printf("%.0f items/s. Fusion saves %lld kernels and %.2f GB (%.3f ms) a step.\n",
              static_cast<double>(s.batch) / roofline.seconds,
              static_cast<long long>(all.saved_calls), all.saved_bytes / 1e9,
              all.saved_bytes / (m.gbps * m.memory_share * 1e9) * 1e3);
  std::printf(
      "Assumed: every operand moves once; %.0f %% of %.0f GB/s for what is bound by memory; %.0f "
      "%% "
      "of\n%.0f TFLOP/s (f32), %.0f (TF32), %.0f (halves) in products; no kernel shorter than %.0f "
      "us; nothing overlaps.\n",
      100 * m.memory_share, m.gbps, 100 * m.product_share, m.f32 / 1e3, m.tf32 / 1e3, m.half / 1e3,
      m.launch_us);
}

}  // namespace tarn::bench
