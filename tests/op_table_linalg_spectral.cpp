// op_table_linalg_spectral.cpp - rows of qr, eigh and svd, against Gram-Schmidt and Jacobi's
// rotations in plain loops.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "op_table_linalg.h"

#include "tarn/autograd/functions.h"

namespace tarn::optable {
namespace {

// Columns of a made orthonormal one after the other, twice each; r has a positive diagonal.
std::pair<Rows, Rows> gram_schmidt(const Rows& a, size_t cols) {
  const size_t m = a.size(), k = std::min(m, cols);
  Rows q = transposed(a, cols), r = zero_rows(static_cast<int64_t>(k), static_cast<int64_t>(cols));
  for (size_t j = 0; j < cols; ++j) {
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t i = 0; i < std::min(j, k); ++i) {
        const double along = std::inner_product(q[i].begin(), q[i].end(), q[j].begin(), 0.0);
        r[i][j] += along;
        for (size_t p = 0; p < m; ++p) q[j][p] -= along * q[i][p];
      }
    }
    if (j >= k) continue;
    r[j][j] = std::sqrt(std::inner_product(q[j].begin(), q[j].end(), q[j].begin(), 0.0));
    for (double& v : q[j]) v /= r[j][j];
  }
  q.resize(k);
  return {transposed(q, m), r};
}

// a with something large on its diagonal: the columns, the eigenvalues and the singular values are
// far from each other.
Tensor spread_out(const Tensor& a) {
  const int64_t m = a.size(-2), n = a.size(-1), k = std::min(m, n);
  Tensor far = tarn::zeros({m, n}, {.dtype = a.dtype()});
  for (int64_t i = 0; i < k; ++i) far[i][i].fill_(static_cast<double>(6 * (k - i)));
  return add(a, far.to(a.device()));
}
Rows spread_out(Rows a, size_t cols) {
  const size_t k = std::min(a.size(), cols);
  for (size_t i = 0; i < k; ++i) a[i][i] += static_cast<double>(6 * (k - i));
  return a;
}

std::vector<Tensor> positive_qr(const std::vector<Tensor>& x) {
  const auto [q, r] = linalg::qr(spread_out(x[0]));
  const Tensor signs = sign(diagonal(r, 0, -2, -1)).detach();
  return {mul(q, signs.unsqueeze(-2)), mul(r, signs.unsqueeze(-1))};
}

void add_qr(Table& table) {
  const auto reference = [](const std::vector<Host>& x) {
    const int64_t m = x[0].sizes[x[0].sizes.dim() - 2], n = x[0].sizes.back(), k = std::min(m, n);
    std::vector<Rows> qs, rs;
    for (const Rows& a : matrices(x[0])) {
      const auto cols = static_cast<size_t>(n);
      const auto [q, r] = gram_schmidt(spread_out(a, cols), cols);
      qs.push_back(q);
      rs.push_back(r);
    }
    return std::vector<Host>{joined(x[0], qs, {m, k}), joined(x[0], rs, {k, n})};
  };
  Row tall = base("qr", positive_qr, {{1, 1}, {3, 3}, {4, 2}, {2, 4, 3}, {2, 2, 3, 2}},
                  {{0, 0}, {3, 0}, {0, 3, 2}}, reference);
  tall.large = {{in({90, 70})}, {in({40, 9, 8})}};
  tall.errors = matrix_errors("qr", [](const Tensor& x) { linalg::qr(x); });
  tall.errors.push_back({"backward of wide",
                         [] {
                           const Tensor a = ones({2, 3}).set_requires_grad();
                           sum(linalg::qr(a).second).backward();
                         },
                         "qr: backward needs at least as many rows as columns; got a=[2, 3]"});
  table.add(tall);
  Row wide = base("qr/wide", positive_qr, {{2, 4}, {2, 1, 3}}, {{0, 3}, {0, 2, 3}}, reference);
  wide.gradient = false;
  table.add(wide);
}

// Eigenvalues and vectors (by rows) of a symmetric matrix by Jacobi's rotations, descending.
std::pair<std::vector<double>, Rows> rotated(Rows a) {
  const size_t n = a.size();
  Rows v = identity(n);
  for (int sweep = 0; sweep < 60; ++sweep) {
    for (size_t p = 0; p < n; ++p) {
      for (size_t q = p + 1; q < n; ++q) {
        if (a[p][q] == 0) continue;
        const double angle = 0.5 * std::atan2(2 * a[p][q], a[q][q] - a[p][p]);
        const double c = std::cos(angle), s = std::sin(angle);
        for (size_t i = 0; i < n; ++i) {
          const double x = a[i][p], y = a[i][q];
          a[i][p] = c * x - s * y;
          a[i][q] = s * x + c * y;
        }
        const auto turn = [c, s, p, q](Rows& rows) {
          for (size_t j = 0; j < rows.size(); ++j) {
            const double x = rows[p][j], y = rows[q][j];
            rows[p][j] = c * x - s * y;
            rows[q][j] = s * x + c * y;
          }
        };
        turn(a);
        turn(v);
      }
    }
  }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t i, size_t j) { return a[i][i] > a[j][j]; });
  std::pair<std::vector<double>, Rows> out;
  for (size_t i : order) {
    out.first.push_back(a[i][i]);
    out.second.push_back(v[i]);
  }
  return out;
}

