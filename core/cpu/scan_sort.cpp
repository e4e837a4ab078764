// scan_sort.cpp - argmax and argmin, running sums and products, sort and topk, on the CPU.
//
// x is seen as [outer, n, inner] around the dimension.
#include <algorithm>
#include <vector>

#include "tarn/core/cpu/reduce.h"
#include "tarn/core/cpu/reduce_ops.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {
namespace {

struct Extents {
  int64_t outer = 1, n = 1, inner = 1;
  Extents(const Tensor& x, int64_t dim) {
    for (int d = 0; d < x.dim(); ++d) {
      (d < dim ? outer : d > dim ? inner : n) *= x.sizes()[d];
    }
  }
};

/// Calls f(outer index, inner index) for every slice along the dimension.
template <class F>
void for_slices(const Extents& e, F&& f) {
  parallel_for(e.outer * e.inner, grain_for(4 * e.n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i / e.inner, i % e.inner);
  });
}

template <class T>
TARN_INLINE bool is_nan(T x) {
  if constexpr (is_float_type<T>) {
    const auto v = to<compute_t<T>>(x);
    return v != v;
  }
  return false;
}

// Position of the first extreme in adjacent elements: fold, then search.
template <class Op, class T>
int64_t first_extreme(const T* x, int64_t n) {
  using A = typename Op::Lane;
  const A best = fold_chunk(Op(), x, n);
  for (int64_t i = 0; i < n; ++i) {
    const A v = to<A>(x[i]);
    if (v == best || v != v) return i;
  }
  return 0;
}

template <class T>
int64_t first_extreme_strided(bool largest, const T* x, int64_t n, int64_t stride) {
  using A = OrderLane<T>;
  int64_t best = 0;
  for (int64_t i = 1; i < n && !is_nan(x[best * stride]); ++i) {
    const A v = to<A>(x[i * stride]), b = to<A>(x[best * stride]);
    if ((largest ? v > b : v < b) || v != v) best = i;
  }
  return best;
}

template <class T>
void scan(bool product, const Tensor& x_in, const Extents& e, const Tensor& out_in) {
  using A = SumWide<T>;  // double: a long running sum has nowhere to be blocked
  using O = std::conditional_t<is_float_type<T>, T, int64_t>;
  const T* x = static_cast<const T*>(x_in.data());
  O* out = static_cast<O*>(out_in.data());
  for_slices(e, [&](int64_t outer, int64_t inner) {
    int64_t at = outer * e.n * e.inner + inner;
    A acc = product ? 1 : 0;
    for (int64_t i = 0; i < e.n; ++i, at += e.inner) {
      acc = product ? acc * to<A>(x[at]) : acc + to<A>(x[at]);
      if constexpr (is_half_type<T>) {
        out[at] = T(static_cast<float>(acc));
      } else {
        out[at] = static_cast<O>(acc);
      }
    }
  });
}

template <class T>
struct Entry {
  OrderLane<T> value;
  int64_t index;
};

/// Strict order, largest (or smallest) first, NaN as the largest of all, ties by position.
template <class T>
struct Before {
  bool largest;
  bool operator()(const Entry<T>& a, const Entry<T>& b) const {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan) return a_nan == largest;
    if (!a_nan && a.value != b.value) return (a.value > b.value) == largest;
    return a.index < b.index;
  }
};

template <class T>
void topk_typed(const Tensor& x_in, int64_t k, const Extents& e, bool largest,
                const Tensor& values_in, const Tensor& index_in) {
  const T* x = static_cast<const T*>(x_in.data());
  T* values = static_cast<T*>(values_in.data());
  int64_t* index = index_in.data<int64_t>();
  parallel_for(e.outer * e.inner, grain_for(32 * e.n), [&](int64_t begin, int64_t end) {
    std::vector<Entry<T>> entries(static_cast<size_t>(e.n));
    for (int64_t s = begin; s < end; ++s) {
      const int64_t outer = s / e.inner, inner = s % e.inner;
      const T* from = x + outer * e.n * e.inner + inner;
      for (int64_t i = 0; i < e.n; ++i) entries[i] = {to<OrderLane<T>>(from[i * e.inner]), i};
      if (k < e.n) {
        std::partial_sort(entries.begin(), entries.begin() + k, entries.end(), Before<T>{largest});
      } else {
        std::sort(entries.begin(), entries.end(), Before<T>{largest});
      }
      for (int64_t i = 0; i < k; ++i) {
        const int64_t at = (outer * k + i) * e.inner + inner;
        values[at] = from[entries[i].index * e.inner];
        index[at] = entries[i].index;
      }
    }
  });
}

}  // namespace

void arg_reduce(bool largest, const Tensor& x_in, int64_t dim, const Tensor& values_in,
                const Tensor& index_in, Stream) {
  const Extents e(x_in, dim);
  int64_t* index = index_in.data<int64_t>();
  visit_dtype(x_in.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* x = static_cast<const T*>(x_in.data());
    T* values = values_in.data_or_null<T>();
    for_slices(e, [&](int64_t outer, int64_t inner) {
      const T* from = x + outer * e.n * e.inner + inner;
      const int64_t best = e.inner != 1 ? first_extreme_strided(largest, from, e.n, e.inner)
                           : largest    ? first_extreme<MaxOp<T>>(from, e.n)
                                        : first_extreme<MinOp<T>>(from, e.n);
      index[outer * e.inner + inner] = best;
      if (values) values[outer * e.inner + inner] = from[best * e.inner];
    });
  });
}

void cumulative(bool product, const Tensor& x, int64_t dim, const Tensor& out, Stream) {
  const Extents e(x, dim);
  visit_dtype(x.dtype(), [&](auto tag) { scan<typename decltype(tag)::type>(product, x, e, out); });
}

void topk(const Tensor& x, int64_t k, int64_t dim, bool largest, const Tensor& values,
          const Tensor& index, Stream) {
  const Extents e(x, dim);
  visit_dtype(x.dtype(), [&](auto tag) {
    topk_typed<typename decltype(tag)::type>(x, k, e, largest, values, index);
  });
}

}  // namespace tarn::cpu
