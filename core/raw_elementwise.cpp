// raw_elementwise.cpp - checks, promotion and allocation for elementwise operations.
#include "tarn/core/raw_elementwise.h"

#include <cmath>
#include <optional>

#include "tarn/core/factory.h"
#include "tarn/core/kernel_call.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/transfer.h"
#include "tarn/core/views.h"

namespace tarn::raw {
namespace {

int kind(DType d) {
  return is_floating(d) ? 2 : d == DType::kBool ? 0 : 1;
}

const char* domain_text(Domain domain) {
  switch (domain) {
    case Domain::kFloating:
      return "floating";
    case Domain::kNumber:
      return "floating or integer";
    case Domain::kIntegral:
      return "integer or bool";
    case Domain::kAny:
      break;
  }
  return "any";
}

bool in_domain(DType d, Domain domain) {
  switch (domain) {
    case Domain::kFloating:
      return is_floating(d);
    case Domain::kNumber:
      return d != DType::kBool;
    case Domain::kIntegral:
      return !is_floating(d);
    case Domain::kAny:
      break;
  }
  return true;
}

void check_domain(const char* op, DType d, Domain domain) {
  TARN_CHECK_AS(DTypeError, in_domain(d, domain), op, ": the dtype must be ", domain_text(domain),
                "; got ", d);
}

// The dtype an operation computes in: integers and bool become f32 where only floats will do.
DType compute_dtype(DType d, Domain domain) {
  return domain == Domain::kFloating && !is_floating(d) ? DType::kF32 : d;
}

void run_unary(UnaryOp op, const Scalars& s, const Tensor& out, const Tensor& x) {
  if (out.numel() == 0) return;
  TARN_KERNEL(elementwise, unary, out.device(), op, s, make_plan({&out, &x}));
}

void run_binary(BinaryOp op, const Tensor& out, const Tensor& a, const Tensor& b) {
  if (out.numel() == 0) return;
  TARN_KERNEL(elementwise, binary, out.device(), op, make_plan({&out, &a, &b}));
}

// The unary operator that does `op` with a number, so that no tensor is made of the number: on a
// GPU that would be a kernel of its own. f32 and f64, where both give the same bits.
struct WithScalar {
  bool found = false;
  UnaryOp op{};
  Scalars s{};
};
WithScalar with_scalar(BinaryOp op, DType dtype, const Scalar& b) {
  if (dtype != DType::kF32 && dtype != DType::kF64) return {};
  const double v = b.to_double();
  switch (op) {
    case BinaryOp::kAdd:
      return {true, UnaryOp::kAddScalar, {{v}}};
    case BinaryOp::kSub:
      return {true, UnaryOp::kAddScalar, {{-v}}};
    case BinaryOp::kMul:
      return {true, UnaryOp::kMulScalar, {{v}}};
    case BinaryOp::kDiv:
      return {true, UnaryOp::kDivScalar, {{v}}};
    default:
      return {};
  }
}

// Reading what is being written through other strides would see half-written values.
Tensor without_overlap(const Tensor& out, const Tensor& x) {
  return overlaps_partly(out, x) ? clone(x) : x;
}

void check_inplace_target(const char* op, const Tensor& x, const Shape& result) {
  TARN_CHECK_AS(ShapeError, x.sizes() == result, op,
                "_: the result must have the tensor's sizes; got ", x.sizes(), ", result ", result);
  check_writable(op, x);
}

}  // namespace

void check_same_device(const char* op, const Tensor& a, const Tensor& b) {
  TARN_CHECK_AS(DeviceError, a.device() == b.device(), op,
                ": tensors must be on one device; got a=", a.describe(), ", b=", b.describe(),
                "; move one with to(device)");
}

namespace {
// The dtype of tensors with dimensions beside 0-d ones, which widen them only if of a higher kind.
DType beside_scalars(DType shaped, DType scalar) {
  return kind(scalar) > kind(shaped) ? promote_types(shaped, scalar) : shaped;
}

DType result_dtype(const Tensor& a, const Tensor& b, const Tensor& c) {
  std::optional<DType> shaped, scalar;
  for (const Tensor* t : {&a, &b, &c}) {
    std::optional<DType>& of = t->dim() > 0 ? shaped : scalar;
    of = of ? promote_types(*of, t->dtype()) : t->dtype();
  }
  return shaped && scalar ? beside_scalars(*shaped, *scalar) : shaped ? *shaped : *scalar;
}
}  // namespace

DType result_dtype(const Tensor& a, const Tensor& b) {
  const DType x = a.dtype(), y = b.dtype();
  if (x == y || (a.dim() > 0) == (b.dim() > 0)) return promote_types(x, y);
  return a.dim() > 0 ? beside_scalars(x, y) : beside_scalars(y, x);
}

Tensor scalar_beside(const Scalar& value, const Tensor& x) {
  Tensor out = empty({}, {.dtype = value.result_dtype(x.dtype()), .device = x.device()});
  fill_(out, value);
  return out;
}

Tensor unary(UnaryOp op, const Tensor& x, const Scalars& s, const char* name) {
  const UnaryInfo& info = unary_info(op);
  if (!name) name = info.name;
  check_defined(name, "x", x);
  const DType dtype = info.predicate ? x.dtype() : compute_dtype(x.dtype(), info.domain);
  if (!info.predicate) check_domain(name, dtype, info.domain);
  const Tensor in = to(x, dtype);
  Tensor out = elementwise_output(in.sizes(), {&in}, info.predicate ? DType::kBool : dtype);
  run_unary(op, s, out, in);
  return out;
}

void unary_(UnaryOp op, const Tensor& x, const Scalars& s, const char* name) {
  const UnaryInfo& info = unary_info(op);
  if (!name) name = info.name;
  check_domain(name, x.dtype(), info.domain);
  check_writable(name, x);
  run_unary(op, s, x, x);
  x.bump_version();
}

Tensor unary_backward(UnaryOp op, int order, const Tensor& grad, const Tensor& saved,
                      const Scalars& s) {
  Tensor out = elementwise_output(grad.sizes(), {&grad}, grad.dtype());
  if (out.numel() == 0) return out;
  const Tensor& point = saved.defined() ? saved : grad;
  TARN_KERNEL(elementwise, unary_backward, out.device(), op, order, s,
              make_plan({&out, &grad, &point, &point}));
  return out;
}

Tensor binary(BinaryOp op, const Tensor& a, const Tensor& b) {
  const BinaryInfo& info = binary_info(op);
  check_defined(info.name, "a", a);
  check_defined(info.name, "b", b);
  check_same_device(info.name, a, b);
  if (a.dtype() == b.dtype() && a.sizes() == b.sizes() && in_domain(a.dtype(), info.domain)) {
    // Nothing to promote or to stretch.
    Tensor out = elementwise_output(a.sizes(), {&a, &b}, info.predicate ? DType::kBool : a.dtype());
    run_binary(op, out, a, b);
    return out;
  }
  const DType dtype = compute_dtype(result_dtype(a, b), info.domain);
  check_domain(info.name, dtype, info.domain);
  const Tensor x = to(a, dtype), y = to(b, dtype);
  const Shape sizes = broadcast_shapes(info.name, a.sizes(), b.sizes());
  Tensor out = elementwise_output(sizes, {&x, &y}, info.predicate ? DType::kBool : dtype);
  run_binary(op, out, x, y);
  return out;
}

Tensor binary(BinaryOp op, const Tensor& a, const Scalar& b) {
  check_defined(binary_info(op).name, "a", a);
  if (const WithScalar u = with_scalar(op, a.dtype(), b); u.found) {
    return unary(u.op, a, u.s, binary_info(op).name);
  }
  return binary(op, a, scalar_beside(b, a));
}
Tensor binary(BinaryOp op, const Scalar& a, const Tensor& b) {
  check_defined(binary_info(op).name, "b", b);
  return binary(op, scalar_beside(a, b), b);
}

void binary_(BinaryOp op, const Tensor& a, const Tensor& b) {
  const BinaryInfo info = binary_info(op);
  check_defined(info.name, "a", a);
  check_defined(info.name, "b", b);
  check_same_device(info.name, a, b);
  const DType dtype = compute_dtype(result_dtype(a, b), info.domain);
  check_domain(info.name, dtype, info.domain);
  TARN_CHECK_AS(DTypeError, kind(dtype) <= kind(a.dtype()), info.name, "_: the result is ", dtype,
                " and cannot be stored in place; got a=", a.describe(), ", b=", b.describe());
  if (!(a.sizes() == b.sizes())) {
    check_inplace_target(info.name, a, broadcast_shapes(info.name, a.sizes(), b.sizes()));
  } else {
    check_writable(info.name, a);
  }
  if (dtype == a.dtype() && !info.predicate) {
    run_binary(op, a, a, without_overlap(a, to(b, dtype)));
  } else {
    copy_(a, binary(op, a, b));
    return;  // copy_ counted the write
  }
  a.bump_version();
}

void binary_(BinaryOp op, const Tensor& a, const Scalar& b) {
  if (const WithScalar u = with_scalar(op, a.dtype(), b); u.found) {
    return unary_(u.op, a, u.s, binary_info(op).name);
  }
  binary_(op, a, scalar_beside(b, a));
}

Tensor where(const Tensor& cond, const Tensor& a, const Tensor& b) {
  check_defined("where", "cond", cond);
  check_defined("where", "a", a);
  check_defined("where", "b", b);
  TARN_CHECK_AS(DTypeError, cond.dtype() == DType::kBool, "where: the condition must be bool; got ",
                cond.describe());
  check_same_device("where", a, b);
  check_same_device("where", cond, a);
  const DType dtype = result_dtype(a, b);
  const Tensor x = to(a, dtype), y = to(b, dtype);
  const Shape sizes =
      broadcast_shapes("where", broadcast_shapes("where", x.sizes(), y.sizes()), cond.sizes());
  Tensor out = elementwise_output(sizes, {&x, &y, &cond}, dtype);
  if (out.numel() > 0) {
    TARN_KERNEL(elementwise, where, out.device(), make_plan({&out, &cond, &x, &y}));
  }
  return out;
}

Tensor ternary(TernaryOp op, const Tensor& a, const Tensor& b, const Tensor& c, const Scalars& s) {
  const auto& info = ternary_info(op);
  const char* name = info.name;
  check_defined(name, "a", a);
  check_defined(name, "b", b);
  check_defined(name, "c", c);
  check_same_device(name, a, b);
  check_same_device(name, a, c);
  const DType dtype = compute_dtype(result_dtype(a, b, c), info.domain);
  check_domain(name, dtype, info.domain);
  TARN_CHECK_AS(ValueError, is_floating(dtype) || s.v[0] == std::trunc(s.v[0]), name,
                ": the factor must be a whole number for integer tensors; got ", s.v[0]);
  const Tensor x = to(a, dtype), y = to(b, dtype), z = to(c, dtype);
  const Shape sizes =
      broadcast_shapes(name, broadcast_shapes(name, x.sizes(), y.sizes()), z.sizes());
  Tensor out = elementwise_output(sizes, {&x, &y, &z}, dtype);
  if (out.numel() > 0) {
    TARN_KERNEL(elementwise, ternary, out.device(), op, s, make_plan({&out, &x, &y, &z}));
  }
  return out;
}

void ternary_(TernaryOp op, const Tensor& a, const Tensor& b, const Tensor& c, const Scalars& s) {
  const char* name = ternary_info(op).name;
  check_same_device(name, a, b);
  check_same_device(name, a, c);
  check_inplace_target(
      name, a, broadcast_shapes(name, broadcast_shapes(name, a.sizes(), b.sizes()), c.sizes()));
  if (a.numel() > 0) {
    const Tensor y = without_overlap(a, to(b, a.dtype())), z = without_overlap(a, to(c, a.dtype()));
    TARN_KERNEL(elementwise, ternary, a.device(), op, s, make_plan({&a, &a, &y, &z}));
  }
  a.bump_version();
}

namespace {
// Same device, no checks: out's sizes are from's, or from's broadcast.
void run_copy(const Tensor& out, const Tensor& from) {
  if (out.numel() == 0) return;
  TARN_KERNEL(elementwise, copy, out.device(), make_plan({&out, &from}));
}
}  // namespace

Tensor contiguous(const Tensor& x, MemoryFormat format) {
  if (x.is_contiguous(format)) return x;
  Tensor out = empty(x.sizes(), {.dtype = x.dtype(), .device = x.device(), .format = format});
  run_copy(out, x);
  return out;
}

Tensor clone(const Tensor& x) {
  check_defined("clone", "x", x);
  Tensor out = empty_like(x);
  run_copy(out, x);
  return out;
}

Tensor to(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor out = empty_like(x, dtype);
  run_copy(out, x);
  return out;
}

void copy_(const Tensor& out, const Tensor& from) {
  check_defined("copy_", "source", from);
  if (!(out.sizes() == from.sizes())) {
    check_inplace_target("copy", out, broadcast_shapes("copy_", out.sizes(), from.sizes()));
  } else {
    check_writable("copy", out);
  }
  if (out.device() == from.device()) {
    run_copy(out, without_overlap(out, from));
  } else if (out.numel() > 0) {
    tarn::detail::copy_between(out, from);
  }
  out.bump_version();
}

void fill_(const Tensor& x, const Scalar& value, const char* op) {
  check_no_internal_overlap(op, x);
  if (x.numel() > 0) TARN_KERNEL(elementwise, fill, x.device(), value, make_plan({&x}));
  x.bump_version();
}

Tensor sum_to_size(const Tensor& x, const Shape& sizes) {
  if (x.sizes() == sizes) return x;
  const int extra = x.dim() - sizes.dim();
  bool fits = extra >= 0;
  for (int i = 0; fits && i < sizes.dim(); ++i) {
    fits = sizes[i] == 1 || sizes[i] == x.sizes()[i + extra];
  }
  TARN_CHECK_AS(ShapeError, fits, "sum_to_size: sizes must broadcast to the tensor's; got ", sizes,
                " for ", x.describe());
  Shape kept = Shape::filled(x.dim(), 1);
  for (int i = 0; i < sizes.dim(); ++i) kept[i + extra] = sizes[i];
  Tensor out = empty(kept, {.dtype = x.dtype(), .device = x.device()});
  if (out.numel() > 0) TARN_KERNEL(reduce, reduce, x.device(), ReduceOp::kSum, x, 0.0, out);
  return view(out, sizes);
}

}  // namespace tarn::raw
