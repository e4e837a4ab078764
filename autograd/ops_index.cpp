// ops_index.cpp - picking and writing by index. The gradient of picking is adding, and the other
// way round, so each formula is made of public operations.
#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/record.h"
#include "tarn/core/factory.h"
#include "tarn/core/number_check.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_index.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {

Tensor zeros_of(const Shape& sizes, const Tensor& like) {
  return zeros(sizes, {.dtype = like.dtype(), .device = like.device()});
}

/// src cut to the part that index covers.
Tensor covered(Tensor src, const Tensor& index) {
  for (int d = 0; d < src.dim() && d < index.dim(); ++d) {
    if (src.sizes()[d] > index.sizes()[d]) src = src.narrow(d, 0, index.sizes()[d]);
  }
  return src;
}

}  // namespace

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  const OpScope scope("index_select");
  Tensor out = raw::index_select(x, dim, index);
  return record("index_select", out, {x}, save(index),
                [dim, sizes = x.sizes()](const Saved& s, const Tensor& g, Wants) {
                  Tensor gx = zeros_of(sizes, g);
                  return Grads(index_add_(gx, dim, s[0], g));
                });
}

Tensor gather(const Tensor& x, int64_t dim, const Tensor& index) {
  const OpScope scope("gather");
  Tensor out = raw::gather(x, dim, index);
  return record("gather", out, {x}, save(index),
                [dim, sizes = x.sizes()](const Saved& s, const Tensor& g, Wants) {
                  Tensor gx = zeros_of(sizes, g);
                  return Grads(scatter_add_(gx, dim, s[0], g));
                });
}

Tensor take_along_dim(const Tensor& x, const Tensor& index, int64_t dim) {
  raw::check_defined("take_along_dim", "x", x);
  raw::check_defined("take_along_dim", "index", index);
  raw::check_same_device("take_along_dim", x, index);
  TARN_CHECK_AS(ShapeError, x.dim() == index.dim(),
                "take_along_dim: index must have as many dimensions as x; got x=", x.describe(),
                ", index=", index.describe());
  const int d = wrap_dim("take_along_dim", dim, x.dim());
  Shape outside_x = x.sizes(), outside_index = index.sizes();
  outside_x[d] = outside_index[d] = 1;
  Shape sizes = broadcast_shapes("take_along_dim", outside_x, outside_index);
  sizes[d] = x.sizes()[d];
  const Tensor whole = expand(x, sizes);
  sizes[d] = index.sizes()[d];
  return gather(whole, d, raw::expand(index, sizes));
}

Tensor embedding(const Tensor& weight, const Tensor& index, int64_t padding_idx) {
  const OpScope scope("embedding");
  raw::check_defined("embedding", "weight", weight);
  raw::check_defined("embedding", "index", index);
  raw::check_same_device("embedding", weight, index);
  TARN_CHECK_AS(ShapeError, weight.dim() == 2,
                "embedding: weight must be [V, D]; got weight=", weight.describe());
  TARN_CHECK_AS(IndexError, padding_idx >= -1 && padding_idx < weight.size(0),
                "embedding: padding_idx must be a row of weight=", weight.describe(),
                ", or -1 for none; got ", padding_idx);
  const Tensor ix = raw::checked_index("embedding", index, 0, weight.size(0));
  const Tensor flat = raw::view(ix, {-1});
  Shape sizes = index.sizes();
  sizes.push_back(weight.size(1));
  Tensor out = raw::resized_result(raw::index_select(weight, 0, flat), sizes);
  return record("embedding", out, {weight}, save(flat),
                [padding_idx, rows = weight.sizes()](const Saved& s, const Tensor& g, Wants w) {
                  Tensor gy = reshape(g, {s[0].numel(), rows[1]});
                  if (padding_idx >= 0) {
                    gy = masked_fill(gy, raw::unsqueeze(raw::eq(s[0], padding_idx), 1), 0);
                  }
                  // A weight that is the output's too has a gradient already, and it is large.
                  if (const Tensor sum = w.sum_so_far(0);
                      sum.defined() && sum.dtype() == g.dtype()) {
                    raw::index_add_(sum, 0, s[0], gy, 1);
                    return Grads(Tensor());
                  }
                  Tensor gw = zeros_of(rows, g);
                  return Grads(index_add_(gw, 0, s[0], gy));
                });
}

