// matmul.cu - matrix products of any type and stride: tiles in shared memory and in registers.
//
// A block computes 64 x 64 of C in steps of 16 along k, a thread 4 x 4 of it. Each thread loads
// four elements of each operand while the block multiplies the step before, so every element of A
// is read n/64 times and of B m/64 times, and a step costs 64*64*16 multiply-adds for 2*64*16
// loads. Which index runs fastest over the threads follows the operand's strides, so that loads
// coalesce for both orders. See Volkov and Demmel, "Benchmarking GPUs to tune dense linear
// algebra", SC 2008.
// Every sum has one fixed order: along k, in slices of 128 steps for f32 (less rounding in long
// sums), and few tiles with a long k are cut into parts that a second kernel adds in order.
#include "tarn/cuda/grid.cuh"
#include "tarn/cuda/matmul_finish.cuh"
#include "tarn/cuda/scratch.h"
#include "tarn/cuda/table.h"
#include "tarn/cuda/vec.cuh"

namespace tarn::cuda {
namespace {

constexpr int kTile = 64;   // rows and columns of a block
constexpr int kDepth = 16;  // steps of k in shared memory
constexpr int kThreads = 256;
constexpr int kQuad = 4;  // rows and columns of a thread
constexpr int kLoads = kTile * kDepth / kThreads;
constexpr int kPitch = kTile / kQuad + 1;  // in quads; the odd one spreads stores over the banks
constexpr int64_t kSlice = 128;
constexpr int64_t kWantedBlocks = 264;  // two for each multiprocessor of an H200
constexpr int64_t kLeastDepth = 256;

/// A thread's share of one operand: four elements of each 64 x 16 tile, from memory to registers
/// to shared memory. Zeros stand for what lies outside.
template <class T>
class TileLoader {
  using A = sum_t<T>;

 public:
  /// `tile` is the first of `rows` rows (columns, for B) of the operand.
  __device__ TileLoader(const T* tile, int64_t rows, int64_t row_stride, int64_t k_stride)
      : rows_(static_cast<int>(rows < kTile ? rows : kTile)), along_k_(k_stride == 1) {
    const int t = static_cast<int>(threadIdx.x);
    row_ = along_k_ ? t / kDepth : t % kTile;
    k_ = along_k_ ? t % kDepth : t / kTile;
    row_step_ = along_k_ ? kTile / kLoads : 0;
    k_step_ = along_k_ ? 0 : kDepth / kLoads;
    k_stride_ = k_stride;
    step_ = row_step_ * row_stride + k_step_ * k_stride;
    from_ = tile + row_ * row_stride + k_ * k_stride;
  }

  /// The 16 steps from k on, as far as they are below `end`.
  __device__ void fetch(int64_t k, int64_t end) {
    const T* from = from_ + k * k_stride_;
    const int depth = static_cast<int>(end - k < kDepth ? end - k : kDepth);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const bool inside = row_ + i * row_step_ < rows_ && k_ + i * k_step_ < depth;
      held_[i] = inside ? static_cast<A>(from[i * step_]) : A(0);
    }
  }
  __device__ void store(Vec<A, kQuad> (*tile)[kPitch]) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int row = row_ + i * row_step_;
      tile[k_ + i * k_step_][row / kQuad].v[row % kQuad] = held_[i];
    }
  }

 private:
  const T* from_;
  int64_t k_stride_, step_;
  int rows_, row_, k_, row_step_, k_step_;
  bool along_k_;
  A held_[kLoads];
};

/// A thread's 4 x 4 elements of C. f32 adds up slices: the error of a long sum grows with their
/// number and length, not with k.
template <class A>
class Quads {
  static constexpr bool kSliced = std::is_same_v<A, float>;

 public:
  __device__ void multiply(const Vec<A, kQuad>& a, const Vec<A, kQuad>& b) {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
#pragma unroll
      for (int j = 0; j < kQuad; ++j) sum_[i][j] += a.v[i] * b.v[j];
    }
  }
  __device__ void end_slice() {
    if constexpr (kSliced) {
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
#pragma unroll
        for (int j = 0; j < kQuad; ++j) {
          total_[i][j] += sum_[i][j];
          sum_[i][j] = A(0);
        }
      }
    }
  }
  /// After the last end_slice.
  __device__ A get(int i, int j) const {
    if constexpr (kSliced) return total_[i][j];
    return sum_[i][j];
  }

 private:
  A sum_[kQuad][kQuad] = {};
  A total_[kSliced ? kQuad : 1][kSliced ? kQuad : 1] = {};
};

/// Where a tile lies: its part of k, batch, first row and first column.
struct TilePlace {
  int64_t part, batch, row, col;

  /// Columns run fastest: the blocks in flight share rows of A, and B stays in the L2 cache.
  __device__ TilePlace(const MatmulCall& call, int64_t task) {
    const int64_t col_tiles = (call.n + kTile - 1) / kTile,
                  row_tiles = (call.m + kTile - 1) / kTile;
    col = task % col_tiles * kTile;
    row = task / col_tiles % row_tiles * kTile;
    batch = task / col_tiles / row_tiles % call.batch;
    part = task / col_tiles / row_tiles / call.batch;
  }
};

