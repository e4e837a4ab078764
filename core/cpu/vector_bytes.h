// vector_bytes.h - how wide a vector register of the target is.
//
// GCC splits arithmetic on wider vectors, but keeps the vectors themselves on the stack: a loop's
// accumulator then costs a store and a load each time. So the kernels use this width.
#pragma once

namespace tarn::cpu {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

}  // namespace tarn::cpu
