// autograd_einsum_test.cpp - einsum and cosine similarity, beside torch 1.13's numbers.
#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/gradcheck.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"

namespace tarn {
namespace {

/// Element i is (3 i^2 + i) mod 13 - 4.
Tensor pattern(const Shape& sizes) {
  std::vector<double> values(static_cast<size_t>(sizes.numel()));
  for (int64_t i = 0; i < sizes.numel(); ++i) {
    values[static_cast<size_t>(i)] = static_cast<double>((3 * i * i + i) % 13 - 4);
  }
  return from_vector(values, sizes);
}

void expect_values(const Tensor& x, const Shape& sizes, const std::vector<int>& want) {
  EXPECT_EQ(x.sizes(), sizes);
  EXPECT_EQ(x.to_vector<int>(), want);
}

TEST(Einsum, multiplies_matrices_by_name) {
  expect_values(einsum("ij,jk", {pattern({2, 3}), pattern({3, 2})}), {2, 2}, {28, 6, 20, 4});
  expect_values(einsum("bij,bjk->ibk", {pattern({2, 2, 3}), pattern({2, 3, 2})}), {2, 2, 2},
                {28, 6, 50, 55, 20, 4, 55, 50});
  expect_values(einsum("Ab,b", {pattern({2, 3}), pattern({3})}), {2}, {25, 6});
  expect_values(einsum("ij,jk,kl->il", {pattern({2, 3}), pattern({3, 2}), pattern({2, 2})}), {2, 2},
                {-130, 0, -92, 0});
  expect_values(einsum("bi,oij,bj->bo", {pattern({2, 2}), pattern({3, 2, 2}), pattern({2, 2})}),
                {2, 3}, {-64, -64, 16, -36, -36, 9});
}

TEST(Einsum, sums_transposes_and_picks_diagonals) {
  expect_values(einsum("ba", {pattern({2, 3})}), {3, 2}, {-4, 0, 0, -4, -3, -2});
  expect_values(einsum("ij->", {pattern({2, 3})}), {}, {-13});
  expect_values(einsum("ii", {pattern({3, 3})}), {}, {-7});
  expect_values(einsum("ii->i", {pattern({3, 3})}), {3}, {-4, -4, 1});
  expect_values(einsum("iij->ji", {pattern({2, 2, 3})}), {3, 2}, {-4, 1, 0, 7, -3, 6});
  expect_values(einsum("ij,ij->ij", {pattern({2, 2}), pattern({2, 2})}), {2, 2}, {16, 0, 9, 0});
  expect_values(einsum("i,j->ij", {pattern({2}), pattern({3})}), {2, 3}, {16, 0, 12, 0, 0, 0});
  expect_values(einsum("ij,kl->", {pattern({2, 2}), pattern({3, 2})}), {}, {91});
}

TEST(Einsum, dots_and_sizes_of_one_broadcast) {
  expect_values(einsum("...i,...i->...", {pattern({2, 1, 3}), pattern({2, 3})}), {2, 2},
                {25, 6, 6, 20});
  expect_values(einsum("...ij,jk", {pattern({2, 1, 3}), pattern({3, 2})}), {2, 1, 2},
                {28, 6, 20, 4});
  expect_values(einsum("ij,ij->j", {pattern({1, 3}), pattern({2, 3})}), {3}, {16, 0, 15});
  expect_values(einsum("... i -> i ...", {pattern({2, 2, 3})}), {3, 2, 2},
                {-4, 0, 6, 1, 0, -4, 7, 7, -3, -2, 1, 6});
}

TEST(Einsum, sizes_of_zero_sum_to_nothing) {
  EXPECT_EQ(einsum("ij,jk->ik", {zeros({2, 0}), zeros({0, 3})}).to_vector<int>(),
            (std::vector<int>(6, 0)));
  EXPECT_EQ(einsum("bij,bjk->bik", {zeros({0, 2, 3}), zeros({0, 3, 4})}).sizes(), (Shape{0, 2, 4}));
}

TEST(Einsum, gradients_of_first_and_second_order_are_right) {
  manual_seed(4);
  const auto check = [](const char* equation, const std::vector<Shape>& sizes) {
    std::vector<Tensor> in;
    for (const Shape& s : sizes) {
      in.push_back(randn(s, {.dtype = DType::kF64}).set_requires_grad());
    }
    const auto f = [&](const std::vector<Tensor>& t) { return einsum(equation, t); };
    EXPECT_TRUE(gradcheck(f, in)) << equation;
    EXPECT_TRUE(gradgradcheck(f, in)) << equation;
  };
  check("bij,bjk->ibk", {{2, 2, 3}, {2, 3, 2}});
  check("bi,oij,bj->bo", {{2, 2}, {3, 2, 2}, {2, 2}});
  check("ii,i", {{3, 3}, {3}});
  check("...i,...i->...", {{2, 1, 3}, {2, 3}});
}

TEST(Einsum, errors_name_the_equation) {
  const Tensor x = ones({2, 3});
  EXPECT_THROWS_WITH(einsum("ij,jk", {x}), ValueError, "'ij,jk' has 2 operands; got 1");
  EXPECT_THROWS_WITH(einsum("ijk->i", {x}), ShapeError, "as many dimensions as letters");
  EXPECT_THROWS_WITH(einsum("i1->i", {x}), ValueError, "'1' is neither a letter");
  EXPECT_THROWS_WITH(einsum("ij->ik", {x}), ValueError, "each letter of the result");
  EXPECT_THROWS_WITH(einsum("ij->ii", {x}), ValueError, "each letter of the result");
  EXPECT_THROWS_WITH(einsum("ii", {x}), ShapeError, "'i' stands for 2 and for 3 in one operand");
  EXPECT_THROWS_WITH(einsum("ij,ik->jk", {x, ones({4, 2})}), ShapeError,
                     "'i' stands for 2 and for 4");
  EXPECT_THROWS_WITH(einsum("......", {x}), ValueError, "a term has '...' once at most");
  EXPECT_THROWS_WITH(einsum("i", {Tensor()}), Error, "einsum");
}

TEST(CosineSimilarity, is_the_product_of_unit_vectors) {
  const Tensor y = cosine_similarity(pattern({2, 3}), pattern({3, 3}).narrow(0, 1, 2));
  EXPECT_EQ(y.sizes(), (Shape{2}));
  EXPECT_NEAR(y[0].item(), 0.268328, 1e-6);
  EXPECT_NEAR(y[1].item(), -0.723364, 1e-6);
  const Tensor columns = cosine_similarity(pattern({3, 2}), pattern({1, 2}) * 2 + 1, 0);
  EXPECT_NEAR(columns[0].item(), 0.991837, 1e-6);
  EXPECT_NEAR(columns[1].item(), -0.57735, 1e-6);
  EXPECT_EQ(cosine_similarity(zeros({1, 3}), ones({1, 3})).item(), 0);
  manual_seed(5);
  Tensor a = randn({2, 3}, {.dtype = DType::kF64}).set_requires_grad();
  Tensor b = randn({1, 3}, {.dtype = DType::kF64}).set_requires_grad();
  EXPECT_TRUE(gradcheck(
      [](const std::vector<Tensor>& t) { return cosine_similarity(t[0], t[1], -1); }, {a, b}));
  EXPECT_THROWS_WITH(cosine_similarity(a, ones({2, 4})), ShapeError, "cosine_similarity");
  EXPECT_THROWS_WITH(cosine_similarity(a, Tensor()), Error, "cosine_similarity");
}

}  // namespace
}  // namespace tarn
