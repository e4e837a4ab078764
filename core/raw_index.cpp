// raw_index.cpp - checks and normal forms for the index kernels.
#include "tarn/core/raw_index.h"

#include <algorithm>
#include <limits>
#include <string>

#include "tarn/core/factory.h"
#include "tarn/core/kernel_call.h"
#include "tarn/core/plan.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn::raw {
namespace {

Tensor at_least_1d(const Tensor& x) {
  return x.dim() == 0 ? view(x, {1}) : x;
}

/// A dense x as [O, S, I] around dim.
Tensor around(const Tensor& x, int dim) {
  int64_t outer = 1, inner = 1;
  for (int d = 0; d < dim; ++d) outer *= x.sizes()[d];
  for (int d = dim + 1; d < x.dim(); ++d) inner *= x.sizes()[d];
  return view(x, {outer, x.sizes()[dim], inner});
}

Shape with_size(Shape sizes, int dim, int64_t size) {
  sizes[dim] = size;
  return sizes;
}

/// t, or a copy if it lies in the memory of x, which is about to be written.
Tensor apart(const Tensor& t, const Tensor& x) {
  return t.storage() == x.storage() ? clone(t) : t;
}

void check_dtypes(const char* op, const Tensor& x, const Tensor& src) {
  TARN_CHECK_AS(DTypeError, x.dtype() == src.dtype(), op,
                ": x and src must have one dtype; got x=", x.describe(), ", src=", src.describe(),
                "; convert with src.to(dtype)");
}

/// Calls write(target, source) where target is a dense (or any-stride) stand-in for x that is
/// copied back. Sums of halves happen in f32; a source that shares x's storage is copied first.
template <class Write>
void write_through(const char* op, const Tensor& x, const Tensor& src, bool dense, bool sum,
                   Write write) {
  check_writable(op, x);
  Tensor source = apart(src, x);
  Tensor target = dense ? contiguous(x) : x;
  if (sum && is_half(x.dtype())) {
    target = to(target, DType::kF32);
    source = to(source, DType::kF32);
  }
  write(target, source);
  if (target.is_same(x)) {
    x.bump_version();
  } else {
    copy_(x, target);
  }
}

void index_write(ScatterOp mode, const char* op, const Tensor& x, int64_t dim, const Tensor& index,
                 const Tensor& src, double alpha) {
  check_defined(op, "x", x);
  check_defined(op, "index", index);
  check_defined(op, "src", src);
  check_same_device(op, x, index);
  check_same_device(op, x, src);
  check_dtypes(op, x, src);
  const Tensor whole = at_least_1d(x), part = at_least_1d(src);
  const int d = wrap_dim(op, dim, x.dim());
  TARN_CHECK_AS(ShapeError, index.dim() <= 1, op,
                ": index must be 1-d; got index=", index.describe());
  const bool fits = part.sizes() == with_size(whole.sizes(), d, index.numel());
  TARN_CHECK_AS(ShapeError, fits, op, ": src must have x's sizes with index.size(0) at dimension ",
                d, "; got x=", x.describe(), ", index=", index.describe(),
                ", src=", src.describe());
  const Tensor ix = apart(checked_index(op, index, d, whole.sizes()[d]), x);
  write_through(op, x, src, true, mode == ScatterOp::kAdd,
                [&](const Tensor& target, const Tensor& source) {
                  if (source.numel() == 0) return;
                  TARN_KERNEL(index, index_add, x.device(), mode, around(at_least_1d(target), d),
                              ix, around(at_least_1d(contiguous(source)), d), alpha);
                });
}

/// dim: where index may be larger; -1: nowhere.
void check_gather_sizes(const char* op, const char* name, const Tensor& x, int dim,
                        const Tensor& index) {
  TARN_CHECK_AS(ShapeError, x.dim() == index.dim() || (x.dim() <= 1 && index.dim() <= 1), op,
                ": index must have as many dimensions as ", name, "; got ", name, "=", x.describe(),
                ", index=", index.describe());
  for (int d = 0; d < index.dim(); ++d) {
    const int64_t most = x.dim() == 0 ? 1 : x.sizes()[d];  // a 0-d tensor is one element of 1-d
    TARN_CHECK_AS(ShapeError, d == dim || index.sizes()[d] <= most, op,
                  ": index must not be larger than ", name,
                  dim < 0 ? "" : " outside dimension " + std::to_string(dim), "; got ", name, "=",
                  x.describe(), ", index=", index.describe(), " (dimension ", d, ")");
  }
}

void scatter_write(ScatterOp mode, const char* op, const Tensor& x, int64_t dim,
                   const Tensor& index, const Tensor& src) {
  check_defined(op, "x", x);
  check_defined(op, "index", index);
  check_defined(op, "src", src);
  check_same_device(op, x, index);
  check_same_device(op, x, src);
  check_dtypes(op, x, src);
  const int d = wrap_dim(op, dim, x.dim());
  check_gather_sizes(op, "x", x, d, index);
  check_gather_sizes(op, "src", src, -1, index);
  const Tensor ix = at_least_1d(apart(checked_index(op, index, d, at_least_1d(x).sizes()[d]), x));
  write_through(op, x, src, false, mode == ScatterOp::kAdd,
                [&](const Tensor& target, Tensor source) {
                  if (ix.numel() == 0) return;
                  source = at_least_1d(source);
                  for (int i = 0; i < ix.dim(); ++i) source = narrow(source, i, 0, ix.sizes()[i]);
                  TARN_KERNEL(index, scatter, x.device(), mode, at_least_1d(target), d, ix,
                              contiguous(source));
                });
}

}  // namespace

