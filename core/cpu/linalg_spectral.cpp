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

// Whether u and v have orthonormal columns and a v = u diag(s).
template <class Solver>
bool is_decomposition(const Matrix<double>& a, const Solver& solver) {
  const Matrix<double>&u = solver.matrixU(), &v = solver.matrixV();
  const auto& s = solver.singularValues();
  const int64_t k = s.size();
  constexpr double kRounding = 1e-11;
  const auto orthonormal = [k](const Matrix<double>& x) {
    const Matrix<double> product = x.transpose() * x;
    return (product - Matrix<double>::Identity(k, k)).cwiseAbs().maxCoeff() < kRounding;
  };
  const Matrix<double> rest = a * v - u * s.asDiagonal();
  return orthonormal(u) && orthonormal(v) && rest.cwiseAbs().maxCoeff() <= kRounding * s(0);
}

template <class T, class Solver>
void write_svd(const Solver& solver, int64_t i, const Tensor& u, const Tensor& s,
               const Tensor& vh) {
  at<T>(u, i) = solver.matrixU().template cast<T>();
  row_at<T>(s, i) = solver.singularValues().template cast<T>();
  at<T>(vh, i) = solver.matrixV().transpose().template cast<T>();
}

// f32 too is decomposed in f64: divide and conquer in f32 has wrong vectors for matrices of low
// rank.
void svd(const Tensor& a, const Tensor& u, const Tensor& s, const Tensor& vh, const Tensor& info,
         Stream) {
  for_matrices(a, [&](auto tag, int64_t i) {
    using T = decltype(tag);
    const Matrix<double> matrix = at<T>(a, i).template cast<double>();
    set_info(info, i, false);
    if (!matrix.allFinite()) {
      at<T>(u, i).setConstant(kNaN<T>);
      row_at<T>(s, i).setConstant(kNaN<T>);
      at<T>(vh, i).setConstant(kNaN<T>);
      return;
    }
    constexpr unsigned kReduced = Eigen::ComputeThinU | Eigen::ComputeThinV;
    // Divide and conquer is many times faster from here on. What it gives is checked: Jacobi's
    // rotations, slow, are right for any matrix.
    constexpr int64_t kDivideFrom = 64;
    if (s.sizes()[1] >= kDivideFrom) {
      const Eigen::BDCSVD<Matrix<double>> solver(matrix, kReduced);
      if (solver.info() == Eigen::Success && is_decomposition(matrix, solver)) {
        write_svd<T>(solver, i, u, s, vh);
        return;
      }
    }
    const Eigen::JacobiSVD<Matrix<double>> solver(matrix, kReduced);
    set_info(info, i, solver.info() != Eigen::Success);
    if (solver.info() == Eigen::Success) write_svd<T>(solver, i, u, s, vh);
  });
}

}  // namespace

void add_spectral_kernels(KernelTable& table) {
  table.linalg.eigh = eigh;
  table.linalg.svd = svd;
}

}  // namespace tarn::cpu
