// shape.cpp - strides, broadcasting and dimension arithmetic.
#include "tarn/core/shape.h"

namespace tarn {

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  out << '[';
  for (int i = 0; i < shape.dim(); ++i) out << (i ? ", " : "") << shape[i];
  return out << ']';
}

Shape contiguous_strides(const Shape& sizes) {
  Shape strides = Shape::filled(sizes.dim(), 1);
  int64_t step = 1;
  for (int i = sizes.dim() - 1; i >= 0; --i) {
    strides[i] = step;
    step = wrapping_mul(step, std::max<int64_t>(sizes[i], 1));
  }
  return strides;
}

Shape channels_last_strides(const Shape& sizes) {
  TARN_CHECK_AS(ShapeError, sizes.dim() == 4,
                "channels_last: needs 4 dimensions [N, C, H, W]; got ", sizes);
  const int64_t c = std::max<int64_t>(sizes[1], 1);
  const int64_t h = std::max<int64_t>(sizes[2], 1);
  const int64_t w = std::max<int64_t>(sizes[3], 1);
  return {wrapping_mul(wrapping_mul(h, w), c), 1, wrapping_mul(w, c), c};
}

Shape dims_by_stride(const Shape& strides) {
  Shape order;
  for (int d = strides.dim() - 1; d >= 0; --d) {
    int at = order.dim();
    while (at > 0 && strides[static_cast<int>(order[at - 1])] > strides[d]) --at;
    order.insert(at, d);
  }
  return order;
}

Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b) {
  if (a == b) return a;
  const int n = std::max(a.dim(), b.dim());
  Shape out = Shape::filled(n, 1);
  for (int i = 1; i <= n; ++i) {
    const int64_t sa = i <= a.dim() ? a[a.dim() - i] : 1;
    const int64_t sb = i <= b.dim() ? b[b.dim() - i] : 1;
    TARN_CHECK_AS(ShapeError, sa == sb || sa == 1 || sb == 1, op,
                  ": shapes do not broadcast; got a=", a, ", b=", b, " (dimension ", n - i, ": ",
                  sa, " vs ", sb, ")");
    out[n - i] = sa == 1 ? sb : sa;
  }
  return out;
}

int wrap_dim(const char* op, int64_t dim, int ndim) {
  const int n = std::max(ndim, 1);
  TARN_CHECK_AS(IndexError, dim >= -n && dim < n, op, ": dimension out of range; got ", dim,
                " for a tensor with ", ndim, " dimensions (expected ", -n, " to ", n - 1, ")");
  return static_cast<int>(dim < 0 ? dim + n : dim);
}

int64_t checked_numel(const char* op, const Shape& sizes) {
  int64_t n = 1;
  bool overflow = false;
  for (int64_t s : sizes) {
    TARN_CHECK_AS(ShapeError, s >= 0, op, ": sizes must not be negative; got ", sizes);
    overflow |= __builtin_mul_overflow(n, s, &n);
  }
  // A zero anywhere makes the product zero whatever overflowed before it.
  if (overflow && sizes.contains(0)) return 0;
  TARN_CHECK_AS(ShapeError, !overflow, op, ": more elements than 64 bits can count; got ", sizes);
  return n;
}

int64_t checked_span(const char* op, const Shape& sizes, const Shape& strides) {
  TARN_CHECK_AS(ShapeError, sizes.dim() == strides.dim(), op,
                ": as many strides as sizes; got sizes=", sizes, ", strides=", strides);
  int64_t span = 1;
  bool overflow = false;
  for (int i = 0; i < sizes.dim(); ++i) {
    TARN_CHECK_AS(ShapeError, strides[i] >= 0, op, ": strides must not be negative; got ", strides);
    int64_t reach = 0;
    overflow |= __builtin_mul_overflow(sizes[i] - 1, strides[i], &reach);
    overflow |= __builtin_add_overflow(span, reach, &span);
  }
  if (checked_numel(op, sizes) == 0) return 0;
  // With room to spare for the bytes of any dtype.
  TARN_CHECK_AS(ShapeError, !overflow && span < (int64_t{1} << 58), op,
                ": strides lead beyond what memory can hold; got sizes=", sizes,
                ", strides=", strides);
  return span;
}

}  // namespace tarn
