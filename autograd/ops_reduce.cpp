// ops_reduce.cpp - sums, products, extremes, running sums and sorting, with their gradients.
#include "tarn/autograd/autocast.h"
#include "tarn/autograd/record.h"
#include "tarn/autograd/reduce_spread.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn {

using detail::Spread;

namespace {

DType sum_dtype(DType d) {
  return is_floating(d) ? d : DType::kI64;
}

// The input and result dtype of a sum-like operation with an optional dtype: what the kernel can
// widen on its own (halves to f32, integers to i64) is not converted first.
struct SumTypes {
  DType input, output, wanted;

  SumTypes(const char* op, const Tensor& x, std::optional<DType> dtype) {
    raw::check_defined(op, "x", x);
    input = x.dtype();
    wanted = dtype.value_or(sum_dtype(input));
    output = is_floating(wanted) ? wanted : DType::kI64;
    const bool widens = output == sum_dtype(input) || (is_half(input) && output == DType::kF32);
    if (!widens) input = output;
    if (wanted == DType::kBool) input = DType::kBool;  // 0.5 is true, though it is 0 as an i64
  }
};

// Autocast answers halves in f32, which the kernels give without a cast copy.
std::optional<DType> in_autocast(const char* op, const Tensor& x, std::optional<DType> dtype) {
  if (dtype || !detail::autocast_on) return dtype;
  raw::check_defined(op, "x", x);
  const DType wide = widened_dtype(x);
  return wide == x.dtype() ? dtype : wide;
}

}  // namespace

Tensor sum(const Tensor& x, const Shape& dims, bool keepdim, std::optional<DType> dtype) {
  const SumTypes types("sum", x, in_autocast("sum", x, dtype));
  const Tensor in = to(x, types.input);
  const Tensor out = raw::reduce("sum", ReduceOp::kSum, in, dims, keepdim, types.output);
  return to(record("sum", out, {in}, save(),
                   [spread = Spread("sum", in, dims), d = types.input](
                       const Saved&, const Tensor& g, Wants) { return Grads(spread(to(g, d))); }),
            types.wanted);
}

Tensor mean(const Tensor& x, const Shape& dims, bool keepdim, std::optional<DType> dtype) {
  const SumTypes types("mean", x, dtype);
  TARN_CHECK_AS(DTypeError, is_floating(types.wanted),
                "mean: x must be floating; got x=", x.describe(), "; pass a floating dtype");
  const Tensor in = to(x, types.input);
  const Tensor out = raw::reduce("mean", ReduceOp::kMean, in, dims, keepdim, types.output);
  return record(
      "mean", out, {in}, save(),
      [spread = Spread("mean", in, dims), d = types.input](const Saved&, const Tensor& g, Wants) {
        return Grads(spread(to(mul(g, 1.0 / static_cast<double>(spread.count)), d)));
      });
}

namespace {

// Product of the other elements, by a matrix of all of them with ones on the diagonal:
// differentiable at zeros to any order, and only used there.
Tensor product_of_others(const Tensor& x, const Spread& spread) {
  Shape order, rest;
  for (int d = 0; d < x.dim(); ++d) {
    (spread.kept[d] == x.sizes()[d] ? rest : order).push_back(d);
  }
  Shape perm = rest, outer;
  for (int64_t d : order) perm.push_back(d);
  for (int64_t d : rest) outer.push_back(x.sizes()[static_cast<int>(d)]);
  const Tensor moved = permute(x, perm);
  const int64_t n = spread.count, rows = outer.numel();
  const Tensor all = expand(reshape(moved, {rows, 1, n}), {rows, n, n});
  const Tensor i = arange(n, {.dtype = DType::kI64, .device = x.device()});
  const Tensor others = where(eq(view(i, {n, 1}), i), detail::number_like(x, 1), all);
  Shape back = Shape::filled(x.dim(), 0);
  for (int d = 0; d < x.dim(); ++d) back[static_cast<int>(perm[d])] = d;
  return permute(reshape(prod(others, {-1}), moved.sizes()), back);
}

Tensor prod_backward(const Tensor& g, const Tensor& x, const Tensor& out, const Spread& spread) {
  const Tensor is_zero = raw::eq(x, Scalar(0));
  if (!any(is_zero).item<bool>()) return div(spread(mul(g, out)), x);
  if (grad_enabled()) return mul(spread(g), product_of_others(x, spread));
  // With one zero only its own gradient is not zero; with more, none is.
  const Tensor rest = where(is_zero, detail::number_like(x, 1), x);
  Shape dims;
  for (int d = 0; d < x.dim(); ++d) {
    if (spread.kept[d] != x.sizes()[d]) dims.push_back(d);
  }
  const Tensor product = dims.empty() ? rest : prod(rest, dims, true);
  const Tensor zeros = dims.empty() ? to(is_zero, DType::kI64) : sum(is_zero, dims, true);
  const Tensor at_zero =
      where(logical_and(is_zero, eq(zeros, 1)), product, detail::number_like(x, 0));
  const Tensor others = where(eq(zeros, 0), div(product, rest), at_zero);
  return mul(spread(g), others);
}

}  // namespace

