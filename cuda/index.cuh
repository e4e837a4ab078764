// index.cuh - the index kernels of CUDA, by file, and the choices they share.
#pragma once

#include "tarn/core/kernels.h"
#include "tarn/cuda/vec.cuh"

namespace tarn::cuda {

void find_out_of_range(const Tensor& index, const IndexCheck& check, int64_t* position,
                       Stream stream);
void index_add(ScatterOp op, const Tensor& out, const Tensor& index, const Tensor& src,
               double alpha, Stream stream);
void scatter(ScatterOp op, const Tensor& out, int64_t dim, const Tensor& index, const Tensor& src,
             Stream stream);
void count_nonzero(const Tensor& x, int64_t* count, Stream stream);
void nonzero(const Tensor& x, const Tensor& out, Stream stream);

/// Threads of a block in kernels that move elements one by one.
inline constexpr int kIndexThreads = 256;

template <class T>
T* data_as(const Tensor& x) {
  return static_cast<T*>(x.data());
}

/// 16 bytes moved at once.
using Wide = Vec<uint32_t, 4>;

/// Calls f with a value of the unsigned type of 1, 2, 4, 8 or (Wide) 16 bytes.
template <class F>
void visit_width(int64_t bytes, F f) {
  switch (bytes) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    case 8:
      return f(uint64_t{});
    default:
      return f(Wide{});
  }
}
/// The same for the elements of a dtype: 1 to 8 bytes.
template <class F>
void visit_element(DType dtype, F f) {
  visit_width(item_size(dtype), [&](auto unit) {
    if constexpr (sizeof(unit) <= 8) f(unit);
  });
}

/// Calls f with a value of the type in which dtype is added; the halves are added in f32 above.
template <class F>
void visit_addable(DType dtype, F f) {
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_arithmetic_v<T>) f(T{});
  });
}

/// The widest unit, in bytes, that rows of `row_bytes` at both addresses consist of.
inline int64_t common_width(int64_t row_bytes, const void* a, const void* b) {
  const uint64_t together = static_cast<uint64_t>(row_bytes) | reinterpret_cast<uintptr_t>(a) |
                            reinterpret_cast<uintptr_t>(b) | 16;
  return static_cast<int64_t>(together & (~together + 1));  // the lowest bit that is set
}

/// out + alpha * src; "or" for bool.
template <class T>
__device__ __forceinline__ T add_scaled(T out, T alpha, T src) {
  if constexpr (std::is_same_v<T, bool>) {
    return out || src;
  } else {
    return static_cast<T>(out + alpha * src);
  }
}

/// What a sum of T begins with: 0, for floats -0, to which adding changes no number.
template <class T>
inline constexpr T kNothing = static_cast<T>(-0.0);

}  // namespace tarn::cuda
