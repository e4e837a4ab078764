// ops_select.cpp - extrema, interpolation, comparison and selection, and their gradients.
#include <cmath>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/operand.h"
#include "tarn/autograd/record.h"
#include "tarn/core/factory.h"
#include "tarn/core/number_check.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn {

using detail::one;
using detail::Operand;

namespace {
// The larger (or smaller) takes the gradient; a tie is shared evenly. Beside NaN nobody loses: both
// take all of it, as in PyTorch.
template <BinaryOp kLoses>
Tensor extremum(const char* name, const Tensor& a, const Tensor& b, Tensor out) {
  return record(name, out, {a, b}, save(a, b),
                [oa = Operand(a), ob = Operand(b)](const Saved& s, const Tensor& g, Wants w) {
                  const Tensor x = s[0], y = s[1];
                  const Tensor shared = where(raw::eq(x, y), mul(g, 0.5), g);
                  const auto share = [&](const Tensor& mine, const Tensor& other) {
                    return masked_fill(shared, raw::binary(kLoses, mine, other), 0);
                  };
                  return Grads(w[0] ? oa.reduce(share(x, y)) : Tensor(),
                               w[1] ? ob.reduce(share(y, x)) : Tensor());
                });
}
}  // namespace

Tensor maximum(const Tensor& a, const Tensor& b) {
  return extremum<BinaryOp::kLt>("maximum", a, b, raw::maximum(a, b));
}
Tensor minimum(const Tensor& a, const Tensor& b) {
  return extremum<BinaryOp::kGt>("minimum", a, b, raw::minimum(a, b));
}

namespace {
// sqrt(x^2 + y^2) without overflow. The scale cancels, so it need not be on the tape.
Tensor radius(const Tensor& x, const Tensor& y) {
  const Tensor one = scalar_tensor(1, {.dtype = x.dtype(), .device = x.device()});
  Tensor scale = raw::maximum(raw::unary(UnaryOp::kAbs, x), raw::unary(UnaryOp::kAbs, y));
  const Tensor usable = raw::logical_and(raw::gt(scale, 0), raw::unary(UnaryOp::kIsFinite, scale));
  scale = raw::where(usable, scale, one);
  return mul(sqrt(add(square(div(x, scale)), square(div(y, scale)))), scale);
}
}  // namespace

Tensor atan2(const Tensor& y, const Tensor& x) {
  Tensor out = raw::atan2(y, x);
  return record("atan2", out, {y, x}, save(y, x),
                [oy = Operand(y), ox = Operand(x)](const Saved& s, const Tensor& g, Wants w) {
                  // (x, -y) / r^2; r^2 itself could leave the range.
                  const Tensor y = to(s[0], g.dtype()), x = to(s[1], g.dtype());
                  const Tensor r = radius(x, y), scaled = div(g, r);
                  return Grads(w[0] ? oy.reduce(mul(scaled, div(x, r))) : Tensor(),
                               w[1] ? ox.reduce(neg(mul(scaled, div(y, r)))) : Tensor());
                });
}

Tensor lerp(const Tensor& start, const Tensor& end, double weight) {
  raw::check_defined("lerp", "start", start);
  raw::check_defined("lerp", "end", end);
  raw::check_same_device("lerp", start, end);
  Tensor out = raw::ternary(TernaryOp::kLerpScalar, start, end, end, one(weight));
  return record(
      "lerp", out, {start, end}, save(),
      [weight, os = Operand(start), oe = Operand(end)](const Saved&, const Tensor& g, Wants w) {
        return Grads(w[0] ? os.reduce(mul(g, 1 - weight)) : Tensor(),
                     w[1] ? oe.reduce(mul(g, weight)) : Tensor());
      });
}
Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
  Tensor out = raw::ternary(TernaryOp::kAddcmul, x, a, b, one(value));
  return record("addcmul", out, {x, a, b}, save(a, b),
                [value, ox = Operand(x), oa = Operand(a), ob = Operand(b)](
                    const Saved& s, const Tensor& g, Wants w) {
                  const Tensor scaled = mul(g, value);
                  return Grads(w[0] ? ox.reduce(g) : Tensor(),
                               w[1] ? oa.reduce(mul(scaled, s[1])) : Tensor(),
                               w[2] ? ob.reduce(mul(scaled, s[0])) : Tensor());
                });
}
Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
  Tensor out = raw::ternary(TernaryOp::kAddcdiv, x, a, b, one(value));
  return record("addcdiv", out, {x, a, b}, save(a, b),
                [value, ox = Operand(x), oa = Operand(a), ob = Operand(b)](
                    const Saved& s, const Tensor& g, Wants w) {
                  const Tensor ga = div(mul(g, value), s[1]);
                  return Grads(w[0] ? ox.reduce(g) : Tensor(), w[1] ? oa.reduce(ga) : Tensor(),
                               w[2] ? ob.reduce(neg(mul(ga, div(s[0], s[1])))) : Tensor());
                });
}

