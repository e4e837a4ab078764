// radix_sort.cu - stable radix sort in global memory; a sort by counting for short lists.
//
// Radix sort, least digit first, 8 bits a pass (Merrill and Grimshaw, "High performance and
// scalable radix sorting", 2011, without the look-back): every block counts the digits of its own
// stretch, one block per digit turns the counts into starts, then every block moves its stretch. A
// warp finds the lanes of equal digits by match, so ranks follow the order of the elements. A pass
// reads 2 and writes 1 keys, reads and writes one 4-byte value.
// Short lists: the place of an element is the number of elements before it, counted by comparing
// with all; n^2 comparisons, but one launch: 8,192 indices of a vocabulary take some 10 us.
#include <algorithm>
#include <bit>

#include "tarn/cuda/grid.cuh"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/radix_sort.h"
#include "tarn/cuda/scan.cuh"

namespace tarn::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kItems = 8;  // elements of a thread in a tile
constexpr int kTile = kThreads * kItems;
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
static_assert(kDigits == kThreads, "a thread looks after one digit");

template <class Key>
__device__ __forceinline__ uint32_t digit_of(Key key, int shift) {
  return static_cast<uint32_t>(key >> shift) & (kDigits - 1);
}

// counts [digit][block].
template <class Key>
__global__ void __launch_bounds__(kThreads)
    count_digits(const Key* keys, int64_t n, int64_t stretch, int shift, uint32_t* counts) {
  __shared__ uint32_t count[kDigits];
  count[threadIdx.x] = 0;
  __syncthreads();
  const int64_t begin = blockIdx.x * stretch;
  const int64_t end = begin + stretch < n ? begin + stretch : n;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    atomicAdd(&count[digit_of(keys[i], shift)], 1u);
  }
  __syncthreads();
  counts[threadIdx.x * gridDim.x + blockIdx.x] = count[threadIdx.x];
}

// Block d: the counts of digit d become sums over the lower blocks; totals[d] = all of them.
__global__ void __launch_bounds__(kThreads)
    scan_counts(uint32_t* counts, uint32_t blocks, uint32_t* totals) {
  __shared__ uint32_t scratch[kWarp];
  uint32_t* row = counts + int64_t{blockIdx.x} * blocks;
  uint32_t before = 0;
  for (uint32_t begin = 0; begin < blocks; begin += kThreads) {
    const uint32_t b = begin + threadIdx.x;
    uint32_t total;
    const uint32_t start = block_exclusive_scan(b < blocks ? row[b] : 0u, scratch, &total);
    if (b < blocks) row[b] = before + start;
    before += total;
  }
  if (threadIdx.x == 0) totals[blockIdx.x] = before;
}

// Moves a stretch; values_in null: the positions themselves.
template <class Key>
__global__ void __launch_bounds__(kThreads)
    move_by_digit(const Key* keys_in, const uint32_t* values_in, int64_t n, int64_t stretch,
                  int shift, const uint32_t* counts, const uint32_t* totals, Key* keys_out,
                  uint32_t* values_out) {
  __shared__ uint32_t scratch[kWarp];
  __shared__ uint32_t starts[kWarps][kDigits];  // counts of a warp, then where its digits go
  const int warp = warp_id(), digit_mine = static_cast<int>(threadIdx.x);
  uint32_t all;
  uint32_t next = block_exclusive_scan(totals[digit_mine], scratch, &all) +
                  counts[threadIdx.x * gridDim.x + blockIdx.x];
  const int64_t begin = blockIdx.x * stretch;
  const int64_t end = begin + stretch < n ? begin + stretch : n;
  const uint32_t lanes_below = (1u << lane_id()) - 1;
  for (int64_t tile = begin; tile < end; tile += kTile) {
    for (int w = 0; w < kWarps; ++w) starts[w][digit_mine] = 0;
    __syncthreads();
    Key key[kItems];
    uint32_t rank[kItems];
    const int64_t first = tile + warp * (kTile / kWarps) + lane_id();
#pragma unroll
    for (int r = 0; r < kItems; ++r) {
      const int64_t i = first + r * kWarp;
      const bool valid = i < end;
      key[r] = valid ? keys_in[i] : Key(0);
      const uint32_t digit = valid ? digit_of(key[r], shift) : kDigits;
      const uint32_t peers = __match_any_sync(kFullMask, digit);
      const uint32_t before = static_cast<uint32_t>(__popc(peers & lanes_below));
      const uint32_t seen = valid ? starts[warp][digit] : 0;
      rank[r] = seen + before;
      __syncwarp();
      if (valid && before == 0) starts[warp][digit] = seen + static_cast<uint32_t>(__popc(peers));
      __syncwarp();
    }
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) {
      const uint32_t count = starts[w][digit_mine];
      starts[w][digit_mine] = next;
      next += count;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kItems; ++r) {
      const int64_t i = first + r * kWarp;
      if (i >= end) continue;
      const uint32_t to = starts[warp][digit_of(key[r], shift)] + rank[r];
      keys_out[to] = key[r];
      values_out[to] = values_in ? values_in[i] : static_cast<uint32_t>(i);
    }
    __syncthreads();
  }
}