Tensor prod(const Tensor& x, const Shape& dims, bool keepdim, std::optional<DType> dtype) {
  const SumTypes types("prod", x, in_autocast("prod", x, dtype));
  const Tensor in = to(x, types.input);
  const Tensor out = raw::reduce("prod", ReduceOp::kProd, in, dims, keepdim, types.output);
  return to(record("prod", out, {in}, save(in, out),
                   [spread = Spread("prod", in, dims), d = types.input](const Saved& s,
                                                                        const Tensor& g, Wants) {
                     return Grads(prod_backward(to(g, d), s[0], to(s[1], d), spread));
                   }),
            types.wanted);
}

namespace {

// Elements equal to the extreme share its gradient.
Tensor share_evenly(const Tensor& g, const Tensor& hit, const Spread& spread, DType dtype) {
  const Tensor hits = to(hit, dtype);
  return mul(hits, div(spread.keep(g), sum_to_size(hits, spread.kept)));
}

Tensor extreme(const char* op, ReduceOp kind, const Tensor& x, const Shape& dims, bool keepdim) {
  raw::check_defined(op, "x", x);
  const Tensor out = raw::reduce(op, kind, x, dims, keepdim, x.dtype());
  return record(op, out, {x}, save(x, out),
                [spread = Spread(op, x, dims)](const Saved& s, const Tensor& g, Wants) {
                  const Tensor hit = raw::eq(s[0], raw::reshape(s[1], spread.kept));
                  return Grads(share_evenly(g, hit, spread, g.dtype()));
                });
}

std::pair<Tensor, Tensor> extreme_along(const char* op, bool largest, const Tensor& x, int64_t dim,
                                        bool keepdim) {
  auto [values, index] = raw::arg_reduce(op, largest, x, dim, keepdim, true);
  const int at = wrap_dim(op, dim, x.dim());
  values = record(op, values, {x}, save(index),
                  [spread = Spread(op, x, {at}), at](const Saved& s, const Tensor& g, Wants) {
                    if (spread.sizes.dim() == 0) return Grads(g);
                    const Tensor here = detail::chosen(spread.keep(s[0]), spread.sizes, at);
                    return Grads(where(here, spread.keep(g), detail::number_like(g, 0)));
                  });
  return {values, index};
}

}  // namespace

Tensor amax(const Tensor& x, const Shape& dims, bool keepdim) {
  return extreme("amax", ReduceOp::kMax, x, dims, keepdim);
}
Tensor amin(const Tensor& x, const Shape& dims, bool keepdim) {
  return extreme("amin", ReduceOp::kMin, x, dims, keepdim);
}
std::pair<Tensor, Tensor> max(const Tensor& x, int64_t dim, bool keepdim) {
  return extreme_along("max", true, x, dim, keepdim);
}
std::pair<Tensor, Tensor> min(const Tensor& x, int64_t dim, bool keepdim) {
  return extreme_along("min", false, x, dim, keepdim);
}
Tensor any(const Tensor& x, const Shape& dims, bool keepdim) {
  return raw::reduce("any", ReduceOp::kAny, x, dims, keepdim, DType::kBool);
}
Tensor all(const Tensor& x, const Shape& dims, bool keepdim) {
  return raw::reduce("all", ReduceOp::kAll, x, dims, keepdim, DType::kBool);
}
Tensor argmax(const Tensor& x, std::optional<int64_t> dim, bool keepdim) {
  return raw::arg_reduce("argmax", true, x, dim, keepdim, false).second;
}
Tensor argmin(const Tensor& x, std::optional<int64_t> dim, bool keepdim) {
  return raw::arg_reduce("argmin", false, x, dim, keepdim, false).second;
}

