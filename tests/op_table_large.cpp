// op_table_large.cpp - the checks of large inputs and of NaN and infinity among ordinary ones.
#include <limits>

#include "op_table_checks.h"
#include "op_table_inputs.h"
#include <gtest/gtest.h>

#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn::optable {

void check_large(const Row& row) {
  Rng rng = rng_for(row.name + "/large");
  for (const Case& c : row.large) {
    // Exact in every dtype that is compared.
    const DType narrow = row.halves ? DType::kBF16 : DType::kF32;
    const std::vector<Tensor> in = make_inputs(c, narrow, rng);
    SCOPED_TRACE(describe(in));
    const auto in_f64 = converted(in, c, DType::kF64), in_f32 = converted(in, c, DType::kF32);
    const Result f64 = run(row, c, in_f64), f32 = run(row, c, in_f32);
    if (row.reference) {
      expect_close(f64.values, row.reference(hosts(in_f64)), 10 * row.rtol, 1, "f64 output");
    }
    expect_close(f32.values, f64.values, 5 * row.rtol_f32, 1, "f32 output");
    expect_close(f32.grads, f64.grads, 20 * row.rtol_f32, 1, "f32 gradient");
    if (!row.halves) continue;
    constexpr double kUnit = 0x1p-7;  // of bf16
    const Result half = run(row, c, in);
    expect_close(half.values, f32.values, row.ulps_half * kUnit, 1, "bf16 output");
    expect_close(half.grads, f32.grads, 16 * kUnit, 1, "bf16 gradient");
  }
}

void check_nonfinite(const Row& row) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (DType dtype : {DType::kF64, DType::kF32}) {
    const double rtol = dtype == DType::kF64 ? row.rtol : row.rtol_f32;
    for (double odd : {std::numeric_limits<double>::quiet_NaN(), kInf, -kInf}) {
      Rng rng = rng_for(row.name);
      for (const Case& c : row.cases) {
        const std::vector<Tensor> in = make_inputs(c, dtype, rng);
        SCOPED_TRACE(describe(in) + " with one " + std::to_string(odd));
        const Tensor& x = in[0];
        const int64_t at = static_cast<int64_t>(rng() % static_cast<uint64_t>(x.numel()));
        raw::fill_(raw::as_strided(x, {}, {}, at), odd);
        expect_close(hosts(row.fn(in)), row.reference(hosts(in)), rtol, 1, "output");
      }
    }
  }
}

}  // namespace tarn::optable
