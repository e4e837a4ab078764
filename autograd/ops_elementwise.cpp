// ops_elementwise.cpp - arithmetic and functions of one tensor, and their gradients.
#include <cmath>
#include <limits>

#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/operand.h"
#include "tarn/autograd/record.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn {

using detail::one;
using detail::Operand;
using detail::two;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Whether autocast runs op in f32: results that leave a half's range, or lose what it resolves.
bool wants_f32(UnaryOp op) {
  switch (op) {
    case UnaryOp::kAcos:
    case UnaryOp::kAsin:
    case UnaryOp::kCosh:
    case UnaryOp::kExp:
    case UnaryOp::kExpm1:
    case UnaryOp::kLog:
    case UnaryOp::kLog10:
    case UnaryOp::kLog1p:
    case UnaryOp::kLog2:
    case UnaryOp::kPowScalar:
    case UnaryOp::kReciprocal:
    case UnaryOp::kRpowScalar:
    case UnaryOp::kRsqrt:
    case UnaryOp::kSinh:
    case UnaryOp::kSoftplus:
    case UnaryOp::kTan:
      return true;
    default:
      return false;
  }
}

Tensor unary(UnaryOp op, const char* name, const Tensor& x, const Scalars& s = {}) {
  if (__builtin_expect(detail::autocast_on, 0) && wants_f32(op)) {
    if (const auto c = cast(CastPolicy::kF32, x)) return unary(op, name, c[0], s);
  }
  const OpScope scope(name);
  Tensor out = raw::unary(op, x, s, name);
  const UnaryInfo traits = unary_info(op);
  if (!traits.differentiable || !will_record(x)) return out;
  const auto backward = [op, s](const Saved& saved, const Tensor& g, Wants) {
    return Grads(unary_backward(op, 1, g, saved[0], s));
  };
  const Tensor none;
  switch (traits.saves) {
    case Saves::kInput:
      return record(name, out, {x}, save(x), backward);
    case Saves::kOutput:
      return record(name, out, {x}, save(out), backward);
    case Saves::kNone:
      return record(name, out, {x}, save(none), backward);
  }
  return out;
}

}  // namespace

Tensor unary_backward(UnaryOp op, int order, const Tensor& grad, const Tensor& saved,
                      const Scalars& s) {
  Tensor out = raw::unary_backward(op, order, grad, saved, s);
  return record("unary_backward", out, {grad, saved}, save(grad, saved),
                [op, order, s](const Saved& sv, const Tensor& g, Wants w) {
                  const Tensor inner = sv[0], x = sv[1];
                  Grads grads{Tensor(), Tensor()};
                  if (w[0]) grads[0] = unary_backward(op, order, g, x, s);
                  if (w[1]) {
                    TARN_CHECK_AS(UnsupportedError, order < 3,
                                  "backward: derivatives beyond the third of an elementwise "
                                  "operation are not supported");
                    grads[1] = unary_backward(op, order + 1, mul(g, inner), x, s);
                  }
                  return grads;
                });
}

