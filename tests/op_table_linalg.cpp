// op_table_linalg.cpp - rows of inverses, determinants, solve and Cholesky, against elimination in
// plain loops.
#include "op_table_linalg.h"

#include <algorithm>
#include <cmath>

#include "tarn/autograd/functions.h"

namespace tarn::optable {
namespace {

// x with a x = b by Gauss-Jordan elimination with row pivoting; the determinant of a.
std::pair<Rows, double> eliminated(Rows a, Rows b) {
  double det = 1;
  const size_t n = a.size();
  for (size_t c = 0; c < n; ++c) {
    size_t pivot = c;
    for (size_t r = c; r < n; ++r) pivot = std::abs(a[r][c]) > std::abs(a[pivot][c]) ? r : pivot;
    if (pivot != c) {
      std::swap(a[pivot], a[c]);
      std::swap(b[pivot], b[c]);
      det = -det;
    }
    det *= a[c][c];
    for (size_t r = 0; r < n; ++r) {
      if (r == c) continue;
      const double f = a[r][c] / a[c][c];
      for (size_t j = c; j < n; ++j) a[r][j] -= f * a[c][j];
      for (size_t j = 0; j < b[r].size(); ++j) b[r][j] -= f * b[c][j];
    }
  }
  for (size_t r = 0; r < n; ++r) {
    for (double& v : b[r]) v /= a[r][r];
  }
  return {b, det};
}

// a + (N + 1) identity, which dominates inputs in [-1, 1].
Tensor dominant(const Tensor& a) {
  const int64_t n = a.size(-1);
  const Tensor one = eye(n, n, {.dtype = a.dtype(), .device = a.device()});
  return add(a, one, static_cast<double>(n + 1));
}
Rows dominant(Rows a) {
  const size_t n = a.size();
  for (size_t i = 0; i < n; ++i) a[i][i] += static_cast<double>(n + 1);
  return a;
}

void add_inverses(Table& table) {
  Row inv = base("inv", call1([](const Tensor& a) { return linalg::inv(dominant(a)); }), kSquare,
                 kSquareEmpty, one([](const std::vector<Host>& x) {
                   std::vector<Rows> out;
                   for (const Rows& a : matrices(x[0])) {
                     out.push_back(eliminated(dominant(a), identity(a.size())).first);
                   }
                   return joined(x[0], out, {x[0].sizes.back(), x[0].sizes.back()});
                 }));
  inv.large = {{in({70, 70})}, {in({40, 9, 9})}};
  inv.errors = square_errors("inv", [](const Tensor& x) { linalg::inv(x); });
  inv.errors.push_back({"singular",
                        [] {
                          linalg::inv(ones({2, 2}));
                        },
                        "inv: the matrix is singular; got a=[2, 2] f32 cpu"});
  inv.errors.push_back({"singular in a batch",
                        [] {
                          linalg::inv(zeros({2, 3, 2, 2}));
                        },
                        "inv: matrix [0, 0] of the batch is singular; got a=[2, 3, 2, 2] f32 cpu"});
  table.add(inv);

  Row det = base("det", call1([](const Tensor& a) { return linalg::det(dominant(a)); }), kSquare,
                 kSquareEmpty, one([](const std::vector<Host>& x) {
                   std::vector<Rows> out;
                   for (const Rows& a : matrices(x[0])) {
                     out.push_back({{eliminated(dominant(a), a).second}});
                   }
                   return joined(x[0], out, {});
                 }));
  det.errors = square_errors("det", [](const Tensor& x) { linalg::det(x); });
  table.add(det);

  // Rows in another order, so that signs of both kinds occur.
  Row slogdet = base(
      "slogdet",
      [](const std::vector<Tensor>& x) {
        const auto [sign, logabs] = linalg::slogdet(flip(dominant(x[0]), {-2}));
        return std::vector<Tensor>{sign, logabs};
      },
      kSquare, kSquareEmpty,
      [](const std::vector<Host>& x) {
        std::vector<Rows> sign, logabs;
        for (const Rows& a : matrices(x[0])) {
          Rows flipped = dominant(a);
          std::reverse(flipped.begin(), flipped.end());
          const double d = eliminated(flipped, flipped).second;
          sign.push_back({{d > 0 ? 1.0 : -1.0}});
          logabs.push_back({{std::log(std::abs(d))}});
        }
        return std::vector<Host>{joined(x[0], sign, {}), joined(x[0], logabs, {})};
      });
  slogdet.errors = square_errors("slogdet", [](const Tensor& x) { linalg::slogdet(x); });
  table.add(slogdet);
}

void add_solve(Table& table) {
  Row row = base(
      "solve",
      call2([](const Tensor& a, const Tensor& b) { return linalg::solve(dominant(a), b); }), {}, {},
      one([](const std::vector<Host>& x) {
        const Host& a = x[0];
        Host b = x[1];
        const bool vector = b.sizes.dim() < a.sizes.dim();
        if (vector) b.sizes.push_back(1);
        const std::vector<Rows> left = matrices(a), right = matrices(b);
        std::vector<Rows> out;
        const size_t count = std::max(left.size(), right.size());
        for (size_t i = 0; i < count && !left.empty() && !right.empty(); ++i) {
          out.push_back(eliminated(dominant(left[i % left.size()]), right[i % right.size()]).first);
        }
        const Host& wide = left.size() >= right.size() && !right.empty() ? a : b;
        Host joint = joined(wide, out, {b.sizes[b.sizes.dim() - 2], b.sizes.back()});
        if (vector) joint.sizes.erase(joint.sizes.dim() - 1);
        return joint;
      }));
  row.cases = {{in({1, 1}), in({1, 1})},      {in({3, 3}), in({3, 2})},
               {in({3, 3}), in({3})},         {in({2, 3, 3}), in({2, 3, 2})},
               {in({2, 3, 3}), in({2, 3})},   {in({2, 3, 3}), in({3})},
               {in({3, 3}), in({2, 3, 2})},   {in({2, 2, 2, 2}), in({2, 2, 2, 1})},
               {in({2, 3, 3}), in({1, 3, 2})}};
  row.empty = {{in({0, 0}), in({0, 2})}, {in({3, 3}), in({3, 0})}, {in({0, 3, 3}), in({0, 3, 2})}};
  row.large = {{in({70, 70}), in({70, 33})}, {in({40, 9, 9}), in({40, 9, 2})}};
  row.errors = square_errors("solve", [](const Tensor& x) { linalg::solve(x, x); });
  row.errors.push_back({"rows",
                        [] {
                          linalg::solve(ones({3, 3}), ones({2, 4}));
                        },
                        "solve: b must have as many rows as a; got a=[3, 3] f32 cpu, b=[2, 4] f32 "
                        "cpu (3 vs 2)"});
  row.errors.push_back({"number",
                        [] {
                          linalg::solve(ones({3, 3}), ones({}));
                        },
                        "solve: b must be a vector or matrices, [N] or [.., N, K]"});
  row.errors.push_back({"batches",
                        [] {
                          linalg::solve(ones({2, 3, 3}), ones({4, 3, 1}));
                        },
                        "solve: shapes do not broadcast"});
  row.errors.push_back({"dtypes",
                        [] {
                          linalg::solve(ones({2, 2}), ones({2}, {.dtype = DType::kF64}));
                        },
                        "solve: a and b must have one dtype; got a=[2, 2] f32 cpu, b=[2] f64 cpu"});
  row.errors.push_back({"undefined b",
                        [] {
                          linalg::solve(ones({2, 2}), Tensor());
                        },
                        "solve: b must be a tensor"});
  row.errors.push_back({"singular",
                        [] {
                          linalg::solve(ones({2, 2}), ones({2}));
                        },
                        "solve: the matrix is singular; got a=[2, 2] f32 cpu"});
  row.errors.push_back(
      {"singular in a batch",
       [] {
         linalg::solve(tensor({1, 0, 0, 1, 1, 1, 1, 1}, {2, 2, 2}, {}), ones({2, 2, 1}));
       },
       "solve: matrix [1] of the batch is singular; got a=[2, 2, 2] f32 cpu"});
  table.add(row);
}

// a a^T + identity, with a's rows and columns.
Tensor definite(const Tensor& a) {
  const int64_t n = a.size(-1);
  const Tensor one = eye(n, n, {.dtype = a.dtype(), .device = a.device()});
  return add(matmul(a, transpose(a, -2, -1)), one);
}

Rows lower_factor(const Rows& a) {
  const size_t n = a.size();
  Rows lower(n, std::vector<double>(n, 0));
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double rest = a[i][j];
      for (size_t k = 0; k < j; ++k) rest -= lower[i][k] * lower[j][k];
      lower[i][j] = i == j ? std::sqrt(rest) : rest / lower[j][j];
    }
  }
  return lower;
}