Tensor checked_index(const char* op, const Tensor& index, int64_t dim, int64_t size, bool wrap) {
  check_defined(op, "index", index);
  // An empty list of indices may have any dtype, as in PyTorch.
  const bool integral = index.dtype() == DType::kI64 || index.dtype() == DType::kI32;
  TARN_CHECK_AS(DTypeError, integral || index.numel() == 0, op,
                ": index must be i64 or i32; got index=", index.describe());
  const Tensor dense = contiguous(to(index, DType::kI64));
  check_values(
      dense, {.op = op, .low = wrap ? -size : 0, .high = size, .dim = dim, .sizes = index.sizes()});
  if (!wrap || dense.numel() == 0) return dense;
  const Tensor out = empty(dense.sizes(), {.dtype = DType::kI64, .device = dense.device()});
  TARN_KERNEL(index, wrap_negative, dense.device(), dense, size, out);
  return out;
}

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  check_defined("index_select", "x", x);
  check_defined("index_select", "index", index);
  check_same_device("index_select", x, index);
  TARN_CHECK_AS(ShapeError, index.dim() <= 1,
                "index_select: index must be 1-d; got index=", index.describe());
  const int d = wrap_dim("index_select", dim, x.dim());
  const Tensor whole = at_least_1d(contiguous(x));
  const Tensor ix = checked_index("index_select", index, d, whole.sizes()[d]);
  TARN_CHECK_AS(ShapeError, x.dim() > 0 || ix.numel() == 1,
                "index_select: from a 0-d tensor only one element can be taken; got index=",
                index.describe());
  const Tensor out =
      empty(with_size(whole.sizes(), d, ix.numel()), {.dtype = x.dtype(), .device = x.device()});
  if (out.numel() > 0) {
    TARN_KERNEL(index, index_select, x.device(), around(whole, d), view(ix, {-1}), around(out, d));
  }
  return x.dim() == 0 ? view(out, {}) : out;
}

void index_add_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src,
                double alpha) {
  index_write(ScatterOp::kAdd, "index_add", x, dim, index, src, alpha);
}
void index_copy_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src) {
  index_write(ScatterOp::kWrite, "index_copy", x, dim, index, src, 1);
}

