// conv_tile.cuh - what the implicit-GEMM kernels of convolution share: one block's product of two
// matrices that are gathered as they are read, and the places of pixels.
//
// A block of 256 threads makes 64 x 64 sums: slices of 16 in depth go through shared memory, a
// thread keeps 4 x 4 sums in registers and has the next slice's loads in flight while it adds.
#pragma once

#include "tarn/core/dtype.h"
#include "tarn/cuda/conv_shape.h"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/offsets.cuh"
#include "tarn/cuda/vec.cuh"

namespace tarn::cuda {

inline constexpr int kTile = 64;
inline constexpr int kTileDepth = 16;
inline constexpr int kTileThreads = 256;
/// Blocks that must fit on a multiprocessor: lets a thread have 128 registers, or 255 for f64.
template <class T>
inline constexpr int kTileBlocks = std::is_same_v<T, double> ? 1 : 2;
inline constexpr int kSub =
    4;  ///< rows and columns of a thread's sums; elements it loads of a slice

/// Which elements of a [16 deep, 64 lines] slice a thread loads. Neighbouring threads go along
/// depth, or along the lines, whichever is contiguous in memory.
struct DepthFastest {
  static __device__ int depth(int) { return static_cast<int>(threadIdx.x) % kTileDepth; }
  static __device__ int line(int i) {
    return static_cast<int>(threadIdx.x) / kTileDepth + i * (kTileThreads / kTileDepth);
  }
};
struct LineFastest {
  static __device__ int depth(int i) {
    return static_cast<int>(threadIdx.x) / kTile + i * (kTileThreads / kTile);
  }
  static __device__ int line(int) { return static_cast<int>(threadIdx.x) % kTile; }
};

template <class C>
struct TileBuffers {
  alignas(16) C a[kTileDepth][kTile + kSub];  // padded: a warp stores to different banks
  alignas(16) C b[kTileDepth][kTile + kSub];
};

template <class C>
__device__ __forceinline__ void load_sub(const C* from, C (&to)[kSub]) {
  constexpr int kWidth = kVecWidth<C>;
#pragma unroll
  for (int i = 0; i < kSub; i += kWidth) {
    const Vec<C, kWidth> v = load_vec<kWidth>(from + i);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) to[i + j] = v.v[j];
  }
}

/// sums[i][j] += over depth of a(row, d) * b(column, d), for this thread's rows
/// 4 * (thread / 16) + i and columns 4 * (thread % 16) + j. Loader::load(first, out) gives the
/// elements of its Order from depth `first` on, and 0 beyond its lines and `depth`.
/// All threads of the block must call; the buffers are free again after a barrier. The last element
/// of an operand is loaded before the last barrier in here, so what lies in shared memory may be
/// written anew at once.
template <class C, class A, class B>
__device__ void multiply_tiles(TileBuffers<C>& shared, int depth, const A& a, const B& b,
                               C (&sums)[kSub][kSub]) {
  const int row = static_cast<int>(threadIdx.x) / (kTile / kSub) * kSub;
  const int column = static_cast<int>(threadIdx.x) % (kTile / kSub) * kSub;
  if (depth == 0) return;  // operands without elements may have no memory
  C next_a[kSub], next_b[kSub];
  a.load(0, next_a);
  b.load(0, next_b);
  for (int first = 0; first < depth; first += kTileDepth) {
    __syncthreads();  // nobody reads the slice before any more
#pragma unroll
    for (int i = 0; i < kSub; ++i) {
      shared.a[A::Order::depth(i)][A::Order::line(i)] = next_a[i];
      shared.b[B::Order::depth(i)][B::Order::line(i)] = next_b[i];
    }
    __syncthreads();
    if (first + kTileDepth < depth) {
      a.load(first + kTileDepth, next_a);
      b.load(first + kTileDepth, next_b);
    }
#pragma unroll
    for (int d = 0; d < kTileDepth; ++d) {
      C left[kSub], right[kSub];
      load_sub(&shared.a[d][row], left);
      load_sub(&shared.b[d][column], right);
#pragma unroll
      for (int i = 0; i < kSub; ++i) {
#pragma unroll
        for (int j = 0; j < kSub; ++j) sums[i][j] += left[i] * right[j];
      }
    }
  }
}

/// Divisions that a kernel needs again and again, made once on the host.
struct ConvDivisors {
  FastDivisor x_image, y_image;  // pixels of an image: h * w, oh * ow
  FastDivisor x_row, y_row;      // w, ow
  FastDivisor cg, kg, s;         // depth = (r, s, channel), channel fastest
  FastDivisor stride_h, stride_w;

  explicit ConvDivisors(const ConvShape& p)
      : x_image(at_least_1(p.h * p.w)),
        y_image(at_least_1(p.oh * p.ow)),
        x_row(at_least_1(p.w)),
        y_row(at_least_1(p.ow)),
        cg(at_least_1(p.cg())),
        kg(at_least_1(p.kg())),
        s(at_least_1(p.s)),
        stride_h(at_least_1(p.stride_h)),
        stride_w(at_least_1(p.stride_w)) {}

 private:
  static uint32_t at_least_1(int v) { return static_cast<uint32_t>(v > 0 ? v : 1); }
};

/// Quotient and remainder.
struct Split {
  int quotient, rest;
};
__device__ __forceinline__ Split split(int n, const FastDivisor& by) {
  const uint32_t q = by.divide(static_cast<uint32_t>(n));
  return {static_cast<int>(q), static_cast<int>(static_cast<uint32_t>(n) - q * by.divisor)};
}

/// So many items in, counted through images of `per_image` items each: which image, and the rest.
struct Place {
  int64_t image;
  int rest;
};
/// Costs a 64-bit division: for where many start from, outside of loops.
__device__ __forceinline__ Place place_of(int64_t item, const FastDivisor& per_image) {
  const int64_t image = item / per_image.divisor;
  return {image, static_cast<int>(item - image * per_image.divisor)};
}
/// `offset` items further.
__device__ __forceinline__ Place place_from(const Place& start, int offset,
                                            const FastDivisor& per_image) {
  const Split more = split(start.rest + offset, per_image);
  return {start.image + more.quotient, more.rest};
}

/// The input pixel that output row or column `out` sees through filter element `tap`.
__device__ __forceinline__ int input_of(int out, int tap, int stride, int dilation, int pad) {
  return out * stride - pad + tap * dilation;
}
/// The output row or column that input `in` reaches through filter element `tap`, or -1.
__device__ __forceinline__ int output_of(int in, int tap, const FastDivisor& stride, int dilation,
                                         int pad, int outputs) {
  const int reach = in + pad - tap * dilation;
  if (reach < 0) return -1;
  const Split at = split(reach, stride);
  return at.rest == 0 && at.quotient < outputs ? at.quotient : -1;
}

__device__ __forceinline__ bool inside(int index, int size) {
  return static_cast<unsigned>(index) < static_cast<unsigned>(size);
}

}  // namespace tarn::cuda
