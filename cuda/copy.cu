// copy.cu - copies and casts between any two layouts and dtypes.
//
// Dense copies of one dtype are the driver's. A copy of one dtype that reads along one dimension
// and writes along another (NCHW to channels_last, a transpose) goes through square tiles in shared
// memory, so that both sides move whole segments of neighbouring elements; the method is Ruetsch
// and Micikevicius, "Optimizing matrix transpose in CUDA", NVIDIA 2009. All else is an elementwise
// kernel. Bytes per element: one read and one write of it.
#include "tarn/core/cast.h"
#include "tarn/cuda/elementwise_walk.h"
#include "tarn/cuda/table.h"

namespace tarn::cuda {
namespace {

template <class To>
struct Cast {
  template <class C>
  static __device__ __forceinline__ To call(C x, const Scalars&) {
    return cast_value<To>(x);
  }
};

/// Same-dtype copies need only the size: f32, i32 and the like share their code.
template <class T>
using BitsOf =
    std::conditional_t<sizeof(T) == 1, uint8_t,
                       std::conditional_t<sizeof(T) == 2, uint16_t,
                                          std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;

template <class To, class From>
constexpr ElementwiseKernel<2> cast_kernel() {
  if constexpr (std::is_same_v<From, To>) {
    using Bits = BitsOf<To>;
    return elementwise_kernel<Cast<Bits>, Bits, Bits, Bits, 1>;
  } else {
    return elementwise_kernel<Cast<To>, To, From, From, 1>;
  }
}

ElementwiseKernel<2> find_cast(DType to, DType from) {
  return visit_dtype(to, [&]<class To>(TypeTag<To>) {
    return visit_dtype(from, []<class From>(TypeTag<From>) { return cast_kernel<To, From>(); });
  });
}

constexpr int kTileThreads = 256;

/// Edge of a tile: rows of it are 128 bytes or more for all but single bytes.
constexpr int tile_edge(int64_t size) {
  return size >= 4 ? 32 : 64;
}

/// A transposing copy: element (r, c) of a matrix lies at r * from_row + c in `from` and at
/// r + c * to_column in `to`; `others` walks the remaining dimensions.
struct Transposition {
  uint32_t rows, columns;
  uint32_t from_row, to_column;
  uint32_t tiles_down, tiles_across, tiles;
  FastDivisor down, across;  ///< by tiles_down, tiles_across
  StridedWalk<2> others;
};

template <class Bits>
__global__ void __launch_bounds__(kTileThreads)
    transpose_kernel(Bits* to, const Bits* from, const Transposition t) {
  constexpr int kEdge = tile_edge(sizeof(Bits));
  constexpr int kStep = kTileThreads / kEdge;
  // Padded so that columns, too, spread over all banks: the row is an odd number of words.
  constexpr int kPadding = sizeof(Bits) >= 4 ? 1 : 4 / sizeof(Bits);
  __shared__ Bits tile[kEdge][kEdge + kPadding];
  const uint32_t x = threadIdx.x % kEdge, y = threadIdx.x / kEdge;
  for (uint32_t index = blockIdx.x; index < t.tiles; index += gridDim.x) {
    const uint32_t below = t.down.divide(index);
    const uint32_t matrix = t.across.divide(below);
    const uint32_t row0 = (index - below * t.tiles_down) * kEdge;
    const uint32_t column0 = (below - matrix * t.tiles_across) * kEdge;
    uint32_t base[2];
    t.others.offsets(matrix, base);
#pragma unroll
    for (int i = 0; i < kEdge; i += kStep) {
      const uint32_t row = row0 + y + i, column = column0 + x;
      if (row < t.rows && column < t.columns) {
        tile[y + i][x] = from[base[1] + row * t.from_row + column];
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kEdge; i += kStep) {
      const uint32_t row = row0 + x, column = column0 + y + i;
      if (row < t.rows && column < t.columns) {
        to[base[0] + row + column * t.to_column] = tile[x][y + i];
      }
    }
    __syncthreads();
  }
}

/// The dimension that `from` walks with unit stride while `to` has it in dimension 0; 0 if there is
/// none, or one of the two is so short that neighbours are close on both sides anyway.
int transposed_dim(const ElementwisePlan& plan) {
  constexpr int64_t kShort = 8;
  if (plan.dtype[0] != plan.dtype[1] || plan.strides[0][0] != 1 || plan.sizes[0] < kShort) return 0;
  if (plan.strides[1][0] <= 1) return 0;
  for (int d = 1; d < plan.ndim; ++d) {
    if (plan.strides[1][d] == 1 && plan.sizes[d] >= kShort) return d;
  }
  return 0;
}

Transposition make_transposition(const ElementwisePlan& plan, int dim) {
  const int64_t edge = tile_edge(item_size(plan.dtype[0]));
  Transposition t;
  t.rows = static_cast<uint32_t>(plan.sizes[0]);
  t.columns = static_cast<uint32_t>(plan.sizes[dim]);
  t.from_row = static_cast<uint32_t>(plan.strides[1][0]);
  t.to_column = static_cast<uint32_t>(plan.strides[0][dim]);
  t.tiles_down = static_cast<uint32_t>(ceil_div(plan.sizes[0], edge));
  t.tiles_across = static_cast<uint32_t>(ceil_div(plan.sizes[dim], edge));
  t.down = FastDivisor(t.tiles_down);
  t.across = FastDivisor(t.tiles_across);
  t.tiles = t.tiles_down * t.tiles_across;
  t.others.ndim = 0;
  for (int d = 1; d < plan.ndim; ++d) {
    if (d == dim) continue;
    const int next = t.others.ndim++;
    t.others.sizes[next] = FastDivisor(static_cast<uint32_t>(plan.sizes[d]));
    for (int o = 0; o < 2; ++o) {
      t.others.strides[next][o] = static_cast<uint32_t>(plan.strides[o][d]);
    }
    t.tiles *= static_cast<uint32_t>(plan.sizes[d]);
  }
  return t;
}

void copy_part(const ElementwisePlan& plan, Stream stream) {
  const int dim = transposed_dim(plan);
  if (dim == 0) {
    run_elementwise<2>(find_cast(plan.dtype[0], plan.dtype[1]), plan, {}, stream);
    return;
  }
  const Transposition t = make_transposition(plan, dim);
  const auto run = [&]<class Bits>(TypeTag<Bits>) {
    launch(transpose_kernel<Bits>, blocks_for(t.tiles, 1, stream), kTileThreads, 0, stream,
           static_cast<Bits*>(plan.data[0]), static_cast<const Bits*>(plan.data[1]), t);
  };
  visit_bits(plan.dtype[0], run);
}

void copy(const ElementwisePlan& plan, Stream stream) {
  if (plan.numel == 0) return;
  if (plan.dense && plan.dtype[0] == plan.dtype[1]) {
    set_device(stream.device.index);
    TARN_CUDA_CALL(cudaMemcpyAsync, plan.data[0], plan.data[1],
                   static_cast<size_t>(plan.numel * item_size(plan.dtype[0])),
                   cudaMemcpyDeviceToDevice, raw_stream(stream));
    return;
  }
  for_each_part(plan, [&](const ElementwisePlan& part) { copy_part(part, stream); });
}

}  // namespace

void add_copy_kernels(KernelTable& table) {
  table.elementwise.copy = copy;
}

}  // namespace tarn::cuda