Tensor gather(const Tensor& x, int64_t dim, const Tensor& index) {
  check_defined("gather", "x", x);
  check_defined("gather", "index", index);
  check_same_device("gather", x, index);
  const int d = wrap_dim("gather", dim, x.dim());
  check_gather_sizes("gather", "x", x, d, index);
  const Tensor whole = at_least_1d(x);
  const Tensor ix = at_least_1d(checked_index("gather", index, d, whole.sizes()[d]));
  const Tensor out = empty(ix.sizes(), {.dtype = x.dtype(), .device = x.device()});
  if (out.numel() > 0) TARN_KERNEL(index, gather, x.device(), whole, d, ix, out);
  return index.dim() == 0 ? view(out, {}) : out;
}

void scatter_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src) {
  scatter_write(ScatterOp::kWrite, "scatter", x, dim, index, src);
}
void scatter_add_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src) {
  scatter_write(ScatterOp::kAdd, "scatter_add", x, dim, index, src);
}

Tensor nonzero(const Tensor& x) {
  check_defined("nonzero", "x", x);
  const Tensor dense = contiguous(x);
  int64_t count = 0;
  if (x.numel() > 0) TARN_KERNEL(index, count_nonzero, x.device(), dense, &count);
  const Tensor out = empty({count, x.dim()}, {.dtype = DType::kI64, .device = x.device()});
  if (out.numel() > 0) TARN_KERNEL(index, nonzero, x.device(), dense, out);
  return out;
}

namespace {
Tensor triangle(const char* op, bool upper, const Tensor& x, int64_t diagonal) {
  check_defined(op, "x", x);
  TARN_CHECK_AS(ShapeError, x.dim() >= 2, op, ": x must have at least 2 dimensions; got ",
                x.describe());
  const Tensor out = empty(x.sizes(), {.dtype = x.dtype(), .device = x.device()});
  if (out.numel() == 0) return out;
  const Shape matrices{x.numel() / (x.size(-2) * x.size(-1)), x.size(-2), x.size(-1)};
  // Beyond the corners nothing changes; a row's number plus the diagonal must not overflow.
  const int64_t within = std::clamp(diagonal, -matrices[1], matrices[2]);
  TARN_KERNEL(index, triangle, x.device(), upper, view(contiguous(x), matrices), within,
              view(out, matrices));
  return out;
}
}  // namespace

Tensor triu(const Tensor& x, int64_t diagonal) {
  return triangle("triu", true, x, diagonal);
}
Tensor tril(const Tensor& x, int64_t diagonal) {
  return triangle("tril", false, x, diagonal);
}

Tensor flip(const Tensor& x, const Shape& dims) {
  check_defined("flip", "x", x);
  Tensor out = x;
  Shape seen;
  for (int64_t dim : dims) {
    const int d = wrap_dim("flip", dim, x.dim());
    TARN_CHECK_AS(ValueError, !seen.contains(d), "flip: dimension ", d, " is named twice in ",
                  dims);
    seen.push_back(d);
    const int64_t n = at_least_1d(x).sizes()[d];
    if (n > 1) {
      const TensorOptions options{.dtype = DType::kI64, .device = x.device()};
      out = index_select(out, d, arange(n - 1, -1, -1, options));
    }
  }
  return out.is_same(x) ? clone(x) : out;
}

Tensor one_hot(const Tensor& index, int64_t classes) {
  check_defined("one_hot", "index", index);
  TARN_CHECK_AS(ValueError, classes > 0 || (classes == -1 && index.numel() > 0),
                "one_hot: the number of classes must be positive, or -1 with some index to take it "
                "from; got ",
                classes);
  if (classes == -1) {
    constexpr int64_t kLast = std::numeric_limits<int64_t>::max() - 1;
    for (int64_t v : index.to_vector<int64_t>())
      classes = std::max(classes, std::min(v, kLast) + 1);
  }
  const Tensor ix = checked_index("one_hot", index, index.dim(), std::max<int64_t>(classes, 1));
  Shape sizes = index.sizes();
  sizes.push_back(classes);
  const TensorOptions options{.dtype = DType::kI64, .device = index.device()};
  const Tensor out = zeros(sizes, options);
  const Tensor at = unsqueeze(ix, -1);
  scatter_(out, -1, at, ones(at.sizes(), options));
  return out;
}

}  // namespace tarn::raw
