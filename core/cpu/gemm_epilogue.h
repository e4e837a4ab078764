// gemm_epilogue.h - what happens to a row of sums on its way to the result of a matrix product.
#pragma once

#include <cstdint>

#include "tarn/core/elementwise_activation.h"
#include "tarn/core/kernels/matmul.h"

namespace tarn::cpu {

template <typename T>
inline T apply_epilogue(Epilogue epilogue, T v) {
  switch (epilogue) {
    case Epilogue::kNone:
      return v;
    case Epilogue::kRelu:
      return v < T(0) ? T(0) : v;  // keeps NaN
    case Epilogue::kGelu:
      return ops::Gelu::fwd(v, Scalars{});
    case Epilogue::kGeluTanh:
      return ops::GeluTanh::fwd(v, Scalars{});
  }
  return v;
}

/// out = epilogue(alpha * sums + beta * out + bias); out is not read when beta is 0.
template <typename T>
inline void finish_row(const T* sums, int64_t n, T alpha, T beta, const T* bias, Epilogue epilogue,
                       T* out) {
  if (beta == T(0)) {
    for (int64_t j = 0; j < n; ++j) out[j] = alpha * sums[j];
  } else {
    for (int64_t j = 0; j < n; ++j) out[j] = alpha * sums[j] + beta * out[j];
  }
  if (bias != nullptr) {
    for (int64_t j = 0; j < n; ++j) out[j] += bias[j];
  }
  if (epilogue == Epilogue::kRelu) {
    for (int64_t j = 0; j < n; ++j) out[j] = out[j] < T(0) ? T(0) : out[j];
  } else if (epilogue == Epilogue::kGelu) {
    for (int64_t j = 0; j < n; ++j) out[j] = ops::Gelu::fwd(out[j], Scalars{});
  } else if (epilogue == Epilogue::kGeluTanh) {
    for (int64_t j = 0; j < n; ++j) out[j] = ops::GeluTanh::fwd(out[j], Scalars{});
  }
}

}  // namespace tarn::cpu
