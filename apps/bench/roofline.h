// roofline.h - the paper account of a training step on a GPU: bytes and operations of every kernel
// against what the hardware can move and compute at most.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tarn/apps/bench/account.h"

namespace tarn::bench {

/// Limits of one device, from its data sheet, dense (without sparsity).
struct Machine {
  const char* name;
  double gbps;           ///< memory
  double f32, f64;       ///< GFLOP/s of the ordinary units
  double tf32, half;     ///< ... of the tensor cores
  double launch_us = 2;  ///< least time from one kernel of a stream to the next
  double memory_share = 0.85, product_share = 0.7;  ///< of the limits, what good kernels reach
};
/// Throws ValueError that lists the machines it knows.
const Machine& find_machine(const std::string& name);

struct RooflineSettings {
  std::string model = "resnet50", stem = "imagenet", input = "3x224x224", dtype = "float32";
  std::string machine = "h200";
  int64_t batch = 256;
  bool tf32 = false;
};

struct RooflineRow {
  std::string kernel;
  Cost cost;
  double seconds = 0;
  bool memory_bound = false;
};

struct Roofline {
  std::string name;
  std::vector<RooflineRow> rows;  ///< longest first
  double seconds = 0;
};

/// Accounts one step: forward, loss, backward, optimizer.
Roofline account_step(const RooflineSettings& settings);
/// A table with the assumptions, for people.
void print_roofline(const Roofline& roofline, const RooflineSettings& settings);

/// What ptxas -v said of each kernel (the output of a build with -Xptxas=-v): registers, shared
/// memory, spills, and how many of 2048 threads a multiprocessor holds at 256 threads a block.
/// Throws FileError.
void print_ptxas(const std::string& path);

}  // namespace tarn::bench
