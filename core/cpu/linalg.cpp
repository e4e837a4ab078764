// linalg.cpp - Cholesky, LU and QR factorisations on the CPU, by Eigen.
#include <cmath>

#include "tarn/core/cpu/linalg_eigen.h"
#include "tarn/core/cpu/table.h"
#include "tarn/core/kernels.h"

namespace tarn::cpu {
namespace {

void cholesky(const Tensor& a, const Tensor& lower, const Tensor& info, Stream) {
  for_matrices(a, [&](auto tag, int64_t i) {
    using T = decltype(tag);
    const Eigen::LLT<Matrix> llt(load<T>(a, i));
    set_info(info, i, llt.info() != Eigen::Success);
    store<T>(lower, i, Matrix(llt.matrixL()));
  });
}

bool has_zero_pivot(const Eigen::PartialPivLU<Matrix>& lu) {
  return (lu.matrixLU().diagonal().array() == 0.0).any();
}

void inv(const Tensor& a, const Tensor& out, const Tensor& info, Stream) {
  for_matrices(a, [&](auto tag, int64_t i) {
    using T = decltype(tag);
    const Eigen::PartialPivLU<Matrix> lu(load<T>(a, i));
    set_info(info, i, has_zero_pivot(lu));
    store<T>(out, i, Matrix(lu.inverse()));
  });
}

void solve(const Tensor& a, const Tensor& b, const Tensor& x, const Tensor& info, Stream) {
  for_matrices(a, [&](auto tag, int64_t i) {
    using T = decltype(tag);
    const Eigen::PartialPivLU<Matrix> lu(load<T>(a, i));
    set_info(info, i, has_zero_pivot(lu));
    store<T>(x, i, Matrix(lu.solve(load<T>(b, i))));
  });
}

void det(const Tensor& a, const Tensor& out, Stream) {
  for_matrices(a, [&](auto tag, int64_t i) {
    using T = decltype(tag);
    const Eigen::PartialPivLU<Matrix> lu(load<T>(a, i));
    const double pivots = lu.matrixLU().diagonal().prod();
    static_cast<T*>(out.data())[i] =
        static_cast<T>(static_cast<double>(lu.permutationP().determinant()) * pivots);
  });
}

void slogdet(const Tensor& a, const Tensor& sign, const Tensor& logabs, Stream) {
  for_matrices(a, [&](auto tag, int64_t i) {
    using T = decltype(tag);
    const Eigen::PartialPivLU<Matrix> lu(load<T>(a, i));
    double s = static_cast<double>(lu.permutationP().determinant()), l = 0;
    for (int64_t k = 0; k < a.sizes()[1]; ++k) {
      const double pivot = lu.matrixLU()(k, k);
      s *= pivot > 0 ? 1 : pivot < 0 ? -1 : pivot;  // 0 and NaN as they are
      l += std::log(std::abs(pivot));
    }
    static_cast<T*>(sign.data())[i] = static_cast<T>(s);
    static_cast<T*>(logabs.data())[i] = static_cast<T>(l);
  });
}

void qr(const Tensor& a, const Tensor& q, const Tensor& r, Stream) {
  for_matrices(a, [&](auto tag, int64_t i) {
    using T = decltype(tag);
    const int64_t rows = a.sizes()[1], k = r.sizes()[1];
    const Eigen::HouseholderQR<Matrix> factors(load<T>(a, i));
    store<T>(q, i, Matrix(factors.householderQ() * Matrix::Identity(rows, k)));
    const Matrix upper = factors.matrixQR().topRows(k).triangularView<Eigen::Upper>();
    store<T>(r, i, upper);
  });
}

}  // namespace

void add_linalg_kernels(KernelTable& table) {
  table.linalg.cholesky = cholesky;
  table.linalg.inv = inv;
  table.linalg.det = det;
  table.linalg.slogdet = slogdet;
  table.linalg.solve = solve;
  table.linalg.qr = qr;
  add_spectral_kernels(table);
}

}  // namespace tarn::cpu
