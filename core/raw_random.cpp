// raw_random.cpp - checks, and draws taken from the generator.
#include "tarn/core/raw_random.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <numeric>

#include "tarn/core/factory.h"
#include "tarn/core/kernel_call.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/plan.h"
#include "tarn/core/random_draws.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_norm.h"

namespace tarn::raw {
namespace {

Generator& or_default(Generator* generator) {
  return generator ? *generator : default_generator();
}

/// Calls fill(dense row-major tensor, state) and brings the numbers into x.
template <class Fill>
void fill_random(const char* op, const Tensor& x, bool wide, Generator* generator, Fill fill) {
  check_no_internal_overlap(op, x);
  if (x.numel() == 0) return;
  const uint64_t counters = wide ? draws::counters64(x.numel()) : draws::counters32(x.numel());
  const PhiloxState state = or_default(generator).take(counters);
  if (x.is_contiguous()) {
    fill(x, state);
    x.bump_version();
    return;
  }
  const Tensor dense = empty(x.sizes(), {.dtype = x.dtype(), .device = x.device()});
  fill(dense, state);
  copy_(x, dense);
}

void check_floating(const char* op, const Tensor& x) {
  check_defined(op, "x", x);
  TARN_CHECK_AS(DTypeError, is_floating(x.dtype()), op,
                ": dtype must be floating; got x=", x.describe());
}

/// Largest and smallest integer that every value of dtype can hold exactly.
std::pair<int64_t, int64_t> integer_range(DType dtype) {
  switch (dtype) {
    case DType::kI32:
      return {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
    case DType::kU8:
      return {0, 255};
    case DType::kF32:
      return {-(int64_t{1} << 24), int64_t{1} << 24};
    case DType::kF16:
      return {-2048, 2048};
    case DType::kBF16:
      return {-256, 256};
    case DType::kF64:
      return {-(int64_t{1} << 53), int64_t{1} << 53};
    default:
      return {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
  }
}

/// The largest finite number of a floating dtype.
double largest(DType dtype) {
  return dtype == DType::kF16    ? 65504
         : dtype == DType::kBF16 ? 0x1.FEp127
         : dtype == DType::kF32  ? double{FLT_MAX}
                                 : DBL_MAX;
}

/// One row of multinomial: n weights to `count` indices.
void sample_row(const double* weights, int64_t n, int64_t count, bool replacement,
                const double* uniforms, int64_t* out) {
  if (replacement) {
    std::vector<double> running(static_cast<size_t>(n));
    std::partial_sum(weights, weights + n, running.begin());
    for (int64_t i = 0; i < count; ++i) {
      // The first running sum above the draw never belongs to a weight of 0. Rounding may put the
      // draw at the total itself: then the last index with weight.
      const double at = uniforms[i] * running.back();
      auto found = std::upper_bound(running.begin(), running.end(), at);
      if (found == running.end()) {
        found = std::lower_bound(running.begin(), running.end(), running.back());
      }
      out[i] = found - running.begin();
    }
    return;
  }
  // Exponential race: the smallest of -ln(u) / w come first (Efraimidis and Spirakis, 2006).
  std::vector<std::pair<double, int64_t>> race;
  for (int64_t i = 0; i < n; ++i) {
    if (weights[i] > 0) race.emplace_back(-std::log1p(-uniforms[i]) / weights[i], i);
  }
  std::partial_sort(race.begin(), race.begin() + count, race.end());
  for (int64_t i = 0; i < count; ++i) out[i] = race[static_cast<size_t>(i)].second;
}

void check_weights(const double* row, int64_t n, int64_t count, bool replacement) {
  double sum = 0;
  int64_t positive = 0;
  for (int64_t i = 0; i < n; ++i) {
    TARN_CHECK_AS(ValueError, row[i] >= 0 && std::isfinite(row[i]),
                  "multinomial: weights must be finite and not negative; got ", row[i],
                  " at position ", i);
    sum += row[i];
    positive += row[i] > 0;
  }
  TARN_CHECK_AS(ValueError, sum > 0 && std::isfinite(sum),
                "multinomial: each row of weights must have a positive, finite sum; got ", sum);
  TARN_CHECK_AS(ValueError, replacement || count <= positive, "multinomial: cannot draw ", count,
                " without replacement from ", positive,
                " indices of positive weight; pass replacement = true");
}

}  // namespace

void check_probability(const char* op, double p) {
  TARN_CHECK_AS(ValueError, p >= 0 && p <= 1, op, ": p must be in [0, 1]; got ", p);
}

void uniform_(const Tensor& x, double low, double high, Generator* generator) {
  const OpScope scope("uniform_");
  check_floating("uniform_", x);
  TARN_CHECK_AS(ValueError, low <= high && std::isfinite(high - low),
                "uniform_: low must not exceed high, and both be finite; got low=", low,
                ", high=", high);
  const bool fits = std::max(-low, high) <= largest(x.dtype()) &&
                    high - low <= largest(accumulate_dtype(x.dtype()));
  TARN_CHECK_AS(ValueError, fits, "uniform_: low, high and their difference must be numbers of ",
                x.dtype(), "; got low=", low, ", high=", high);
  fill_random("uniform_", x, x.dtype() == DType::kF64, generator,
              [&](const Tensor& out, PhiloxState state) {
                TARN_KERNEL(random, uniform, out.device(), state, low, high, out);
              });
}

void normal_(const Tensor& x, double mean, double stddev, Generator* generator) {
  const OpScope scope("normal_");
  check_floating("normal_", x);
  TARN_CHECK_AS(ValueError, stddev >= 0, "normal_: stddev must not be negative; got ", stddev);
  fill_random("normal_", x, x.dtype() == DType::kF64, generator,
              [&](const Tensor& out, PhiloxState state) {
                TARN_KERNEL(random, normal, out.device(), state, mean, stddev, out);
              });
}

void bernoulli_(const Tensor& x, double p, Generator* generator) {
  const OpScope scope("bernoulli_");
  check_defined("bernoulli_", "x", x);
  check_probability("bernoulli_", p);
  fill_random("bernoulli_", x, false, generator, [&](const Tensor& out, PhiloxState state) {
    TARN_KERNEL(random, bernoulli, out.device(), state, p, out);
  });
}

void randint_(const Tensor& x, int64_t low, int64_t high, Generator* generator) {
  const OpScope scope("randint");
  check_defined("randint", "x", x);
  TARN_CHECK_AS(DTypeError, x.dtype() != DType::kBool,
                "randint: bool holds no integers; use bernoulli");
  TARN_CHECK_AS(ValueError, low < high, "randint: low must be below high; got low=", low,
                ", high=", high);
  const auto [least, most] = integer_range(x.dtype());
  TARN_CHECK_AS(ValueError, low >= least && high - 1 <= most, "randint: ", x.dtype(),
                " holds integers from ", least, " to ", most, "; got low=", low, ", high=", high);
  fill_random("randint", x, true, generator, [&](const Tensor& out, PhiloxState state) {
    TARN_KERNEL(random, randint, out.device(), state, low, high, out);
  });
}

Tensor randperm(int64_t n, DType dtype, Device device, Generator* generator) {
  const OpScope scope("randperm");
  TARN_CHECK_AS(ValueError, n >= 0, "randperm: n must not be negative; got ", n);
  const int64_t most = integer_range(dtype).second;
  TARN_CHECK_AS(ValueError, dtype != DType::kBool && n - 1 <= most, "randperm: ", dtype,
                " does not hold all of 0..", n - 1);
  const Tensor order = empty({n}, {.dtype = DType::kI64});
  auto* p = order.data<int64_t>();
  std::iota(p, p + n, int64_t{0});
  const PhiloxState state = or_default(generator).take(draws::counters64(n));
  // Fisher and Yates, one draw per position.
  for (int64_t i = 0; i + 1 < n; ++i) {
    const Philox4 r = philox(state, static_cast<uint64_t>(i / 2));
    const int lane = i % 2 ? 2 : 0;
    const uint64_t k = draws::below(r.v[lane], r.v[lane + 1], static_cast<uint64_t>(n - i));
    std::swap(p[i], p[i + static_cast<int64_t>(k)]);
  }
  return to(to(order, dtype), device);
}

Tensor multinomial(const Tensor& weights, int64_t count, bool replacement, Generator* generator) {
  const OpScope scope("multinomial");
  check_floating("multinomial", weights);
  TARN_CHECK_AS(ShapeError, weights.dim() == 1 || weights.dim() == 2,
                "multinomial: weights must be [n] or [rows, n]; got ", weights.describe());
  TARN_CHECK_AS(ValueError, count > 0, "multinomial: count must be positive; got ", count);
  const int64_t n = weights.size(-1);
  const int64_t rows = weights.dim() == 2 ? weights.size(0) : 1;
  const Tensor host = contiguous(to(to(weights, kCPU), DType::kF64));
  const int64_t per_row = replacement ? count : n;
  const Tensor uniforms = empty({rows, per_row}, {.dtype = DType::kF64});
  uniform_(uniforms, 0, 1, generator);
  const Shape sizes = weights.dim() == 2 ? Shape{rows, count} : Shape{count};
  const Tensor out = empty(sizes, {.dtype = DType::kI64});
  for (int64_t r = 0; r < rows; ++r) {
    const double* row = host.data<double>() + r * n;
    check_weights(row, n, count, replacement);
    sample_row(row, n, count, replacement, uniforms.data<double>() + r * per_row,
               out.data<int64_t>() + r * count);
  }
  return to(out, weights.device());
}

Tensor dropout(const Tensor& x, double p, PhiloxState state, MemoryFormat format,
               const Tensor& residual) {
  const char* op = residual.defined() ? "dropout_add" : "dropout";
  const OpScope scope(op);
  check_floating(op, x);
  check_probability(op, p);
  if (residual.defined()) check_residual(op, x, residual);
  const Tensor dense = contiguous(x, format);
  const Tensor out = empty(x.sizes(), {.dtype = x.dtype(), .device = x.device(), .format = format});
  if (x.numel() > 0) {
    TARN_KERNEL(random, dropout, x.device(), state, p, dense,
                residual.defined() ? contiguous(residual, format) : residual, out);
  }
  return out;
}

}  // namespace tarn::raw
