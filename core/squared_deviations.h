// squared_deviations.h - the last step of a variance, shared by the devices' kernels.
#pragma once

#include <cmath>

#include "tarn/core/hd.h"

namespace tarn {

/// Squared deviations from the mean, from sums over differences from something near it; off is the
/// mean of those differences. Squares of finite numbers that overflow give infinity, as in PyTorch,
/// and not infinity - infinity.
TARN_HD double squared_deviations(double sum, double squares, double off) {
  return std::isinf(squares) && std::isfinite(sum) ? squares : squares - sum * off;
}

}  // namespace tarn
