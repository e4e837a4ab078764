// winograd.cpp - the three passes of Winograd convolution over blocks that stay in the L2 cache.
//
// Forward, per block of tiles and of 64 output channels: for each 64 input channels, transform the
// tiles, multiply the 36 points with the transformed filters, accumulate; then transform back.
// Backward data is the same with rotated, transposed filters. Backward weights swaps the roles: the
// 36 products are summed over tiles.
#include "tarn/core/cpu/winograd.h"

#include <vector>

#include "tarn/core/cpu/scratch.h"
#include "tarn/core/cpu/tasks.h"
#include "tarn/core/cpu/winograd_tiles.h"

namespace tarn::cpu {
namespace {

using namespace winograd;

constexpr int64_t kForwardTiles = 42;   // three register blocks; 42 and 64 channels fill 1.3 MiB
constexpr int64_t kUnsharedTiles = 64;  // more tiles share the transformed filters

constexpr int64_t kFilterBlock = buffer_size(kBlock);  // floats of one transformed 64 x 64 block

/// How the tiles of a forward pass are cut into blocks, and whether all filters are transformed
/// beforehand or by each block for itself.
struct ForwardPlan {
  int64_t tile_blocks, tiles_per_block;
  bool shared_filters;

  ForwardPlan(const Geometry& g, int64_t threads) {
    const int64_t tiles = g.tiles(), k_blocks = ceil_div(g.k, kBlock);
    shared_filters = tiles > kUnsharedTiles;
    tile_blocks = ceil_div(tiles, shared_filters ? kForwardTiles : kUnsharedTiles);
    // Few blocks: cut finer, that every thread gets its share of equal work.
    const int64_t items = tile_blocks * k_blocks;
    if (items < 4 * threads) {
      const int64_t wanted = ceil_div(ceil_div(items, threads) * threads, k_blocks);
      tile_blocks =
          std::clamp(wanted, tile_blocks, std::max(tile_blocks, ceil_div(tiles, kMaxRows)));
    }
    tiles_per_block = ceil_div(tiles, tile_blocks);
    tile_blocks = ceil_div(tiles, tiles_per_block);
  }
};

/// m[36][tiles][64] (+)= v[36][tiles][64] * u[36][2][channels][32].
void multiply_points(int64_t tiles, int64_t outs, int64_t ins, const float* v, const float* u,
                     float* m, int64_t stride, bool accumulate) {
  for (int64_t point = 0; point < kPoints; ++point) {
    for (int64_t o = 0; o < outs; o += kPanel) {
      panel_gemm<float, kBlock, 1>(tiles, std::min(kPanel, outs - o), ins, v + point * stride, {},
                                   u + point * point_stride(kBlock) + o * kBlock, kPanel,
                                   m + point * stride + o, kBlock, accumulate);
    }
  }
}

/// Transformed filters of every 64 x 64 block: [k_blocks][c_blocks][kFilterBlock].
void transform_filters(const Geometry& g, const FilterView& w, float* u) {
  const int64_t k_blocks = ceil_div(g.k, kBlock), c_blocks = ceil_div(g.c, kBlock);
  parallel_tasks(k_blocks * c_blocks, [&](int64_t item) {
    const int64_t k = item / c_blocks * kBlock, c = item % c_blocks * kBlock;
    FilterView block = w;
    block.data += k * w.out_stride + c * w.in_stride;
    filter_block(block, std::min(kBlock, g.k - k), std::min(kBlock, g.c - c),
                 u + item * kFilterBlock);
  });
}

void convolve(const Geometry& g, const FilterView& w, const float* x, const float* bias, float* y) {
  if (g.tiles() == 0) return;
  const ForwardPlan plan(g, task_threads());
  const int64_t k_blocks = ceil_div(g.k, kBlock), c_blocks = ceil_div(g.c, kBlock);
  float* filters = nullptr;
  if (plan.shared_filters) {
    filters = scratch_floats(ScratchSlot::kShared, k_blocks * c_blocks * kFilterBlock);
    transform_filters(g, w, filters);
  }
  const int64_t tiles = g.tiles(), size = buffer_size(plan.tiles_per_block);
  const int64_t stride = point_stride(plan.tiles_per_block);
  parallel_tasks(k_blocks * plan.tile_blocks, [&](int64_t item) {
    const int64_t k_block = item / plan.tile_blocks;
    const int64_t k = k_block * kBlock, outs = std::min(kBlock, g.k - k);
    const int64_t first = item % plan.tile_blocks * plan.tiles_per_block;
    const int64_t count = std::min(plan.tiles_per_block, tiles - first);
    float* v = scratch_floats(ScratchSlot::kBlock, 2 * size + kFilterBlock);
    float* m = v + size;
    for (int64_t c = 0; c < g.c; c += kBlock) {
      const int64_t ins = std::min(kBlock, g.c - c);
      const float* u;
      if (plan.shared_filters) {
        u = filters + (k_block * c_blocks + c / kBlock) * kFilterBlock;
      } else {
        FilterView block = w;
        block.data += k * w.out_stride + c * w.in_stride;
        filter_block(block, outs, ins, m + size);
        u = m + size;
      }
      input_block(g, x + c, first, count, ins, v, stride);
      multiply_points(count, outs, ins, v, u, m, stride, c > 0);
    }
    output_block(g, m, stride, first, count, outs, bias != nullptr ? bias + k : nullptr, y + k);
  });
}

constexpr int64_t kGradientTiles = 28;

}  // namespace

bool winograd_applies(const Conv2dShape& s) {
  return s.kh == 3 && s.kw == 3 && s.stride_h == 1 && s.stride_w == 1 && s.dil_h == 1 &&
         s.dil_w == 1 && s.groups == 1 && s.pad_h <= 2 && s.pad_w <= 2 && s.c >= 16 && s.k >= 16 &&
         s.oh() > 0 && s.ow() > 0;
}

void winograd_forward(const Conv2dShape& s, const float* x, const float* w, const float* bias,
                      float* y) {
  convolve(Geometry(s), FilterView{w, s.c * 9, 9, false}, x, bias, y);
}

void winograd_backward_data(const Conv2dShape& s, const float* gy, const float* w, float* gx) {
  convolve(Geometry(s).transposed(), FilterView{w, 9, s.c * 9, true}, gy, nullptr, gx);
}

void winograd_backward_weights(const Conv2dShape& s, const float* x, const float* gy, float* gw) {
  const Geometry g(s);
  const int64_t tiles = g.tiles();
  const int64_t k_blocks = ceil_div(g.k, kBlock), c_blocks = ceil_div(g.c, kBlock);
  // The parts of the sum over tiles depend on the shape alone, so its bits do not depend on
  // threads.
  const int64_t parts =
      std::clamp<int64_t>(16 / (k_blocks * c_blocks), 1, std::max<int64_t>(1, tiles / 128));
  const int64_t per_part = ceil_div(std::max<int64_t>(tiles, 1), parts);
  const int64_t weights = s.weight_size();
  float* partial = parts > 1 ? scratch_floats(ScratchSlot::kShared, parts * weights) : gw;
  const int64_t per_block = std::min(kGradientTiles, per_part);
  const int64_t size = buffer_size(per_block), stride = point_stride(per_block);
  parallel_tasks(k_blocks * c_blocks * parts, [&](int64_t item) {
    const int64_t k = item / parts / c_blocks * kBlock, outs = std::min(kBlock, g.k - k);
    const int64_t c = item / parts % c_blocks * kBlock, ins = std::min(kBlock, g.c - c);
    const int64_t part = item % parts, end = std::min(tiles, (part + 1) * per_part);
    float* v = scratch_floats(ScratchSlot::kBlock, 2 * size + buffer_size(kBlock));
    float* u = v + size;
    float* m = u + size;
    if (end <= part * per_part) std::fill(m, m + buffer_size(kBlock), 0.0f);  // no tiles left
    for (int64_t first = part * per_part; first < end; first += per_block) {
      const int64_t count = std::min(per_block, end - first);
      input_block(g, x + c, first, count, ins, v, stride);
      gradient_block(g, gy + k, first, count, outs, u, stride);
      for (int64_t point = 0; point < kPoints; ++point) {
        for (int64_t o = 0; o < outs; o += kPanel) {
          panel_gemm<float, 1, kBlock>(ins, std::min(kPanel, outs - o), count, v + point * stride,
                                       {}, u + point * stride + o * count, kPanel,
                                       m + point * point_stride(kBlock) + o, kBlock,
                                       first > part * per_part);
        }
      }
    }
    filter_gradient_block(m, point_stride(kBlock), outs, ins,
                          partial + part * weights + (k * g.c + c) * 9, g.c * 9);
  });
  if (parts == 1) return;
  constexpr int64_t kChunk = 4096;
  parallel_tasks(ceil_div(weights, kChunk), [&](int64_t chunk) {
    const int64_t end = std::min(weights, (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < end; ++i) {
      float sum = partial[i];
      for (int64_t part = 1; part < parts; ++part) sum += partial[part * weights + i];
      gw[i] = sum;
    }
  });
}

}  // namespace tarn::cpu
