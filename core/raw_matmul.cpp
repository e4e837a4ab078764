// raw_matmul.cpp - checks and normalisation for matrix products.
#include "tarn/core/raw_matmul.h"

#include "tarn/core/factory.h"
#include "tarn/core/kernel_call.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn::raw {
namespace {

// The kernels want unit stride in one of the last two dimensions, and no zero stride in them.
Tensor as_operand(const Tensor& x) {
  const int n = x.dim();
  const int64_t rows = x.sizes()[n - 2], cols = x.sizes()[n - 1];
  const int64_t rs = x.strides()[n - 2], cs = x.strides()[n - 1];
  const bool by_rows = (cs == 1 || cols == 1) && (rs >= cols || rows == 1);
  const bool by_cols = (rs == 1 || rows == 1) && (cs >= rows || cols == 1);
  // Sizes of 1 may carry any stride; the kernels read it, so it must be a usable one.
  if (by_rows && cs == 1 && rs >= std::max<int64_t>(cols, 1)) return x;
  if (by_cols && rs == 1 && cs >= std::max<int64_t>(rows, 1)) return x;
  Tensor copy = empty(x.sizes(), {.dtype = x.dtype(), .device = x.device()});
  copy_(copy, x);
  return copy;
}

void run(const Tensor& a, const Tensor& b, const Tensor& bias, double alpha, double beta,
         Epilogue epilogue, const Tensor& out) {
  if (out.numel() == 0) return;
  TARN_KERNEL(matmul, matmul, out.device(), as_operand(a), as_operand(b), bias, alpha, beta,
              epilogue, out);
}

// [.., M, K] with the batch dimensions folded into one: [B, M, K].
Tensor fold_batch(const Tensor& x, const Shape& batch) {
  const int n = x.dim();
  Shape full = batch;
  full.push_back(x.sizes()[n - 2]);
  full.push_back(x.sizes()[n - 1]);
  const Tensor wide = x.sizes() == full ? x : expand(x, full);
  return reshape(wide, {batch.numel(), full[full.dim() - 2], full.back()});
}

Shape batch_of(const Tensor& x) {
  Shape batch;
  for (int i = 0; i + 2 < x.dim(); ++i) batch.push_back(x.sizes()[i]);
  return batch;
}

}  // namespace

void check_matmul(const char* op, const Tensor& a, const Tensor& b) {
  check_defined(op, "a", a);
  check_defined(op, "b", b);
  check_same_device(op, a, b);
  TARN_CHECK_AS(ShapeError, a.dim() >= 1 && b.dim() >= 1, op,
                ": needs at least 1 dimension on both sides; got a=", a.describe(),
                ", b=", b.describe());
  TARN_CHECK_AS(DTypeError, a.dtype() == b.dtype() && a.dtype() != DType::kBool, op,
                ": both sides must have one dtype, floating or integer; got a=", a.describe(),
                ", b=", b.describe());
  const int64_t inner_a = a.sizes().back();
  const int64_t inner_b = b.dim() == 1 ? b.sizes()[0] : b.sizes()[b.dim() - 2];
  const bool transposed_fits = b.dim() >= 2 && b.sizes().back() == inner_a;
  TARN_CHECK_AS(ShapeError, inner_a == inner_b, op,
                ": inner sizes must match; got a=", a.describe(), ", b=", b.describe(), " (",
                inner_a, " vs ", inner_b, ")", transposed_fits ? "; did you mean b.t()?" : "");
}

Tensor matmul(const Tensor& a, const Tensor& b) {
  check_matmul("matmul", a, b);
  const Tensor x = a.dim() == 1 ? unsqueeze(a, 0) : a;
  const Tensor y = b.dim() == 1 ? unsqueeze(b, 1) : b;
  const int64_t m = x.sizes()[x.dim() - 2], n = y.sizes().back();
  Shape sizes = broadcast_shapes("matmul", batch_of(x), batch_of(y));
  const Shape batch = sizes;
  sizes.push_back(m);
  sizes.push_back(n);
  Tensor out = empty(sizes, {.dtype = a.dtype(), .device = a.device()});
  if (y.dim() == 2 && (x.dim() == 2 || x.is_contiguous())) {
    // One matrix on the right: all rows of the batch are one tall matrix.
    const int64_t rows = batch.numel() * m;
    run(x.dim() == 2 ? x : view(x, {rows, x.sizes().back()}), y, Tensor(), 1, 0, Epilogue::kNone,
        view(out, {rows, n}));
  } else {
    run(fold_batch(x, batch), fold_batch(y, batch), Tensor(), 1, 0, Epilogue::kNone,
        view(out, {batch.numel(), m, n}));
  }
  if (a.dim() == 1) out = squeeze(out, out.dim() - 2);
  if (b.dim() == 1) out = squeeze(out, out.dim() - 1);
  return out;
}

