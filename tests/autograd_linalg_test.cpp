// autograd_linalg_test.cpp - linear algebra: what the op table cannot say. Factors multiply back to
// the matrix, at all sizes; layouts; singular matrices; NaN; gradients of what no sign changes.
#include <cmath>
#include <limits>

#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/gradcheck.h"
#include "tarn/core/factory.h"
#include "tarn/core/parallel.h"
#include "tarn/core/random.h"

namespace tarn {
namespace {

constexpr DType kF64 = DType::kF64;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class Linalg : public ::testing::Test {
 protected:
  void SetUp() override { manual_seed(7); }
};

Tensor normal(const Shape& sizes, DType dtype = kF64) {
  return randn(sizes, {.dtype = dtype});
}
Tensor swapped(const Tensor& x) {
  return transpose(x, -2, -1);
}
Tensor one(int64_t n) {
  return eye(n, n, {.dtype = kF64});
}
/// The largest |a - b|, in f64.
double distance(const Tensor& a, const Tensor& b) {
  return amax(abs(sub(to(a, kF64), to(b, kF64)))).item();
}
Tensor definite(const Tensor& a) {
  return add(matmul(a, swapped(a)), one(a.size(-1)).to(a.dtype()));
}
double epsilon(DType dtype) {
  return dtype == kF64 ? 1e-13 : 3e-5;
}

// Eigen's algorithms change with the size: blocks, and divide and conquer from 64 on.
const std::vector<Shape> kShapes = {{1, 1},   {2, 2},   {5, 3},    {3, 5},     {17, 17},
                                    {33, 40}, {70, 66}, {66, 130}, {150, 150}, {3, 2, 9, 6}};

TEST_F(Linalg, factors_multiply_back_to_the_matrix) {
  for (const DType dtype : {kF64, DType::kF32}) {
    for (const Shape& sizes : kShapes) {
      SCOPED_TRACE(testing::Message() << sizes << " " << dtype);
      const Tensor a = normal(sizes, dtype);
      const double bound = epsilon(dtype) * static_cast<double>(sizes.back() + 1);
      const int64_t k = std::min(a.size(-2), a.size(-1));
      const auto [q, r] = linalg::qr(a);
      EXPECT_LT(distance(matmul(q, r), a), bound);
      EXPECT_LT(distance(matmul(swapped(q), q), one(k)), bound);
      EXPECT_EQ(distance(r, triu(r)), 0);
      const auto [u, s, vh] = linalg::svd(a);
      EXPECT_LT(distance(matmul(mul(u, s.unsqueeze(-2)), vh), a), bound);
      EXPECT_LT(distance(matmul(swapped(u), u), one(k)), bound);
      EXPECT_LT(distance(matmul(vh, swapped(vh)), one(k)), bound);
      EXPECT_EQ(distance(s, sort(s, -1, true).first), 0);
      EXPECT_GE(amin(s).item(), 0);
    }
  }
}

TEST_F(Linalg, square_matrices_too) {
  for (const DType dtype : {kF64, DType::kF32}) {
    for (const int64_t n : {1, 2, 7, 16, 33, 70, 150}) {
      SCOPED_TRACE(testing::Message() << n << " " << dtype);
      const Tensor a = normal({2, n, n}, dtype), spd = definite(a);
      const double bound = epsilon(dtype) * static_cast<double>(n * n + 10);
      const Tensor lower = linalg::cholesky(spd);
      EXPECT_LT(distance(matmul(lower, swapped(lower)), spd), bound);
      EXPECT_EQ(distance(lower, tril(lower)), 0);
      const auto [l, v] = linalg::eigh(spd);
      EXPECT_LT(distance(matmul(mul(v, l.unsqueeze(-2)), swapped(v)), spd), bound);
      EXPECT_LT(distance(matmul(swapped(v), v), one(n)), bound);
      EXPECT_EQ(distance(l, sort(l, -1).first), 0);
      EXPECT_LT(distance(matmul(linalg::inv(spd), spd), one(n)), bound);
      const Tensor b = normal({2, n, 3}, dtype);
      EXPECT_LT(distance(matmul(spd, linalg::solve(spd, b)), b), bound);
      const auto [sign, logabs] = linalg::slogdet(spd);
      EXPECT_EQ(distance(sign, ones({2})), 0);
      EXPECT_LT(distance(logabs, log(l).sum(-1)), bound);
    }
  }
}

TEST_F(Linalg, svd_and_eigh_of_degenerate_matrices) {
  for (const int64_t n : {5, 40, 70, 130}) {
    const Tensor few = normal({n, 2}), row = normal({1, n});
    const std::vector<Tensor> matrices = {
        zeros({n, n}, {.dtype = kF64}),       one(n),
        ones({n, n}, {.dtype = kF64}),        matmul(few, few.t()),  // of rank 2
        mul(one(n), gt(row, 0).to(kF64)),                            // a projection
        mul(definite(normal({n, n})), 1e-30),                        // squares leave f32
        mul(definite(normal({n, n})), 1e25)};
    for (size_t i = 0; i < matrices.size(); ++i) {
      for (const DType dtype : {kF64, DType::kF32}) {
        SCOPED_TRACE(testing::Message() << "matrix " << i << ", " << n << " " << dtype);
        const Tensor a = matrices[i].to(dtype);
        const double bound = epsilon(dtype) * static_cast<double>(n);
        const double scale = std::max(amax(abs(a)).item(), 1e-200) * static_cast<double>(n);
        const auto [u, s, vh] = linalg::svd(a);
        EXPECT_LT(distance(matmul(mul(u, s.unsqueeze(-2)), vh), a) / scale, bound);
        EXPECT_LT(distance(matmul(swapped(u), u), one(n)), bound);
        EXPECT_LT(distance(matmul(vh, swapped(vh)), one(n)), bound);
        const auto [l, v] = linalg::eigh(a);
        EXPECT_LT(distance(matmul(mul(v, l.unsqueeze(-2)), swapped(v)), a) / scale, bound);
        EXPECT_LT(distance(matmul(swapped(v), v), one(n)), bound);
      }
    }
  }
}

TEST_F(Linalg, determinants_of_large_matrices_overflow_and_their_logarithms_do_not) {
  const Tensor a = mul(one(200), 1000);
  EXPECT_TRUE(std::isinf(linalg::det(a).item()));
  EXPECT_NEAR(linalg::slogdet(neg(a)).second.item(), 200 * std::log(1000.0), 1e-9);
  EXPECT_EQ(linalg::slogdet(neg(a)).first.item(), 1);  // (-1)^200
  EXPECT_NEAR(linalg::det(tensor({{1, 2}, {3, 4}})).item(), -2, 1e-6);
  // 1e30 * 1e30 leaves f32 on the way to 1e30 * 1e30 * 1e-30.
  EXPECT_NEAR(linalg::det(mul(eye(3, 3), tensor({1e30, 1e30, 1e-30}))).item() / 1e30, 1, 1e-5);
}

TEST_F(Linalg, singular_matrices_have_determinant_0) {
  const Tensor a = tensor({{1, 2}, {2, 4}}, {.dtype = kF64});
  EXPECT_EQ(linalg::det(a).item(), 0);
  const auto [sign, logabs] = linalg::slogdet(a);
  EXPECT_EQ(sign.item(), 0);
  EXPECT_EQ(logabs.item(), -std::numeric_limits<double>::infinity());
  // The gradient is the matrix of cofactors all the same: [[4, -2], [-2, 1]].
  const Tensor x = a.clone().set_requires_grad();
  linalg::det(x).backward();
  EXPECT_LT(distance(x.grad(), tensor({{4, -2}, {-2, 1}})), 1e-12);
  const Tensor batch = stack({a, one(2), zeros({2, 2}, {.dtype = kF64})}).set_requires_grad();
  linalg::det(batch).sum().backward();
  EXPECT_LT(distance(batch.grad()[0], tensor({{4, -2}, {-2, 1}})), 1e-12);
  EXPECT_LT(distance(batch.grad()[1], one(2)), 1e-12);
  EXPECT_EQ(distance(batch.grad()[2], zeros({2, 2})), 0);
  EXPECT_THROWS_WITH(linalg::det(x).backward({}, false, true), ValueError,
                     "inv: the matrix is singular");
  EXPECT_THROWS_WITH(linalg::slogdet(x).second.backward(), ValueError,
                     "inv: the matrix is singular");
  EXPECT_THROWS_WITH(linalg::inv(stack({one(2), one(2), a})), ValueError,
                     "inv: matrix [2] of the batch is singular; got a=[3, 2, 2] f64 cpu");
}

TEST_F(Linalg, any_strides_give_what_dense_ones_give) {
  const Tensor whole = normal({9, 2, 9}), a = add(whole.permute({1, 0, 2}), one(9), 10);
  const Tensor sliced = a.slice(1, 0, 9, 2).slice(2, 0, 9, 2), turned = swapped(sliced);
  ASSERT_FALSE(sliced.is_contiguous());
  for (const Tensor& x : {sliced, turned, expand(sliced[0], {3, 5, 5})}) {
    const Tensor dense = x.clone().contiguous();
    EXPECT_TRUE(equal(linalg::inv(x), linalg::inv(dense)));
    EXPECT_TRUE(equal(linalg::det(x), linalg::det(dense)));
    EXPECT_TRUE(equal(linalg::slogdet(x).second, linalg::slogdet(dense).second));
    EXPECT_TRUE(equal(linalg::solve(x, x), linalg::solve(dense, dense)));
    EXPECT_TRUE(equal(linalg::qr(x).first, linalg::qr(dense).first));
    EXPECT_TRUE(equal(std::get<1>(linalg::svd(x)), std::get<1>(linalg::svd(dense))));
    EXPECT_TRUE(equal(linalg::eigh(x).first, linalg::eigh(dense).first));
    const Tensor spd = definite(x);
    EXPECT_TRUE(equal(linalg::cholesky(swapped(spd)), linalg::cholesky(swapped(spd).contiguous())));
  }
}

TEST_F(Linalg, cholesky_and_eigh_read_the_lower_triangle) {
  const Tensor a = definite(normal({5, 5}));
  const Tensor lower = add(tril(a), triu(full({5, 5}, kNaN, {.dtype = kF64}), 1));
  EXPECT_TRUE(equal(linalg::cholesky(lower), linalg::cholesky(a)));
  EXPECT_TRUE(equal(linalg::eigh(lower).first, linalg::eigh(a).first));
}

TEST_F(Linalg, results_do_not_depend_on_the_number_of_threads) {
  const Tensor a = normal({64, 20, 20}), big = normal({80, 80});
  const int threads = num_threads();
  const auto all = [&] {
    return std::vector<Tensor>{linalg::inv(a),         linalg::cholesky(definite(a)),
                               linalg::qr(a).first,    std::get<0>(linalg::svd(a)),
                               linalg::eigh(a).second, std::get<0>(linalg::svd(big)),
                               linalg::inv(big)};
  };
  set_num_threads(1);
  const std::vector<Tensor> alone = all();
  set_num_threads(3);
  const std::vector<Tensor> together = all();
  set_num_threads(threads);
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(equal(alone[i], together[i])) << i;
}

TEST_F(Linalg, nan_and_infinity_give_nan_and_end) {
  for (const double odd : {kNaN, std::numeric_limits<double>::infinity()}) {
    for (const int64_t n : {1, 3, 20, 100}) {
      SCOPED_TRACE(testing::Message() << odd << " " << n);
      Tensor a = definite(normal({2, n, n}));
      const Tensor clean = a[1].clone();
      a[0].select(0, n - 1).select(0, 0).fill_(odd);
      const auto nan = [](const Tensor& x) { return any(isnan(x)).item<bool>(); };
      const auto [l, v] = linalg::eigh(a);
      EXPECT_TRUE(nan(l[0]) && nan(v[0]));
      EXPECT_TRUE(equal(l[1], linalg::eigh(clean).first)) << "the rest of the batch is whole";
      const auto [u, s, vh] = linalg::svd(a);
      EXPECT_TRUE(nan(u[0]) && nan(s[0]) && nan(vh[0]));
      EXPECT_TRUE(equal(s[1], std::get<1>(linalg::svd(clean))));
      if (!std::isnan(odd)) continue;
      EXPECT_TRUE(nan(linalg::qr(a).first[0]) || nan(linalg::qr(a).second[0]));
      EXPECT_TRUE(nan(linalg::det(a)[0]) && !nan(linalg::det(a)[1]));
      EXPECT_TRUE(nan(linalg::slogdet(a).second[0]));
      EXPECT_TRUE(nan(linalg::inv(a)[0]) && !nan(linalg::inv(a)[1]));
      EXPECT_TRUE(nan(linalg::solve(a, ones({2, n}, {.dtype = kF64}))[0]));
      EXPECT_TRUE(nan(linalg::cholesky(a)[0]));
    }
  }
}

TEST_F(Linalg, gradients_of_what_no_sign_changes_are_right_twice) {
  const auto check = [](const char* what, const Shape& sizes, auto f) {
    SCOPED_TRACE(what);
    const Tensor x = normal(sizes).set_requires_grad();
    const auto fn = [f](const std::vector<Tensor>& in) { return f(in[0]); };
    EXPECT_TRUE(gradcheck(fn, {x}, {.atol = 1e-7, .rtol = 1e-5}));
    EXPECT_TRUE(gradgradcheck(fn, {x}, {.atol = 1e-6, .rtol = 1e-4}));
  };
  const Tensor w = normal({4, 4});
  check("projection on the two largest eigenvalues", {4, 4}, [w](const Tensor& a) {
    const Tensor v = linalg::eigh(add(a, a.t())).second.slice(1, 2, 4);
    return sum(mul(w, matmul(v, v.t())));
  });
  check("u vh", {4, 3}, [w](const Tensor& a) {
    const auto [u, s, vh] = linalg::svd(a);
    return sum(mul(w.slice(1, 0, 3), matmul(u, vh)));
  });
  check("u f(s) vh", {3, 4}, [w](const Tensor& a) {
    const auto [u, s, vh] = linalg::svd(a);
    return sum(mul(w.slice(0, 0, 3), matmul(mul(u, sin(s).unsqueeze(-2)), vh)));
  });
  check("sum of singular values", {2, 3, 2},
        [](const Tensor& a) { return sum(std::get<1>(linalg::svd(a))); });
  check("projection on the columns", {4, 2}, [w](const Tensor& a) {
    const Tensor q = linalg::qr(a).first;
    return sum(mul(w, matmul(q, q.t())));
  });
  check("log |r|", {3, 3},
        [](const Tensor& a) { return sum(log(abs(diagonal(linalg::qr(a).second)))); });
  check("logarithm of a normal density", {3, 3}, [](const Tensor& a) {
    const Tensor lower = linalg::cholesky(definite(a));
    const Tensor z = linalg::solve(lower, ones({3}, {.dtype = kF64}));
    return sub(mul(sum(square(z)), -0.5), sum(log(diagonal(lower))));
  });
}

TEST_F(Linalg, gradients_agree_with_each_other) {
  const Tensor spd = definite(normal({4, 4})).set_requires_grad();
  // log det a four ways; its gradient is the inverse of a.
  linalg::slogdet(spd).second.backward();
  const Tensor want = linalg::inv(spd.detach());
  EXPECT_LT(distance(spd.grad(), want), 1e-12);
  const auto check = [&](const Tensor& loss) {
    spd.zero_grad();
    loss.backward();
    EXPECT_LT(distance(spd.grad(), want), 1e-11);
  };
  check(log(linalg::det(spd)));
  check(mul(sum(log(diagonal(linalg::cholesky(spd)))), 2));
  check(sum(log(linalg::eigh(spd).first)));
  check(sum(log(std::get<1>(linalg::svd(spd)))));
  check(sum(log(abs(diagonal(linalg::qr(spd).second)))));
}

TEST_F(Linalg, sign_of_slogdet_is_a_constant) {
  const Tensor a = definite(normal({3, 3})).set_requires_grad();
  const auto [sign, logabs] = linalg::slogdet(a);
  EXPECT_FALSE(sign.requires_grad());
  EXPECT_TRUE(logabs.requires_grad());
}

TEST_F(Linalg, runs_in_f32_under_autocast) {
  const Tensor a = definite(normal({3, 3})).to(DType::kF32);
  const Tensor low = a.to(DType::kBF16).set_requires_grad();
  const AutocastGuard autocast(DeviceType::kCPU);
  EXPECT_EQ(linalg::inv(low).dtype(), DType::kF32);
  EXPECT_EQ(linalg::det(low).dtype(), DType::kF32);
  EXPECT_EQ(linalg::slogdet(low).second.dtype(), DType::kF32);
  EXPECT_EQ(linalg::solve(low, a).dtype(), DType::kF32);
  EXPECT_EQ(linalg::cholesky(low).dtype(), DType::kF32);
  EXPECT_EQ(linalg::qr(low).first.dtype(), DType::kF32);
  EXPECT_EQ(linalg::eigh(low).first.dtype(), DType::kF32);
  EXPECT_EQ(std::get<0>(linalg::svd(low)).dtype(), DType::kF32);
  linalg::det(low).backward();
  EXPECT_EQ(low.grad().dtype(), DType::kBF16);
}

}  // namespace
}  // namespace tarn
