// winograd.cpp - the three passes of Winograd convolution over blocks that stay in the L2 cache.
//
// Forward, per block of tiles and of 64 output channels: for each 64 input channels, transform the
// tiles, multiply the points with the transformed filters, accumulate; then transform back.
// Backward data is the same with rotated, transposed filters. Backward weights swaps the roles: the
// products are summed over tiles.
#include "tarn/core/cpu/winograd.h"

#include "tarn/core/cpu/half_buffer.h"
#include "tarn/core/cpu/scratch.h"
#include "tarn/core/cpu/tasks.h"
#include "tarn/core/cpu/winograd_tiles.h"

namespace tarn::cpu {
namespace {

using namespace winograd;

constexpr int64_t kUnsharedTiles = 64;  // with more, all blocks share the transformed filters
constexpr int64_t kFilterBlock = kFilters * point_stride(kBlock);  // floats of 64 x 64 channels

/// A forward pass, or a backward-data pass seen as one: `ins` channels of `from` to `outs` channels
/// of `to`.
template <typename T>
struct Pass {
  const Scheme<T>& scheme;
  const Geometry& g;
  TilesToPoints<T> input;
  PointsToTiles<T> output;
  FilterView w;
  int64_t ins, outs;
  const T* from;
  const T* bias;
  T* to;

  int64_t in_blocks() const { return ceil_div(ins, kBlock); }
  int64_t out_blocks() const { return ceil_div(outs, kBlock); }
};

/// How the tiles of a pass are cut into blocks, and whether all filters are transformed beforehand
/// or by each block for itself.
struct BlockPlan {
  int64_t tile_blocks, tiles_per_block;
  bool shared_filters;

