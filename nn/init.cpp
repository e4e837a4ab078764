// init.cpp - initial values.
#include "tarn/nn/init.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tarn/autograd/functions_elementwise.h"
#include "tarn/autograd/functions_linalg.h"
#include "tarn/autograd/functions_shape.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_random.h"

namespace tarn::nn::init {
namespace {

double fan_of(const Tensor& x, FanMode mode) {
  const Fans f = fans(x);
  return static_cast<double>(mode == FanMode::kFanIn ? f.in : f.out);
}

/// Newton's method on erf from a rational start (Winitzki 2008).
double erf_inv(double y) {
  if (std::abs(y) == 1) return std::copysign(std::numeric_limits<double>::infinity(), y);
  constexpr double kA = 0.147, kPi = 3.14159265358979323846;
  const double l = std::log1p(-y * y), t = 2 / (kPi * kA) + l / 2;
  double x = std::copysign(std::sqrt(std::sqrt(t * t - l / kA) - t), y);
  for (int i = 0; i < 3; ++i) x -= (std::erf(x) - y) * std::sqrt(kPi) / 2 * std::exp(x * x);
  return x;
}

}  // namespace

Fans fans(const Tensor& weight) {
  TARN_CHECK_AS(
      ShapeError, weight.dim() >= 2,
      "init: fans need a weight of at least two dimensions; got weight=", weight.describe());
  int64_t kernel = 1;
  for (int d = 2; d < weight.dim(); ++d) kernel *= weight.size(d);
  return {weight.size(1) * kernel, weight.size(0) * kernel};
}

double gain(Nonlinearity f, double slope) {
  switch (f) {
    case Nonlinearity::kTanh:
      return 5.0 / 3;
    case Nonlinearity::kRelu:
      return std::sqrt(2.0);
    case Nonlinearity::kLeakyRelu:
      return std::sqrt(2 / (1 + slope * slope));
    case Nonlinearity::kSelu:
      return 0.75;
    case Nonlinearity::kLinear:
    case Nonlinearity::kSigmoid:
      break;
  }
  return 1;
}

void zeros_(const Tensor& x) {
  constant_(x, 0);
}

void ones_(const Tensor& x) {
  constant_(x, 1);
}

void constant_(const Tensor& x, double value) {
  const NoGradGuard no_grad;
  Tensor(x).fill_(value);
}

void uniform_(const Tensor& x, double low, double high) {
  raw::uniform_(x, low, high);
}

void normal_(const Tensor& x, double mean, double stddev) {
  raw::normal_(x, mean, stddev);
}

void trunc_normal_(const Tensor& x, double mean, double stddev, double low, double high) {
  TARN_CHECK_AS(DTypeError, is_floating(x.dtype()),
                "trunc_normal_: x must be floating; got x=", x.describe());
  TARN_CHECK_AS(ValueError, stddev > 0 && low < high,
                "trunc_normal_: needs stddev > 0 and low < high; got stddev=", stddev,
                ", low=", low, ", high=", high);
  const NoGradGuard no_grad;
  const auto cdf = [&](double v) {
    return 0.5 * (1 + std::erf((v - mean) / stddev / std::sqrt(2.0)));
  };
  Tensor draws = empty(x.sizes(), {.dtype = DType::kF64});
  raw::uniform_(draws, 2 * cdf(low) - 1, 2 * cdf(high) - 1);
  double* v = draws.data<double>();
  for (int64_t i = 0; i < draws.numel(); ++i) {
    v[i] = std::clamp(mean + stddev * std::sqrt(2.0) * erf_inv(v[i]), low, high);
  }
  Tensor(x).copy_(draws);
}

void kaiming_uniform_(const Tensor& x, const KaimingOptions& o) {
  if (x.numel() == 0) return;
  const double bound = gain(o.nonlinearity, o.slope) * std::sqrt(3 / fan_of(x, o.mode));
  uniform_(x, -bound, bound);
}

void kaiming_normal_(const Tensor& x, const KaimingOptions& o) {
  if (x.numel() == 0) return;
  normal_(x, 0, gain(o.nonlinearity, o.slope) / std::sqrt(fan_of(x, o.mode)));
}

void xavier_uniform_(const Tensor& x, double gain) {
  if (x.numel() == 0) return;
  const Fans f = fans(x);
  const double bound = gain * std::sqrt(6.0 / static_cast<double>(f.in + f.out));
  uniform_(x, -bound, bound);
}

void xavier_normal_(const Tensor& x, double gain) {
  if (x.numel() == 0) return;
  const Fans f = fans(x);
  normal_(x, 0, gain * std::sqrt(2.0 / static_cast<double>(f.in + f.out)));
}

void orthogonal_(const Tensor& x, double gain) {
  TARN_CHECK_AS(ShapeError, x.dim() >= 2,
                "orthogonal_: needs a tensor of at least two dimensions; got x=", x.describe());
  TARN_CHECK_AS(DTypeError, is_floating(x.dtype()),
                "orthogonal_: x must be floating; got x=", x.describe());
  if (x.numel() == 0) return;
  const NoGradGuard no_grad;
  const int64_t rows = x.size(0), cols = x.numel() / rows;
  Tensor draws =
      empty({rows, cols}, {.dtype = x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32});
  raw::normal_(draws, 0, 1);
  const bool wide = rows < cols;
  auto [q, r] = linalg::qr(wide ? draws.t() : draws);
  q = mul(q, mul(sign(diagonal(r)), gain));
  Tensor(x).copy_(reshape(wide ? q.t() : q, x.sizes()));
}

}  // namespace tarn::nn::init
