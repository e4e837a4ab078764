// cuda_runtime.h - stands before the toolkit's header of this name when a .cu file is compiled for
// the host: the toolkit's types and prototypes, plus the device side of the language.
#pragma once

// Another header of the toolkit may have come first and left its own, empty ones.
#undef __host__
#undef __device__
#undef __global__
#undef __constant__
#undef __managed__
#undef __grid_constant__
#undef __shared__
#define __host__
#define __device__
#define __global__
#define __constant__
#define __managed__
#define __grid_constant__
#define __launch_bounds__(...)
// The tag only marks the symbol's name: the emulator finds these arrays in the symbol table and
// fills them with NaN before each block. (A section attribute fails: g++ refuses one section for
// both template and plain functions.) With ThreadSanitizer each block runs on a thread of its own.
#if defined(__SANITIZE_THREAD__)
#define __shared__ static thread_local __attribute__((abi_tag("emushared")))
#else
#define __shared__ static __attribute__((abi_tag("emushared")))
#endif

#include <tuple>
#include <type_traits>
#include <utility>

#include_next <cuda_runtime.h>

#include "tarn/cuda/emu/kernel_api.h"

// Set by the scheduler whenever another device thread runs. Not macros: a member may be so named.
extern "C" {
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
}
inline constexpr int warpSize = 32;

#include "tarn/cuda/emu/include/emu_atomics.h"
#include "tarn/cuda/emu/include/emu_math.h"
#include "tarn/cuda/emu/include/emu_warp.h"

namespace tarn::emu {

template <class T>
const void* pointer_argument(const T& argument) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<const void*>(argument);
  } else {
    return nullptr;
  }
}

constexpr std::size_t kMaxParameterBytes = 4096;  // CUDA's limit on every architecture

template <class... P, class... A>
cudaError_t launch_kernel_typed(const cudaLaunchConfig_t* config, void (*kernel)(P...),
                                A&&... arguments) {
  static_assert(sizeof...(P) == sizeof...(A), "a kernel launched with another number of arguments");
  static_assert((sizeof(std::decay_t<P>) + ... + 0) <= kMaxParameterBytes,
                "kernel parameters exceed 4096 bytes");
  std::tuple<std::decay_t<P>...> values{
      static_cast<std::decay_t<P>>(std::forward<A>(arguments))...};
  return std::apply(
      [&](const auto&... value) {
        const void* pointers[] = {pointer_argument(value)..., nullptr};
        return launch_kernel(*config, reinterpret_cast<const void*>(kernel), pointers, sizeof...(P),
                             [kernel, values] { std::apply(kernel, values); });
      },
      values);
}

}  // namespace tarn::emu

#define cudaLaunchKernelEx ::tarn::emu::launch_kernel_typed

// The typed forms that the toolkit's header offers to nvcc alone.
template <class T>
cudaError_t cudaFuncSetAttribute(T* kernel, cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class T>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, T* kernel) {
  return cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
template <class T>
cudaError_t cudaFuncGetName(const char** name, T* kernel) {
  return cudaFuncGetName(name, reinterpret_cast<const void*>(kernel));
}
