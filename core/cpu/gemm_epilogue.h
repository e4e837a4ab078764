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

namespace detail {

/// One pass over the row for every combination of old value and bias.
template <typename T, typename Bias, typename Out, typename Activation>
inline void finish_row_with(const T* __restrict sums, int64_t n, T alpha, T beta,
                            const Bias* __restrict bias, Out* __restrict out, Activation act) {
  if (beta == T(0) && bias == nullptr) {
    for (int64_t j = 0; j < n; ++j) out[j] = Out(act(alpha * sums[j]));
  } else if (beta == T(0)) {
    for (int64_t j = 0; j < n; ++j) out[j] = Out(act(alpha * sums[j] + T(bias[j])));
  } else if (bias == nullptr) {
    for (int64_t j = 0; j < n; ++j) out[j] = Out(act(alpha * sums[j] + beta * T(out[j])));
  } else {
    for (int64_t j = 0; j < n; ++j) {
      out[j] = Out(act(alpha * sums[j] + beta * T(out[j]) + T(bias[j])));
    }
  }
}

}  // namespace detail

/// out = epilogue(alpha * sums + beta * out + bias), in T; out is not read when beta is 0.
template <typename T, typename Bias, typename Out>
inline void finish_row(const T* sums, int64_t n, T alpha, T beta, const Bias* bias,
                       Epilogue epilogue, Out* out) {
  const auto run = [&](auto act) { detail::finish_row_with(sums, n, alpha, beta, bias, out, act); };
  switch (epilogue) {
    case Epilogue::kNone:
      return run([](T v) { return v; });
    case Epilogue::kRelu:
      return run([](T v) { return v < T(0) ? T(0) : v; });
    case Epilogue::kGelu:
      return run([](T v) { return ops::Gelu::fwd(v, Scalars{}); });
    case Epilogue::kGeluTanh:
      return run([](T v) { return ops::GeluTanh::fwd(v, Scalars{}); });
  }
}

}  // namespace tarn::cpu
