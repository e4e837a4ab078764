// matmul_finish.cu - what happens to a product outside the kernel that made it.
//
// finish_parts: reads parts * sizeof(sum), writes one element. spread_bias: writes one element.
// apply_epilogue: reads and writes one element, 16 bytes at a time where C is dense and aligned.
#include "tarn/cuda/grid.cuh"
#include "tarn/cuda/matmul_finish.cuh"
#include "tarn/cuda/vec.cuh"

namespace tarn::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChunk = 1024;  // neighbouring elements of a row for one block

template <class T>
__global__ void finish_parts_kernel(const MatmulCall call, int64_t parts, const sum_t<T>* sums) {
  const int64_t elements = call.batch * call.m * call.n;
  const T* bias = static_cast<const T*>(call.bias);
  for (int64_t i = grid_index(); i < elements; i += grid_step()) {
    sum_t<T> sum = sums[i];
    for (int64_t part = 1; part < parts; ++part) sum += sums[part * elements + i];
    const int64_t row = i / call.n, col = i - row * call.n;
    T* c = static_cast<T*>(call.c) + row / call.m * call.c_batch + row % call.m * call.c_row + col;
    *c = finish(call, sum, c, bias ? bias + col : nullptr);
  }
}

/// What spread_bias and apply_epilogue do to one element, given its column.
template <class T>
struct TakeBias {
  const T* bias;
  Epilogue epilogue;
  __device__ T operator()(const T*, int64_t col) const { return bias[col]; }
};
template <class T>
struct Activate {
  const T* bias;
  Epilogue epilogue;
  __device__ T operator()(const T* c, int64_t) const {
    return T(activate(epilogue, static_cast<sum_t<T>>(*c)));
  }
};

/// Every element of C by rows, a block per chunk of a row.
template <class T, class Op>
__global__ void each_element(T* c, int64_t batch, int64_t m, int64_t n, int64_t c_batch,
                             int64_t c_row, Op op) {
  const int64_t chunks = ceil_div(n, kChunk), tasks = batch * m * chunks;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t row = task / chunks, first = task % chunks * kChunk;
    T* to = c + row / m * c_batch + row % m * c_row;
    const int64_t end = first + kChunk < n ? first + kChunk : n;
    for (int64_t col = first + threadIdx.x; col < end; col += kThreads) {
      to[col] = op(to + col, col);
    }
  }
}

template <class T>
__global__ void activate_vectors(T* c, int64_t vectors, Epilogue epilogue) {
  constexpr int kWidth = kVecWidth<T>;
  for (int64_t i = grid_index(); i < vectors; i += grid_step()) {
    Vec<T, kWidth> v = load_vec<kWidth>(c + i * kWidth);
#pragma unroll
    for (T& x : v.v) x = T(activate(epilogue, static_cast<sum_t<T>>(x)));
    store_vec(c + i * kWidth, v);
  }
}

template <class T, class Op>
void run_each(T* c, const MatmulCall& call, Stream stream, Op op) {
  const int64_t tasks = call.batch * call.m * ceil_div(call.n, kChunk);
  launch(each_element<T, Op>, blocks_for(tasks, 1, stream), kThreads, 0, stream, c, call.batch,
         call.m, call.n, call.c_batch, call.c_row, op);
}

template <class T>
void run_finish_parts(const MatmulCall& call, int64_t parts, const void* sums, Stream stream) {
  launch(finish_parts_kernel<T>, blocks_for(call.batch * call.m * call.n, kThreads, stream),
         kThreads, 0, stream, call, parts, static_cast<const sum_t<T>*>(sums));
}

}  // namespace

void finish_parts(const MatmulCall& call, int64_t parts, const void* sums, Stream stream) {
  visit_dtype(call.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, bool>) run_finish_parts<T>(call, parts, sums, stream);
  });
}

void spread_bias(const MatmulCall& call, Stream stream) {
  visit_floating(call.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    run_each(static_cast<T*>(call.c), call, stream,
             TakeBias<T>{static_cast<const T*>(call.bias), call.epilogue});
  });
}

void apply_epilogue(const MatmulCall& call, Stream stream) {
  if (call.epilogue == Epilogue::kNone) return;
  visit_floating(call.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* c = static_cast<T*>(call.c);
    const int64_t elements = call.batch * call.m * call.n;
    const bool dense = (call.m == 1 || call.c_row == call.n) &&
                       (call.batch == 1 || call.c_batch == call.m * call.n);
    if (dense && is_aligned(c, 16) && elements % kVecWidth<T> == 0) {
      const int64_t vectors = elements / kVecWidth<T>;
      launch(activate_vectors<T>, blocks_for(vectors, kThreads, stream), kThreads, 0, stream, c,
             vectors, call.epilogue);
    } else {
      run_each(c, call, stream, Activate<T>{nullptr, call.epilogue});
    }
  });
}

}  // namespace tarn::cuda
