// ops_moments.cpp - variance, norms, logsumexp and softmax, with their gradients.
#include <cmath>
#include <limits>

#include "tarn/autograd/autocast.h"
#include "tarn/autograd/record.h"
#include "tarn/autograd/reduce_spread.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_softmax.h"

namespace tarn {

using detail::Spread;

namespace {

// d var / dx = 2 (x - mean) / (n - correction). The mean is taken again, so that it is on the tape
// under create_graph.
Tensor var_backward(const Tensor& g, const Tensor& x, const Spread& spread, double correction) {
  Shape dims;
  for (int d = 0; d < x.dim(); ++d) {
    if (spread.kept[d] != x.sizes()[d]) dims.push_back(d);
  }
  const Tensor centred = dims.empty() ? sub(x, x) : sub(x, mean(x, dims, true));
  const double freedom = std::max(0.0, static_cast<double>(spread.count) - correction);
  return mul(centred, mul(spread.keep(g), 2 / freedom));
}

}  // namespace

Tensor var(const Tensor& x, const Shape& dims, double correction, bool keepdim) {
  const Tensor out = raw::var_mean("var", x, dims, correction, keepdim, true, false).first;
  return record(
      "var", out, {x}, save(x),
      [spread = Spread("var", x, dims), correction](const Saved& s, const Tensor& g, Wants) {
        return Grads(var_backward(g, s[0], spread, correction));
      });
}

Tensor stddev(const Tensor& x, const Shape& dims, double correction, bool keepdim) {
  // The variance in f64: in x's dtype it could be infinite where its root is not (300 in f16).
  const Tensor variance =
      raw::var_mean("stddev", x, dims, correction, keepdim, true, false, DType::kF64).first;
  const Tensor out = raw::to(raw::unary(UnaryOp::kSqrt, variance), x.dtype());
  return record(
      "stddev", out, {x}, save(x, out),
      [spread = Spread("stddev", x, dims), correction](const Saved& s, const Tensor& g, Wants) {
        const Tensor half = div(g, mul(s[1], 2));
        const Tensor gvar = masked_fill(half, raw::eq(s[1], Scalar(0)), 0);
        return Grads(var_backward(gvar, s[0], spread, correction));
      });
}

std::pair<Tensor, Tensor> var_mean(const Tensor& x, const Shape& dims, double correction,
                                   bool keepdim) {
  auto [variance, average] = raw::var_mean("var_mean", x, dims, correction, keepdim, true, true);
  const Tensor outs[] = {variance, average};
  record_outputs("var_mean", outs, {x}, save(x),
                 [spread = Spread("var_mean", x, dims), correction](
                     const Saved& s, std::span<const Tensor> g, Wants) {
                   Tensor gx;
                   if (g[0].defined()) gx = var_backward(g[0], s[0], spread, correction);
                   if (g[1].defined()) {
                     const Tensor share =
                         spread(mul(g[1], 1.0 / static_cast<double>(spread.count)));
                     gx = gx.defined() ? add(gx, share) : share;
                   }
                   return Grads(gx);
                 });
  return {variance, average};
}

namespace {

ReduceOp norm_kind(double p) {
  if (p == 0) return ReduceOp::kNorm0;
  if (p == 1) return ReduceOp::kNorm1;
  if (p == 2) return ReduceOp::kNorm2;
  if (std::isinf(p)) return p > 0 ? ReduceOp::kNormInf : ReduceOp::kNormNegInf;
  return ReduceOp::kNormP;
}

Tensor norm_backward(const Tensor& g_in, const Tensor& x, const Tensor& out_in,
                     const Spread& spread, double p) {
  const Tensor g = spread.keep(g_in), out = spread.keep(out_in);
  if (p == 0) return zeros_like(x);
  if (p == 1) return mul(sign(x), g);
  if (std::isinf(p)) {
    const Tensor hits = to(eq(abs(x), out), g.dtype());
    return mul(sign(x), mul(hits, div(g, sum_to_size(hits, spread.kept))));
  }
  // At 0 the subgradient is 0, also where a power of 0 would be infinite.
  const Tensor zero = eq(out, 0);
  if (p == 2) return mul(x, masked_fill(div(g, out), zero, 0));
  const Tensor scale = masked_fill(mul(g, pow(out, 1 - p)), zero, 0);
  const Tensor at_zero = eq(x, 0);
  const Tensor safe = masked_fill(abs(x), at_zero, 1);
  return mul(mul(sign(x), pow(safe, p - 1)), scale);
}

}  // namespace

Tensor norm(const Tensor& x, double p, const Shape& dims, bool keepdim) {
  if (const auto c = cast(CastPolicy::kF32, x)) return norm(c[0], p, dims, keepdim);
  raw::check_defined("norm", "x", x);
  TARN_CHECK_AS(DTypeError, is_floating(x.dtype()),
                "norm: x must be floating; got x=", x.describe());
  TARN_CHECK_AS(ValueError, !std::isnan(p), "norm: p must be a number; got nan");
  const Tensor out = raw::reduce("norm", norm_kind(p), x, dims, keepdim, x.dtype(), p);
  return record("norm", out, {x}, save(x, out),
                [spread = Spread("norm", x, dims), p](const Saved& s, const Tensor& g, Wants) {
                  return Grads(norm_backward(g, s[0], s[1], spread, p));
                });
}

Tensor logsumexp(const Tensor& x, const Shape& dims, bool keepdim) {
  if (const auto c = cast(CastPolicy::kF32, x)) return logsumexp(c[0], dims, keepdim);
  raw::check_defined("logsumexp", "x", x);
  TARN_CHECK_AS(DTypeError, is_floating(x.dtype()),
                "logsumexp: x must be floating; got x=", x.describe());
  const Spread spread("logsumexp", x, dims);
  Tensor out;
  {
    NoGradGuard no_grad;
    const auto total = [&](ReduceOp kind, const Tensor& of) {
      return raw::reduce("logsumexp", kind, of, dims, keepdim, x.dtype());
    };
    if (spread.count == 0) {
      out = log(total(ReduceOp::kSum, x));
    } else {
      // An infinite maximum must not turn into inf - inf.
      const Tensor top = total(ReduceOp::kMax, x);
      const Tensor shift = masked_fill(top, isinf(top), 0);
      out = add(log(total(ReduceOp::kSum, exp(sub(x, spread.keep(shift))))), shift);
    }
  }
  return record("logsumexp", out, {x}, save(x, out),
                [spread](const Saved& s, const Tensor& g, Wants) {
                  return Grads(mul(spread.keep(g), exp(sub(s[0], spread.keep(s[1])))));
                });
}

namespace {

// The fused gradient, or its formula in recorded operations under create_graph.
Tensor softmax_gradient(const Tensor& g, const Tensor& y, int64_t dim, bool log) {
  if (!grad_enabled()) return raw::softmax_backward(to(g, y.dtype()), y, dim, log);
  if (y.dim() == 0) return mul(g, 0);
  if (log) return sub(g, mul(exp(y), sum(g, {dim}, true)));
  return mul(y, sub(g, sum(mul(g, y), {dim}, true)));
}

Tensor softmax_of(const Tensor& x, int64_t dim, std::optional<DType> dtype, bool log) {
  if (const auto c = cast(CastPolicy::kF32, x); c && !dtype) return softmax_of(c[0], dim, {}, log);
  const char* op = log ? "log_softmax" : "softmax";
  raw::check_defined(op, "x", x);
  const Tensor in = dtype ? to(x, *dtype) : x;
  const Tensor out = raw::softmax(in, dim, log);
  return record(op, out, {in}, save(out), [dim, log](const Saved& s, const Tensor& g, Wants) {
    return Grads(softmax_gradient(g, s[0], dim, log));
  });
}

}  // namespace

Tensor softmax(const Tensor& x, int64_t dim, std::optional<DType> dtype) {
  return softmax_of(x, dim, dtype, false);
}
Tensor log_softmax(const Tensor& x, int64_t dim, std::optional<DType> dtype) {
  return softmax_of(x, dim, dtype, true);
}

}  // namespace tarn
