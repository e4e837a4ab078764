// views.cpp - new sizes and strides over the same storage.
#include "tarn/core/views.h"

#include <optional>

#include "tarn/core/raw_elementwise.h"

namespace tarn::raw {
namespace {

Tensor make_view(const Tensor& x, const Shape& sizes, const Shape& strides, int64_t offset) {
  Tensor out(x.storage(), sizes, strides, offset, x.dtype());
  out.impl()->view = true;
  return out;
}

// Strides that show x's elements, in the same order, under new sizes; none if a copy is needed.
// Old dimensions are grouped into runs that lie evenly in memory; each run must hold whole groups
// of new dimensions.
std::optional<Shape> view_strides(const Tensor& x, const Shape& sizes) {
  if (x.numel() == 0 || x.is_contiguous()) return contiguous_strides(sizes);
  Shape strides = Shape::filled(sizes.dim(), 0);
  int next = sizes.dim() - 1;  // new dimension being filled, from the last
  int64_t run_stride = x.strides().empty() ? 1 : x.strides().back();
  int64_t run_numel = 1, filled = 1;
  for (int d = x.dim() - 1; d >= 0; --d) {
    run_numel *= x.sizes()[d];
    const bool run_ends =
        d == 0 || (x.sizes()[d - 1] != 1 && x.strides()[d - 1] != run_numel * run_stride);
    if (!run_ends) continue;
    while (next >= 0 && (filled < run_numel || sizes[next] == 1)) {
      strides[next] = filled * run_stride;
      filled *= sizes[next--];
    }
    if (filled != run_numel) return std::nullopt;
    if (d > 0) {
      run_stride = x.strides()[d - 1];
      run_numel = filled = 1;
    }
  }
  if (next >= 0) return std::nullopt;
  return strides;
}

}  // namespace

Shape infer_sizes(const char* op, const Shape& sizes, int64_t numel) {
  Shape out = sizes;
  int unknown = -1;
  int64_t known = 1;
  bool overflow = false;
  for (int i = 0; i < sizes.dim(); ++i) {
    if (sizes[i] == -1) {
      TARN_CHECK_AS(ShapeError, unknown < 0, op, ": only one size may be -1; got ", sizes);
      unknown = i;
    } else {
      TARN_CHECK_AS(ShapeError, sizes[i] >= 0, op, ": sizes must not be negative; got ", sizes);
      overflow |= __builtin_mul_overflow(known, sizes[i], &known);
    }
  }
  if (sizes.contains(0)) {  // whatever overflowed before it
    known = 0;
    overflow = false;
  }
  const bool fits = !overflow && (unknown < 0 ? known == numel : known != 0 && numel % known == 0);
  TARN_CHECK_AS(ShapeError, fits, op, ": sizes must hold exactly ", numel, " elements; got ",
                sizes);
  if (unknown >= 0) out[unknown] = numel / known;
  return out;
}

Tensor as_strided(const Tensor& x, const Shape& sizes, const Shape& strides, int64_t offset) {
  const int64_t span = checked_span("as_strided", sizes, strides);
  const int64_t capacity = static_cast<int64_t>(x.storage()->bytes()) / item_size(x.dtype());
  TARN_CHECK_AS(ShapeError,
                span == 0 || (offset >= 0 && offset < capacity && span <= capacity - offset),
                "as_strided: must stay inside the storage of ", capacity,
                " elements; got sizes=", sizes, ", strides=", strides, ", offset=", offset);
  return make_view(x, sizes, strides, offset);
}

Tensor view(const Tensor& x, const Shape& sizes) {
  const Shape full = infer_sizes("view", sizes, x.numel());
  const std::optional<Shape> strides = view_strides(x, full);
  TARN_CHECK_AS(ShapeError, strides.has_value(), "view: sizes ", full,
                " cannot be shown over a tensor of sizes ", x.sizes(), " and strides ", x.strides(),
                " without a copy; use reshape");
  return make_view(x, full, *strides, x.storage_offset());
}

Tensor reshape(const Tensor& x, const Shape& sizes) {
  const Shape full = infer_sizes("reshape", sizes, x.numel());
  if (const std::optional<Shape> strides = view_strides(x, full)) {
    return make_view(x, full, *strides, x.storage_offset());
  }
  const Tensor dense = contiguous(x);
  return make_view(dense, full, contiguous_strides(full), 0);
}

Tensor transpose(const Tensor& x, int64_t a, int64_t b) {
  const int i = wrap_dim("transpose", a, x.dim()), j = wrap_dim("transpose", b, x.dim());
  Shape sizes = x.sizes(), strides = x.strides();
  if (x.dim() > 0) {
    std::swap(sizes[i], sizes[j]);
    std::swap(strides[i], strides[j]);
  }
  return make_view(x, sizes, strides, x.storage_offset());
}

Tensor t(const Tensor& x) {
  TARN_CHECK_AS(ShapeError, x.dim() <= 2, "t: at most 2 dimensions; got ", x.describe(),
                "; use transpose(a, b)");
  return x.dim() < 2 ? alias(x) : transpose(x, 0, 1);
}

Tensor permute(const Tensor& x, const Shape& dims) {
  TARN_CHECK_AS(ShapeError, dims.dim() == x.dim(), "permute: one entry per dimension; got ", dims,
                " for ", x.describe());
  Shape sizes, strides;
  bool seen[kMaxDims] = {};
  for (int64_t d : dims) {
    const int i = wrap_dim("permute", d, x.dim());
    TARN_CHECK_AS(ShapeError, !seen[i], "permute: dimension ", i, " is named twice; got ", dims);
    seen[i] = true;
    sizes.push_back(x.sizes()[i]);
    strides.push_back(x.strides()[i]);
  }
  return make_view(x, sizes, strides, x.storage_offset());
}

Tensor unsqueeze(const Tensor& x, int64_t dim) {
  const int d = wrap_dim("unsqueeze", dim, x.dim() + 1);
  Shape sizes = x.sizes(), strides = x.strides();
  const int64_t step = d < x.dim() ? sizes[d] * strides[d] : 1;
  sizes.insert(d, 1);
  strides.insert(d, step);
  return make_view(x, sizes, strides, x.storage_offset());
}

Tensor squeeze(const Tensor& x) {
  Shape sizes, strides;
  for (int i = 0; i < x.dim(); ++i) {
    if (x.sizes()[i] == 1) continue;
    sizes.push_back(x.sizes()[i]);
    strides.push_back(x.strides()[i]);
  }
  return make_view(x, sizes, strides, x.storage_offset());
}

Tensor squeeze(const Tensor& x, int64_t dim) {
  const int d = wrap_dim("squeeze", dim, x.dim());
  Shape sizes = x.sizes(), strides = x.strides();
  if (x.dim() > 0 && sizes[d] == 1) {
    sizes.erase(d);
    strides.erase(d);
  }
  return make_view(x, sizes, strides, x.storage_offset());
}

Tensor expand(const Tensor& x, const Shape& sizes) {
  const int extra = sizes.dim() - x.dim();
  TARN_CHECK_AS(ShapeError, extra >= 0, "expand: at least as many sizes as the tensor has; got ",
                sizes, " for ", x.describe());
  Shape out = sizes, strides = Shape::filled(sizes.dim(), 0);
  for (int i = 0; i < sizes.dim(); ++i) {
    if (i < extra) {
      TARN_CHECK_AS(ShapeError, sizes[i] >= 0, "expand: a new leading size must be given; got ",
                    sizes);
      continue;
    }
    const int64_t from = x.sizes()[i - extra];
    if (sizes[i] == -1) out[i] = from;
    TARN_CHECK_AS(ShapeError, from == out[i] || (from == 1 && out[i] >= 0),
                  "expand: only sizes of 1 can be stretched; got ", sizes, " for ", x.describe(),
                  " (dimension ", i, ": ", from, " to ", out[i], ")");
    if (from == out[i]) strides[i] = x.strides()[i - extra];
  }
  checked_numel("expand", out);
  return make_view(x, out, strides, x.storage_offset());
}

Tensor select(const Tensor& x, int64_t dim, int64_t index) {
  TARN_CHECK_AS(ShapeError, x.dim() > 0, "select: a 0-d tensor has nothing to select from");
  const int d = wrap_dim("select", dim, x.dim());
  const int64_t size = x.sizes()[d];
  TARN_CHECK_AS(IndexError, index >= -size && index < size, "select: index ", index,
                " is out of range for dimension ", d, " of size ", size);
  Shape sizes = x.sizes(), strides = x.strides();
  const int64_t at = index < 0 ? index + size : index;
  const int64_t offset = x.storage_offset() + at * strides[d];
  sizes.erase(d);
  strides.erase(d);
  return make_view(x, sizes, strides, offset);
}

Tensor slice(const Tensor& x, int64_t dim, int64_t start, int64_t end, int64_t step) {
  TARN_CHECK_AS(ShapeError, x.dim() > 0, "slice: a 0-d tensor has nothing to slice");
  TARN_CHECK_AS(ValueError, step > 0, "slice: step must be positive; got ", step);
  const int d = wrap_dim("slice", dim, x.dim());
  const int64_t size = x.sizes()[d];
  const auto clamp = [size](int64_t i) {
    return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size);
  };
  const int64_t begin = clamp(start);
  const int64_t stop = std::max(begin, clamp(end));
  Shape sizes = x.sizes(), strides = x.strides();
  const int64_t offset = x.storage_offset() + (stop > begin ? begin * strides[d] : 0);
  sizes[d] = stop > begin ? (stop - begin - 1) / step + 1 : 0;
  if (step <= size) strides[d] *= step;  // else there is no second element, and it might overflow
  return make_view(x, sizes, strides, offset);
}

