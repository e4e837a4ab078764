// mul_add.h - a * b + c with one rounding, where the machine has it.
//
// Whether a compiler fuses a product with a sum is its own choice, and so is the result's last bit.
// Formulas that must give the same bits in two loops, or on two kinds of device, say it themselves.
#pragma once

#include <cmath>

#include "tarn/core/hd.h"

namespace tarn {

#if defined(__CUDACC__) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
TARN_HD float mul_add(float a, float b, float c) {
  return std::fma(a, b, c);
}
TARN_HD double mul_add(double a, double b, double c) {
  return std::fma(a, b, c);
}
#else
TARN_HD float mul_add(float a, float b, float c) {
  return a * b + c;
}
TARN_HD double mul_add(double a, double b, double c) {
  return a * b + c;
}
#endif

}  // namespace tarn
