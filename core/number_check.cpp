// number_check.cpp - the ranges of the integer dtypes.
#include "tarn/core/number_check.h"

#include <cmath>
#include <limits>

namespace tarn {

void check_number_fits(const char* op, const Scalar& value, DType dtype) {
  if (!is_integral(dtype)) return;
  const bool fits = visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>) {
      using Limits = std::numeric_limits<T>;
      const int64_t low = std::is_signed_v<T> ? int64_t{Limits::min()} : -int64_t{Limits::max()};
      if (value.is_floating()) {
        // Below 2^63 and not up to 2^63 - 1, which is no double. NaN is neither.
        const double v = std::trunc(value.to_double());
        return v >= static_cast<double>(low) && v < static_cast<double>(Limits::max() / 2 + 1) * 2;
      }
      return value.to_int64() >= low && value.to_int64() <= int64_t{Limits::max()};
    }
    return true;
  });
  TARN_CHECK_AS(ValueError, fits, op, ": the number must fit ", dtype, "; got ", value);
}

}  // namespace tarn