Tensor matmul(const Tensor& a, const Tensor& b, DType dtype) {
  TARN_ASSERT(a.dim() == 2 && b.dim() == 2);
  if (dtype == a.dtype()) return matmul(a, b);
  check_matmul("matmul", a, b);
  TARN_ASSERT(is_half(a.dtype()) && dtype == DType::kF32);
  if (!kernels(a.device().type).matmul.matmul_wide) return to(matmul(a, b), dtype);
  Tensor out = empty({a.sizes()[0], b.sizes()[1]}, {.dtype = dtype, .device = a.device()});
  if (out.numel() == 0) return out;
  TARN_KERNEL(matmul, matmul_wide, out.device(), as_operand(a), as_operand(b), out);
  return out;
}

Tensor addmm(const Tensor& c, const Tensor& a, const Tensor& b, double beta, double alpha) {
  check_matmul("addmm", a, b);
  check_defined("addmm", "c", c);
  check_same_device("addmm", a, c);
  TARN_CHECK_AS(ShapeError, a.dim() == 2 && b.dim() == 2,
                "addmm: a and b must be matrices; got a=", a.describe(), ", b=", b.describe());
  const Shape sizes{a.sizes()[0], b.sizes()[1]};
  TARN_CHECK_AS(ShapeError, broadcast_shapes("addmm", c.sizes(), sizes) == sizes,
                "addmm: the added tensor must broadcast to ", sizes, "; got ", c.describe());
  Tensor out = empty(sizes, {.dtype = a.dtype(), .device = a.device()});
  if (beta != 0) copy_(out, c);
  if (!is_floating(a.dtype())) {
    // Integer kernels have no factors: the product first, then the sum.
    Tensor product = matmul(a, b);
    mul_(product, Scalar(static_cast<int64_t>(alpha)));
    if (beta == 0) return product;
    mul_(out, Scalar(static_cast<int64_t>(beta)));
    add_(product, out);
    return product;
  }
  run(a, b, Tensor(), alpha, beta, Epilogue::kNone, out);
  return out;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, Epilogue epilogue) {
  check_defined("linear", "x", x);
  check_defined("linear", "weight", weight);
  check_same_device("linear", x, weight);
  TARN_CHECK_AS(ShapeError,
                weight.dim() == 2 && x.dim() >= 1 && x.sizes().back() == weight.sizes()[1],
                "linear: x [..., K] and weight [N, K] must share K; got x=", x.describe(),
                ", weight=", weight.describe());
  TARN_CHECK_AS(DTypeError, x.dtype() == weight.dtype() && is_floating(x.dtype()),
                "linear: x and weight must have one floating dtype; got x=", x.describe(),
                ", weight=", weight.describe());
  const int64_t n = weight.sizes()[0], k = weight.sizes()[1];
  if (bias.defined()) {
    check_same_device("linear", x, bias);
    TARN_CHECK_AS(ShapeError, bias.sizes() == Shape{n} && bias.dtype() == x.dtype(),
                  "linear: bias must be [", n, "] ", x.dtype(), "; got ", bias.describe());
  }
  Shape sizes = x.sizes();
  sizes[sizes.dim() - 1] = n;
  Tensor out = empty(sizes, {.dtype = x.dtype(), .device = x.device()});
  const int64_t rows = sizes.numel() / std::max<int64_t>(n, 1);
  const Tensor flat = x.dim() == 2 ? x : reshape(x, {k == 0 ? rows : x.numel() / k, k});
  run(flat, transpose(weight, 0, 1), bias.defined() ? contiguous(bias) : bias, 1, 0, epilogue,
      out.dim() == 2 ? out : view(out, {rows, n}));
  return out;
}

}  // namespace tarn::raw
