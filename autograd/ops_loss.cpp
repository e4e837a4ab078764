// ops_loss.cpp - losses between tensors of the same sizes, made of recorded operations.
#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/record.h"
#include "tarn/autograd/reduce_spread.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn {
namespace {

void check_pair(const char* op, const Tensor& x, const Tensor& target) {
  raw::check_defined(op, "x", x);
  raw::check_defined(op, "target", target);
  raw::check_same_device(op, x, target);
  TARN_CHECK_AS(ShapeError, x.sizes() == target.sizes(), op,
                ": x and target must have the same sizes; got x=", x.describe(),
                ", target=", target.describe(), "; reshape or expand one of them first");
  TARN_CHECK_AS(DTypeError, is_floating(x.dtype()), op,
                ": x must be floating; got x=", x.describe());
}

void check_broadcasts(const char* op, const char* name, const Tensor& t, const Tensor& x) {
  if (!t.defined()) return;
  raw::check_same_device(op, x, t);
  bool fits = t.dim() <= x.dim();
  for (int d = 1; fits && d <= t.dim(); ++d) {
    fits = t.size(-d) == x.size(-d) || t.size(-d) == 1;
  }
  TARN_CHECK_AS(ShapeError, fits, op, ": ", name, " must broadcast to x; got ", name, "=",
                t.describe(), ", x=", x.describe());
}

Tensor reduced(const char* op, const Tensor& loss, Reduction reduction) {
  switch (reduction) {
    case Reduction::kNone:
      return loss;
    case Reduction::kSum:
      return sum(loss);
    case Reduction::kBatchMean:
      TARN_CHECK_AS(ShapeError, loss.dim() > 0, op, ": a batch mean needs a batch; got a 0-d x");
      return div(sum(loss), Scalar(loss.size(0)));
    case Reduction::kMean:
      break;
  }
  return mean(loss);
}

}  // namespace

Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  if (const auto c = cast(CastPolicy::kF32, x, target)) return mse_loss(c[0], c[1], reduction);
  check_pair("mse_loss", x, target);
  return reduced("mse_loss", square(sub(x, target)), reduction);
}

Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  if (const auto c = cast(CastPolicy::kF32, x, target)) return l1_loss(c[0], c[1], reduction);
  check_pair("l1_loss", x, target);
  return reduced("l1_loss", abs(sub(x, target)), reduction);
}

namespace {
// d where it is squared, 0 elsewhere: there the square may be infinite, and 0 * inf is NaN. With
// its sign, since the second derivative of |d|^2 is 0 at 0, that of d^2 is 2.
Tensor near_part(const Tensor& d, const Tensor& far) {
  return masked_fill(d, far, 0);
}
}  // namespace

Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, Reduction reduction, double beta) {
  if (const auto c = cast(CastPolicy::kF32, x, target))
    return smooth_l1_loss(c[0], c[1], reduction, beta);
  check_pair("smooth_l1_loss", x, target);
  TARN_CHECK_AS(ValueError, beta >= 0, "smooth_l1_loss: beta must not be negative; got ", beta);
  if (beta == 0) return l1_loss(x, target, reduction);
  const Tensor d = sub(x, target), size = abs(d);
  const Tensor far = raw::ge(size, Scalar(beta));
  const Tensor loss = where(far, sub(size, beta / 2), mul(square(near_part(d, far)), 0.5 / beta));
  return reduced("smooth_l1_loss", loss, reduction);
}

Tensor huber_loss(const Tensor& x, const Tensor& target, Reduction reduction, double delta) {
  if (const auto c = cast(CastPolicy::kF32, x, target))
    return huber_loss(c[0], c[1], reduction, delta);
  check_pair("huber_loss", x, target);
  TARN_CHECK_AS(ValueError, delta > 0, "huber_loss: delta must be positive; got ", delta);
  const Tensor d = sub(x, target), size = abs(d);
  const Tensor far = raw::gt(size, Scalar(delta));
  const Tensor loss =
      where(far, mul(sub(size, delta / 2), delta), mul(square(near_part(d, far)), 0.5));
  return reduced("huber_loss", loss, reduction);
}