Tensor nonzero(const Tensor& x) {
  const OpScope scope("nonzero");
  return raw::nonzero(x);
}

Tensor masked_select(const Tensor& x, const Tensor& mask) {
  raw::check_defined("masked_select", "x", x);
  raw::check_defined("masked_select", "mask", mask);
  raw::check_same_device("masked_select", x, mask);
  TARN_CHECK_AS(DTypeError, mask.dtype() == DType::kBool,
                "masked_select: mask must be bool; got mask=", mask.describe());
  const Shape sizes = broadcast_shapes("masked_select", x.sizes(), mask.sizes());
  const Tensor flat_mask = raw::reshape(raw::expand(mask, sizes), {-1});
  const Tensor positions = raw::view(raw::nonzero(flat_mask), {-1});
  return index_select(reshape(expand(x, sizes), {flat_mask.numel()}), 0, positions);
}

// ---- writing

namespace {

Tensor record_index_add(Tensor out, const Tensor& x, int64_t dim, const Tensor& index,
                        const Tensor& src, double alpha) {
  return record("index_add", out, {x, src}, save(index),
                [dim, alpha, sizes = src.sizes()](const Saved& s, const Tensor& g, Wants w) {
                  Tensor gs;
                  if (w[1]) {
                    gs = reshape(index_select(g, dim, s[0]), sizes);
                    if (alpha != 1) gs = mul(gs, alpha);
                  }
                  return Grads(g, gs);
                });
}

Tensor record_index_copy(Tensor out, const Tensor& x, int64_t dim, const Tensor& index,
                         const Tensor& src) {
  return record("index_copy", out, {x, src}, save(index),
                [dim, sizes = src.sizes()](const Saved& s, const Tensor& g, Wants w) {
                  return Grads(w[0] ? index_fill(g, dim, s[0], 0) : Tensor(),
                               w[1] ? reshape(index_select(g, dim, s[0]), sizes) : Tensor());
                });
}

Tensor record_scatter(bool add, Tensor out, const Tensor& x, int64_t dim, const Tensor& index,
                      const Tensor& src) {
  return record(add ? "scatter_add" : "scatter", out, {x, src}, save(index),
                [add, dim, sizes = src.sizes()](const Saved& s, const Tensor& g, Wants w) {
                  Tensor gx = g;
                  if (!add && w[0]) gx = scatter(g, dim, s[0], Scalar(0));
                  return Grads(w[0] ? gx : Tensor(),
                               w[1] ? reshape(gather(g, dim, s[0]), sizes) : Tensor());
                });
}

}  // namespace

Tensor index_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src,
                 double alpha) {
  if (const auto c = cast(CastPolicy::kPromote, x, src))
    return index_add(c[0], dim, index, c[1], alpha);
  const OpScope scope("index_add");
  raw::check_defined("index_add", "x", x);
  const Tensor out = raw::clone(x);
  raw::index_add_(out, dim, index, src, alpha);
  return record_index_add(out, x, dim, index, src, alpha);
}
const Tensor& index_add_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src,
                         double alpha) {
  const OpScope scope("index_add");
  const Tensor part = before_write(x, src);
  begin_inplace("index_add_", x, part);
  raw::index_add_(x, dim, index, part, alpha);
  record_index_add(x, x, dim, index, part, alpha);
  return x;
}

Tensor index_copy(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src) {
  if (const auto c = cast(CastPolicy::kPromote, x, src)) return index_copy(c[0], dim, index, c[1]);
  const OpScope scope("index_copy");
  raw::check_defined("index_copy", "x", x);
  const Tensor out = raw::clone(x);
  raw::index_copy_(out, dim, index, src);
  return record_index_copy(out, x, dim, index, src);
}
const Tensor& index_copy_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src) {
  const OpScope scope("index_copy");
  const Tensor part = before_write(x, src);
  begin_inplace("index_copy_", x, part);
  raw::index_copy_(x, dim, index, part);
  record_index_copy(x, x, dim, index, part);
  return x;
}

