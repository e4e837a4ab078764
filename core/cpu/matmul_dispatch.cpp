// matmul_dispatch.cpp - which engine computes a matrix product, by type and size.
#include "tarn/core/cpu/matmul_dispatch.h"

#include <type_traits>
#include <vector>

#include "tarn/core/cpu/dnnl_matmul.h"
#include "tarn/core/cpu/few_rows.h"
#include "tarn/core/cpu/gemm.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {
namespace {

constexpr int64_t kGrainElements = 1 << 14;  // per thread at least

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
    case DType::kF32:
    case DType::kF16:
      return gemm(call);
    case DType::kBF16:
      if (call.k > 0 && dnnl_bf16_products() != Bf16Products::kNoGain && dnnl_matmul(call)) return;
      return gemm(call);
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