  template <typename T>
  explicit BlockPlan(const Pass<T>& p) {
    const int64_t tiles = p.g.tiles(), threads = task_threads();
    shared_filters = tiles > kUnsharedTiles;
    tile_blocks = ceil_div(tiles, shared_filters ? p.scheme.forward_tiles : kUnsharedTiles);
    // Few blocks: cut finer, that every thread gets its share of equal work.
    const int64_t items = tile_blocks * p.out_blocks();
    if (items < 4 * threads) {
      const int64_t wanted = ceil_div(ceil_div(items, threads) * threads, p.out_blocks());
      tile_blocks =
          std::clamp(wanted, tile_blocks, std::max(tile_blocks, ceil_div(tiles, kMaxRows)));
    }
    tiles_per_block = ceil_div(tiles, tile_blocks);
    tile_blocks = ceil_div(tiles, tiles_per_block);
  }
};

/// The filters of one 64 x 64 block of channels, transformed.
template <typename T>
void transform_filters(const Pass<T>& p, int64_t out_block, int64_t in_block, float* u) {
  const int64_t out = out_block * kBlock, in = in_block * kBlock;
  FilterView block = p.w;
  block.data += out * p.w.out_stride + in * p.w.in_stride;
  p.scheme.filters(block, std::min(kBlock, p.outs - out), std::min(kBlock, p.ins - in), u);
}

/// m[points][tiles][64] (+)= v[points][tiles][64] * u[filters], packed as FiltersToPoints says.
template <typename T>
void multiply_points(const Scheme<T>& scheme, int64_t tiles, int64_t outs, int64_t ins,
                     const float* v, const float* u, float* m, int64_t stride, bool accumulate) {
  for (int64_t point = 0; point < scheme.points; ++point) {
    const float* filter = u + scheme.filter_of[point] * point_stride(kBlock);
    for (int64_t o = 0; o < outs; o += kPanel) {
      panel_gemm<float, kBlock, 1>(tiles, std::min(kPanel, outs - o), ins, v + point * stride, {},
                                   filter + o * kBlock, kPanel, m + point * stride + o, kBlock,
                                   accumulate);
    }
  }
}

template <typename T>
void run(const Pass<T>& p) {
  if (p.g.tiles() == 0) return;
  const BlockPlan plan(p);
  const int64_t in_blocks = p.in_blocks();
  float* filters = nullptr;
  if (plan.shared_filters) {
    const int64_t count = p.out_blocks() * in_blocks;
    filters = scratch_floats(ScratchSlot::kShared, count * kFilterBlock);
    parallel_tasks(count, [&](int64_t i) {
      transform_filters(p, i / in_blocks, i % in_blocks, filters + i * kFilterBlock);
    });
  }
  const int64_t tiles = p.g.tiles(), stride = point_stride(plan.tiles_per_block);
  const int64_t size = p.scheme.points * stride;
  parallel_tasks(p.out_blocks() * plan.tile_blocks, [&](int64_t item) {
    const int64_t out_block = item / plan.tile_blocks;
    const int64_t out = out_block * kBlock, outs = std::min(kBlock, p.outs - out);
    const int64_t first = item % plan.tile_blocks * plan.tiles_per_block;
    const int64_t count = std::min(plan.tiles_per_block, tiles - first);
    float* v = scratch_floats(ScratchSlot::kBlock, 2 * size + kFilterBlock);
    float* m = v + size;
    float* own_filters = m + size;
    for (int64_t b = 0; b < in_blocks; ++b) {
      const int64_t in = b * kBlock, ins = std::min(kBlock, p.ins - in);
      const float* u = own_filters;
      if (plan.shared_filters) {
        u = filters + (out_block * in_blocks + b) * kFilterBlock;
      } else {
        transform_filters(p, out_block, b, own_filters);
      }
      p.input(p.g, p.from + in, first, count, ins, v, stride);
      multiply_points(p.scheme, count, outs, ins, v, u, m, stride, b > 0);
    }
    p.output(p.g, m, stride, first, count, outs, p.bias != nullptr ? p.bias + out : nullptr,
             p.to + out);
  });
}

/// m[filters][ins][64] (+)= v[points][tiles][64]^T * u[points][2][tiles][32]; points that share a
/// filter add up. `fresh`: m holds nothing yet.
template <typename T>
void multiply_gradients(const Scheme<T>& scheme, int64_t tiles, int64_t outs, int64_t ins,
                        const float* v, const float* u, int64_t stride, float* m, bool fresh) {
  bool written[kFilters] = {};
  for (int64_t point = 0; point < scheme.points; ++point) {
    const int64_t filter = scheme.filter_of[point];
    for (int64_t o = 0; o < outs; o += kPanel) {
      panel_gemm<float, 1, kBlock>(ins, std::min(kPanel, outs - o), tiles, v + point * stride, {},
                                   u + point * stride + o * tiles, kPanel,
                                   m + filter * point_stride(kBlock) + o, kBlock,
                                   !fresh || written[filter]);
    }
    written[filter] = true;
  }
}

/// out = the sum of `parts` arrays of `count` floats, in their order.
void sum_parts(const float* partial, int64_t parts, int64_t count, float* out) {
  constexpr int64_t kChunk = 4096;
  parallel_tasks(ceil_div(count, kChunk), [&](int64_t chunk) {
    const int64_t begin = chunk * kChunk, end = std::min(count, begin + kChunk);
    std::copy(partial + begin, partial + end, out + begin);
    for (int64_t part = 1; part < parts; ++part) {
      for (int64_t i = begin; i < end; ++i) out[i] += partial[part * count + i];
    }
  });
}

template <typename T>
Scheme<T> scheme_of(const Conv2dShape& s) {
  return s.stride_h == 1 ? unit_scheme<T>() : strided_scheme<T>();
}

/// Weights as floats: the transforms of filters take no others.
template <typename T>
class FloatWeights {
 public:
  FloatWeights(const T* w, int64_t count) : copy_(w, dtype_of<T>, count) {}
  const float* data() { return copy_.data(); }

 private:
  FloatCopy copy_;
};
template <>
class FloatWeights<float> {
 public:
  FloatWeights(const float* w, int64_t) : w_(w) {}
  const float* data() const { return w_; }