template <class T>
__device__ void write_quads(const MatmulCall& call, const TilePlace& at,
                            const Quads<sum_t<T>>& sums, sum_t<T>* partial) {
  const int64_t col = at.col + kQuad * (threadIdx.x % (kTile / kQuad));
  const int64_t first = at.row + kQuad * (threadIdx.x / (kTile / kQuad));
  const T* bias = static_cast<const T*>(call.bias);
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    const int64_t row = first + i;
    T* c = static_cast<T*>(call.c) + at.batch * call.c_batch + row * call.c_row + col;
    sum_t<T>* sum = partial + ((at.part * call.batch + at.batch) * call.m + row) * call.n + col;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      if (row >= call.m || col + j >= call.n) continue;
      if (partial != nullptr) {
        sum[j] = sums.get(i, j);
      } else {
        c[j] = finish(call, sums.get(i, j), c + j, bias ? bias + col + j : nullptr);
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    tiled_matmul(const MatmulCall call, int64_t parts, sum_t<T>* partial) {
  using A = sum_t<T>;
  __shared__ Vec<A, kQuad> tile_a[kDepth][kPitch];
  __shared__ Vec<A, kQuad> tile_b[kDepth][kPitch];
  const int64_t tasks = ceil_div(call.m, kTile) * ceil_div(call.n, kTile) * call.batch * parts;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const TilePlace at(call, task);
    const int64_t begin = call.k * at.part / parts, end = call.k * (at.part + 1) / parts;
    const T* a = static_cast<const T*>(call.a) + at.batch * call.a_batch + at.row * call.a_row;
    const T* b = static_cast<const T*>(call.b) + at.batch * call.b_batch + at.col * call.b_col;
    TileLoader<T> load_a(a, call.m - at.row, call.a_row, call.a_col);
    TileLoader<T> load_b(b, call.n - at.col, call.b_col, call.b_row);
    load_a.fetch(begin, end);
    load_b.fetch(begin, end);
    Quads<A> sums;
    for (int64_t k = begin; k < end; k += kDepth) {
      __syncthreads();  // the step before is multiplied
      load_a.store(tile_a);
      load_b.store(tile_b);
      __syncthreads();
      load_a.fetch(k + kDepth, end);
      load_b.fetch(k + kDepth, end);
#pragma unroll(sizeof(A) == 8 ? 2 : 8)
      for (int depth = 0; depth < kDepth; ++depth) {
        sums.multiply(tile_a[depth][threadIdx.x / (kTile / kQuad)],
                      tile_b[depth][threadIdx.x % (kTile / kQuad)]);
      }
      if ((k + kDepth - begin) % kSlice == 0) sums.end_slice();
    }
    sums.end_slice();
    write_quads<T>(call, at, sums, partial);
  }
}

template <class T>
void run_tiled(const MatmulCall& call, Stream stream) {
  const int64_t tiles = ceil_div(call.m, kTile) * ceil_div(call.n, kTile) * call.batch;
  const int64_t parts = parts_of_k(tiles, call.k, kWantedBlocks, kLeastDepth);
  const unsigned blocks = blocks_for(tiles * parts, 1, stream);
  if (parts == 1) {
    launch(tiled_matmul<T>, blocks, kThreads, 0, stream, call, parts, nullptr);
    return;
  }
  const int64_t elements = parts * call.batch * call.m * call.n;
  const Scratch partial(static_cast<size_t>(elements) * sizeof(sum_t<T>), stream);
  launch(tiled_matmul<T>, blocks, kThreads, 0, stream, call, parts, partial.as<sum_t<T>>());
  finish_parts(call, parts, partial.as<void>(), stream);
}

}  // namespace

MatmulCall make_matmul_call(const Tensor& a, const Tensor& b, const Tensor& bias, double alpha,
                            double beta, Epilogue epilogue, const Tensor& out) {
  const int d = a.dim() - 2;  // 1 if there is a batch dimension
  MatmulCall call;
  call.dtype = out.dtype();
  call.epilogue = epilogue;
  call.m = a.sizes()[d], call.k = a.sizes()[d + 1], call.n = b.sizes()[d + 1];
  call.a = a.data(), call.a_row = a.strides()[d], call.a_col = a.strides()[d + 1];
  call.b = b.data(), call.b_row = b.strides()[d], call.b_col = b.strides()[d + 1];
  call.c = out.data(), call.c_row = out.strides()[d];
  if (d == 1) {
    call.batch = a.sizes()[0];
    call.a_batch = a.strides()[0], call.b_batch = b.strides()[0], call.c_batch = out.strides()[0];
  }
  call.bias = bias.data_or_null();
  call.alpha = alpha, call.beta = beta;
  return call;
}

void own_matmul(const MatmulCall& call, Stream stream) {
  if (call.batch == 0 || call.m == 0 || call.n == 0) return;
  if (is_floating(call.dtype) && std::min(call.m, call.n) <= kSkinny) {
    skinny_matmul(call, stream);
    return;
  }
  switch (call.dtype) {
    case DType::kF32:
      return run_tiled<float>(call, stream);
    case DType::kF64:
      return run_tiled<double>(call, stream);
    case DType::kF16:
      return run_tiled<half>(call, stream);
    case DType::kBF16:
      return run_tiled<bfloat16>(call, stream);
    case DType::kI64:
      return run_tiled<int64_t>(call, stream);
    case DType::kI32:
      return run_tiled<int32_t>(call, stream);
    case DType::kU8:
    case DType::kBool:
      return run_tiled<uint8_t>(call, stream);
  }
}

void own_matmul_slot(const Tensor& a, const Tensor& b, const Tensor& bias, double alpha,
                     double beta, Epilogue epilogue, const Tensor& out, Stream stream) {
  own_matmul(make_matmul_call(a, b, bias, alpha, beta, epilogue, out), stream);
}

void add_matmul_kernels(KernelTable& table) {
  table.matmul.matmul = own_matmul_slot;
}

}  // namespace tarn::cuda
