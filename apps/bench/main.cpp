// main.cpp - tarn-bench: measures training steps and single operators beside the machine's limits.
//
//   tarn-bench train --model resnet18 --stem cifar --input 3x32x32 --batch 64 --json
//   tarn-bench ops --filter conv
// apps/bench/peer_torch.py takes the same flags and runs the same work in PyTorch.
#include <cstdio>
#include <iostream>

#include "tarn/apps/bench/ops.h"
#include "tarn/apps/bench/roofline.h"
#include "tarn/apps/bench/timing.h"
#include "tarn/apps/bench/train.h"
#include "tarn/apps/common/device_choice.h"
#include "tarn/apps/common/json_object.h"
#include "tarn/apps/common/main_guard.h"
#include "tarn/apps/common/options.h"
#include "tarn/core/math_mode.h"
#include "tarn/core/parallel.h"

namespace {

using namespace tarn;

std::string shape_json(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

int run_train(const bench::TrainSettings& settings, bool json) {
  const bench::TrainResult r = bench::bench_train(settings);
  if (json) {
    std::cout << apps::JsonObject()
                     .add("name", r.name)
                     .add("median_s", r.median_s)
                     .add("best_s", r.best_s)
                     .add("items_per_s", r.items_per_s)
                     .add("rss_mib", r.rss_mib)
                     .add("threads", settings.threads)
                     .add("dtype", settings.dtype)
                     .text()
              << "\n";
  } else {
    std::printf("%s: %.3f ms/step (best %.3f), %.1f items/s, %.0f MiB, %lld threads, %s\n",
                r.name.c_str(), r.median_s * 1e3, r.best_s * 1e3, r.items_per_s, r.rss_mib,
                static_cast<long long>(settings.threads), settings.dtype.c_str());
  }
  return 0;
}

void print_json(const bench::OpResult& r) {
  apps::JsonObject line;
  line.add("name", r.name).add_json("shape", shape_json(r.shape)).add("median_us", r.median_us);
  r.gflops > 0 ? line.add("gflops", r.gflops) : line.add("gbps", r.gbps);
  std::cout << line.text() << std::endl;
}

bench::Peak peak;

void print_row(const bench::OpResult& r) {
  const bool compute = r.gflops > 0;
  const double rate = compute ? r.gflops : r.gbps, limit = compute ? peak.gflops : peak.gbps;
  std::printf("%-16s %-28s %12.2f us %8.1f %s %5.0f %%\n", r.name.c_str(),
              shape_json(r.shape).c_str(), r.median_us, rate, compute ? "GFLOP/s" : "GB/s   ",
              100 * rate / limit);
  std::fflush(stdout);
}

int run_ops(const std::string& filter, const std::string& dtype, Device device, bool json) {
  if (json) {
    bench::bench_ops(filter, parse_dtype(dtype), device, print_json);
    return 0;
  }
  peak = device.is_cpu() ? bench::measure_peak() : bench::measure_peak(device);
  std::printf("measured limits of %s: %.0f GFLOP/s (%s), %.1f GB/s (copy)\n",
              apps::device_title(device).c_str(), peak.gflops,
              device.is_cpu() ? "f32, registers" : "f32, matrix product of 8192", peak.gbps);
  std::printf("%-16s %-28s %15s %16s %7s\n", "operator", "shape", "median", "rate", "of limit");
  bench::bench_ops(filter, parse_dtype(dtype), device, print_row);
  return 0;
}

void run_roofline(const bench::RooflineSettings& settings) {
  bench::print_roofline(bench::account_step(settings), settings);
}

int run(int argc, char** argv) {
  std::string command = "train", filter, machine = "h200", ptxas;
  bool tf32 = false;
  bench::TrainSettings s;
  bool json = false;
  apps::Options options("tarn-bench",
                        "Measures training steps (train) and operators (ops); accounts for a step "
                        "on a GPU (roofline).");
  options.positional("COMMAND", &command, "train, ops or roofline")
      .choices({"train", "ops", "roofline"})
      .required();
  options.group("train");
  options.add("--model", &s.model, "the network").choices({"resnet18", "resnet50", "mlp"});
  options.add("--stem", &s.stem, "of a ResNet").choices({"cifar", "imagenet"});
  options.add("--input", &s.input, "CxHxW of one image").value_name("CxHxW");
  options.add("--batch", &s.batch, "images per step").at_least(1);
  options.add("--steps", &s.steps, "timed steps; 0: by model").at_least(0);
  options.add("--profile", &s.profile, "print the time spent per operation afterwards");
  options.group("ops");
  options.add("--filter", &filter, "only operators whose name contains this");
  options.group("roofline (with --model, --stem, --input, --batch, --dtype)");
  options.add("--machine", &machine, "whose limits").choices({"h200", "h100", "a100"});
  options.add("--ptxas", &ptxas, "instead: registers and occupancy of each kernel, from this log")
      .value_name("FILE");
  options.group("All");
  options.add("--tf32", &tf32, "on a GPU: products on tensor cores, inputs rounded to TF32");
  options.add("--device", &s.device, "cpu, or cuda[:i]").value_name("DEVICE");
  options.add("--dtype", &s.dtype, "of the numbers").choices({"float32", "bfloat16"});
  options.add("--threads", &s.threads, "threads of the kernels").at_least(1);
  options.add("--json", &json, "one JSON object per line instead of text");
  if (!options.parse(argc, argv)) return 0;
  set_num_threads(static_cast<int>(s.threads));
  set_allow_tf32(tf32);
  if (command == "roofline") {
    if (ptxas.empty()) {
      run_roofline({s.model, s.stem, s.input, s.dtype, machine, s.batch, tf32});
    } else {
      bench::print_ptxas(ptxas);
    }
    return 0;
  }
  return command == "ops" ? run_ops(filter, s.dtype, apps::choose_device(s.device, std::cerr), json)
                          : run_train(s, json);
}

}  // namespace

int main(int argc, char** argv) {
  return apps::main_guard("tarn-bench", [&] { return run(argc, argv); });
}
