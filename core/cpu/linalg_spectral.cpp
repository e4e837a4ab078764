// linalg_spectral.cpp - eigenvalues and singular values on the CPU, by Eigen.
//
// These iterate, so they look for NaN and infinities first.
#include <limits>

#include "tarn/core/cpu/linalg_eigen.h"
#include "tarn/core/cpu/table.h"
#include "tarn/core/kernels.h"

namespace tarn::cpu {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

template <class T>
void store_nans(const Tensor& batch, int64_t index) {
  const int64_t size = batch.numel() / batch.sizes()[0];
  std::fill_n(static_cast<T*>(batch.data()) + index * size, size, static_cast<T>(kNaN));
}

void eigh(const Tensor& a, const Tensor& values, const Tensor& vectors, const Tensor& info,
          Stream) {
  for_matrices(a, [&](auto tag, int64_t i) {
    using T = decltype(tag);
    const Matrix lower = load<T>(a, i).template triangularView<Eigen::Lower>();
    set_info(info, i, false);
    if (!lower.allFinite()) {
      store_nans<T>(values, i);
      store_nans<T>(vectors, i);
      return;
    }
    const Eigen::SelfAdjointEigenSolver<Matrix> solver(lower);
    set_info(info, i, solver.info() != Eigen::Success);
    if (solver.info() != Eigen::Success) return;
    store_row<T>(values, i, solver.eigenvalues());
    store<T>(vectors, i, solver.eigenvectors());
  });
}

// Whether u and v have orthonormal columns and a v = u diag(s).
template <class Solver>
bool is_decomposition(const Matrix& a, const Solver& solver) {
  const Matrix &u = solver.matrixU(), &v = solver.matrixV();
  const auto& s = solver.singularValues();
  const int64_t k = s.size();
  constexpr double kRounding = 1e-11;
  const auto orthonormal = [k](const Matrix& x) {
    const Matrix product = x.transpose() * x;
    return (product - Matrix::Identity(k, k)).cwiseAbs().maxCoeff() < kRounding;
  };
  const Matrix rest = a * v - u * s.asDiagonal();
  return orthonormal(u) && orthonormal(v) && rest.cwiseAbs().maxCoeff() <= kRounding * s(0);
}

template <class T, class Solver>
void write_svd(const Solver& solver, int64_t i, const Tensor& u, const Tensor& s,
               const Tensor& vh) {
  store<T>(u, i, solver.matrixU());
  store_row<T>(s, i, solver.singularValues());
  store<T>(vh, i, solver.matrixV().transpose());
}

// Divide and conquer in f32 would have wrong vectors for matrices of low rank.
void svd(const Tensor& a, const Tensor& u, const Tensor& s, const Tensor& vh, const Tensor& info,
         Stream) {
  for_matrices(a, [&](auto tag, int64_t i) {
    using T = decltype(tag);
    const Matrix matrix = load<T>(a, i);
    set_info(info, i, false);
    if (!matrix.allFinite()) {
      store_nans<T>(u, i);
      store_nans<T>(s, i);
      store_nans<T>(vh, i);
      return;
    }
    constexpr unsigned kReduced = Eigen::ComputeThinU | Eigen::ComputeThinV;
    // Divide and conquer is many times faster from here on. What it gives is checked: Jacobi's
    // rotations, slow, are right for any matrix.
    constexpr int64_t kDivideFrom = 64;
    if (s.sizes()[1] >= kDivideFrom) {
      const Eigen::BDCSVD<Matrix> solver(matrix, kReduced);
      if (solver.info() == Eigen::Success && is_decomposition(matrix, solver)) {
        write_svd<T>(solver, i, u, s, vh);
        return;
      }
    }
    const Eigen::JacobiSVD<Matrix> solver(matrix, kReduced);
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