#define TARN_X(Enumerator, name)                  \
  Tensor name(const Tensor& a, const Tensor& b) { \
    return raw::name(a, b);                       \
  }                                               \
  Tensor name(const Tensor& a, const Scalar& b) { \
    return raw::name(a, b);                       \
  }
TARN_COMPARISONS(TARN_X)
#undef TARN_X
Tensor logical_and(const Tensor& a, const Tensor& b) {
  return raw::logical_and(a, b);
}
Tensor logical_or(const Tensor& a, const Tensor& b) {
  return raw::logical_or(a, b);
}
Tensor logical_xor(const Tensor& a, const Tensor& b) {
  return raw::logical_xor(a, b);
}
Tensor bitwise_and(const Tensor& a, const Tensor& b) {
  return raw::bitwise_and(a, b);
}
Tensor bitwise_or(const Tensor& a, const Tensor& b) {
  return raw::bitwise_or(a, b);
}
Tensor bitwise_xor(const Tensor& a, const Tensor& b) {
  return raw::bitwise_xor(a, b);
}

bool equal(const Tensor& a, const Tensor& b) {
  raw::check_defined("equal", "a", a);
  raw::check_defined("equal", "b", b);
  if (!(a.sizes() == b.sizes()) || a.dtype() != b.dtype()) return false;
  if (a.numel() == 0) return true;
  for (bool same : raw::eq(a, b).to_vector<bool>()) {
    if (!same) return false;
  }
  return true;
}

bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  raw::check_defined("allclose", "a", a);
  raw::check_defined("allclose", "b", b);
  if (!(a.sizes() == b.sizes())) return false;
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || (equal_nan && std::isnan(x[i]) && std::isnan(y[i]))) continue;
    if (!(std::abs(x[i] - y[i]) <= atol + rtol * std::abs(y[i])) || std::isinf(y[i])) return false;
  }
  return true;
}

Tensor where(const Tensor& cond, const Tensor& a, const Tensor& b) {
  const OpScope scope("where");
  Tensor out = raw::where(cond, a, b);
  if (!will_record(a, b)) return out;
  return record("where", out, {a, b}, save(cond),
                [oa = Operand(a), ob = Operand(b)](const Saved& s, const Tensor& g, Wants w) {
                  const Tensor zero = scalar_tensor(0, {.dtype = g.dtype(), .device = g.device()});
                  return Grads(w[0] ? oa.reduce(where(s[0], g, zero)) : Tensor(),
                               w[1] ? ob.reduce(where(s[0], zero, g)) : Tensor());
                });
}

namespace {
Tensor number_for(const Scalar& value, const Tensor& other) {
  raw::check_defined("where", "the tensor beside a number", other);
  return scalar_tensor(value,
                       {.dtype = value.result_dtype(other.dtype()), .device = other.device()});
}
}  // namespace

Tensor where(const Tensor& cond, const Tensor& a, const Scalar& b) {
  return where(cond, a, number_for(b, a));
}
Tensor where(const Tensor& cond, const Scalar& a, const Tensor& b) {
  return where(cond, number_for(a, b), b);
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, const Scalar& value) {
  raw::check_defined("masked_fill", "x", x);
  raw::check_defined("masked_fill", "mask", mask);
  raw::check_same_device("masked_fill", x, mask);
  TARN_CHECK_AS(DTypeError, mask.dtype() == DType::kBool,
                "masked_fill: the mask must be bool; got ", mask.describe());
  broadcast_shapes("masked_fill", x.sizes(), mask.sizes());
  check_number_fits("masked_fill", value, x.dtype());
  return where(mask, scalar_tensor(value, {.dtype = x.dtype(), .device = x.device()}), x);
}

Tensor sum_to_size(const Tensor& x, const Shape& sizes) {
  const Tensor out = raw::sum_to_size(x, sizes);
  if (out.is_same(x)) return x;  // it must not become its own history
  return record(
      "sum_to_size", out, {x}, save(),
      [from = x.sizes()](const Saved&, const Tensor& g, Wants) { return Grads(g.expand(from)); });
}

}  // namespace tarn
