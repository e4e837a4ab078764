// matmul_dispatch.cpp - which engine computes a matrix product, by type, size and measurement.
#include "tarn/core/cpu/matmul_dispatch.h"

#include <memory>
#include <vector>

#include "tarn/core/cpu/dnnl_matmul.h"
#include "tarn/core/cpu/few_rows.h"
#include "tarn/core/cpu/gemm.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {
namespace {

// Up to here the own product is faster: a library call alone costs some 0.3 us.
constexpr int64_t kOwnMacs = 64 * 64 * 48;
constexpr int64_t kGrainElements = 1 << 14;  // per thread at least

/// A matrix (or a batch of them) of halves as dense f32.
template <typename T>
std::unique_ptr<float[]> widen(const void* data, int64_t batch, int64_t batch_stride, int64_t rows,
                               int64_t row_stride, int64_t cols, int64_t col_stride) {
  auto out = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(batch * rows * cols));
  const T* from = static_cast<const T*>(data);
  parallel_for(batch * rows, 1 + kGrainElements / (cols + 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* row = from + i / rows * batch_stride + i % rows * row_stride;
      float* to = out.get() + i * cols;
      for (int64_t j = 0; j < cols; ++j) to[j] = float(row[j * col_stride]);
    }
  });
  return out;
}

template <typename T>
void matmul_through_f32(const MatmulCall& call) {
  const auto a = widen<T>(call.a, call.batch, call.a_batch, call.m, call.a_row, call.k, call.a_col);
  const auto b = widen<T>(call.b, call.batch, call.b_batch, call.k, call.b_row, call.n, call.b_col);
  const auto c = call.beta != 0
                     ? widen<T>(call.c, call.batch, call.c_batch, call.m, call.c_row, call.n, 1)
                     : std::make_unique_for_overwrite<float[]>(
                           static_cast<size_t>(call.batch * call.m * call.n));
  const auto bias = widen<T>(call.bias, 1, 0, call.bias != nullptr ? 1 : 0, 0, call.n, 1);
  MatmulCall wide = call;
  wide.dtype = DType::kF32;
  wide.a = a.get(), wide.a_batch = call.m * call.k, wide.a_row = call.k, wide.a_col = 1;
  wide.b = b.get(), wide.b_batch = call.k * call.n, wide.b_row = call.n, wide.b_col = 1;
  wide.c = c.get(), wide.c_batch = call.m * call.n, wide.c_row = call.n;
  wide.bias = call.bias != nullptr ? bias.get() : nullptr;
  matmul(wide);
  T* to = static_cast<T*>(call.c);
  parallel_for(call.batch * call.m, 1 + kGrainElements / (call.n + 1),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   T* row = to + i / call.m * call.c_batch + i % call.m * call.c_row;
                   for (int64_t j = 0; j < call.n; ++j)
                     row[j] = T(c[static_cast<size_t>(i * call.n + j)]);
                 }
               });
}

template <typename T>
void matmul_integers(const MatmulCall& call) {
  using U = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;  // wraps round, no overflow
  parallel_for(
      call.batch * call.m, 1 + kGrainElements / (call.n * call.k + 1),
      [&](int64_t begin, int64_t end) {
        std::vector<U> sums(static_cast<size_t>(call.n));
        for (int64_t i = begin; i < end; ++i) {
          const int64_t batch = i / call.m, row = i % call.m;
          const T* a = static_cast<const T*>(call.a) + batch * call.a_batch + row * call.a_row;
          const T* b = static_cast<const T*>(call.b) + batch * call.b_batch;
          const T* bias = static_cast<const T*>(call.bias);
          T* c = static_cast<T*>(call.c) + batch * call.c_batch + row * call.c_row;
          for (int64_t j = 0; j < call.n; ++j) {
            U& sum = sums[static_cast<size_t>(j)];
            sum = call.beta != 0 ? static_cast<U>(c[j]) : U(0);
            if (bias != nullptr) sum += static_cast<U>(bias[j]);
          }
          for (int64_t p = 0; p < call.k; ++p) {
            const U factor = static_cast<U>(a[p * call.a_col]);
            const T* b_row = b + p * call.b_row;
            for (int64_t j = 0; j < call.n; ++j) {
              sums[static_cast<size_t>(j)] += factor * static_cast<U>(b_row[j * call.b_col]);
            }
          }
          for (int64_t j = 0; j < call.n; ++j) {
            const T value = static_cast<T>(sums[static_cast<size_t>(j)]);
            c[j] = call.epilogue == Epilogue::kRelu && value < T(0) ? T(0) : value;
          }
        }
      });
}

}  // namespace

void matmul(const MatmulCall& call) {
  if (call.batch == 0 || call.m == 0 || call.n == 0) return;
  if (few_rows_matmul(call)) return;
  switch (call.dtype) {
    case DType::kF64:
      return gemm(call);
    case DType::kF32:
      if (call.macs() > kOwnMacs && dnnl_matmul(call)) return;
      return gemm(call);
    case DType::kBF16:
      if (call.k > 0 && dnnl_matmul(call)) return;
      return matmul_through_f32<bfloat16>(call);
    case DType::kF16:
      return matmul_through_f32<half>(call);
    case DType::kI64:
      return matmul_integers<int64_t>(call);
    case DType::kI32:
      return matmul_integers<int32_t>(call);
    case DType::kU8:
    case DType::kBool:
      return matmul_integers<uint8_t>(call);
  }
}

}  // namespace tarn::cpu