// 1 or -1: what makes the largest element of a vector positive. spread_out puts that on the
// diagonal of the vectors.
double sign_of(const std::vector<double>& x) {
  const double far = *std::max_element(
      x.begin(), x.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
  return far < 0 ? -1 : 1;
}
Tensor signs_of_columns(const Tensor& x) {
  if (x.numel() == 0) return sum(x, {-2}, true).detach();
  const Tensor far = take_along_dim(x, argmax(abs(x), -2, true), -2);  // [.., 1, K]
  return sign(far).detach();
}

void add_eigh(Table& table) {
  const auto symmetric = [](const Tensor& a) {
    const Tensor far = spread_out(a);
    return add(far, transpose(far, -2, -1));
  };
  Row row = base(
      "eigh",
      [symmetric](const std::vector<Tensor>& x) {
        const auto [values, vectors] = linalg::eigh(symmetric(x[0]));
        return std::vector<Tensor>{values, mul(vectors, signs_of_columns(vectors))};
      },
      kSquare, kSquareEmpty,
      [](const std::vector<Host>& x) {
        const int64_t n = x[0].sizes.back();
        std::vector<Rows> values, vectors;
        for (const Rows& a : matrices(x[0])) {
          Rows s = spread_out(a, a.size());
          const Rows t = transposed(s, a.size());
          for (size_t i = 0; i < s.size(); ++i) {
            for (size_t j = 0; j < s.size(); ++j) s[i][j] += t[i][j];
          }
          auto [l, v] = rotated(s);
          std::reverse(l.begin(), l.end());
          std::reverse(v.begin(), v.end());
          for (auto& e : v) {
            const double sign = sign_of(e);
            for (double& c : e) c *= sign;
          }
          values.push_back({l});
          vectors.push_back(transposed(v, v.size()));
        }
        return std::vector<Host>{joined(x[0], values, {n}), joined(x[0], vectors, {n, n})};
      });
  row.errors = square_errors("eigh", [](const Tensor& x) { linalg::eigh(x); });
  table.add(row);
}

void add_svd(Table& table) {
  Row row = base(
      "svd",
      [](const std::vector<Tensor>& x) {
        const auto [u, s, vh] = linalg::svd(spread_out(x[0]));
        const Tensor signs = signs_of_columns(transpose(vh, -2, -1));
        return std::vector<Tensor>{mul(u, signs), s, mul(vh, transpose(signs, -2, -1))};
      },
      {{1, 1}, {3, 3}, {4, 2}, {2, 4}, {2, 3, 2}, {2, 1, 2, 3}}, {{2, 3, 0}, {0, 2, 3}},
      [](const std::vector<Host>& x) {
        const int64_t m = x[0].sizes[x[0].sizes.dim() - 2], n = x[0].sizes.back();
        const int64_t k = std::min(m, n);
        std::vector<Rows> us, ss, vs;
        for (const Rows& a : matrices(x[0])) {
          const auto cols = static_cast<size_t>(n);
          const Rows far = spread_out(a, cols);
          auto [squares, v] = rotated(product(transposed(far, cols), far));
          squares.resize(static_cast<size_t>(k));
          v.resize(static_cast<size_t>(k));
          Rows u = transposed(product(far, transposed(v, cols)), static_cast<size_t>(k));
          for (size_t i = 0; i < v.size(); ++i) {
            const double s = std::sqrt(squares[i]), sign = sign_of(v[i]);
            squares[i] = s;
            for (double& c : v[i]) c *= sign;
            for (double& c : u[i]) c *= sign / s;
          }
          us.push_back(transposed(u, a.size()));
          ss.push_back({squares});
          vs.push_back(v);
        }
        return std::vector<Host>{joined(x[0], us, {m, k}), joined(x[0], ss, {k}),
                                 joined(x[0], vs, {k, n})};
      });
  row.errors = matrix_errors("svd", [](const Tensor& x) { linalg::svd(x); });
  table.add(row);
}

}  // namespace

void add_spectral_rows(Table& table) {
  add_qr(table);
  add_eigh(table);
  add_svd(table);
}

}  // namespace tarn::optable
