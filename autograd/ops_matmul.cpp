// ops_matmul.cpp - matrix products and their gradients.
#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/record.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_matmul.h"

namespace tarn {
namespace {

Tensor swap_last(const Tensor& x) {
  return transpose(x, -2, -1);
}

// Both sides have at least two dimensions.
Tensor matmul_matrices(const Tensor& a, const Tensor& b) {
  return record("matmul", raw::matmul(a, b), {a, b}, save(a, b),
                [sa = a.sizes(), sb = b.sizes()](const Saved& s, const Tensor& g, Wants w) {
                  Tensor ga, gb;
                  if (w[0]) ga = sum_to_size(matmul(g, swap_last(s[1])), sa);
                  if (w[1]) gb = sum_to_size(matmul(swap_last(s[0]), g), sb);
                  return Grads(ga, gb);
                });
}

// The product of two matrices in `dtype`; another one than theirs is not recorded.
Tensor product_as(const Tensor& a, const Tensor& b, DType dtype) {
  if (!is_half(a.dtype()) || dtype != DType::kF32) return matmul(a, b);
  const OpScope scope("matmul");
  return raw::matmul(a, b, dtype);
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  if (const auto c = cast(CastPolicy::kLow, a, b)) return matmul(c[0], c[1]);
  const OpScope scope("matmul");
  if (!will_record(a, b)) return raw::matmul(a, b);
  raw::check_matmul("matmul", a, b);
  if (a.dim() == 1 || b.dim() == 1) {
    Tensor out =
        matmul_matrices(a.dim() == 1 ? unsqueeze(a, 0) : a, b.dim() == 1 ? unsqueeze(b, 1) : b);
    if (a.dim() == 1) out = squeeze(out, out.dim() - 2);
    if (b.dim() == 1) out = squeeze(out, out.dim() - 1);
    return out;
  }
  if (a.dim() > 2 && b.dim() == 2) {
    // As one tall matrix, so that the gradient of b is one product and not a sum over the batch.
    Shape sizes = a.sizes();
    sizes[sizes.dim() - 1] = b.size(1);
    const int64_t k = a.sizes().back();
    const int64_t rows = k == 0 ? sizes.numel() / std::max<int64_t>(b.size(1), 1) : a.numel() / k;
    return reshape(matmul_matrices(reshape(a, {rows, k}), b), sizes);
  }
  return matmul_matrices(a, b);
}

Tensor mm(const Tensor& a, const Tensor& b) {
  raw::check_defined("mm", "a", a);
  raw::check_defined("mm", "b", b);
  TARN_CHECK_AS(ShapeError, a.dim() == 2 && b.dim() == 2,
                "mm: both sides must be matrices; got a=", a.describe(), ", b=", b.describe(),
                "; use matmul");
  return matmul(a, b);
}

Tensor bmm(const Tensor& a, const Tensor& b) {
  raw::check_defined("bmm", "a", a);
  raw::check_defined("bmm", "b", b);
  TARN_CHECK_AS(ShapeError, a.dim() == 3 && b.dim() == 3 && a.size(0) == b.size(0),
                "bmm: both sides must be 3-d with equal batches; got a=", a.describe(),
                ", b=", b.describe(), "; use matmul to broadcast");
  return matmul(a, b);
}

Tensor addmm(const Tensor& c, const Tensor& a, const Tensor& b, double beta, double alpha) {
  if (const auto in = cast(CastPolicy::kLow, c, a, b)) {
    return addmm(in[0], in[1], in[2], beta, alpha);
  }
  const OpScope scope("addmm");
  return record("addmm", raw::addmm(c, a, b, beta, alpha), {c, a, b}, save(a, b),
                [beta, alpha, sizes = c.sizes()](const Saved& s, const Tensor& g, Wants w) {
                  return Grads(w[0] ? sum_to_size(mul(g, beta), sizes) : Tensor(),
                               w[1] ? mul(matmul(g, t(s[1])), alpha) : Tensor(),
                               w[2] ? mul(matmul(t(s[0]), g), alpha) : Tensor());
                });
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (const auto c = cast(CastPolicy::kLow, x, weight, bias)) return linear(c[0], c[1], c[2]);
  const OpScope scope("linear");
  Tensor out = raw::linear(x, weight, bias);
  return record("linear", out, {x, weight, bias}, save(x, weight),
                [](const Saved& s, const Tensor& g, Wants w) {
                  const Tensor in = s[0];
                  const int64_t n = g.sizes().back(), k = in.sizes().back();
                  Tensor gx, gw, gb;
                  if (w[0]) gx = matmul(g, s[1]);
                  if (w[1] || w[2]) {
                    int64_t rows = 1;  // not by division: n or k may be 0
                    for (int d = 0; d + 1 < g.dim(); ++d) rows *= g.size(d);
                    const Tensor flat = g.dim() == 2 ? g : reshape(g, {rows, n});
                    if (w[1]) {
                      const Tensor flat_in = in.dim() == 2 ? in : reshape(in, {rows, k});
                      gw = product_as(t(flat), flat_in, w.dtype_of(1, g.dtype()));
                    }
                    if (w[2]) gb = sum(flat, {0}, false, w.dtype_of(2, g.dtype()));
                  }
                  return Grads(gx, gw, gb);
                });
}

Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias,
                   bool tanh_approximation) {
  if (const auto c = cast(CastPolicy::kLow, x, weight, bias)) {
    return linear_gelu(c[0], c[1], c[2], tanh_approximation);
  }
  if (will_record(x, weight, bias)) return gelu(linear(x, weight, bias), tanh_approximation);
  const OpScope scope("linear_gelu");
  return raw::linear(x, weight, bias, tanh_approximation ? Epilogue::kGeluTanh : Epilogue::kGelu);
}

}  // namespace tarn