Tensor narrow(const Tensor& x, int64_t dim, int64_t start, int64_t length) {
  TARN_CHECK_AS(ShapeError, x.dim() > 0, "narrow: a 0-d tensor has nothing to narrow");
  const int d = wrap_dim("narrow", dim, x.dim());
  const int64_t size = x.sizes()[d];
  const int64_t begin = start < 0 ? start + size : start;
  TARN_CHECK_AS(IndexError, begin >= 0 && length >= 0 && begin <= size && length <= size - begin,
                "narrow: the range must lie in dimension ", d, " of size ", size,
                "; got start=", start, ", length=", length);
  return slice(x, d, begin, begin + length, 1);
}

Tensor unfold(const Tensor& x, int64_t dim, int64_t size, int64_t step) {
  const int d = wrap_dim("unfold", dim, x.dim());
  TARN_CHECK_AS(ShapeError, x.dim() > 0 && size >= 0 && size <= x.sizes()[d],
                "unfold: the window must fit into dimension ", d, "; got size=", size, " for ",
                x.describe());
  TARN_CHECK_AS(ValueError, step > 0, "unfold: step must be positive; got ", step);
  Shape sizes = x.sizes(), strides = x.strides();
  sizes.push_back(size);
  strides.push_back(x.strides()[d]);
  sizes[d] = (x.sizes()[d] - size) / step + 1;
  if (step <= x.sizes()[d]) strides[d] *= step;  // as in slice
  return make_view(x, sizes, strides, x.storage_offset());
}

