// attention_tiles.h - what attention's forward and backward share: one problem's sizes, packing of
// operands for the microkernel, and the rows of a tile of scores.
//
// All arithmetic is in A (f32, or f64 for f64); packing converts. A panel is kPanelOf<A> columns of
// a matrix, stored densely row after row.
#pragma once

#include <algorithm>
#include <limits>

#include "tarn/core/cpu/fold_lanes.h"
#include "tarn/core/cpu/gemm_pack.h"
#include "tarn/core/cpu/micro_gemm.h"
#include "tarn/core/cpu/random_words.h"
#include "tarn/core/kernels/attention.h"
#include "tarn/core/math.h"
#include "tarn/core/random_draws.h"

namespace tarn::cpu::attention {

constexpr int64_t kQueries = 56;          // rows of a tile: four register blocks of AVX-512
constexpr int64_t kKeys = 256;            // columns: a tile of scores takes 60 KiB
constexpr int64_t kTileRow = kKeys + 16;  // apart from a power of two, which would thrash L1

constexpr int64_t round_up(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

template <class A>
constexpr A kInfinity = std::numeric_limits<A>::infinity();

/// A call in plain numbers. T: the dtype of the tensors; A = compute_t<T>.
template <class T>
struct Problem {
  using A = compute_t<T>;

  explicit Problem(const AttentionCall& c)
      : call(c),
        batch(c.q.size(0)),
        heads(c.q.size(1)),
        groups(c.k.size(1)),
        queries(c.q.size(2)),
        keys(c.k.size(2)),
        depth(c.q.size(3)),
        width(c.v.size(3)),
        padded_keys(round_up(keys, kPanelOf<A>)) {}

  const AttentionCall& call;
  int64_t batch, heads, groups, queries, keys;
  int64_t depth, width;  ///< D and E
  int64_t padded_keys;

  int64_t blocks() const { return (queries + kQueries - 1) / kQueries; }
  int64_t heads_per_group() const { return heads / groups; }
  /// Keys that the queries before `end` attend to.
  int64_t reach(int64_t end) const { return call.causal ? std::min(keys, end) : keys; }
  /// Multiply-adds of one product of scores.
  int64_t macs() const { return batch * heads * queries * keys * (depth + width); }
};

/// One head of a tensor [B, H, N, D].
template <class T>
struct HeadRows {
  HeadRows(const Tensor& x, int64_t b, int64_t h)
      : data(static_cast<T*>(x.data()) + b * x.strides()[0] + h * x.strides()[1]),
        stride(x.strides()[2]) {}
  T* row(int64_t i) const { return data + i * stride; }
  T* data;
  int64_t stride;
};

/// n rows of d elements, times factor, to rows of `to_stride` >= d with zeros behind.
template <class T, class A>
void pack_rows(const T* from, int64_t stride, int64_t n, int64_t d, A factor, A* to,
               int64_t to_stride) {
  for (int64_t i = 0; i < n; ++i) {
    const T* __restrict x = from + i * stride;
    A* __restrict y = to + i * to_stride;
    for (int64_t j = 0; j < d; ++j) y[j] = static_cast<A>(x[j]) * factor;
    for (int64_t j = d; j < to_stride; ++j) y[j] = 0;
  }
}

/// n rows of d elements as panels over d: [d / P][n][P]; unspecified beyond the last column.
template <class T, class A>
void pack_panels(const T* from, int64_t stride, int64_t n, int64_t d, A* to) {
  constexpr int64_t P = kPanelOf<A>;
  for (int64_t j = 0; j < d; j += P) {
    pack_b(from + j, stride, 1, n, std::min(P, d - j), to + j / P * n * P);
  }
}

/// n rows of d elements transposed, as panels over n: [n / P][d][P]; likewise.
template <class T, class A>
void pack_transposed(const T* from, int64_t stride, int64_t n, int64_t d, A* to) {
  constexpr int64_t P = kPanelOf<A>;
  for (int64_t i = 0; i < n; i += P) {
    pack_b(from + i * stride, 1, stride, d, std::min(P, n - i), to + i * d);
  }
}

/// C[rows, cols] (+)= A * B for B in panels of `depth` rows; columns up to the next vector's end.
template <class A, int64_t kRow, int64_t kDepth>
void multiply(int64_t rows, int64_t cols, int64_t depth, const A* a, StrideA strides,
              const A* panels, int64_t panel_size, A* c, int64_t c_stride, bool accumulate) {
  constexpr int64_t P = kPanelOf<A>;
  for (int64_t j = 0; j < cols; j += P) {
    panel_gemm<A, kRow, kDepth>(rows, std::min(P, cols - j), depth, a, strides,
                                panels + j / P * panel_size, P, c + j, c_stride, accumulate);
  }
}

/// n elements as A: where they are, or converted to `buffer`.
template <class T, class A>
const A* widened(const T* x, int64_t n, A* __restrict buffer) {
  if constexpr (std::is_same_v<T, A>) {
    return x;
  } else {
    for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<A>(x[i]);
    return buffer;
  }
}

/// sum(x * y), in lanes of a vector.
template <class A>
A dot(const A* x, const A* y, int64_t n) {
  using V = typename Wide<A>::type;
  using U = typename Wide<A>::unaligned;
  V lanes = {};
  int64_t i = 0;
  for (; i + kWidth<A> <= n; i += kWidth<A>) {
    lanes += V(*reinterpret_cast<const U*>(x + i)) * V(*reinterpret_cast<const U*>(y + i));
  }
  A sum = sum_lanes(lanes);
  for (; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

/// Puts the mask on scores s[0, n) of query t and keys first.. of head (b, h).
template <class A>
void mask_row(const Tensor& mask, int64_t b, int64_t h, int64_t t, int64_t first, int64_t n,
              A* __restrict s) {
  const Shape& strides = mask.strides();
  const int64_t step = strides[3];
  const int64_t at = b * strides[0] + h * strides[1] + t * strides[2] + first * step;
  if (mask.dtype() == DType::kBool) {
    const bool* __restrict m = static_cast<const bool*>(mask.data()) + at;
    for (int64_t i = 0; i < n; ++i) s[i] = m[i * step] ? s[i] : -kInfinity<A>;
  } else {
    const A* __restrict m = static_cast<const A*>(mask.data()) + at;
    for (int64_t i = 0; i < n; ++i) s[i] += m[i * step];
  }
}

/// 1 / (1 - p) or 0 for the keys [first, first + n) of query t: the factors that dropout of the
/// whole tensor of probabilities would use.
template <class T, class A = compute_t<T>>
void dropout_row(const Problem<T>& p, int64_t b, int64_t h, int64_t t, int64_t first, int64_t n,
                 A* __restrict factors) {
  alignas(64) uint32_t words[kKeys + 8];
  const int64_t at = ((b * p.heads + h) * p.queries + t) * p.keys + first;
  fill_words(p.call.state, static_cast<uint64_t>(at / 4), (at + n + 3) / 4 - at / 4, words);
  const uint64_t limit = draws::threshold(p.call.dropout);
  const A keep = p.call.dropout < 1 ? static_cast<A>(1 / (1 - p.call.dropout)) : A(0);
  const uint32_t* __restrict w = words + at % 4;
  for (int64_t i = 0; i < n; ++i) factors[i] = w[i] < limit ? A(0) : keep;
}

/// Keys of a tile [first, first + n) that query t attends to.
template <class T>
int64_t visible(const Problem<T>& p, int64_t t, int64_t first, int64_t n) {
  return p.call.causal ? std::clamp<int64_t>(t + 1 - first, 0, n) : n;
}

/// Runs f(r, count, n) over the rows of a tile by register blocks [r, r + count), with n the keys
/// of the tile that one of them attends to; over all rows at once where each attends to all keys.
template <class T, class F>
void for_query_strips(const Problem<T>& p, int64_t t0, int64_t rows, int64_t first, int64_t n,
                      F&& f) {
  const int64_t step = visible(p, t0, first, n) == n ? rows : kMaxRows;
  for (int64_t r = 0; r < rows; r += step) {
    const int64_t count = std::min(step, rows - r), seen = visible(p, t0 + r + count - 1, first, n);
    if (seen > 0) f(r, count, seen);
  }
}

/// Runs f(i, count, r) over the keys of a tile by register blocks [i, i + count), with r the first
/// row that attends to one of them; over all keys at once where each row attends to all.
template <class T, class F>
void for_key_strips(const Problem<T>& p, int64_t t0, int64_t rows, int64_t first, int64_t n,
                    F&& f) {
  const int64_t step = visible(p, t0, first, n) == n ? n : kMaxRows;
  for (int64_t i = 0; i < n; i += step) {
    const int64_t r = p.call.causal ? std::max<int64_t>(0, first + i - t0) : 0;
    if (r < rows) f(i, std::min(step, n - i), r);
  }
}

}  // namespace tarn::cpu::attention