 private:
  const float* w_;
};

/// The gradient of f32 weights; x and gy of any T.
template <typename T>
void weight_gradient(const Conv2dShape& s, const T* x, const T* gy, float* gw) {
  const Scheme<T> scheme = scheme_of<T>(s);
  const Geometry g(s);
  const int64_t tiles = g.tiles(), c_blocks = ceil_div(g.c, kBlock);
  const int64_t pairs = ceil_div(g.k, kBlock) * c_blocks;
  // The parts of the sum over tiles depend on the shape alone, so its bits do not depend on
  // threads.
  const int64_t parts = std::clamp<int64_t>(16 / pairs, 1, std::max<int64_t>(1, tiles / 128));
  const int64_t per_part = ceil_div(std::max<int64_t>(tiles, 1), parts);
  const int64_t weights = s.weight_size();
  float* partial = parts > 1 ? scratch_floats(ScratchSlot::kShared, parts * weights) : gw;
  const int64_t per_block = std::min(scheme.gradient_tiles, per_part);
  const int64_t stride = point_stride(per_block), size = scheme.points * stride;
  parallel_tasks(pairs * parts, [&](int64_t item) {
    const int64_t k = item / parts / c_blocks * kBlock, outs = std::min(kBlock, g.k - k);
    const int64_t c = item / parts % c_blocks * kBlock, ins = std::min(kBlock, g.c - c);
    const int64_t part = item % parts, begin = part * per_part;
    const int64_t end = std::min(tiles, begin + per_part);
    float* v = scratch_floats(ScratchSlot::kBlock, 2 * size + kFilterBlock);
    float* u = v + size;
    float* m = u + size;
    if (end <= begin) std::fill(m, m + kFilterBlock, 0.0f);
    for (int64_t first = begin; first < end; first += per_block) {
      const int64_t count = std::min(per_block, end - first);
      scheme.input(g, x + c, first, count, ins, v, stride);
      scheme.gradient(g, gy + k, first, count, outs, u, stride);
      multiply_gradients(scheme, count, outs, ins, v, u, stride, m, first == begin);
    }
    scheme.filter_gradient(m, point_stride(kBlock), outs, ins,
                           partial + part * weights + (k * g.c + c) * 9, g.c * 9);
  });
  if (parts > 1) sum_parts(partial, parts, weights, gw);
}

}  // namespace

bool winograd_applies(const Conv2dShape& s) {
  const bool unit = s.stride_h == 1 && s.stride_w == 1 && s.pad_h <= 2 && s.pad_w <= 2;
  const bool strided = s.stride_h == 2 && s.stride_w == 2 && s.pad_h == 1 && s.pad_w == 1;
  return s.kh == 3 && s.kw == 3 && (unit || strided) && s.dil_h == 1 && s.dil_w == 1 &&
         s.groups == 1 && s.c >= 16 && s.k >= 16 && s.oh() > 0 && s.ow() > 0;
}

template <typename T>
void winograd_forward(const Conv2dShape& s, const T* x, const T* w,
                      const std::type_identity_t<T>* bias, T* y) {
  const Scheme<T> scheme = scheme_of<T>(s);
  const Geometry g(s);
  FloatWeights<T> weights(w, s.weight_size());
  const FilterView filters{weights.data(), s.c * 9, 9, false};
  run<T>({scheme, g, scheme.input, scheme.output, filters, s.c, s.k, x, bias, y});
}

template <typename T>
void winograd_backward_data(const Conv2dShape& s, const T* gy, const T* w, T* gx) {
  const Scheme<T> scheme = scheme_of<T>(s);
  Geometry g(s);
  if (s.stride_h == 1) {  // a convolution of gy with padding 2 - p
    Conv2dShape t = s;
    t.c = s.k, t.h = s.oh(), t.w = s.ow(), t.k = s.c;
    t.pad_h = 2 - s.pad_h, t.pad_w = 2 - s.pad_w;
    g = Geometry(t);
  }
  FloatWeights<T> weights(w, s.weight_size());
  const FilterView filters{weights.data(), 9, s.c * 9, true};
  run<T>({scheme, g, scheme.data_input, scheme.data_output, filters, s.k, s.c, gy, nullptr, gx});
}

template <typename T>
void winograd_backward_weights(const Conv2dShape& s, const T* x, const T* gy, T* gw) {
  if constexpr (std::is_same_v<T, float>) {
    weight_gradient(s, x, gy, gw);
  } else {
    FloatCopy sums(s.weight_size());
    weight_gradient(s, x, gy, sums.data());
    sums.store(gw, dtype_of<T>);
  }
}

#define TARN_WINOGRAD(T)                                                                \
  template void winograd_forward(const Conv2dShape&, const T*, const T*, const T*, T*); \
  template void winograd_backward_data(const Conv2dShape&, const T*, const T*, T*);     \
  template void winograd_backward_weights(const Conv2dShape&, const T*, const T*, T*);
TARN_WINOGRAD(float)
TARN_WINOGRAD(bfloat16)
#undef TARN_WINOGRAD

}  // namespace tarn::cpu
