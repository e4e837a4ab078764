// plan.cpp - building the walk of an elementwise kernel.
#include "tarn/core/plan.h"

#include <string>

#include "tarn/core/factory.h"

namespace tarn {
namespace {

// Same sizes and one common dense layout: the walk is one straight line. By far the usual case.
bool all_dense_alike(std::initializer_list<const Tensor*> operands) {
  const Tensor& first = **operands.begin();
  bool row_major = true, same = true, channels_last = true;
  for (const Tensor* t : operands) {
    const TensorImpl& i = *t->impl();
    if (!(i.sizes == first.sizes())) return false;
    row_major &= i.contiguous;
    channels_last &= i.channels_last;
    same &= i.strides == first.strides();
  }
  if (row_major || channels_last) return true;
  if (!same) return false;
  // Equal strides in another order: dense if they fill numel without gap or overlap.
  const Shape &sizes = first.sizes(), &strides = first.strides();
  const Shape order = dims_by_stride(strides);
  int64_t expected = 1;
  for (int k = 0; k < sizes.dim(); ++k) {
    const int d = static_cast<int>(order[k]);
    if (sizes[d] == 1) continue;
    if (strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

// Order of dimensions, fastest first, as the first operands walk memory: a dimension goes before
// another if the first operand that tells them apart strides less in it.
void sort_dims(ElementwisePlan& p) {
  const auto before = [&](int a, int b) {
    for (int o = 0; o < p.operands; ++o) {
      const int64_t sa = p.strides[o][a], sb = p.strides[o][b];
      if (sa == 0 || sb == 0 || sa == sb) continue;
      return sa < sb;
    }
    return false;
  };
  for (int i = 1; i < p.ndim; ++i) {
    for (int j = i; j > 0 && before(j, j - 1); --j) {
      std::swap(p.sizes[j], p.sizes[j - 1]);
      for (int o = 0; o < p.operands; ++o) std::swap(p.strides[o][j], p.strides[o][j - 1]);
    }
  }
}

// Joins neighbours that every operand walks as one.
void merge_dims(ElementwisePlan& p) {
  int last = 0;
  for (int d = 1; d < p.ndim; ++d) {
    bool joins = true;
    for (int o = 0; o < p.operands; ++o) {
      joins &= p.strides[o][d] == p.strides[o][last] * p.sizes[last];
    }
    if (joins) {
      p.sizes[last] *= p.sizes[d];
      continue;
    }
    ++last;
    p.sizes[last] = p.sizes[d];
    for (int o = 0; o < p.operands; ++o) p.strides[o][last] = p.strides[o][d];
  }
  p.ndim = last + 1;
}

}  // namespace

ElementwisePlan make_plan(std::initializer_list<const Tensor*> operands) {
  ElementwisePlan p;
  const Tensor& first = **operands.begin();
  p.numel = first.numel();
  p.operands = static_cast<int>(operands.size());
  TARN_ASSERT(p.operands <= ElementwisePlan::kMaxOperands);
  int o = 0;
  for (const Tensor* t : operands) {
    p.data[o] = t->data();
    p.dtype[o++] = t->dtype();
  }
  p.ndim = 1;
  if (all_dense_alike(operands)) {
    p.dense = true;
    p.sizes[0] = p.numel;
    for (o = 0; o < p.operands; ++o) p.strides[o][0] = 1;
    return p;
  }
  // Innermost first; sizes of 1 are left out.
  int n = 0;
  for (int d = first.dim() - 1; d >= 0; --d) {
    if (first.sizes()[d] == 1) continue;
    p.sizes[n] = first.sizes()[d];
    o = 0;
    for (const Tensor* t : operands) {
      const int at = d - (first.dim() - t->dim());
      p.strides[o++][n] = at < 0 || t->sizes()[at] == 1 ? 0 : t->strides()[at];
    }
    ++n;
  }
  p.ndim = n;
  if (n == 0) {  // a single element
    p.ndim = 1;
    p.sizes[0] = 1;
    for (o = 0; o < p.operands; ++o) p.strides[o][0] = 1;
  } else {
    sort_dims(p);
    merge_dims(p);
  }
  p.dense = p.ndim == 1;
  for (o = 0; o < p.operands; ++o) p.dense &= p.strides[o][0] == 1;
  return p;
}

Tensor elementwise_output(const Shape& sizes, std::initializer_list<const Tensor*> inputs,
                          DType dtype) {
  const Tensor* like = nullptr;
  for (const Tensor* t : inputs) {
    if (t->sizes() == sizes && !like) like = t;
  }
  const Device device = (*inputs.begin())->device();
  if (!like || like->is_contiguous()) {
    // A row-major operand may hide a channels_last one of the same sizes ([N, C, 1, 1] is both).
    return empty(sizes, {.dtype = dtype, .device = device});
  }
  return empty_like(*like, dtype);
}

bool overlaps_itself(const Tensor& x) {
  if (x.is_contiguous()) return false;
  const Shape &sizes = x.sizes(), &strides = x.strides();
  // Sorted by stride, each dimension must step beyond everything the smaller ones can reach.
  const Shape order = dims_by_stride(strides);
  int64_t reach = 0;
  for (int64_t dim : order) {
    const int d = static_cast<int>(dim);
    if (sizes[d] <= 1) continue;
    if (strides[d] <= reach) return true;
    reach += (sizes[d] - 1) * strides[d];
  }
  return false;
}

void check_no_internal_overlap(const char* op, const Tensor& out) {
  TARN_CHECK_AS(ShapeError, !overlaps_itself(out), op,
                ": cannot write in place, elements share memory (an expanded tensor?); got sizes=",
                out.sizes(), ", strides=", out.strides(), "; use clone() first");
}

void check_writable(const char* op, const Tensor& out) {
  if (overlaps_itself(out)) check_no_internal_overlap((std::string(op) + "_").c_str(), out);
}

bool overlaps_partly(const Tensor& out, const Tensor& x) {
  if (!(out.storage() == x.storage()) || out.numel() == 0 || x.numel() == 0) return false;
  if (out.storage_offset() == x.storage_offset() && out.sizes() == x.sizes() &&
      out.strides() == x.strides()) {
    return false;  // element i is read before element i is written
  }
  const auto range = [](const Tensor& t) {
    int64_t last = t.storage_offset();
    for (int i = 0; i < t.dim(); ++i) last += (t.sizes()[i] - 1) * t.strides()[i];
    return std::pair<int64_t, int64_t>(t.storage_offset() * item_size(t.dtype()),
                                       (last + 1) * item_size(t.dtype()));
  };
  const auto [a0, a1] = range(out);
  const auto [b0, b1] = range(x);
  return a0 < b1 && b0 < a1;
}

}  // namespace tarn