namespace {

constexpr double kLeastLog = -100;  // as in PyTorch: keeps the loss finite at 0 and 1

Tensor bounded_log(const Tensor& x) {
  return clamp_min(log(x), kLeastLog);
}
Tensor bounded_log_of_rest(const Tensor& x) {
  return clamp_min(log1p(neg(x)), kLeastLog);
}

// Elementwise binary cross entropy with PyTorch's gradient: (x - t) / max(x (1 - x), 1e-12).
Tensor bce(const Tensor& x, const Tensor& target) {
  Tensor loss;
  {
    NoGradGuard no_grad;
    loss = sub(mul(sub(target, 1), bounded_log_of_rest(x)), mul(target, bounded_log(x)));
  }
  return record("binary_cross_entropy", loss, {x, target}, save(x, target),
                [](const Saved& s, const Tensor& g, Wants w) {
                  const Tensor x = s[0], t = s[1];
                  Tensor gx, gt;
                  if (w[0]) {  // 1e-12 is 0 in f16
                    const DType wide = widened_dtype(x);
                    const Tensor p = to(x, wide);
                    const Tensor spread = clamp_min(mul(p, rsub(p, 1)), 1e-12);
                    gx = to(div(mul(to(g, wide), sub(p, to(t, wide))), spread), x.dtype());
                  }
                  if (w[1]) gt = mul(g, sub(bounded_log_of_rest(x), bounded_log(x)));
                  return Grads(gx, gt);
                });
}

}  // namespace

Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const Tensor& weight,
                            Reduction reduction) {
  if (const auto c = cast(CastPolicy::kF32, x, target, weight)) {
    return binary_cross_entropy(c[0], c[1], c[2], reduction);
  }
  constexpr const char* op = "binary_cross_entropy";
  check_pair(op, x, target);
  check_broadcasts(op, "weight", weight, x);
  const bool inside = raw::reduce(op, ReduceOp::kAll,
                                  raw::logical_and(raw::ge(x, Scalar(0)), raw::le(x, Scalar(1))),
                                  {}, false, DType::kBool)
                          .item<bool>();
  TARN_CHECK_AS(ValueError, inside, op, ": every x must be in [0, 1]; got x=", x.describe(),
                "; for logits use binary_cross_entropy_with_logits");
  Tensor loss = bce(x, to(target, x.dtype()));
  if (weight.defined()) loss = mul(loss, weight);
  return reduced(op, loss, reduction);
}

Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target, const Tensor& weight,
                                        const Tensor& pos_weight, Reduction reduction) {
  if (const auto c = cast(CastPolicy::kF32, x, target, weight, pos_weight)) {
    return binary_cross_entropy_with_logits(c[0], c[1], c[2], c[3], reduction);
  }
  constexpr const char* op = "binary_cross_entropy_with_logits";
  check_pair(op, x, target);
  check_broadcasts(op, "weight", weight, x);
  check_broadcasts(op, "pos_weight", pos_weight, x);
  const Tensor t = to(target, x.dtype());
  // (1 - t) x - (1 + (pos_weight - 1) t) log sigmoid(x): no exponential can overflow.
  Tensor likelihood = logsigmoid(x);
  if (pos_weight.defined()) likelihood = mul(likelihood, add(mul(sub(pos_weight, 1), t), 1));
  Tensor loss = sub(mul(rsub(t, 1), x), likelihood);
  if (weight.defined()) loss = mul(loss, weight);
  return reduced(op, loss, reduction);
}

Tensor kl_div(const Tensor& x, const Tensor& target, Reduction reduction, bool log_target) {
  if (const auto c = cast(CastPolicy::kF32, x, target))
    return kl_div(c[0], c[1], reduction, log_target);
  check_pair("kl_div", x, target);
  if (log_target) return reduced("kl_div", mul(exp(target), sub(target, x)), reduction);
  const Tensor absent = raw::eq(target, Scalar(0));
  const Tensor safe = masked_fill(target, absent, 1);
  const Tensor loss = sub(mul(target, log(safe)), mul(target, x));
  return reduced("kl_div", loss, reduction);
}

}  // namespace tarn
