// optim_norms.cu - norms of many tensors, in f64 and in an order that is always the same.
//
// Each chunk (multi_tensor.cuh) is summed by a block, and the chunks of a tensor by one more block;
// every element is read once. The squares of f64 values may leave f64's range although the norm
// does not, so they go to one of three sums by size, each scaled to stay inside (Blue, "A portable
// Fortran program to find the Euclidean norm of a vector", ACM TOMS 4, 1978).
#include <cmath>

#include "tarn/core/kernels.h"
#include "tarn/cuda/multi_tensor.cuh"
#include "tarn/cuda/scratch.h"
#include "tarn/cuda/table.h"
#include "tarn/cuda/warp.cuh"

namespace tarn::cuda {
namespace {

// Shared memory holds these: no initialisers, Norm{} is the empty sum.

struct AbsSum {
  double sum;
  __device__ void add(double x) { sum += std::fabs(x); }
  __device__ AbsSum operator+(const AbsSum& b) const { return {sum + b.sum}; }
  __device__ double result() const { return sum; }
};

/// The largest magnitude; NaN if there is one.
struct AbsMax {
  double most;
  __device__ void add(double x) { most = Max()(most, std::fabs(x)); }
  __device__ AbsMax operator+(const AbsMax& b) const { return {Max()(most, b.most)}; }
  __device__ double result() const { return most; }
};

/// For types whose squares are well inside f64.
struct SquareSum {
  double sum;
  __device__ void add(double x) { sum += x * x; }
  __device__ SquareSum operator+(const SquareSum& b) const { return {sum + b.sum}; }
  __device__ double result() const { return std::sqrt(sum); }
};

struct ScaledSquareSum {
  // Squares of what is above kBig, times kDown^2; below kSmall, times kUp^2; between; NaN is
  // between.
  double big, middle, small;
  static constexpr double kBig = 0x1p500, kSmall = 0x1p-500, kDown = 0x1p-600, kUp = 0x1p600;

  __device__ void add(double x) {
    x = std::fabs(x);
    if (x > kBig) {
      big += x * kDown * (x * kDown);
    } else if (x < kSmall) {
      small += x * kUp * (x * kUp);
    } else {
      middle += x * x;
    }
  }
  __device__ ScaledSquareSum operator+(const ScaledSquareSum& b) const {
    return {big + b.big, middle + b.middle, small + b.small};
  }
  __device__ double result() const {
    if (big > 0) return std::sqrt(big + middle * kDown * kDown) * kUp;
    if (middle != 0) return std::sqrt(middle + small * kDown * kDown);
    return std::sqrt(small) * kDown;
  }
};

template <class T, class Norm>
__global__ void __launch_bounds__(kMultiTensorThreads)
    norm_chunks(TensorTable<1> table, Norm* partial) {
  constexpr int kWidth = kVecWidth<T>;
  __shared__ Norm scratch[kWarp];
  for (uint32_t chunk = blockIdx.x; chunk < table.chunks(); chunk += gridDim.x) {
    const ChunkPart part = table.part(chunk);
    const T* v = static_cast<const T*>(table.data[0][part.index]) + part.begin;
    Norm norm{};
    // Aligned or not, a thread takes the same elements in the same order.
    const bool aligned = reinterpret_cast<uintptr_t>(v) % 16 == 0;
    for (int i = static_cast<int>(threadIdx.x) * kWidth; i < part.count;
         i += kMultiTensorThreads * kWidth) {
      if (aligned && i + kWidth <= part.count) {
        const Vec<T, kWidth> x = load_vec<kWidth>(v + i);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) norm.add(static_cast<compute_t<T>>(x.v[j]));
      } else {
        const int end = i + kWidth < part.count ? i + kWidth : part.count;
        for (int j = i; j < end; ++j) norm.add(static_cast<compute_t<T>>(v[j]));
      }
    }
    norm = block_reduce(norm, Norm(), scratch, Sum());
    if (threadIdx.x == 0) partial[chunk] = norm;
  }
}

template <class Norm>
__global__ void __launch_bounds__(kMultiTensorThreads)
    norm_tensors(TensorTable<1> table, const Norm* partial, double* out) {
  __shared__ Norm scratch[kWarp];
  for (int i = static_cast<int>(blockIdx.x); i < table.count; i += static_cast<int>(gridDim.x)) {
    Norm norm{};
    for (uint32_t c = table.first_chunk(i) + threadIdx.x; c < table.end[i]; c += blockDim.x) {
      norm = norm + partial[c];
    }
    norm = block_reduce(norm, Norm(), scratch, Sum());
    if (threadIdx.x == 0) out[table.place[i]] = norm.result();
  }
}

/// What a norm of nothing is.
__global__ void clear_norms(double* out, int64_t n) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) out[i] = 0;
}

template <class T, class Norm>
void norms_of(std::span<const Tensor> tensors, double* out, Stream stream) {
  const auto wanted = [](const Tensor& t) { return t.dtype() == dtype_of<T>; };
  const std::span<const Tensor> lists[1] = {tensors};
  for_tables(lists, wanted, [&](const TensorTable<1>& table) {
    const Scratch partial(table.chunks() * sizeof(Norm), stream);
    launch(norm_chunks<T, Norm>, blocks_of(table, stream), kMultiTensorThreads, 0, stream, table,
           partial.as<Norm>());
    launch(norm_tensors<Norm>, static_cast<unsigned>(table.count), kMultiTensorThreads, 0, stream,
           table, partial.as<Norm>(), out);
  });
}

template <class T>
void norms_of(std::span<const Tensor> tensors, double p, double* out, Stream stream) {
  using Squares = std::conditional_t<std::is_same_v<T, double>, ScaledSquareSum, SquareSum>;
  if (p == 1) {
    norms_of<T, AbsSum>(tensors, out, stream);
  } else if (std::isinf(p)) {
    norms_of<T, AbsMax>(tensors, out, stream);
  } else {
    norms_of<T, Squares>(tensors, out, stream);
  }
}

void norms(std::span<const Tensor> tensors, double p, const Tensor& out, Stream stream) {
  if (tensors.empty()) return;
  double* to = out.data<double>();
  launch(clear_norms, 1, kMultiTensorThreads, 0, stream, to, static_cast<int64_t>(tensors.size()));
  norms_of<float>(tensors, p, to, stream);
  norms_of<double>(tensors, p, to, stream);
  norms_of<half>(tensors, p, to, stream);
  norms_of<bfloat16>(tensors, p, to, stream);
}

}  // namespace

void add_optim_norm_kernels(KernelTable& table) {
  table.optim.norms = norms;
}

}  // namespace tarn::cuda
