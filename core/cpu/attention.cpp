// attention.cpp - fused attention on the CPU: forward, and the entry of the backward.
//
// For blocks of queries, tiles of scores are made by the microkernel, turned into exponentials with
// a running maximum and sum per row, and multiplied with the values at once. Keys and values of a
// head are packed once for all its queries; memory is linear in the number of keys. Blocks do not
// depend on the number of threads, so results do not either.
// Source: Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135.
#include "tarn/core/cpu/attention.h"

#include <cmath>

#include "tarn/core/cpu/attention_tiles.h"
#include "tarn/core/cpu/scratch.h"
#include "tarn/core/cpu/table.h"
#include "tarn/core/cpu/tasks.h"

namespace tarn::cpu {
namespace attention {
namespace {

constexpr int64_t kFewQueries = 4;

/// Row statistics of a block of queries and their unscaled output.
template <class A>
struct Running {
  A max[kQueries], sum[kQueries];
};

/// Maximum of s[0, n); n is a multiple of the vector's width.
template <class A>
A row_max(const A* s, int64_t n) {
  using V = typename Wide<A>::type;
  using U = typename Wide<A>::unaligned;
  V best = V{} - kInfinity<A>;
  for (int64_t i = 0; i < n; i += kWidth<A>) {
    const V v = *reinterpret_cast<const U*>(s + i);
    best = v > best ? v : best;
  }
  return fold_lanes(best, [](A a, A b) { return a > b ? a : b; });
}

template <class A>
A row_sum(const A* s, int64_t n) {
  using V = typename Wide<A>::type;
  using U = typename Wide<A>::unaligned;
  V total = {};
  for (int64_t i = 0; i < n; i += kWidth<A>) total += V(*reinterpret_cast<const U*>(s + i));
  return sum_lanes(total);
}

/// Packed operands of one head and the scratch of one block.
template <class A>
struct Work {
  A *k, *v, *q, *tile, *sums;
  int64_t depth_row, width_row;
};

template <class T, class A = compute_t<T>>
Work<A> make_work(const Problem<T>& p) {
  constexpr int64_t P = kPanelOf<A>;
  Work<A> w;
  w.depth_row = round_up(p.depth, kWidth<A>);
  w.width_row = round_up(p.width, P);
  const int64_t k_size = p.padded_keys * p.depth, v_size = p.padded_keys * w.width_row;
  const int64_t q_size = kQueries * w.depth_row, tile_size = kQueries * kTileRow;
  const int64_t total = k_size + v_size + q_size + tile_size + kQueries * w.width_row;
  w.k = static_cast<A*>(
      scratch(ScratchSlot::kBlock, static_cast<size_t>(round_up(total, P)) * sizeof(A)));
  w.v = w.k + k_size;
  w.q = w.v + v_size;
  w.tile = w.q + q_size;
  w.sums = w.tile + tile_size;
  return w;
}

/// Scores of rows [t0, t0 + rows) to exponentials; rescales what was summed before.
template <class T, class A = compute_t<T>>
void exponentials(const Problem<T>& p, int64_t b, int64_t h, int64_t t0, int64_t rows,
                  int64_t first, int64_t n, bool fresh, const Work<A>& w, Running<A>& run) {
  for (int64_t r = 0; r < rows; ++r) {
    A* __restrict s = w.tile + r * kTileRow;
    const int64_t count = visible(p, t0 + r, first, n), whole = round_up(count, kWidth<A>);
    if (p.call.mask.defined()) mask_row(p.call.mask, b, h, t0 + r, first, count, s);
    for (int64_t i = count; i < whole; ++i) s[i] = -kInfinity<A>;
    const A max = std::max(run.max[r], row_max(s, whole));
    const A base = max == -kInfinity<A> ? A(0) : max;
    for (int64_t i = 0; i < whole; ++i) s[i] = math::exp(s[i] - base);
    for (int64_t i = whole; i < n; ++i) s[i] = 0;
    const A decay = math::exp(run.max[r] - base);
    run.sum[r] = (fresh ? A(0) : run.sum[r] * decay) + row_sum(s, whole);
    run.max[r] = max;
    if (!fresh && decay != 1) {
      A* __restrict o = w.sums + r * w.width_row;
      for (int64_t j = 0; j < w.width_row; ++j) o[j] *= decay;
    }
    if (p.call.dropout > 0 && count > 0) {
      alignas(64) A factors[kKeys];
      dropout_row(p, b, h, t0 + r, first, count, factors);
      for (int64_t i = 0; i < count; ++i) s[i] *= factors[i];
    }
  }
}

template <class T, class A = compute_t<T>>
void forward_block(const Problem<T>& p, int64_t b, int64_t h, int64_t block, const Work<A>& w,
                   const Tensor& out, const Tensor& logsumexp) {
  constexpr int64_t P = kPanelOf<A>;
  const int64_t t0 = block * kQueries, rows = std::min(kQueries, p.queries - t0);
  const HeadRows<T> q(p.call.q, b, h), o(out, b, h);
  pack_rows(q.row(t0), q.stride, rows, p.depth, static_cast<A>(p.call.scale), w.q, w.depth_row);
  Running<A> run;
  std::fill_n(run.max, kQueries, -kInfinity<A>);
  const int64_t reach = p.reach(t0 + rows);
  for (int64_t first = 0; first < reach; first += kKeys) {
    const int64_t n = std::min(kKeys, reach - first);
    for_query_strips(p, t0, rows, first, n, [&](int64_t r, int64_t count, int64_t seen) {
      multiply<A, 0, 1>(count, seen, p.depth, w.q + r * w.depth_row, {w.depth_row, 1},
                        w.k + first * p.depth, P * p.depth, w.tile + r * kTileRow, kTileRow, false);
    });
    exponentials(p, b, h, t0, rows, first, n, first == 0, w, run);
    for_query_strips(p, t0, rows, first, n, [&](int64_t r, int64_t count, int64_t seen) {
      multiply<A, 0, 1>(count, p.width, seen, w.tile + r * kTileRow, {kTileRow, 1}, w.v + first * P,
                        P * p.keys, w.sums + r * w.width_row, w.width_row, first > 0);
    });
  }
  A* lse = static_cast<A*>(logsumexp.data()) + (b * p.heads + h) * p.queries + t0;
  for (int64_t r = 0; r < rows; ++r) {
    const bool dead = reach == 0 || run.sum[r] == 0;  // no key: the sum of at least one term is 1
    lse[r] = dead ? -kInfinity<A> : run.max[r] + math::log(run.sum[r]);
    const A factor = dead ? A(0) : 1 / run.sum[r];
    const A* __restrict from = w.sums + r * w.width_row;
    T* __restrict to = o.row(t0 + r);
    for (int64_t j = 0; j < p.width; ++j) to[j] = dead ? T(A(0)) : T(from[j] * factor);
  }
}

/// One query without packing, which few queries do not pay for: a generated token reads its keys
/// and values once, and that is its time.
template <class T, class A = compute_t<T>>
void forward_row(const Problem<T>& p, int64_t b, int64_t h, int64_t t, const Tensor& out,
                 const Tensor& logsumexp) {
  const int64_t g = h / p.heads_per_group(), reach = p.reach(t + 1);
  const int64_t whole = round_up(reach, kKeys);
  A* s = static_cast<A*>(scratch(
      ScratchSlot::kBlock, static_cast<size_t>(whole + 2 * p.depth + 2 * p.width) * sizeof(A)));
  A *q = s + whole, *buffer = q + p.depth, *sums = buffer + std::max(p.depth, p.width);
  const HeadRows<T> queries(p.call.q, b, h), k(p.call.k, b, g), v(p.call.v, b, g), o(out, b, h);
  pack_rows(queries.row(t), 0, 1, p.depth, static_cast<A>(p.call.scale), q, p.depth);
  for (int64_t i = 0; i < reach; ++i)
    s[i] = dot(q, widened<T, A>(k.row(i), p.depth, buffer), p.depth);
  if (p.call.mask.defined()) mask_row(p.call.mask, b, h, t, 0, reach, s);
  std::fill(s + reach, s + whole, -kInfinity<A>);
  const A max = row_max(s, whole), base = max == -kInfinity<A> ? A(0) : max;
  for (int64_t i = 0; i < whole; ++i) s[i] = math::exp(s[i] - base);
  const A sum = row_sum(s, whole);
  for (int64_t first = 0; p.call.dropout > 0 && first < reach; first += kKeys) {
    alignas(64) A factors[kKeys];
    dropout_row(p, b, h, t, first, std::min(kKeys, reach - first), factors);
    for (int64_t i = first; i < std::min(first + kKeys, reach); ++i) s[i] *= factors[i - first];
  }
  std::fill_n(sums, p.width, A(0));
  for (int64_t i = 0; i < reach; ++i) {
    const A* __restrict x = widened<T, A>(v.row(i), p.width, buffer);
    const A weight = s[i];
    for (int64_t j = 0; j < p.width; ++j) sums[j] += weight * x[j];
  }
  const A factor = sum == 0 ? A(0) : 1 / sum;  // no key: the sum of at least one term is 1
  T* to = o.row(t);
  for (int64_t j = 0; j < p.width; ++j) to[j] = sum == 0 ? T(A(0)) : T(sums[j] * factor);
  static_cast<A*>(logsumexp.data())[(b * p.heads + h) * p.queries + t] =
      sum == 0 ? -kInfinity<A> : max + math::log(sum);
}

template <class T>
void forward(const AttentionCall& call, const Tensor& out, const Tensor& logsumexp) {
  using A = compute_t<T>;
  const Problem<T> p(call);
  if (p.queries <= kFewQueries) {
    return for_pieces(p.macs(), p.batch * p.heads * p.queries, [&](int64_t row) {
      const int64_t t = row % p.queries, head = row / p.queries;
      forward_row(p, head / p.heads, head % p.heads, t, out, logsumexp);
    });
  }
  const int64_t heads = p.batch * p.groups;
  // Few heads leave threads without work: then several pieces share a head and pack it each.
  const int64_t splits =
      std::clamp<int64_t>((4 * task_threads() + heads - 1) / heads, 1, p.blocks());
  for_pieces(p.macs(), heads * splits, [&](int64_t piece) {
    const int64_t b = piece / splits / p.groups, g = piece / splits % p.groups;
    const Work<A> w = make_work(p);
    const HeadRows<T> k(call.k, b, g), v(call.v, b, g);
    pack_transposed(k.data, k.stride, p.keys, p.depth, w.k);
    pack_panels(v.data, v.stride, p.keys, p.width, w.v);
    for (int64_t h = g * p.heads_per_group(); h < (g + 1) * p.heads_per_group(); ++h) {
      for (int64_t block = piece % splits; block < p.blocks(); block += splits) {
        forward_block(p, b, h, block, w, out, logsumexp);
      }
    }
  });
}

}  // namespace
}  // namespace attention

namespace {

void scaled_dot_product_attention(const AttentionCall& call, const Tensor& out,
                                  const Tensor& logsumexp, Stream) {
  visit_floating(call.q.dtype(), [&](auto tag) {
    attention::forward<typename decltype(tag)::type>(call, out, logsumexp);
  });
}

}  // namespace

void add_attention_kernels(KernelTable& table) {
  table.attention.scaled_dot_product_attention = scaled_dot_product_attention;
  table.attention.scaled_dot_product_attention_backward =
      attention::scaled_dot_product_attention_backward;
}

}  // namespace tarn::cpu