template <class Key>
__global__ void mark_starts(const Key* keys, int64_t n, uint32_t* order) {
  for (int64_t p = grid_index(); p < n; p += grid_step()) {
    if (p == 0 || keys[p] != keys[p - 1]) order[p] |= kSegmentStart;
  }
}

constexpr int kShort = 8192;  // 32 KiB of shared memory

// A block ranks 32 elements, one a lane; each warp counts over its share of the list.
__global__ void __launch_bounds__(kThreads)
    order_by_counting(const uint32_t* keys, int n, uint32_t* order) {
  __shared__ uint32_t list[kShort];
  __shared__ uint32_t lower[kWarps][kWarp], equal[kWarps][kWarp];
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) list[i] = keys[i];
  __syncthreads();
  const int warp = warp_id(), lane = lane_id(), share = (n + kWarps - 1) / kWarps;
  const int begin = min(n, warp * share), end = min(n, begin + share);
  for (int group = static_cast<int>(blockIdx.x) * kWarp; group < n;
       group += static_cast<int>(gridDim.x) * kWarp) {
    const int me = group + lane;
    const uint32_t key = me < n ? list[me] : 0;
    uint32_t less = 0, same = 0;  // keys below mine; equal ones before me
    for (int j = begin; j < end; ++j) {
      less += list[j] < key;
      same += list[j] == key && j < me;
    }
    lower[warp][lane] = less;
    equal[warp][lane] = same;
    __syncthreads();
    if (warp == 0 && me < n) {
      less = same = 0;
      for (int w = 0; w < kWarps; ++w) {
        less += lower[w][lane];
        same += equal[w][lane];
      }
      order[less + same] = static_cast<uint32_t>(me) | (same == 0 ? kSegmentStart : 0);
    }
    __syncthreads();
  }
}

}  // namespace

template <class Key>
void radix_sort(SortBuffers<Key>& buffers, int64_t n, int bits, Stream stream, int64_t most) {
  if (n == 0) return;
  const int64_t tiles = ceil_div(n, kTile);
  const int64_t stretch = ceil_div(tiles, std::min(most, most_blocks(stream))) * kTile;
  const auto blocks = static_cast<unsigned>(ceil_div(n, stretch));
  const Scratch memory(sizeof(uint32_t) * kDigits * (blocks + 1), stream);
  auto* totals = memory.as<uint32_t>();
  uint32_t* counts = totals + kDigits;
  for (int shift = 0; shift == 0 || shift < bits; shift += kDigitBits) {
    launch(count_digits<Key>, blocks, kThreads, 0, stream, buffers.keys, n, stretch, shift, counts);
    launch(scan_counts, kDigits, kThreads, 0, stream, counts, blocks, totals);
    launch(move_by_digit<Key>, blocks, kThreads, 0, stream, buffers.keys,
           shift == 0 ? nullptr : buffers.values, n, stretch, shift, counts, totals,
           buffers.spare_keys, buffers.spare_values);
    std::swap(buffers.keys, buffers.spare_keys);
    std::swap(buffers.values, buffers.spare_values);
  }
}
template void radix_sort(SortBuffers<uint32_t>&, int64_t, int, Stream, int64_t);
template void radix_sort(SortBuffers<uint64_t>&, int64_t, int, Stream, int64_t);

template <class Key>
SegmentOrder::SegmentOrder(Key* keys, int64_t n, int64_t limit, Stream stream)
    : order_(2 * static_cast<size_t>(n) * sizeof(uint32_t), stream) {
  auto* order = order_.as<uint32_t>();
  if constexpr (sizeof(Key) == 4) {
    if (n <= kShort) {
      launch(order_by_counting, blocks_for(n, kWarp, stream), kThreads, 0, stream, keys,
             static_cast<int>(n), order);
      return;
    }
  }
  const Scratch spare(static_cast<size_t>(n) * sizeof(Key), stream);
  SortBuffers<Key> buffers{keys, spare.as<Key>(), order + n, order};
  const int bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(limit) | 1));
  if ((bits + kDigitBits - 1) / kDigitBits % 2 == 0)
    std::swap(buffers.values, buffers.spare_values);
  radix_sort(buffers, n, bits, stream);
  TARN_ASSERT(buffers.values == order);
  launch(mark_starts<Key>, blocks_for(n, kThreads, stream), kThreads, 0, stream, buffers.keys, n,
         order);
}
template SegmentOrder::SegmentOrder(uint32_t*, int64_t, int64_t, Stream);
template SegmentOrder::SegmentOrder(uint64_t*, int64_t, int64_t, Stream);

}  // namespace tarn::cuda
