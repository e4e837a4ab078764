// reduce_plan.cpp - sorts and merges the dimensions of a reduction.
#include "tarn/core/reduce_plan.h"

namespace tarn {
namespace {

struct Dim {
  int64_t size, stride, out;
};

// Fastest first; a broadcast dimension (stride 0) is best walked last.
int sort_and_merge(Dim* dims, int n, bool kept) {
  const auto slower = [](const Dim& a, const Dim& b) {
    return a.stride == 0 ? b.stride != 0 : b.stride != 0 && a.stride > b.stride;
  };
  for (int i = 1; i < n; ++i) {
    for (int k = i; k > 0 && slower(dims[k - 1], dims[k]); --k) std::swap(dims[k - 1], dims[k]);
  }
  int m = 0;
  for (int i = 0; i < n; ++i) {
    Dim& last = dims[m > 0 ? m - 1 : 0];
    if (m > 0 && dims[i].stride == last.stride * last.size &&
        (!kept || dims[i].out == last.out * last.size)) {
      last.size *= dims[i].size;
    } else {
      dims[m++] = dims[i];
    }
  }
  return m;
}

}  // namespace

ReducePlan make_reduce_plan(const Tensor& x, const Tensor& out) {
  ReducePlan p;
  Dim kept[kMaxDims], reduced[kMaxDims];
  for (int d = 0; d < x.dim(); ++d) {
    const int64_t n = x.sizes()[d];
    if (n == 1) continue;
    if (out.sizes()[d] == n) {
      kept[p.kept++] = {n, x.strides()[d], out.strides()[d]};
    } else {
      reduced[p.reduced++] = {n, x.strides()[d], 0};
    }
  }
  p.kept = sort_and_merge(kept, p.kept, true);
  p.reduced = sort_and_merge(reduced, p.reduced, false);
  for (int d = 0; d < p.kept; ++d) {
    p.kept_size[d] = kept[d].size;
    p.kept_stride[d] = kept[d].stride;
    p.out_stride[d] = kept[d].out;
    p.outputs *= kept[d].size;
  }
  for (int d = 0; d < p.reduced; ++d) {
    p.reduced_size[d] = reduced[d].size;
    p.reduced_stride[d] = reduced[d].stride;
    p.count *= reduced[d].size;
  }
  constexpr int64_t kNarrow = 4;  // below this, rows are too short to vectorise along
  p.columns = p.count > 0 && p.kept > 0 && p.kept_stride[0] == 1 && p.kept_size[0] >= kNarrow &&
              (p.reduced == 0 || p.reduced_stride[0] != 1);
  return p;
}

}  // namespace tarn
