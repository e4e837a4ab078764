// ops.h - the operator benchmark: every case is checked against f64, then timed.
#pragma once

#include <string>
#include <vector>

#include "tarn/core/device.h"
#include "tarn/core/dtype.h"
#include "tarn/core/shape.h"

namespace tarn::bench {

struct OpResult {
  std::string name;
  std::vector<int64_t> shape;
  double median_us = 0;
  double gbps = 0;    ///< for memory-bound cases: least bytes that must move, else 0
  double gflops = 0;  ///< for the others
  double mib = 0;     ///< the most memory that was held at a time, besides the inputs
};

/// For check_filter; sorted.
std::vector<std::string> op_names();

/// Runs the cases whose name contains `filter` in this dtype on this device; `report` sees each
/// result at once. Throws Error if one is not within its bound of the same operation in f64.
std::vector<OpResult> bench_ops(const std::string& filter, DType dtype, Device device,
                                void (*report)(const OpResult&));

}  // namespace tarn::bench