Tensor index_fill(const Tensor& x, int64_t dim, const Tensor& index, const Scalar& value) {
  raw::check_defined("index_fill", "x", x);
  raw::check_defined("index_fill", "index", index);
  raw::check_same_device("index_fill", x, index);
  check_number_fits("index_fill", value, x.dtype());
  Shape sizes = x.sizes();
  if (x.dim() > 0) sizes[wrap_dim("index_fill", dim, x.dim())] = index.numel();
  return index_copy(x, dim, index, full(sizes, value, {.dtype = x.dtype(), .device = x.device()}));
}

Tensor scatter(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src) {
  if (const auto c = cast(CastPolicy::kPromote, x, src)) return scatter(c[0], dim, index, c[1]);
  const OpScope scope("scatter");
  raw::check_defined("scatter", "x", x);
  raw::check_defined("scatter", "src", src);
  const Tensor part = covered(src, index), out = raw::clone(x);
  raw::scatter_(out, dim, index, part);
  return record_scatter(false, out, x, dim, index, part);
}
const Tensor& scatter_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src) {
  const OpScope scope("scatter");
  raw::check_defined("scatter", "src", src);
  const Tensor part = before_write(x, covered(src, index));
  begin_inplace("scatter_", x, part);
  raw::scatter_(x, dim, index, part);
  record_scatter(false, x, x, dim, index, part);
  return x;
}

namespace {
Tensor filled_for(const char* op, const Tensor& x, const Tensor& index, const Scalar& value) {
  raw::check_defined(op, "x", x);
  raw::check_defined(op, "index", index);
  check_number_fits(op, value, x.dtype());
  return full(index.sizes(), value, {.dtype = x.dtype(), .device = x.device()});
}
}  // namespace

Tensor scatter(const Tensor& x, int64_t dim, const Tensor& index, const Scalar& value) {
  return scatter(x, dim, index, filled_for("scatter", x, index, value));
}
const Tensor& scatter_(const Tensor& x, int64_t dim, const Tensor& index, const Scalar& value) {
  return scatter_(x, dim, index, filled_for("scatter", x, index, value));
}

Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src) {
  if (const auto c = cast(CastPolicy::kPromote, x, src)) return scatter_add(c[0], dim, index, c[1]);
  const OpScope scope("scatter_add");
  raw::check_defined("scatter_add", "x", x);
  raw::check_defined("scatter_add", "src", src);
  const Tensor part = covered(src, index), out = raw::clone(x);
  raw::scatter_add_(out, dim, index, part);
  return record_scatter(true, out, x, dim, index, part);
}
const Tensor& scatter_add_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src) {
  const OpScope scope("scatter_add");
  raw::check_defined("scatter_add", "src", src);
  const Tensor part = before_write(x, covered(src, index));
  begin_inplace("scatter_add_", x, part);
  raw::scatter_add_(x, dim, index, part);
  record_scatter(true, x, x, dim, index, part);
  return x;
}

// ---- triangles and order

Tensor triu(const Tensor& x, int64_t diagonal) {
  const OpScope scope("triu");
  return record(
      "triu", raw::triu(x, diagonal), {x}, save(),
      [diagonal](const Saved&, const Tensor& g, Wants) { return Grads(triu(g, diagonal)); });
}
Tensor tril(const Tensor& x, int64_t diagonal) {
  const OpScope scope("tril");
  return record(
      "tril", raw::tril(x, diagonal), {x}, save(),
      [diagonal](const Saved&, const Tensor& g, Wants) { return Grads(tril(g, diagonal)); });
}
Tensor flip(const Tensor& x, const Shape& dims) {
  const OpScope scope("flip");
  return record("flip", raw::flip(x, dims), {x}, save(),
                [dims](const Saved&, const Tensor& g, Wants) { return Grads(flip(g, dims)); });
}
Tensor one_hot(const Tensor& index, int64_t classes) {
  const OpScope scope("one_hot");
  return raw::one_hot(index, classes);
}

}  // namespace tarn
