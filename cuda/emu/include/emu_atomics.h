// emu_atomics.h - atomic functions of the device language. Relaxed, as in CUDA: they order nothing.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace tarn::emu {

// One compare-and-swap loop serves every operation and type; returns the old value.
template <class T, class Update>
T atomic_update(T* address, Update update) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  Bits* bits = reinterpret_cast<Bits*>(address);
  Bits old = __atomic_load_n(bits, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(bits, &old,
                                      std::bit_cast<Bits>(update(std::bit_cast<T>(old))), false,
                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return std::bit_cast<T>(old);
}

template <class T>
constexpr bool kAtomicInteger =
    std::is_same_v<T, int> || std::is_same_v<T, unsigned> ||
    std::is_same_v<T, unsigned long long> || std::is_same_v<T, long long>;

template <class T>  // __half and __nv_bfloat16 are the classes
constexpr bool kAtomicAddable = (kAtomicInteger<T> && !std::is_same_v<T, long long>) ||
                                std::is_same_v<T, float> || std::is_same_v<T, double> ||
                                (std::is_class_v<T> && sizeof(T) == 2);

}  // namespace tarn::emu

// `types` is what CUDA defines the function for: a kernel that nvcc refuses must not compile here.
#define TARN_EMU_ATOMIC(name, types, expression)                                      \
  template <class T>                                                                  \
  requires(types) T name(T* address, std::type_identity_t<T> v) {                     \
    return tarn::emu::atomic_update(address, [v](T old) -> T { return expression; }); \
  }
#define TARN_EMU_INT tarn::emu::kAtomicInteger<T>
TARN_EMU_ATOMIC(atomicAdd, tarn::emu::kAtomicAddable<T>, old + v)
TARN_EMU_ATOMIC(atomicSub, (std::is_same_v<T, int> || std::is_same_v<T, unsigned>), old - v)
TARN_EMU_ATOMIC(atomicMax, TARN_EMU_INT, old < v ? v : old)
TARN_EMU_ATOMIC(atomicMin, TARN_EMU_INT, v < old ? v : old)
TARN_EMU_ATOMIC(atomicAnd, TARN_EMU_INT, T(old& v))
TARN_EMU_ATOMIC(atomicOr, TARN_EMU_INT, T(old | v))
TARN_EMU_ATOMIC(atomicXor, TARN_EMU_INT, T(old ^ v))
TARN_EMU_ATOMIC(atomicExch, (TARN_EMU_INT || std::is_same_v<T, float>), (void(old), v))
TARN_EMU_ATOMIC(atomicInc, (std::is_same_v<T, unsigned>), old >= v ? 0u : old + 1)
TARN_EMU_ATOMIC(atomicDec, (std::is_same_v<T, unsigned>), old == 0 || old > v ? v : old - 1)
#undef TARN_EMU_ATOMIC
#undef TARN_EMU_INT

template <class T>
requires(tarn::emu::kAtomicInteger<T> || std::is_same_v<T, unsigned short>) T
    atomicCAS(T* address, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
  return tarn::emu::atomic_update(address, [=](T old) { return old == compare ? value : old; });
}
