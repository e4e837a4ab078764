// attention_backward.cpp - the gradient of fused attention on the CPU.
//
// Per block of queries and tile of keys the probabilities are made again from the scores and the
// saved log-sum-exp; with dP = gout v^T and delta = sum(gout * out) per row,
//   dS = P (dP - delta),  gv += P^T gout,  gq += dS k,  gk += dS^T q.
// A piece of work is a head of k and v with all queries that use it: its gradients are summed in
// one thread's scratch (linear in the number of keys), always in the same order. Source: Dao et al.
// 2022, arXiv:2205.14135, algorithm 4.
#include "tarn/core/cpu/attention.h"
#include "tarn/core/cpu/attention_tiles.h"
#include "tarn/core/cpu/scratch.h"

namespace tarn::cpu::attention {
namespace {

/// Packed operands of one head, its sums, and the scratch of one block.
template <class A>
struct Work {
  A *k, *k_panels, *v;  // [S / P][D][P], [D / P][S][P], [S / P][E][P]
  A *gk, *gv;           // [S, D], [S, E] in rows
  A *q, *q_panels, *g, *g_panels, *gq;
  A *tile, *gtile;  // P and dS, [kQueries, kKeys]
  A *logsumexp, *delta;
  int64_t depth_row, width_row;  // D and E rounded up to vectors
};

template <class T, class A = compute_t<T>>
Work<A> make_work(const Problem<T>& p) {
  constexpr int64_t P = kPanelOf<A>;
  Work<A> w;
  w.depth_row = round_up(p.depth, P);
  w.width_row = round_up(p.width, P);
  struct Part {
    A** at;
    int64_t size;
  };
  const int64_t s = p.padded_keys;
  const Part parts[] = {{&w.k, s * p.depth},
                        {&w.k_panels, s * w.depth_row},
                        {&w.v, s * p.width},
                        {&w.gk, s * w.depth_row},
                        {&w.gv, s * w.width_row},
                        {&w.q, kQueries * w.depth_row},
                        {&w.q_panels, kQueries * w.depth_row},
                        {&w.g, kQueries * w.width_row},
                        {&w.g_panels, kQueries * w.width_row},
                        {&w.gq, kQueries * std::max(w.depth_row, w.width_row)},
                        {&w.tile, kQueries * kTileRow},
                        {&w.gtile, kQueries * kTileRow},
                        {&w.logsumexp, kQueries},
                        {&w.delta, kQueries}};
  int64_t total = 0;
  for (const Part& part : parts) total += round_up(part.size, P);
  A* at = static_cast<A*>(scratch(ScratchSlot::kBlock, static_cast<size_t>(total) * sizeof(A)));
  for (const Part& part : parts) {
    *part.at = at;
    at += round_up(part.size, P);
  }
  return w;
}

/// Scores and dP of a tile to P (with dropout) and dS.
template <class T, class A = compute_t<T>>
void differentiate(const Problem<T>& p, int64_t b, int64_t h, int64_t t0, int64_t rows,
                   int64_t first, int64_t n, const Work<A>& w) {
  for (int64_t r = 0; r < rows; ++r) {
    A* __restrict s = w.tile + r * kTileRow;
    A* __restrict g = w.gtile + r * kTileRow;
    const int64_t count = visible(p, t0 + r, first, n);
    if (p.call.mask.defined()) mask_row(p.call.mask, b, h, t0 + r, first, count, s);
    const A base = w.logsumexp[r], delta = w.delta[r];
    if (p.call.dropout > 0 && count > 0) {
      alignas(64) A factors[kKeys];
      dropout_row(p, b, h, t0 + r, first, count, factors);
      for (int64_t i = 0; i < count; ++i) {
        const A weight = math::exp(s[i] - base);
        g[i] = weight * (g[i] * factors[i] - delta);
        s[i] = weight * factors[i];
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        s[i] = math::exp(s[i] - base);
        g[i] = s[i] * (g[i] - delta);
      }
    }
    for (int64_t i = count; i < n; ++i) s[i] = 0, g[i] = 0;
  }
}

/// Loads a block of queries: q (scaled), gout, logsumexp and delta.
template <class T, class A = compute_t<T>>
void load_block(const Problem<T>& p, int64_t b, int64_t h, int64_t t0, int64_t rows,
                const Tensor& out, const Tensor& logsumexp, const Tensor& gout, const Work<A>& w) {
  const HeadRows<T> q(p.call.q, b, h), o(out, b, h), g(gout, b, h);
  pack_rows(q.row(t0), q.stride, rows, p.depth, static_cast<A>(p.call.scale), w.q, w.depth_row);
  pack_panels(w.q, w.depth_row, rows, p.depth, w.q_panels);
  pack_rows(g.row(t0), g.stride, rows, p.width, A(1), w.g, w.width_row);
  pack_panels(w.g, w.width_row, rows, p.width, w.g_panels);
  const A* lse = static_cast<const A*>(logsumexp.data()) + (b * p.heads + h) * p.queries + t0;
  for (int64_t r = 0; r < rows; ++r) {
    // A row without keys: exp(score - inf) = 0.
    w.logsumexp[r] = lse[r] == -kInfinity<A> ? kInfinity<A> : lse[r];
    const A* x = widened<T, A>(o.row(t0 + r), p.width, w.gq);
    w.delta[r] = dot(x, w.g + r * w.width_row, p.width);
  }
}

/// `fresh`: the first block of this head of k, whose sums are not initialised.
template <class T, class A = compute_t<T>>
void backward_block(const Problem<T>& p, int64_t b, int64_t h, int64_t block, const Tensor& out,
                    const Tensor& logsumexp, const Tensor& gout, const Tensor& gq,
                    const Work<A>& w) {
  constexpr int64_t P = kPanelOf<A>;
  const int64_t t0 = block * kQueries, rows = std::min(kQueries, p.queries - t0);
  load_block(p, b, h, t0, rows, out, logsumexp, gout, w);
  const int64_t reach = p.reach(t0 + rows);
  for (int64_t first = 0; first < reach; first += kKeys) {
    const int64_t n = std::min(kKeys, reach - first);
    for_query_strips(p, t0, rows, first, n, [&](int64_t r, int64_t count, int64_t seen) {
      multiply<A, 0, 1>(count, seen, p.depth, w.q + r * w.depth_row, {w.depth_row, 1},
                        w.k + first * p.depth, P * p.depth, w.tile + r * kTileRow, kTileRow, false);
      multiply<A, 0, 1>(count, seen, p.width, w.g + r * w.width_row, {w.width_row, 1},
                        w.v + first * p.width, P * p.width, w.gtile + r * kTileRow, kTileRow,
                        false);
    });
    differentiate(p, b, h, t0, rows, first, n, w);
    for_key_strips(p, t0, rows, first, n, [&](int64_t i, int64_t count, int64_t r) {
      multiply<A, 1, 0>(count, p.width, rows - r, w.tile + r * kTileRow + i, {1, kTileRow},
                        w.g_panels + r * P, P * rows, w.gv + (first + i) * w.width_row, w.width_row,
                        true);
      multiply<A, 1, 0>(count, p.depth, rows - r, w.gtile + r * kTileRow + i, {1, kTileRow},
                        w.q_panels + r * P, P * rows, w.gk + (first + i) * w.depth_row, w.depth_row,
                        true);
    });
    for_query_strips(p, t0, rows, first, n, [&](int64_t r, int64_t count, int64_t seen) {
      multiply<A, 0, 1>(count, p.depth, seen, w.gtile + r * kTileRow, {kTileRow, 1},
                        w.k_panels + first * P, P * p.keys, w.gq + r * w.depth_row, w.depth_row,
                        first > 0);
    });
  }
  const HeadRows<T> to(gq, b, h);
  const A scale = static_cast<A>(p.call.scale);
  for (int64_t r = 0; r < rows; ++r) {
    const A* __restrict from = w.gq + r * w.depth_row;
    T* __restrict y = to.row(t0 + r);
    for (int64_t j = 0; j < p.depth; ++j) y[j] = T(from[j] * scale);
  }
}

template <class T, class A>
void store_rows(const A* from, int64_t from_row, int64_t n, int64_t d, const HeadRows<T>& to) {
  for (int64_t i = 0; i < n; ++i) {
    const A* __restrict x = from + i * from_row;
    T* __restrict y = to.row(i);
    for (int64_t j = 0; j < d; ++j) y[j] = T(x[j]);
  }
}

template <class T>
void backward(const AttentionCall& call, const Tensor& out, const Tensor& logsumexp,
              const Tensor& gout, const Tensor& gq, const Tensor& gk, const Tensor& gv) {
  using A = compute_t<T>;
  const Problem<T> p(call);
  for_pieces(3 * p.macs(), p.batch * p.groups, [&](int64_t piece) {
    const int64_t b = piece / p.groups, g = piece % p.groups;
    const Work<A> w = make_work(p);
    const HeadRows<T> k(call.k, b, g), v(call.v, b, g);
    pack_transposed(k.data, k.stride, p.keys, p.depth, w.k);
    pack_panels(k.data, k.stride, p.keys, p.depth, w.k_panels);
    pack_transposed(v.data, v.stride, p.keys, p.width, w.v);
    std::fill_n(w.gk, p.keys * w.depth_row, A(0));
    std::fill_n(w.gv, p.keys * w.width_row, A(0));
    for (int64_t h = g * p.heads_per_group(); h < (g + 1) * p.heads_per_group(); ++h) {
      for (int64_t block = 0; block < p.blocks(); ++block) {
        backward_block(p, b, h, block, out, logsumexp, gout, gq, w);
      }
    }
    store_rows(w.gk, w.depth_row, p.keys, p.depth, HeadRows<T>(gk, b, g));
    store_rows(w.gv, w.width_row, p.keys, p.width, HeadRows<T>(gv, b, g));
  });
}

}  // namespace

void scaled_dot_product_attention_backward(const AttentionCall& call, const Tensor& out,
                                           const Tensor& logsumexp, const Tensor& gout,
                                           const Tensor& gq, const Tensor& gk, const Tensor& gv,
                                           Stream) {
  visit_floating(call.q.dtype(), [&](auto tag) {
    backward<typename decltype(tag)::type>(call, out, logsumexp, gout, gq, gk, gv);
  });
}

}  // namespace tarn::cpu::attention
