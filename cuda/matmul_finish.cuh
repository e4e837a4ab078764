// matmul_finish.cuh - types of sums, and the way from a sum to an element of the result.
#pragma once

#include <type_traits>

#include "tarn/core/elementwise_activation.h"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/matmul.h"

namespace tarn::cuda {

/// What products of T are summed in: f32 for halves, unsigned for integers, which wrap round.
template <class T>
using sum_t = std::conditional_t<!std::is_integral_v<T>, compute_t<T>,
                                 std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>>;

/// Parts that k is cut into, so that few tasks still fill a GPU: by shape alone, since the bits of
/// the result depend on it. `wanted` tasks in all, at least `least` steps of k in a part.
inline int64_t parts_of_k(int64_t tasks, int64_t k, int64_t wanted, int64_t least) {
  constexpr int64_t kMost = 64;
  if (2 * tasks >= wanted) return 1;
  return std::max<int64_t>(1, std::min({ceil_div(wanted, tasks), k / least, kMost}));
}

template <class A>
__device__ __forceinline__ A activate(Epilogue epilogue, A v) {
  switch (epilogue) {
    case Epilogue::kNone:
      return v;
    case Epilogue::kRelu:
      return v < A(0) ? A(0) : v;  // keeps NaN
    case Epilogue::kGelu:
      return ops::Gelu::fwd(v, Scalars{});
    case Epilogue::kGeluTanh:
      return ops::GeluTanh::fwd(v, Scalars{});
  }
  return v;
}

/// The element at `c` from its sum; `bias` points to its column's, or is null.
template <class T>
__device__ __forceinline__ T finish(const MatmulCall& call, sum_t<T> sum, const T* c,
                                    const T* bias) {
  using A = sum_t<T>;
  if constexpr (std::is_integral_v<T>) {
    if (call.beta != 0) sum += static_cast<A>(*c);
    if (bias != nullptr) sum += static_cast<A>(*bias);
    const T value = static_cast<T>(sum);
    return call.epilogue == Epilogue::kRelu && !(value > T(0)) ? T(0) : value;
  } else {
    A value = static_cast<A>(call.alpha) * sum;
    if (call.beta != 0) value += static_cast<A>(call.beta) * static_cast<A>(*c);
    if (bias != nullptr) value += static_cast<A>(*bias);
    return T(activate(call.epilogue, value));
  }
}

}  // namespace tarn::cuda
