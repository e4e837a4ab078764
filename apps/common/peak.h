// peak.h - the machine's measured limits.
#pragma once

#include "tarn/core/device.h"
#include "tarn/core/dtype.h"

namespace tarn::apps {

/// What this machine can do at most, measured now with the threads in use.
struct Peak {
  double gflops;  ///< fused multiply-adds in f32 registers, 2 operations each
  double gbps;    ///< copy of a large array: bytes read plus bytes written
};
Peak measure_peak();
/// Reading alone, with the threads in use.
double measure_read_gbps();
/// The same for a GPU: what its matrix product library reaches, and a copy inside its memory.
Peak measure_peak(Device device);

/// GFLOP/s at most for products in this dtype, measured in some hundredths of a second: f32 on the
/// CPU by multiply-adds in registers, else by a large product.
double measure_peak_gflops(Device device, DType dtype);

}  // namespace tarn::apps