#define TARN_X(Enumerator, name)                    \
  Tensor name(const Tensor& x) {                    \
    return unary(UnaryOp::k##Enumerator, #name, x); \
  }
TARN_PLAIN_UNARY(TARN_X)
#undef TARN_X

Tensor gelu(const Tensor& x, bool tanh_approximation) {
  return tanh_approximation ? unary(UnaryOp::kGeluTanh, "gelu", x)
                            : unary(UnaryOp::kGelu, "gelu", x);
}
Tensor leaky_relu(const Tensor& x, double slope) {
  return unary(UnaryOp::kLeakyRelu, "leaky_relu", x, one(slope));
}
Tensor elu(const Tensor& x, double alpha) {
  return unary(UnaryOp::kElu, "elu", x, one(alpha));
}
Tensor celu(const Tensor& x, double alpha) {
  TARN_CHECK_AS(ValueError, alpha != 0, "celu: alpha must not be 0");
  return unary(UnaryOp::kCelu, "celu", x, one(alpha));
}
Tensor softplus(const Tensor& x, double beta, double threshold) {
  return unary(UnaryOp::kSoftplus, "softplus", x, two(beta, threshold));
}
Tensor hardtanh(const Tensor& x, double min, double max) {
  return unary(UnaryOp::kHardtanh, "hardtanh", x, two(min, max));
}
Tensor hardshrink(const Tensor& x, double lambda) {
  return unary(UnaryOp::kHardshrink, "hardshrink", x, one(lambda));
}
Tensor softshrink(const Tensor& x, double lambda) {
  TARN_CHECK_AS(ValueError, lambda >= 0, "softshrink: lambda must not be negative; got ", lambda);
  return unary(UnaryOp::kSoftshrink, "softshrink", x, one(lambda));
}
Tensor threshold(const Tensor& x, double limit, double value) {
  return unary(UnaryOp::kThreshold, "threshold", x, two(limit, value));
}
namespace {
bool leaves_integers(const Scalar& bound) {
  return bound.is_floating() && !std::isinf(bound.to_double());
}
}  // namespace

Tensor clamp(const Tensor& x, const Scalar& min, const Scalar& max) {
  raw::check_defined("clamp", "x", x);
  const bool widens = !is_floating(x.dtype()) && (leaves_integers(min) || leaves_integers(max));
  return unary(UnaryOp::kClamp, "clamp", widens ? x.to(DType::kF32) : x,
               two(min.to_double(), max.to_double()));
}
Tensor clamp_min(const Tensor& x, const Scalar& min) {
  return clamp(x, min, kInf);
}
Tensor clamp_max(const Tensor& x, const Scalar& max) {
  return clamp(x, -kInf, max);
}

Tensor detail::scaled(const char* op, const Tensor& a, const Tensor& b, double alpha) {
  const DType dtype = raw::result_dtype(a, b);
  const Tensor in = to(b, dtype);
  if (is_floating(dtype)) return mul(in, alpha);
  TARN_CHECK_AS(ValueError, alpha == std::trunc(alpha) && std::abs(alpha) < 0x1p63, op,
                ": alpha must be a whole number for integer tensors; got ", alpha);
  if (dtype == DType::kBool) return mul(in, alpha != 0);
  return mul(in, static_cast<int64_t>(alpha));
}

Tensor add(const Tensor& a, const Tensor& b, double alpha) {
  raw::check_defined("add", "a", a);
  raw::check_defined("add", "b", b);
  if (alpha != 1) return add(a, detail::scaled("add", a, b, alpha));
  const OpScope scope("add");
  Tensor out = raw::add(a, b);
  if (!will_record(a, b)) return out;
  return record("add", out, {a, b}, save(),
                [oa = Operand(a), ob = Operand(b)](const Saved&, const Tensor& g, Wants w) {
                  return Grads(w[0] ? oa.reduce(g) : Tensor(), w[1] ? ob.reduce(g) : Tensor());
                });
}

Tensor sub(const Tensor& a, const Tensor& b, double alpha) {
  raw::check_defined("sub", "a", a);
  raw::check_defined("sub", "b", b);
  if (alpha != 1) return sub(a, detail::scaled("sub", a, b, alpha));
  const OpScope scope("sub");
  Tensor out = raw::sub(a, b);
  if (!will_record(a, b)) return out;
  return record("sub", out, {a, b}, save(),
                [oa = Operand(a), ob = Operand(b)](const Saved&, const Tensor& g, Wants w) {
                  return Grads(w[0] ? oa.reduce(g) : Tensor(), w[1] ? ob.reduce(neg(g)) : Tensor());
                });
}

Tensor mul(const Tensor& a, const Tensor& b) {
  const OpScope scope("mul");
  Tensor out = raw::mul(a, b);
  if (!will_record(a, b)) return out;
  return record("mul", out, {a, b}, save(a, b),
                [oa = Operand(a), ob = Operand(b)](const Saved& s, const Tensor& g, Wants w) {
                  return Grads(w[0] ? oa.reduce(mul(g, s[1])) : Tensor(),
                               w[1] ? ob.reduce(mul(g, s[0])) : Tensor());
                });
}

Tensor div(const Tensor& a, const Tensor& b) {
  const OpScope scope("div");
  Tensor out = raw::div(a, b);
  if (!will_record(a, b)) return out;
  // a and not the quotient, which may be written to. Needed for b's gradient alone.
  return record("div", out, {a, b}, save(b, will_record(b) ? a : Tensor()),
                [oa = Operand(a), ob = Operand(b)](const Saved& s, const Tensor& g, Wants w) {
                  const Tensor ga = div(g, s[0]);
                  return Grads(w[0] ? oa.reduce(ga) : Tensor(),
                               w[1] ? ob.reduce(neg(mul(ga, div(s[1], s[0])))) : Tensor());
                });
}

// With a plain number the operation has one operand: x + s and x * s are unary functors. A number
// that changes the dtype (i64 + 0.5) casts first.
namespace {
Tensor with_scalar(UnaryOp op, const char* name, const Tensor& x, const Scalar& value) {
  const DType dtype = value.result_dtype(x.dtype());
  return unary(op, name, dtype == x.dtype() ? x : x.to(dtype), one(value.to_double()));
}
// A functor's number is a double, cut to the dtype's range; integers wrap instead.
bool fits_functor(const Scalar& s, const Tensor& x) {
  const DType dtype = s.result_dtype(x.dtype());
  if (dtype == DType::kBool) return false;  // "or" and "and", which only the binary kernels know
  if (s.is_floating() || is_floating(dtype)) return true;
  const int64_t v = s.to_int64();
  constexpr int64_t kExact = int64_t{1} << 53;
  return dtype == DType::kI64   ? v >= -kExact && v <= kExact
         : dtype == DType::kI32 ? v == static_cast<int32_t>(v)
                                : v >= 0 && v <= 255;
}
}  // namespace

Tensor add(const Tensor& a, const Scalar& b) {
  raw::check_defined("add", "a", a);
  if (!fits_functor(b, a)) return add(a, raw::scalar_beside(b, a));
  return with_scalar(UnaryOp::kAddScalar, "add", a, b);
}
Tensor sub(const Tensor& a, const Scalar& b) {
  raw::check_defined("sub", "a", a);
  if (!is_floating(b.result_dtype(a.dtype()))) return sub(a, raw::scalar_beside(b, a));
  return add(a, Scalar(-b.to_double()));
}
Tensor rsub(const Tensor& a, const Scalar& b) {
  raw::check_defined("rsub", "a", a);
  TARN_CHECK_AS(DTypeError, a.dtype() != DType::kBool,
                "sub: a bool tensor cannot be subtracted; got ", a.describe(),
                "; use logical_not to invert a mask, or convert with to(dtype)");
  // In the result's dtype: -u8(3) would be 253 before it meets 2.0.
  return add(neg(to(a, b.result_dtype(a.dtype()))), b);
}
Tensor mul(const Tensor& a, const Scalar& b) {
  raw::check_defined("mul", "a", a);
  if (!fits_functor(b, a)) return mul(a, raw::scalar_beside(b, a));
  return with_scalar(UnaryOp::kMulScalar, "mul", a, b);
}
Tensor div(const Tensor& a, const Scalar& b) {
  raw::check_defined("div", "a", a);
  // Division, not multiplication by the inverse: the last bit is PyTorch's and the caller's.
  const DType dtype = is_floating(a.dtype()) ? a.dtype() : DType::kF32;
  return div(a, scalar_tensor(b, {.dtype = dtype, .device = a.device()}));
}
Tensor operator/(const Scalar& a, const Tensor& b) {
  raw::check_defined("div", "b", b);
  const DType dtype = is_floating(b.dtype()) ? b.dtype() : DType::kF32;
  return div(scalar_tensor(a, {.dtype = dtype, .device = b.device()}), b);
}

// Steps and remainders. floor_divide and trunc_divide are constant almost everywhere.
namespace {
void check_divisor(const char* op, const Tensor& a, const Tensor& b) {
  raw::check_defined(op, "a", a);
  raw::check_defined(op, "b", b);
  if (is_floating(a.dtype()) || is_floating(b.dtype())) return;
  const OpScope scope(op);
  bool zero = false;
  for (int64_t v : b.to_vector<int64_t>()) zero |= v == 0;
  TARN_CHECK_AS(ValueError, !zero, op, ": integer division by zero");
}
// Records gradients of zeros.
Tensor flat(const char* op, const Tensor& a, const Tensor& b, const Tensor& out) {
  if (!is_floating(out.dtype())) return out;
  return record(op, out, {a, b}, save(),
                [oa = Operand(a), ob = Operand(b)](const Saved&, const Tensor& g, Wants w) {
                  const Tensor none = zeros_like(g);
                  return Grads(w[0] ? oa.reduce(none) : Tensor(),
                               w[1] ? ob.reduce(none) : Tensor());
                });
}
}  // namespace

Tensor floor_divide(const Tensor& a, const Tensor& b) {
  check_divisor("floor_divide", a, b);
  return flat("floor_divide", a, b, raw::floor_div(a, b));
}
Tensor trunc_divide(const Tensor& a, const Tensor& b) {
  check_divisor("trunc_divide", a, b);
  return flat("trunc_divide", a, b, raw::trunc_div(a, b));
}
Tensor remainder(const Tensor& a, const Tensor& b) {
  check_divisor("remainder", a, b);
  Tensor out = raw::remainder(a, b);
  return record("remainder", out, {a, b}, save(a, b),
                [oa = Operand(a), ob = Operand(b)](const Saved& s, const Tensor& g, Wants w) {
                  return Grads(
                      w[0] ? oa.reduce(g) : Tensor(),
                      w[1] ? ob.reduce(neg(mul(g, raw::floor_div(s[0], s[1])))) : Tensor());
                });
}
Tensor fmod(const Tensor& a, const Tensor& b) {
  check_divisor("fmod", a, b);
  Tensor out = raw::fmod(a, b);
  return record("fmod", out, {a, b}, save(a, b),
                [oa = Operand(a), ob = Operand(b)](const Saved& s, const Tensor& g, Wants w) {
                  return Grads(
                      w[0] ? oa.reduce(g) : Tensor(),
                      w[1] ? ob.reduce(neg(mul(g, raw::trunc_div(s[0], s[1])))) : Tensor());
                });
}

Tensor pow(const Tensor& base, const Tensor& exponent) {
  if (const auto c = cast(CastPolicy::kF32, base, exponent)) return pow(c[0], c[1]);
  Tensor out = raw::pow(base, exponent);
  return record(
      "pow", out, {base, exponent}, save(base, exponent, out),
      [oa = Operand(base), ob = Operand(exponent)](const Saved& s, const Tensor& g, Wants w) {
        const Tensor x = s[0], p = s[1];
        Tensor gx, gp;
        if (w[0]) {
          const Tensor slope = mul(p, pow(x, sub(p, 1)));
          gx = oa.reduce(mul(g, masked_fill(slope, raw::eq(p, 0), 0)));
        }
        if (w[1]) {
          // x^p log x, and 0 where x is 0 and p is not negative.
          const Tensor flat = raw::logical_and(raw::eq(x, 0), raw::ge(p, 0));
          gp = ob.reduce(mul(g, masked_fill(mul(s[2], log(x)), flat, 0)));
        }
        return Grads(gx, gp);
      });
}
Tensor pow(const Tensor& base, const Scalar& exponent) {
  if (const auto c = cast(CastPolicy::kF32, base)) return pow(c[0], exponent);
  raw::check_defined("pow", "base", base);
  const double p = exponent.to_double();
  const bool keeps_dtype = exponent.result_dtype(base.dtype()) == base.dtype();
  if (keeps_dtype && p == 2) return square(base);
  if (keeps_dtype && p == 1) return base.clone();
  if (!is_floating(base.dtype()) && !exponent.is_floating()) {
    TARN_CHECK_AS(ValueError, p >= 0,
                  "pow: integers to negative integer powers leave the integers; ", "got exponent ",
                  exponent, "; convert with to(f32)");
    return raw::pow(base, raw::scalar_beside(exponent, base));
  }
  return with_scalar(UnaryOp::kPowScalar, "pow", base, exponent);
}
Tensor pow(const Scalar& base, const Tensor& exponent) {
  raw::check_defined("pow", "exponent", exponent);
  if (!is_floating(exponent.dtype()) && !base.is_floating()) {
    return raw::pow(raw::scalar_beside(base, exponent), exponent);
  }
  return with_scalar(UnaryOp::kRpowScalar, "pow", exponent, base);
}

}  // namespace tarn