namespace {

// sum of g over positions at and after each one.
Tensor sum_from_here(const Tensor& g, int64_t dim) {
  return flip(cumsum(flip(g, {dim}), dim), {dim});
}

Tensor converted(const Tensor& x, std::optional<DType> dtype) {
  return dtype && *dtype != x.dtype() ? to(x, *dtype) : x;
}

// 1, x_0, x_1, ... without the last.
Tensor behind_one(const Tensor& x, int64_t dim) {
  Shape sizes = x.sizes();
  sizes[wrap_dim("cumprod", dim, x.dim())] = 1;
  const Tensor first = ones(sizes, {.dtype = x.dtype(), .device = x.device()});
  return cat({first, narrow(x, dim, 0, x.size(dim) - 1)}, dim);
}

// y_i = b_i + a_i y_{i-1}. Doubling (Hillis, Steele 1986): after a step of s, y and f are the sums
// and products of the last 2s elements; n log n multiplications, four temporaries of x's size.
Tensor linear_scan(const Tensor& a, const Tensor& b, int64_t dim) {
  const Tensor f = raw::clone(a), y = raw::clone(b);
  const int64_t n = y.size(dim);
  for (int64_t s = 1; s < n; s *= 2) {
    const auto early = [&](const Tensor& t) { return raw::narrow(t, dim, 0, n - s); };
    const auto late = [&](const Tensor& t) { return raw::narrow(t, dim, s, n - s); };
    const Tensor sums = raw::add(late(y), raw::mul(late(f), early(y)));
    const Tensor products = raw::mul(late(f), early(f));
    raw::copy_(late(y), sums);
    raw::copy_(late(f), products);
  }
  return record(
      "linear_scan", y, {a, b}, save(a, y), [dim](const Saved& s, const Tensor& g, Wants w) {
        // The same from the end: t_i = g_i + a_{i+1} t_{i+1}.
        const Tensor next = behind_one(flip(s[0], {dim}), dim);
        const Tensor t = flip(linear_scan(next, flip(g, {dim}), dim), {dim});
        Tensor ga;
        if (w[0]) {
          const int64_t rest = s[1].size(dim) - 1;
          const Tensor first = zeros_like(narrow(t, dim, 0, 1));
          ga = cat({first, mul(narrow(t, dim, 1, rest), narrow(s[1], dim, 0, rest))}, dim);
        }
        return Grads(ga, w[1] ? t : Tensor());
      });
}

// d(cumprod)_j / dx_i = product of the first j+1 elements without x_i, for j >= i.
Tensor cumprod_backward(const Tensor& g, const Tensor& x, const Tensor& out, int64_t dim) {
  const Tensor is_zero = raw::eq(x, Scalar(0));
  if (!any(is_zero).item<bool>()) return div(sum_from_here(mul(g, out), dim), x);
  // Without division: what stands before x_i, times s_i = g_i + x_{i+1} s_{i+1}.
  const Tensor next = behind_one(flip(x, {dim}), dim);
  return mul(behind_one(out, dim), flip(linear_scan(next, flip(g, {dim}), dim), {dim}));
}

}  // namespace

Tensor cumsum(const Tensor& x, int64_t dim, std::optional<DType> dtype) {
  raw::check_defined("cumsum", "x", x);
  const Tensor in = converted(x, in_autocast("cumsum", x, dtype));
  // Integers are summed in i64, whatever they end as.
  return converted(record("cumsum", raw::cumulative("cumsum", false, in, dim), {in}, save(),
                          [dim](const Saved&, const Tensor& g, Wants) {
                            return Grads(g.dim() == 0 ? g : sum_from_here(g, dim));
                          }),
                   dtype);
}

Tensor cumprod(const Tensor& x, int64_t dim, std::optional<DType> dtype) {
  raw::check_defined("cumprod", "x", x);
  const Tensor in = converted(x, in_autocast("cumprod", x, dtype));
  const Tensor out = raw::cumulative("cumprod", true, in, dim);
  return converted(record("cumprod", out, {in}, save(in, out),
                          [dim](const Saved& s, const Tensor& g, Wants) {
                            return Grads(g.dim() == 0 ? g : cumprod_backward(g, s[0], s[1], dim));
                          }),
                   dtype);
}

namespace {

// values = x gathered at index: the gradient goes back to where the values stood.
std::pair<Tensor, Tensor> selected(const char* op, const Tensor& x, int64_t dim, Tensor values,
                                   const Tensor& index) {
  values = record(op, values, {x}, save(index),
                  [dim, sizes = x.sizes()](const Saved& s, const Tensor& g, Wants) {
                    if (sizes.dim() == 0) return Grads(reshape(g, {}));
                    const Tensor none = zeros(sizes, {.dtype = g.dtype(), .device = g.device()});
                    return Grads(scatter(none, dim, s[0], g));
                  });
  return {values, index};
}

}  // namespace

std::pair<Tensor, Tensor> sort(const Tensor& x, int64_t dim, bool descending) {
  raw::check_defined("sort", "x", x);
  const int64_t n = x.dim() == 0 ? 1 : x.size(dim);
  auto [values, index] = raw::topk("sort", x, n, dim, descending);
  return selected("sort", x, dim, values, index);
}

Tensor argsort(const Tensor& x, int64_t dim, bool descending) {
  raw::check_defined("argsort", "x", x);
  return raw::topk("argsort", x, x.dim() == 0 ? 1 : x.size(dim), dim, descending).second;
}

std::pair<Tensor, Tensor> topk(const Tensor& x, int64_t k, int64_t dim, bool largest) {
  auto [values, index] = raw::topk("topk", x, k, dim, largest);
  return selected("topk", x, dim, values, index);
}

}  // namespace tarn
