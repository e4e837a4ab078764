// linalg_eigen.h - what the files of linear algebra share: Eigen's types over a batch of matrices.
//
// A batch is spread over the threads, one matrix to a thread at a time, so results do not depend
// on their number. Each matrix is copied into columns, which is how Eigen's factorisations are
// written.
#pragma once

#define EIGEN_DONT_PARALLELIZE  // the batch is what the threads share
#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 takes AVX-512 registers that are undefined on purpose for a mistake
// (gcc.gnu.org/PR105593); the warnings are for the code that uses them, so to the end of the file.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <algorithm>

#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>
#include <Eigen/LU>
#include <Eigen/QR>
#include <Eigen/SVD>

#include "tarn/core/parallel.h"
#include "tarn/core/tensor.h"

namespace tarn::cpu {

// f32 as well is computed in f64: as accurate as f32 can hold, and half the templates to compile.
using Matrix = Eigen::MatrixXd;

template <class T>
using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Matrix `index` of a batch [B, M, N].
template <class T>
Matrix load(const Tensor& batch, int64_t index) {
  const int64_t rows = batch.sizes()[1], cols = batch.sizes()[2];
  const T* from = static_cast<const T*>(batch.data()) + index * rows * cols;
  return Eigen::Map<const RowMajor<T>>(from, rows, cols).template cast<double>();
}

// The other way round; `value` may be any expression of Eigen's.
template <class T, class Value>
void store(const Tensor& batch, int64_t index, const Value& value) {
  const int64_t rows = batch.sizes()[1], cols = batch.sizes()[2];
  T* to = static_cast<T*>(batch.data()) + index * rows * cols;
  Eigen::Map<RowMajor<T>>(to, rows, cols) = value.template cast<T>();
}

// Row `index` of [B, N], from a column.
template <class T, class Value>
void store_row(const Tensor& batch, int64_t index, const Value& value) {
  const int64_t n = batch.sizes()[1];
  T* to = static_cast<T*>(batch.data()) + index * n;
  Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, 1>>(to, n) = value.template cast<T>();
}

// Calls f(tag of the element type, index) for every matrix of a, on all threads.
template <class F>
void for_matrices(const Tensor& a, F f) {
  const double m = static_cast<double>(a.sizes()[1]), n = static_cast<double>(a.sizes()[2]);
  constexpr double kWorth = 1 << 14;  // multiply-adds that are worth waking a thread
  const auto grain = static_cast<int64_t>(std::max(1.0, kWorth / (m * n * std::min(m, n))));
  parallel_for(a.sizes()[0], grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (a.dtype() == DType::kF64) {
        f(double{}, i);
      } else {
        f(float{}, i);
      }
    }
  });
}

inline void set_info(const Tensor& info, int64_t index, bool failed) {
  static_cast<int64_t*>(info.data())[index] = failed ? 1 : 0;
}

}  // namespace tarn::cpu