Tensor diagonal(const Tensor& x, int64_t offset, int64_t dim1, int64_t dim2) {
  const int a = wrap_dim("diagonal", dim1, x.dim()), b = wrap_dim("diagonal", dim2, x.dim());
  TARN_CHECK_AS(ShapeError, x.dim() >= 2 && a != b,
                "diagonal: needs two different dimensions; got ", dim1, " and ", dim2, " for ",
                x.describe());
  const int64_t rows = x.sizes()[a] + std::min<int64_t>(offset, 0);
  const int64_t cols = x.sizes()[b] - std::max<int64_t>(offset, 0);
  const int64_t length = std::max<int64_t>(std::min(rows, cols), 0);
  const int64_t skip = length == 0   ? 0
                       : offset >= 0 ? offset * x.strides()[b]
                                     : -offset * x.strides()[a];
  Shape sizes = x.sizes(), strides = x.strides();
  const int64_t step = strides[a] + strides[b];
  sizes.erase(std::max(a, b));
  strides.erase(std::max(a, b));
  sizes.erase(std::min(a, b));
  strides.erase(std::min(a, b));
  sizes.push_back(length);
  strides.push_back(step);
  return make_view(x, sizes, strides, x.storage_offset() + skip);
}

Tensor resized_result(const Tensor& made, const Shape& sizes) {
  Tensor out = view(made, sizes);
  out.impl()->view = false;
  return out;
}

Tensor alias(const Tensor& x) {
  return make_view(x, x.sizes(), x.strides(), x.storage_offset());
}

void set_data(const Tensor& x, const Tensor& value) {
  TARN_ASSERT(x.sizes() == value.sizes());
  TensorImpl& to = *x.impl();
  const TensorImpl& from = *value.impl();
  from.storage->follow_version(*to.storage);
  to.storage = from.storage;
  to.offset = from.offset;
  to.strides = from.strides;
  to.dtype = from.dtype;
  to.update_layout();
}

}  // namespace tarn::raw
