// gpu_compare.h - one tensor on the CPU and on the GPU, and whether two results agree.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "gpu_tools.h"

#include "tarn/core/cast.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn {

/// The same values on both devices.
struct Both {
  Tensor cpu, gpu;

  Both(Tensor on_cpu, Tensor on_gpu) : cpu(std::move(on_cpu)), gpu(std::move(on_gpu)) {}
  explicit Both(const Tensor& x) : cpu(x), gpu(raw::to(x, kCuda)) {}
  /// A strided view of the same elements of either.
  Both view(const Shape& sizes, const Shape& strides, int64_t offset = 0) const {
    return {raw::as_strided(cpu, sizes, strides, offset),
            raw::as_strided(gpu, sizes, strides, offset)};
  }
  /// f on either.
  template <class F>
  Both map(F&& f) const {
    return {f(cpu), f(gpu)};
  }
};

/// The relative spacing of a dtype's values; 0 for those that are exact.
inline double spacing(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0x1p-23;
    case DType::kF64:
      return 0x1p-52;
    case DType::kF16:
      return 0x1p-10;
    case DType::kBF16:
      return 0x1p-7;
    default:
      return 0;
  }
}

/// Checks that gpu equals cpu within `ulps` spacings of max(|value|, floor); NaN equals NaN, and
/// with 0 ulps the sign of zero counts too. Reports the first difference.
inline void expect_agree(const Tensor& gpu, const Tensor& cpu, double ulps, const std::string& what,
                         double floor = 0) {
  ASSERT_EQ(gpu.sizes(), cpu.sizes()) << what;
  ASSERT_EQ(gpu.dtype(), cpu.dtype()) << what;
  const std::vector<double> got = gpu.to_vector<double>(), want = cpu.to_vector<double>();
  for (size_t i = 0; i < want.size(); ++i) {
    const double a = got[i], b = want[i];
    if (std::isnan(a) && std::isnan(b)) continue;
    const bool same = a == b && (ulps > 0 || std::signbit(a) == std::signbit(b));
    const double bound = ulps * spacing(cpu.dtype()) * std::max(std::abs(b), floor);
    ASSERT_TRUE(same || std::abs(a - b) <= bound)
        << what << " " << cpu.dtype() << " " << cpu.sizes() << ", element " << i << ": got " << a
        << " on the GPU, want " << b;
  }
}
inline void expect_agree(const Both& x, double ulps, const std::string& what, double floor = 0) {
  expect_agree(x.gpu, x.cpu, ulps, what, floor);
}

inline constexpr DType kEveryDType[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16,
                                        DType::kI64, DType::kI32, DType::kU8,  DType::kBool};

/// `values` as a tensor of any dtype.
inline Tensor typed(const std::vector<double>& values, DType dtype) {
  return raw::to(from_vector(values, {static_cast<int64_t>(values.size())}), dtype);
}

/// n values, small multiples of 1/2 of either sign, the same for the same seed.
inline std::vector<double> halves_of_integers(int64_t n, uint64_t seed) {
  std::vector<double> values;
  uint64_t state = seed * 2654435761u + 12345;
  for (int64_t i = 0; i < n; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    values.push_back((static_cast<double>((state >> 33) % 49) - 24) * 0.5);
  }
  return values;
}

}  // namespace tarn
