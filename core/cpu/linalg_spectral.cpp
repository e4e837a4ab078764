// linalg_spectral.cpp - eigenvalues and singular values on the CPU, by Eigen.
//
// These iterate, so they look for NaN and infinities first.
#include <limits>

#include "tarn/core/cpu/linalg_eigen.h"
#include "tarn/core/cpu/table.h"
#include "tarn/core/kernels.h"

namespace tarn::cpu {
namespace {

template <class T>
constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();

void eigh(const Tensor& a, const Tensor& values, const Tensor& vectors, const Tensor& info,
          Stream) {
  for_matrices(a, [&](auto tag, int64_t i) {
    using T = decltype(tag);
    const Matrix<T> lower = at<T>(a, i).template triangularView<Eigen::Lower>();
    set_info(info, i, false);
    if (!lower.allFinite()) {
      row_at<T>(values, i).setConstant(kNaN<T>);
      at<T>(vectors, i).setConstant(kNaN<T>);
      return;
    }
    const Eigen::SelfAdjointEigenSolver<Matrix<T>> solver(lower);
    set_info(info, i, solver.info() != Eigen::Success);
    if (solver.info() != Eigen::Success) return;
    row_at<T>(values, i) = solver.eigenvalues();
    at<T>(vectors, i) = solver.eigenvectors();
  });
}

// Whether the decomposition succeeded, with its results written.
template <class T, class Solver>
bool svd_by(Solver& solver, const Matrix<T>& a, int64_t i, const Tensor& u, const Tensor& s,
            const Tensor& vh) {
  solver.compute(a, Eigen::ComputeThinU | Eigen::ComputeThinV);
  if (solver.info() != Eigen::Success) return false;
  at<T>(u, i) = solver.matrixU();
  row_at<T>(s, i) = solver.singularValues();
  at<T>(vh, i) = solver.matrixV().transpose();
  return true;
}

void svd(const Tensor& a, const Tensor& u, const Tensor& s, const Tensor& vh, const Tensor& info,
         Stream) {
  for_matrices(a, [&](auto tag, int64_t i) {
    using T = decltype(tag);
    const Matrix<T> matrix = at<T>(a, i);
    set_info(info, i, false);
    if (!matrix.allFinite()) {
      at<T>(u, i).setConstant(kNaN<T>);
      row_at<T>(s, i).setConstant(kNaN<T>);
      at<T>(vh, i).setConstant(kNaN<T>);
      return;
    }
    // Divide and conquer is many times faster from here on; Jacobi is the more accurate one, and
    // the one that always ends well.
    constexpr int64_t kDivideFrom = 64;
    if (s.sizes()[1] >= kDivideFrom) {
      Eigen::BDCSVD<Matrix<T>> solver;
      if (svd_by<T>(solver, matrix, i, u, s, vh)) return;
    }
    Eigen::JacobiSVD<Matrix<T>> solver;
    set_info(info, i, !svd_by<T>(solver, matrix, i, u, s, vh));
  });
}

}  // namespace

void add_spectral_kernels(KernelTable& table) {
  table.linalg.eigh = eigh;
  table.linalg.svd = svd;
}

}  // namespace tarn::cpu