void add_cholesky(Table& table) {
  Row row = base("cholesky", call1([](const Tensor& a) { return linalg::cholesky(definite(a)); }),
                 kSquare, kSquareEmpty, one([](const std::vector<Host>& x) {
                   std::vector<Rows> out;
                   for (const Rows& a : matrices(x[0])) {
                     Rows s = product(a, transposed(a, a.size()));
                     for (size_t i = 0; i < s.size(); ++i) s[i][i] += 1;
                     out.push_back(lower_factor(s));
                   }
                   return joined(x[0], out, {x[0].sizes.back(), x[0].sizes.back()});
                 }));
  row.large = {{in({70, 70})}, {in({40, 9, 9})}};
  row.errors = square_errors("cholesky", [](const Tensor& x) { linalg::cholesky(x); });
  row.errors.push_back({"indefinite",
                        [] {
                          linalg::cholesky(neg(ones({1, 1})));
                        },
                        "cholesky: the matrix is not positive definite; got a=[1, 1] f32 cpu"});
  row.errors.push_back(
      {"indefinite in a batch",
       [] {
         linalg::cholesky(tensor({1, 0, 0, 1, 1, 2, 2, 1}, {2, 2, 2}, {}));
       },
       "cholesky: matrix [1] of the batch is not positive definite; got a=[2, 2, 2] f32 cpu"});
  table.add(row);
}

}  // namespace

void add_linalg_rows(Table& table) {
  add_inverses(table);
  add_solve(table);
  add_cholesky(table);
  add_spectral_rows(table);
}

}  // namespace tarn::optable
