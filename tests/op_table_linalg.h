// op_table_linalg.h - matrices in plain loops and common wrong calls, for the rows of linear
// algebra.
//
// Random matrices may be close to singular, and layouts with stride 0 make them so: each row moves
// its input away from that first, in the call as in the reference.
#pragma once

#include <list>
#include <string>

#include "op_table.h"

namespace tarn::optable {

using Rows = std::vector<std::vector<double>>;

inline Rows zero_rows(int64_t m, int64_t n) {
  return Rows(static_cast<size_t>(m), std::vector<double>(static_cast<size_t>(n), 0));
}

// The matrices of a batch, each by rows.
inline std::vector<Rows> matrices(const Host& x) {
  const int64_t m = x.sizes[x.sizes.dim() - 2], n = x.sizes.back();
  Shape batch(x.sizes.data(), x.sizes.size() - 2);
  std::vector<Rows> out;
  size_t at = 0;
  for (int64_t b = 0; b < batch.numel(); ++b) {
    out.push_back(zero_rows(m, n));
    for (auto& row : out.back()) {
      for (double& v : row) v = x.v[at++];
    }
  }
  return out;
}

// ... and back: the sizes are the batch of x, then `more`.
inline Host joined(const Host& x, const std::vector<Rows>& list,
                   std::initializer_list<int64_t> more) {
  Shape sizes(x.sizes.data(), x.sizes.size() - 2);
  for (const int64_t s : more) sizes.push_back(s);
  std::vector<double> v;
  for (const Rows& m : list) {
    for (const auto& row : m) v.insert(v.end(), row.begin(), row.end());
  }
  return Host(sizes, v);
}

inline Rows transposed(const Rows& x, size_t cols) {
  Rows out(cols, std::vector<double>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < cols; ++j) out[j][i] = x[i][j];
  }
  return out;
}

inline Rows product(const Rows& a, const Rows& b) {
  Rows out(a.size(), std::vector<double>(b.empty() ? 0 : b[0].size(), 0));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < b.size(); ++k) {
      for (size_t j = 0; j < b[k].size(); ++j) out[i][j] += a[i][k] * b[k][j];
    }
  }
  return out;
}

inline Rows identity(size_t n) {
  Rows out(n, std::vector<double>(n, 0));
  for (size_t i = 0; i < n; ++i) out[i][i] = 1;
  return out;
}

inline In in(Shape sizes) {
  return {.sizes = sizes, .low = -1, .high = 1};
}

inline Row base(const char* name, TensorFunction fn, const std::vector<Shape>& shapes,
                const std::vector<Shape>& empty, Reference reference) {
  Row row{.name = name, .fn = std::move(fn), .cases = {}, .reference = std::move(reference)};
  for (const Shape& s : shapes) row.cases.push_back({in(s)});
  for (const Shape& s : empty) row.empty.push_back({in(s)});
  row.halves = false;
  row.rtol = 1e-11;
  row.rtol_f32 = 1e-5;
  return row;
}

inline const std::vector<Shape> kSquare = {{1, 1}, {3, 3}, {2, 3, 3}, {2, 2, 2, 2}};
inline const std::vector<Shape> kSquareEmpty = {{0, 0}, {2, 0, 0}, {0, 3, 3}};

// The wrong calls that all functions of square matrices refuse. Error keeps pointers to its texts:
// they live for ever.
inline const char* text_of(const std::string& op, const char* rest) {
  static std::list<std::string>& texts = *new std::list<std::string>();
  return texts.emplace_back(op + rest).c_str();
}
inline std::vector<Error> matrix_errors(const char* op,
                                        const std::function<void(const Tensor&)>& f) {
  return {{"vector", [f] { f(zeros({3})); },
           text_of(op, ": a must be a matrix or a batch of them, [.., M, N]; got a=[3] f32 cpu")},
          {"half",
           [f] {
             f(zeros({2, 2}, {.dtype = DType::kF16}));
           },
           text_of(op,
                   ": a must be f32 or f64; got a=[2, 2] f16 cpu; convert it with "
                   "to(DType::kF32)")},
          {"integers",
           [f] {
             f(zeros({2, 2}, {.dtype = DType::kI64}));
           },
           text_of(op, ": a must be f32 or f64; got a=[2, 2] i64 cpu")},
          {"undefined", [f] { f(Tensor()); }, text_of(op, ": a must be a tensor")}};
}
inline std::vector<Error> square_errors(const char* op,
                                        const std::function<void(const Tensor&)>& f) {
  std::vector<Error> errors = matrix_errors(op, f);
  errors.push_back({"not square",
                    [f] {
                      f(zeros({2, 3, 4}));
                    },
                    text_of(op,
                            ": a must be square, [.., N, N]; got a=[2, 3, 4] f32 cpu (3 rows, "
                            "4 columns)")});
  return errors;
}

void add_spectral_rows(Table& table);

}  // namespace tarn::optable
