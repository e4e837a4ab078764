// matmul_dispatch.cpp - which engine computes a matrix product, by type, size and measurement.
#include "tarn/core/cpu/matmul_dispatch.h"

#include <utility>
#include <vector>

#include "tarn/core/cpu/dnnl_matmul.h"
#include "tarn/core/cpu/few_rows.h"
#include "tarn/core/cpu/gemm.h"
#include "tarn/core/cpu/half_buffer.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {
namespace {

// Up to here the own product is faster: a library call alone costs some 0.3 us.
constexpr int64_t kOwnMacs = 64 * 64 * 48;
// From here on too, if rows of B are dense: the library falls to 60 % of the peak with sums as long
// as a vocabulary (gradient of a language model's last layer), the own product keeps 76 %.
constexpr int64_t kLongSum = 1 << 15;
constexpr int64_t kGrainElements = 1 << 14;  // per thread at least

/// A batch of matrices of halves in f32, dense in the order in which the halves lie.
struct Widened {
  FloatBlock values;
  int64_t batch, row, col;  // strides

  template <typename T>
  Widened(const T* from, int64_t count, int64_t batch_stride, int64_t rows, int64_t row_stride,
          int64_t cols, int64_t col_stride)
      : values((batch_stride == 0 ? 1 : count) * rows * cols),
        batch(batch_stride == 0 ? 0 : rows * cols),
        row(cols),
        col(1) {
    if (row_stride == 1 && col_stride != 1) {  // by columns
      std::swap(rows, cols);
      std::swap(row_stride, col_stride);
      row = 1, col = cols;
    }
    const int64_t lines = (batch_stride == 0 ? 1 : count) * rows;
    float* const to = values.data();
    parallel_for(lines, 1 + kGrainElements / (cols + 1), [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* __restrict x = from + i / rows * batch_stride + i % rows * row_stride;
        float* __restrict y = to + i * cols;
        if (col_stride == 1) {
          for (int64_t j = 0; j < cols; ++j) y[j] = float(x[j]);
        } else {
          for (int64_t j = 0; j < cols; ++j) y[j] = float(x[j * col_stride]);
        }
      }
    });
  }
};

template <typename T>
void matmul_through_f32(const MatmulCall& call) {
  const auto halves = [](const void* p) { return static_cast<const T*>(p); };
  const Widened a(halves(call.a), call.batch, call.a_batch, call.m, call.a_row, call.k, call.a_col);
  const Widened b(halves(call.b), call.batch, call.b_batch, call.k, call.b_row, call.n, call.b_col);
  // Without beta, C is not read.
  const Widened c(halves(call.c), call.batch, call.batch == 1 ? 0 : call.c_batch,
                  call.beta != 0 ? call.m : 0, call.c_row, call.n, 1);
  const FloatBlock sums(call.beta != 0 || call.wide_c ? 0 : call.batch * call.m * call.n);
  const Widened bias(halves(call.bias), 1, 0, call.bias != nullptr ? 1 : 0, 0, call.n, 1);
  float* const out = call.beta != 0 ? c.values.data() : sums.data();
  MatmulCall wide = call;
  wide.dtype = DType::kF32;
  wide.a = a.values.data(), wide.a_batch = a.batch, wide.a_row = a.row, wide.a_col = a.col;
  wide.b = b.values.data(), wide.b_batch = b.batch, wide.b_row = b.row, wide.b_col = b.col;
  wide.c = out, wide.c_batch = call.m * call.n, wide.c_row = call.n;
  wide.bias = call.bias != nullptr ? bias.values.data() : nullptr;
  wide.wide_c = false;
  if (call.wide_c) {
    wide.c = call.c, wide.c_batch = call.c_batch, wide.c_row = call.c_row;
    return matmul(wide);
  }
  matmul(wide);
  parallel_for(
      call.batch * call.m, 1 + kGrainElements / (call.n + 1), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          T* __restrict row =
              static_cast<T*>(call.c) + i / call.m * call.c_batch + i % call.m * call.c_row;
          const float* __restrict from = out + i * call.n;
          for (int64_t j = 0; j < call.n; ++j) row[j] = T(from[j]);
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
      if (call.k >= kLongSum && call.a_col == 1 && call.b_col == 1) return gemm(call);
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
