// few_rows.cpp - dot products of a few rows of A with the columns of B, each dense.
//
// Every sum is made in sixteen lanes, twice, in an order that depends on its length alone.
#include "tarn/core/cpu/few_rows.h"

#include <algorithm>
#include <vector>

#include "tarn/core/cpu/gemm_epilogue.h"
#include "tarn/core/cpu/vec.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {
namespace {

constexpr int64_t kMostRows = 4;
constexpr int64_t kLeastWork = 1 << 16;  // elements of B
constexpr int64_t kColumns = 64;         // finished together

/// sums[r * kColumns] = x[r] . w for kRows rows of x.
template <int kRows, class T>
void dots(const float* x, int64_t x_row, const T* w, int64_t k, float* sums) {
  constexpr int64_t L = kLanes<float>;
  Vec<float> even[kRows] = {}, odd[kRows] = {};
  int64_t i = 0;
  for (; i + 2 * L <= k; i += 2 * L) {
    const Vec<float> w0 = load<float>(w + i), w1 = load<float>(w + i + L);
    for (int r = 0; r < kRows; ++r) {
      even[r] += w0 * load<float>(x + r * x_row + i);
      odd[r] += w1 * load<float>(x + r * x_row + i + L);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float sum = sum_lanes(even[r] + odd[r]);
    for (int64_t j = i; j < k; ++j) sum += x[r * x_row + j] * to<float>(w[j]);
    sums[r * kColumns] = sum;
  }
}

template <class T>
void columns(const MatmulCall& call, const float* x, int64_t x_row, int64_t first, int64_t count) {
  float sums[kMostRows * kColumns];
  for (int64_t j = 0; j < count; ++j) {
    const T* w = static_cast<const T*>(call.b) + (first + j) * call.b_col;
    switch (call.m) {
      case 1:
        dots<1>(x, x_row, w, call.k, sums + j);
        break;
      case 2:
        dots<2>(x, x_row, w, call.k, sums + j);
        break;
      case 3:
        dots<3>(x, x_row, w, call.k, sums + j);
        break;
      default:
        dots<4>(x, x_row, w, call.k, sums + j);
    }
  }
  const T* bias = call.bias != nullptr ? static_cast<const T*>(call.bias) + first : nullptr;
  for (int64_t r = 0; r < call.m; ++r) {
    finish_row(sums + r * kColumns, count, static_cast<float>(call.alpha),
               static_cast<float>(call.beta), bias, call.epilogue,
               static_cast<T*>(call.c) + r * call.c_row + first);
  }
}

template <class T>
void run(const MatmulCall& call) {
  std::vector<float> wide;
  const float* x = static_cast<const float*>(call.a);
  int64_t x_row = call.a_row;
  if constexpr (!std::is_same_v<T, float>) {
    wide.resize(static_cast<size_t>(call.m * call.k));
    for (int64_t i = 0; i < call.m * call.k; ++i) {
      const T* row = static_cast<const T*>(call.a) + i / call.k * call.a_row;
      wide[static_cast<size_t>(i)] = to<float>(row[i % call.k]);
    }
    x = wide.data(), x_row = call.k;
  }
  const int64_t blocks = (call.n + kColumns - 1) / kColumns;
  parallel_for(blocks, 1 + kLeastWork / (kColumns * call.k), [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kColumns;
      columns<T>(call, x, x_row, first, std::min(kColumns, call.n - first));
    }
  });
}

}  // namespace

bool few_rows_matmul(const MatmulCall& call) {
  if (call.batch != 1 || call.m > kMostRows || call.a_col != 1 || call.b_row != 1) return false;
  if (call.wide_c) return false;
  if (call.k < 2 * kLanes<float> || call.n * call.k < kLeastWork) return false;
  switch (call.dtype) {
    case DType::kF32:
      run<float>(call);
      return true;
    case DType::kBF16:
      run<bfloat16>(call);
      return true;
    case DType::kF16:
      run<half>(call);
      return true;
    default:
      return false;
  }
}

}  // namespace tarn::cpu
