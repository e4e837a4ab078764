// nonzero.cu - counting and listing the elements that are not zero, in row-major order.
//
// Every block counts its stretch, one block turns the counts into starts, every block writes the
// positions of its stretch from its start on. An element is non-zero if its bits, without the sign
// of a floating one, are; so NaN counts and -0 does not. x is read twice, once for the count alone.
#include "tarn/cuda/grid.cuh"
#include "tarn/cuda/index.cuh"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/places.cuh"
#include "tarn/cuda/scan.cuh"
#include "tarn/cuda/scratch.h"

namespace tarn::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kItems = 16;  // neighbours that one thread looks at
constexpr int64_t kTile = kThreads * kItems;
constexpr int kScanThreads = 1024;

/// The bits of an element that make it non-zero.
uint64_t value_bits(DType dtype) {
  const auto bits = static_cast<int>(8 * item_size(dtype));
  return ~uint64_t{0} >> (64 - bits + (is_floating(dtype) ? 1 : 0));
}

template <class U>
__device__ __forceinline__ bool is_set(const U* x, int64_t i, int64_t n, U bits) {
  return i < n && (x[i] & bits) != 0;
}

// counts[b] = non-zero elements of tile b.
template <class U>
__global__ void __launch_bounds__(kThreads)
    count_tiles(const U* x, int64_t n, U bits, int64_t tiles, int64_t* counts) {
  __shared__ int scratch[kWarp];
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    int count = 0;
    for (int j = 0; j < kItems; ++j) {
      count += is_set(x, tile * kTile + j * kThreads + threadIdx.x, n, bits);
    }
    count = block_reduce(count, 0, scratch, Sum());
    if (threadIdx.x == 0) counts[tile] = count;
  }
}

// One block: counts become sums over the lower tiles, *total = all of them.
__global__ void __launch_bounds__(kScanThreads)
    scan_tiles(int64_t* counts, int64_t tiles, int64_t* total) {
  __shared__ int64_t scratch[kWarp];
  int64_t before = 0;
  for (int64_t begin = 0; begin < tiles; begin += kScanThreads) {
    const int64_t tile = begin + threadIdx.x;
    int64_t sum;
    const int64_t start =
        block_exclusive_scan(tile < tiles ? counts[tile] : int64_t{0}, scratch, &sum);
    if (tile < tiles) counts[tile] = before + start;
    before += sum;
  }
  if (threadIdx.x == 0) *total = before;
}

/// Row-major positions as ndim coordinates.
struct Coordinates {
  int ndim = 0;
  Splitter sizes[kMaxDims];

  explicit Coordinates(const Shape& shape) : ndim(shape.dim()) {
    for (int d = 0; d < ndim; ++d) sizes[d] = Splitter(shape[d], shape.numel());
  }
  __device__ void write(int64_t position, int64_t* row) const {
#pragma unroll 1
    for (int d = ndim - 1; d >= 0; --d) position = sizes[d].split(position, &row[d]);
  }
};

template <class U>
__global__ void __launch_bounds__(kThreads)
    write_positions(const U* x, int64_t n, U bits, int64_t tiles, const int64_t* starts,
                    Coordinates coordinates, int64_t* out) {
  __shared__ int scratch[kWarp];
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t first = tile * kTile + threadIdx.x * kItems;
    int count = 0;
    for (int j = 0; j < kItems; ++j) count += is_set(x, first + j, n, bits);
    int total;
    int64_t row = starts[tile] + block_exclusive_scan(count, scratch, &total);
    for (int j = 0; j < kItems; ++j) {
      if (!is_set(x, first + j, n, bits)) continue;
      coordinates.write(first + j, out + row * coordinates.ndim);
      ++row;
    }
  }
}

/// How many non-zero elements the tiles below each tile hold, then how many there are.
class TileStarts {
 public:
  TileStarts(const Tensor& x, Stream stream)
      : tiles(ceil_div(x.numel(), kTile)),
        memory_(static_cast<size_t>(tiles + 1) * sizeof(int64_t), stream) {
    auto* const counts = memory_.as<int64_t>();
    visit_element(x.dtype(), [&](auto unit) {
      using U = decltype(unit);
      launch(count_tiles<U>, blocks_for(tiles, 1, stream), kThreads, 0, stream, data_as<const U>(x),
             x.numel(), static_cast<U>(value_bits(x.dtype())), tiles, counts);
    });
    launch(scan_tiles, 1, kScanThreads, 0, stream, counts, tiles, counts + tiles);
  }
  const int64_t* data() const { return memory_.as<const int64_t>(); }

  const int64_t tiles;

 private:
  Scratch memory_;
};

}  // namespace

void count_nonzero(const Tensor& x, int64_t* count, Stream stream) {
  const TileStarts starts(x, stream);
  *count = read_back(starts.data() + starts.tiles, stream);
}

void nonzero(const Tensor& x, const Tensor& out, Stream stream) {
  const TileStarts starts(x, stream);
  visit_element(x.dtype(), [&](auto unit) {
    using U = decltype(unit);
    launch(write_positions<U>, blocks_for(starts.tiles, 1, stream), kThreads, 0, stream,
           data_as<const U>(x), x.numel(), static_cast<U>(value_bits(x.dtype())), starts.tiles,
           starts.data(), Coordinates(x.sizes()), data_as<int64_t>(out));
  });
}

}  // namespace tarn::cuda
