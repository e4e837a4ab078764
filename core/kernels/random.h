// random.h - slots for random numbers. Counter-based: element i depends on (seed, offset + i)
// alone. The formulas stand in core/random_draws.h.
#pragma once

#include "tarn/core/random.h"
#include "tarn/core/tensor.h"

namespace tarn {

/// out is dense and not empty; element i is its i-th element in memory order. Philox4x32-10 with
/// counter offset + i / 4 (lane i % 4) for 32-bit draws, offset + i / 2 for 64-bit draws.
struct RandomKernels {
  /// [low, high) in out's dtype (floating). 32-bit draws; 64-bit for f64.
  void (*uniform)(PhiloxState state, double low, double high, const Tensor& out,
                  Stream stream) = nullptr;
  /// mean + stddev * z; draws 2k and 2k + 1 make elements 2k and 2k + 1. 64-bit draws for f64.
  void (*normal)(PhiloxState state, double mean, double stddev, const Tensor& out,
                 Stream stream) = nullptr;
  /// 1 with probability p, in any dtype. 32-bit draws.
  void (*bernoulli)(PhiloxState state, double p, const Tensor& out, Stream stream) = nullptr;
  /// Integers in [low, high), in any dtype but bool. 64-bit draws.
  void (*randint)(PhiloxState state, int64_t low, int64_t high, const Tensor& out,
                  Stream stream) = nullptr;
  /// y = keep ? x / (1 - p) : 0, all 0 for p = 1; the mask is recomputed from the state in backward
  /// (x := gy), so nothing is saved. residual (or undefined) is added. All dense in one layout.
  /// 32-bit draws.
  void (*dropout)(PhiloxState state, double p, const Tensor& x, const Tensor& residual,
                  const Tensor& y, Stream stream) = nullptr;
};

}  // namespace tarn
