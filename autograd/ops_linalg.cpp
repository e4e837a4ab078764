// ops_linalg.cpp - dense linear algebra and its gradients.
#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/record.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_linalg.h"

namespace tarn::linalg {
namespace {

Tensor swap_last(const Tensor& x) {
  return transpose(x, -2, -1);
}
Tensor symmetric(const Tensor& x) {
  return mul(add(x, swap_last(x)), 0.5);
}
Tensor skew(const Tensor& x) {
  return sub(x, swap_last(x));
}
// x y^-1, for a square y.
Tensor divide_right(const Tensor& x, const Tensor& y) {
  return swap_last(solve(swap_last(y), swap_last(x)));
}
Tensor eye_like(const Tensor& x, int64_t n) {
  return eye(n, n, {.dtype = x.dtype(), .device = x.device()});
}
// diag(v) on the last two dimensions.
Tensor diagonal_matrix(const Tensor& v) {
  return mul(unsqueeze(v, -1), eye_like(v, v.size(-1)));
}
// x / (v_j - v_i), and 0 on the diagonal.
Tensor over_gaps(const Tensor& x, const Tensor& v) {
  const Tensor one = eye_like(v, v.size(-1));
  const Tensor gaps = sub(unsqueeze(v, -2), unsqueeze(v, -1));
  return mul(div(x, add(gaps, one)), sub(ones_like(one), one));
}
// x + y, of which either may be undefined.
Tensor sum_of(const Tensor& x, const Tensor& y) {
  return !x.defined() ? y : !y.defined() ? x : add(x, y);
}

// The matrix of cofactors, d det / d a, of any a: det(u) det(vh) u diag(prod_{j != i} s_j) vh.
Tensor cofactors(const Tensor& a) {
  const auto [u, s, vh] = svd(a);
  const Tensor one = eye_like(s, s.size(-1)).to(DType::kBool);
  const Tensor others = prod(where(one, ones_like(s).unsqueeze(-2), s.unsqueeze(-2)), {-1});
  const Tensor sign = mul(det(u), det(vh)).unsqueeze(-1).unsqueeze(-1);
  return mul(sign, matmul(mul(u, others.unsqueeze(-2)), vh));
}

Tensor qr_backward(const Tensor& q, const Tensor& r, const Tensor& gq, const Tensor& gr) {
  Tensor m;
  if (gr.defined()) m = matmul(r, swap_last(gr));
  if (gq.defined()) m = sum_of(m, neg(matmul(swap_last(gq), q)));
  const Tensor mirrored = add(tril(m), swap_last(tril(m, -1)));
  const Tensor inner = sum_of(gq, matmul(q, mirrored));
  return divide_right(inner, swap_last(r));
}

Tensor svd_backward(const Tensor& u, const Tensor& s, const Tensor& vh, const Tensor& gu,
                    const Tensor& gs, const Tensor& gvh) {
  const Tensor v = swap_last(vh);
  Tensor inner, outside;  // of the span of u and v
  if (gs.defined()) inner = diagonal_matrix(gs);
  if (gu.defined()) {
    const Tensor turned = matmul(swap_last(u), gu);
    inner = sum_of(inner, mul(over_gaps(skew(turned), square(s)), unsqueeze(s, -2)));
    if (u.size(-2) > u.size(-1)) {
      outside = matmul(div(sub(gu, matmul(u, turned)), unsqueeze(s, -2)), vh);
    }
  }
  if (gvh.defined()) {
    const Tensor gv = swap_last(gvh), turned = matmul(vh, gv);
    inner = sum_of(inner, mul(unsqueeze(s, -1), over_gaps(skew(turned), square(s))));
    if (vh.size(-1) > vh.size(-2)) {
      const Tensor rest = div(sub(gv, matmul(v, turned)), unsqueeze(s, -2));
      outside = sum_of(outside, matmul(u, swap_last(rest)));
    }
  }
  return sum_of(matmul(matmul(u, inner), vh), outside);
}

// Of matrices with one batch.
Tensor solve_matrices(const Tensor& a, const Tensor& b) {
  Tensor x = raw::solve(a, b);
  return record("solve", x, {a, b}, save(a, x), [](const Saved& s, const Tensor& g, Wants w) {
    const Tensor gb = solve(swap_last(s[0]), g);
    return Grads(w[0] ? neg(matmul(gb, swap_last(s[1]))) : Tensor(), w[1] ? gb : Tensor());
  });
}

}  // namespace

Tensor cholesky(const Tensor& a) {
  if (const auto c = cast(CastPolicy::kF32, a)) return cholesky(c[0]);
  const OpScope scope("cholesky");
  Tensor out = raw::cholesky(a);
  return record("cholesky", out, {a}, save(out), [](const Saved& s, const Tensor& g, Wants) {
    const Tensor lower = s[0], upper = swap_last(lower);
    const Tensor product = matmul(upper, g);
    const Tensor phi = mul(add(tril(product), tril(product, -1)), 0.5);
    return Grads(solve(upper, divide_right(symmetric(phi), lower)));
  });
}

Tensor inv(const Tensor& a) {
  if (const auto c = cast(CastPolicy::kF32, a)) return inv(c[0]);
  const OpScope scope("inv");
  Tensor out = raw::inv(a);
  return record("inv", out, {a}, save(out), [](const Saved& s, const Tensor& g, Wants) {
    const Tensor y = swap_last(s[0]);
    return Grads(neg(matmul(matmul(y, g), y)));
  });
}

Tensor det(const Tensor& a) {
  if (const auto c = cast(CastPolicy::kF32, a)) return det(c[0]);
  const OpScope scope("det");
  Tensor out = raw::det(a);
  return record("det", out, {a}, save(a, out), [](const Saved& s, const Tensor& g, Wants) {
    const Tensor matrix = s[0], value = s[1];
    const Tensor outer = unsqueeze(unsqueeze(g, -1), -1);
    if (!will_record(matrix, g) && any(eq(value, 0)).item<bool>()) {
      return Grads(mul(outer, cofactors(matrix)));
    }
    const Tensor scale = mul(outer, unsqueeze(unsqueeze(value, -1), -1));
    return Grads(mul(scale, swap_last(inv(matrix))));
  });
}

std::pair<Tensor, Tensor> slogdet(const Tensor& a) {
  if (const auto c = cast(CastPolicy::kF32, a)) return slogdet(c[0]);
  const OpScope scope("slogdet");
  auto [sign, logabs] = raw::slogdet(a);
  Tensor out = record("slogdet", logabs, {a}, save(a), [](const Saved& s, const Tensor& g, Wants) {
    return Grads(mul(unsqueeze(unsqueeze(g, -1), -1), swap_last(inv(s[0]))));
  });
  return {sign, out};
}

Tensor solve(const Tensor& a, const Tensor& b) {
  if (const auto c = cast(CastPolicy::kF32, a, b)) return solve(c[0], c[1]);
  const OpScope scope("solve");
  const Shape batch = raw::check_solve(a, b);
  const bool vector = raw::is_vector_for(a, b);
  const Tensor right = vector ? unsqueeze(b, -1) : b;
  const auto widened = [&batch](const Tensor& x) {
    Shape sizes = batch;
    sizes.push_back(x.size(-2));
    sizes.push_back(x.size(-1));
    return x.sizes() == sizes ? x : expand(x, sizes);
  };
  const Tensor x = solve_matrices(widened(a), widened(right));
  return vector ? squeeze(x, -1) : x;
}

std::pair<Tensor, Tensor> qr(const Tensor& a) {
  if (const auto c = cast(CastPolicy::kF32, a)) return qr(c[0]);
  const OpScope scope("qr");
  auto [q, r] = raw::qr(a);
  const std::array<Tensor, 2> outs{q, r};
  record_outputs("qr", outs, {a}, save(outs[0], outs[1]),
                 [sizes = a.sizes()](const Saved& s, std::span<const Tensor> g, Wants) {
                   const Tensor q = s[0], r = s[1];
                   TARN_CHECK_AS(
                       UnsupportedError, q.size(-2) >= r.size(-1),
                       "qr: backward needs at least as many rows as columns; got a=", sizes);
                   return Grads(qr_backward(q, r, g[0], g[1]));
                 });
  return {q, r};
}

std::pair<Tensor, Tensor> eigh(const Tensor& a) {
  if (const auto c = cast(CastPolicy::kF32, a)) return eigh(c[0]);
  const OpScope scope("eigh");
  auto [values, vectors] = raw::eigh(a);
  const std::array<Tensor, 2> outs{values, vectors};
  record_outputs("eigh", outs, {a}, save(outs[0], outs[1]),
                 [](const Saved& s, std::span<const Tensor> g, Wants) {
                   const Tensor v = s[1];
                   Tensor inner;
                   if (g[0].defined()) inner = diagonal_matrix(g[0]);
                   if (g[1].defined()) {
                     inner = sum_of(inner, over_gaps(matmul(swap_last(v), g[1]), s[0]));
                   }
                   return Grads(symmetric(matmul(matmul(v, inner), swap_last(v))));
                 });
  return {values, vectors};
}

std::tuple<Tensor, Tensor, Tensor> svd(const Tensor& a) {
  if (const auto c = cast(CastPolicy::kF32, a)) return svd(c[0]);
  const OpScope scope("svd");
  auto [u, s, vh] = raw::svd(a);
  const std::array<Tensor, 3> outs{u, s, vh};
  record_outputs("svd", outs, {a}, save(outs[0], outs[1], outs[2]),
                 [](const Saved& saved, std::span<const Tensor> g, Wants) {
                   return Grads(svd_backward(saved[0], saved[1], saved[2], g[0], g[1], g[2]));
                 });
  return {u, s, vh};
}

}  // namespace tarn::linalg
