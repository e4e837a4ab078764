// cast.h - the value of one element type as another, defined for every pair and every value.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "tarn/core/dtype.h"
#include "tarn/core/hd.h"

namespace tarn {

/// Floating to integer truncates towards zero and saturates; NaN gives 0. (C leaves these undefined
/// and processors differ.) u8 takes the low byte of the 64-bit result, as PyTorch: 300 gives 44 and
/// -1 gives 255. Integers among themselves wrap. To bool: x != 0, so NaN is true. Halves pass
/// through float; f64 to a half rounds to float first, as PyTorch.
template <class To, class From>
TARN_HD To cast_value(From x) {
  using C = compute_t<From>;
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (std::is_same_v<To, bool>) {
    return static_cast<C>(x) != C(0);
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<C>) {
    using Wide = std::conditional_t<std::is_same_v<To, uint8_t>, int64_t, To>;
    // Both are powers of two, hence exact in C; the upper one is the first that does not fit.
    constexpr C kLow = static_cast<C>(std::numeric_limits<Wide>::min());
    constexpr C kHigh = -kLow;
    const C v = static_cast<C>(x);
    const Wide inside = static_cast<Wide>((v >= kLow) & (v < kHigh) ? v : C(0));
    const Wide low = v < kLow ? std::numeric_limits<Wide>::min() : inside;
    return static_cast<To>(v >= kHigh ? std::numeric_limits<Wide>::max() : low);
  } else if constexpr (std::is_same_v<To, half> || std::is_same_v<To, bfloat16>) {
    return To(static_cast<float>(static_cast<C>(x)));
  } else {
    return static_cast<To>(static_cast<C>(x));
  }
}

}  // namespace tarn
