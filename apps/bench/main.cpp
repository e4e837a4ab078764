// main.cpp - tarn-bench: measures training steps and single operators beside the machine's limits.
//
//   tarn-bench train --model resnet18 --stem cifar --input 3x32x32 --batch 64 --json
//   tarn-bench dist --model gpt --batch 12
//   tarn-bench generate --model gpt2
//   tarn-bench ops --filter conv
// apps/bench/peer_torch.py takes the same flags and runs the same work in PyTorch.
#include <cmath>
#include <cstdio>
#include <iostream>

#include "tarn/apps/bench/collectives.h"
#include "tarn/apps/bench/dist.h"
#include "tarn/apps/bench/filter.h"
#include "tarn/apps/bench/generate.h"
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
#include "tarn/dist/environment.h"
#include "tarn/dist/local_group.h"
#include "tarn/dist/nccl_group.h"

namespace {

using namespace tarn;

std::string shape_json(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

int run_train(const bench::TrainSettings& settings, const apps::Ranks& ranks, bool json) {
  const bench::TrainResult r = bench::bench_train(settings, ranks);
  if (!ranks.main()) return 0;
  if (json) {
    std::cout << apps::JsonObject()
                     .add("name", r.name)
                     .add("median_s", r.median_s)
                     .add("best_s", r.best_s)
                     .add("items_per_s", r.items_per_s)
                     .add("rss_mib", r.rss_mib)
                     .add("ranks", ranks.size())
                     .add("comm_s", r.comm_s)
                     .add("exposed_s", r.exposed_s)
                     .add("first_mib", r.first_mib)
                     .add("other_mib", r.other_mib)
                     .add("threads", settings.threads)
                     .add("dtype", settings.dtype)
                     .text()
              << "\n";
  } else {
    std::printf("%s: %.3f ms/step (best %.3f), %.1f items/s, %.0f MiB, %lld threads, %s%s\n",
                r.name.c_str(), r.median_s * 1e3, r.best_s * 1e3, r.items_per_s, r.rss_mib,
                static_cast<long long>(settings.threads), settings.dtype.c_str(),
                settings.tf32 ? " (TF32)" : "");
    if (settings.replicas > 0 && !std::isnan(r.comm_s)) {
      std::printf("%lld replicas: parameters and gradients %.3f ms/step on their way\n",
                  static_cast<long long>(settings.replicas), r.comm_s * 1e3);
    }
    if (ranks.size() > 1) {
      std::printf("%d ranks: gradients %.3f ms/step in the transport", ranks.size(),
                  r.comm_s * 1e3);
      if (!std::isnan(r.exposed_s)) {
        std::printf(", %.0f %% hidden", 100 * bench::hidden_share(r.comm_s, r.exposed_s));
      }
      std::printf("\n");
    }
  }
  return 0;
}

void print_collectives(dist::ProcessGroup& group, const bench::CollectiveSettings& settings,
                       bool json) {
  if (group.rank() == 0 && !json) {
    std::printf("%d ranks over %s, tensors on %s, f32, sum; values checked\n", group.size(),
                group.transport(), settings.device.is_cpu() ? "the cpu" : "GPUs");
    std::printf("%-16s %12s %12s %10s %10s\n", "collective", "bytes", "time", "algbw", "busbw");
  }
  bench::bench_collectives(group, settings, [&](const bench::CollectiveResult& r) {
    if (json) {
      std::cout << apps::JsonObject()
                       .add("name", r.name)
                       .add("bytes", r.bytes)
                       .add("ranks", group.size())
                       .add("transport", group.transport())
                       .add("device", settings.device.is_cpu() ? "cpu" : "cuda")
                       .add("us", r.seconds * 1e6)
                       .add("algbw_gbps", r.algbw)
                       .add("busbw_gbps", r.busbw)
                       .text()
                << std::endl;
    } else {
      std::printf("%-16s %12lld %9.1f us %5.2f GB/s %5.2f GB/s\n", r.name.c_str(),
                  static_cast<long long>(r.bytes), r.seconds * 1e6, r.algbw, r.busbw);
      std::fflush(stdout);
    }
  });
}

// Threads of this process, each with a GPU.
void run_gpu_threads(int count, const bench::CollectiveSettings& settings, bool json) {
  if (has_backend(DeviceType::kCUDA)) {
    const int gpus = backend(DeviceType::kCUDA).device_count();
    if (count > gpus) {
      throw apps::UsageError("--ranks " + std::to_string(count) +
                             ": every rank needs a GPU of its own, and this machine has " +
                             std::to_string(gpus));
    }
  }
  auto cpu = dist::make_local_groups(count, {.name = "world cpu"});
  const auto make = [&](const std::shared_ptr<dist::Store>& store, int r) {
    return dist::make_nccl_group(
        store, r, count,
        {.device = Device(DeviceType::kCUDA, r), .cpu = std::move(cpu[static_cast<size_t>(r)])});
  };
  dist::run_threads(count, make, [&](dist::ProcessGroup& group) {
    bench::CollectiveSettings own = settings;
    own.device = Device(DeviceType::kCUDA, group.rank());
    print_collectives(group, own, json);
  });
}

// Under a launcher its ranks; else threads of this process. Over NCCL each has a GPU.
int run_collectives(bench::CollectiveSettings settings, const apps::Ranks& ranks, int local_ranks,
                    const std::string& transport, Device device, bool json) {
  if (ranks.group()) {
    if (std::string(ranks.group()->transport()) == "nccl") {
      settings.device = device.is_cuda()
                            ? device
                            : Device(DeviceType::kCUDA, dist::read_environment().local_rank);
    }
    print_collectives(*ranks.group(), settings, json);
    return 0;
  }
  if (transport == "host" || transport == "gloo") {
    throw apps::UsageError("--transport " + transport + " is between processes; start them: " +
                           "tarn-run --nproc 2 tarn-bench collectives --transport " + transport);
  }
  if (transport == "nccl" || device.is_cuda()) {
    run_gpu_threads(local_ranks, settings, json);
  } else {
    dist::run_local(local_ranks,
                    [&](dist::ProcessGroup& group) { print_collectives(group, settings, json); });
  }
  return 0;
}

void print_json(const bench::OpResult& r) {
  apps::JsonObject line;
  line.add("name", r.name).add_json("shape", shape_json(r.shape)).add("median_us", r.median_us);
  r.gflops > 0 ? line.add("gflops", r.gflops) : line.add("gbps", r.gbps);
  line.add("mib", r.mib);
  std::cout << line.text() << std::endl;
}

constexpr double kMostBytes = 1e12;
bench::Peak peak;

void print_row(const bench::OpResult& r) {
  const bool compute = r.gflops > 0;
  const double rate = compute ? r.gflops : r.gbps, limit = compute ? peak.gflops : peak.gbps;
  std::printf("%-16s %-28s %12.2f us %8.1f %s %5.0f %% %10.2f MiB\n", r.name.c_str(),
              shape_json(r.shape).c_str(), r.median_us, rate, compute ? "GFLOP/s" : "GB/s   ",
              100 * rate / limit, r.mib);
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
              device.is_cpu() ? "f32, registers" : "f32, a large matrix product", peak.gbps);
  std::printf("%-16s %-28s %15s %16s %7s %13s\n", "operator", "shape", "median", "rate", "of limit",
              "memory");
  bench::bench_ops(filter, parse_dtype(dtype), device, print_row);
  return 0;
}

int run_generate(const bench::GenerateSettings& settings, bool json) {
  const bench::GenerateResult r = bench::bench_generate(settings);
  if (json) {
    std::cout << apps::JsonObject()
                     .add("name", settings.model)
                     .add("tokens_per_s", r.tokens_per_s)
                     .add("limit", r.limit)
                     .add("read_gbps", r.read_gbps)
                     .text()
              << "\n";
  } else {
    std::cout << bench::generate_text(settings, r) << "\n";
  }
  return 0;
}

void run_roofline(const bench::RooflineSettings& settings, bool json) {
  const bench::Roofline roofline = bench::account_step(settings);
  if (!json) return bench::print_roofline(roofline, settings);
  for (const bench::RooflineRow& row : roofline.rows) {
    std::cout << apps::JsonObject()
                     .add("name", roofline.name)
                     .add("machine", settings.machine)
                     .add("kernel", row.kernel)
                     .add("calls", row.cost.calls)
                     .add("bytes", row.cost.bytes)
                     .add("flops", row.cost.flops)
                     .add("bound_by", row.memory_bound ? "memory" : "compute")
                     .add("seconds", row.seconds)
                     .text()
              << "\n";
  }
}

// What --json cannot say, and sizes that are in the wrong order.
void check_flags(const bench::TrainSettings& s, const bench::CollectiveSettings& c,
                 const std::string& ptxas, bool json) {
  if (json && s.profile) throw apps::UsageError("--profile prints a table; leave --json out");
  if (json && !ptxas.empty()) throw apps::UsageError("--ptxas prints a table; leave --json out");
  if (c.min_bytes > c.max_bytes) {
    throw apps::UsageError("--min-bytes must not be above --max-bytes; got " +
                           std::to_string(c.min_bytes) + " and " + std::to_string(c.max_bytes));
  }
}

int run(int argc, char** argv) {
  std::string command = "train", filter, machine = "h200", ptxas;
  bench::TrainSettings s;
  bench::DistSettings d;
  bench::CollectiveSettings c;
  bench::GenerateSettings g;
  int64_t local_ranks = 2;
  bool json = false;
  std::string transport = "auto";
  apps::Options options(
      "tarn-bench",
      "Measures training steps (train; dist: alone, with DataParallel, with DDP), text generation "
      "(generate), operators (ops) and collectives; accounts for a step on a GPU (roofline).");
  options.positional("COMMAND", &command, "what to measure")
      .choices({"train", "dist", "generate", "ops", "collectives", "roofline"})
      .required();
  options.group("train");
  options.add("--model", &s.model, "the network")
      .choices({"resnet18", "resnet50", "mlp", "gpt", "gpt2"});
  options.add("--stem", &s.stem, "of a ResNet").choices({"cifar", "imagenet"});
  options.add("--input", &s.input, "CxHxW of one image").value_name("CxHxW");
  options.add("--batch", &s.batch, "images or texts per step").at_least(1);
  options.add("--block", &s.block, "tokens per text").at_least(1);
  options.add("--steps", &s.steps, "timed steps; 0: by model").at_least(0);
  options.add("--profile", &s.profile, "print the time spent per operation afterwards");
  options
      .add("--replicas", &s.replicas,
           "DataParallel over so many GPUs, or threads of the cpu; 0: without")
      .range(0, 64);
  options.group("dist (with the flags of train, and --transport)");
  options.add("--counts", &d.counts, "numbers of devices or ranks to compare")
      .value_name("N,N,..")
      .range(1, 64);
  options.group("generate (with --model gpt or gpt2)");
  options.add("--tokens", &g.tokens, "how many").at_least(4);
  options.group("ops");
  options.add("--filter", &filter, "only operators (or collectives) whose name contains this");
  options.group("collectives");
  options.add("--ranks", &local_ranks, "threads as ranks, where no launcher started several")
      .range(1, 64);
  options.add("--min-bytes", &c.min_bytes, "smallest message").range(4, kMostBytes);
  options.add("--max-bytes", &c.max_bytes, "largest message").range(4, kMostBytes);
  options.group("roofline (with --model, --stem, --input, --batch, --dtype)");
  options.add("--machine", &machine, "whose limits").choices({"h200", "h100", "a100"});
  options.add("--ptxas", &ptxas, "instead: registers and occupancy of each kernel, from this log")
      .value_name("FILE");
  options.group("All");
  options
      .add("--transport", &transport, "between ranks; nccl: each on a GPU of its own (threads too)")
      .choices({"auto", "host", "gloo", "nccl"});
  options.add("--tf32", &s.tf32, "on a GPU: products on tensor cores, inputs rounded to TF32");
  options.add("--device", &s.device, "cpu, or cuda[:i]").value_name("DEVICE");
  options.add("--dtype", &s.dtype, "of the numbers").choices({"float32", "bfloat16"});
  options.add("--threads", &s.threads, "threads of the kernels").range(1, 1024);
  options.add("--json", &json, "one JSON object per line instead of text");
  if (!options.parse(argc, argv)) return 0;
  check_flags(s, c, ptxas, json);
  if (command == "ops") bench::check_filter(filter, "operator", bench::op_names());
  if (command == "collectives") {
    bench::check_filter(filter, "collective", bench::collective_names());
  }
  // The others are of this process alone, whatever a launcher left in the environment.
  const bool together = command == "train" || command == "collectives";
  const apps::Ranks ranks =
      together ? apps::Ranks::join({.transport = transport}, s.device) : apps::Ranks();
  if (!options.given("--threads") && ranks.size() > 1) s.threads = num_threads();
  set_num_threads(static_cast<int>(s.threads));
  set_allow_tf32(s.tf32);
  c.filter = filter;
  if (command == "dist") {
    d.train = s;
    d.transport = transport;
    return bench::bench_dist(d, json);
  }
  if (command == "collectives") {
    return run_collectives(c, ranks, static_cast<int>(local_ranks), transport, Device(s.device),
                           json);
  }
  if (command == "generate") {
    if (options.given("--model")) g.model = s.model;
    g.device = s.device;
    g.dtype = s.dtype;
    return run_generate(g, json);
  }
  if (command == "roofline") {
    if (ptxas.empty()) {
      run_roofline({s.model, s.stem, s.input, s.dtype, machine, s.batch, s.tf32}, json);
    } else {
      bench::print_ptxas(ptxas);
    }
    return 0;
  }
  return command == "ops" ? run_ops(filter, s.dtype, apps::choose_device(s.device, std::cerr), json)
                          : run_train(s, ranks, json);
}

}  // namespace

int main(int argc, char** argv) {
  return apps::main_guard("tarn-bench", [&] { return run(argc, argv); });
}
