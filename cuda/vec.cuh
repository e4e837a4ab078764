// vec.cuh - 16-byte access: the widest load and store a thread has.
#pragma once

#include <cstdint>
#include <cstring>

#include "tarn/cuda/rt.h"

namespace tarn::cuda {

/// N neighbouring elements, moved in one instruction.
template <class T, int N>
struct alignas(sizeof(T) * N) Vec {
  T v[N];
};

/// Elements of T in 16 bytes.
template <class T>
inline constexpr int kVecWidth = 16 / sizeof(T);

template <int N, class T>
__device__ __forceinline__ Vec<T, N> load_vec(const T* p) {
  return *reinterpret_cast<const Vec<T, N>*>(p);
}
/// The compiler stores element by element where it finds other accesses in between, so 16 bytes are
/// stored by name.
template <int N, class T>
__device__ __forceinline__ void store_vec(T* p, const Vec<T, N>& v) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(v) == 16) {
    uint4 bits;
    memcpy(&bits, &v, 16);
    __stwb(reinterpret_cast<uint4*>(p), bits);
    return;
  }
#endif
  *reinterpret_cast<Vec<T, N>*>(p) = v;
}

inline bool is_aligned(const void* p, size_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

}  // namespace tarn::cuda
