// core_print_test.cpp - printing; the expected texts are what PyTorch 1.13.1 prints, with tarn's
// names of dtypes and shapes.
#include <cmath>
#include <sstream>

#include <gtest/gtest.h>

#include "tarn/core/factory.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {

std::string text(const Tensor& x) {
  std::ostringstream out;
  out << x;
  return out.str();
}

Tensor range(int n, const Shape& sizes, DType dtype) {
  return raw::view(arange(0, n, 1, {.dtype = dtype}), sizes);
}

TEST(PrintTest, aligns_columns_with_four_decimals) {
  EXPECT_EQ(text(tensor({1, 2, 3, 4}, {2, 2})), "tensor([[1., 2.],\n        [3., 4.]])");
  EXPECT_EQ(text(tensor({1.5, -2.25})), "tensor([ 1.5000, -2.2500])");
  EXPECT_EQ(text(tensor({1.5, NAN})), "tensor([1.5000,    nan])");
  EXPECT_EQ(text(tensor({0, NAN, INFINITY, -INFINITY})), "tensor([0., nan, inf, -inf])");
}

TEST(PrintTest, scalars_have_no_brackets) {
  EXPECT_EQ(text(scalar_tensor(3.0)), "tensor(3.)");
  EXPECT_EQ(text(scalar_tensor(2.5)), "tensor(2.5000)");
  EXPECT_EQ(text(scalar_tensor(true, {.dtype = DType::kBool})), "tensor(True)");
  EXPECT_EQ(text(Tensor()), "tensor(undefined)");
}

TEST(PrintTest, turns_scientific_where_decimals_would_mislead) {
  EXPECT_EQ(text(tensor({1e-5, 1})), "tensor([1.0000e-05, 1.0000e+00])");
  EXPECT_EQ(text(tensor({1e9, 1})), "tensor([1.0000e+09, 1.0000e+00])");
  EXPECT_EQ(text(tensor({123456, 1})), "tensor([1.2346e+05, 1.0000e+00])");
}

TEST(PrintTest, shows_the_dtype_where_the_values_do_not) {
  EXPECT_EQ(text(tensor({1, 20, -300}, {.dtype = DType::kI64})), "tensor([   1,   20, -300])");
  EXPECT_EQ(text(tensor({1, 0}, {.dtype = DType::kBool})), "tensor([ True, False])");
  EXPECT_EQ(text(tensor({1, 2}, {.dtype = DType::kF64})), "tensor([1., 2.], dtype=f64)");
  EXPECT_EQ(text(tensor({1, 2}, {.dtype = DType::kU8})), "tensor([1, 2], dtype=u8)");
  EXPECT_EQ(text(tensor({0.1, 0.2}, {.dtype = DType::kF16})),
            "tensor([0.1000, 0.2000], dtype=f16)");
}

TEST(PrintTest, shows_the_size_of_what_is_empty) {
  EXPECT_EQ(text(zeros({0})), "tensor([])");
  EXPECT_EQ(text(zeros({2, 0})), "tensor([], size=[2, 0])");
  EXPECT_EQ(text(zeros({0}, {.dtype = DType::kI64})), "tensor([], dtype=i64)");
}

TEST(PrintTest, breaks_lines_at_eighty_characters) {
  EXPECT_EQ(text(range(30, {30}, DType::kF32)),
            "tensor([ 0.,  1.,  2.,  3.,  4.,  5.,  6.,  7.,  8.,  9., 10., 11., 12., 13.,\n"
            "        14., 15., 16., 17., 18., 19., 20., 21., 22., 23., 24., 25., 26., 27.,\n"
            "        28., 29.])");
}

TEST(PrintTest, separates_matrices_by_blank_lines) {
  EXPECT_EQ(text(range(8, {2, 2, 2}, DType::kI64)),
            "tensor([[[0, 1],\n         [2, 3]],\n\n        [[4, 5],\n         [6, 7]]])");
}

TEST(PrintTest, shows_only_the_edges_of_large_tensors) {
  EXPECT_EQ(text(range(2000, {2, 1000}, DType::kF32)),
            "tensor([[0.0000e+00, 1.0000e+00, 2.0000e+00,  ..., 9.9700e+02, 9.9800e+02,\n"
            "         9.9900e+02],\n"
            "        [1.0000e+03, 1.0010e+03, 1.0020e+03,  ..., 1.9970e+03, 1.9980e+03,\n"
            "         1.9990e+03]])");
  EXPECT_EQ(text(range(1600, {1600}, DType::kI64)),
            "tensor([   0,    1,    2,  ..., 1597, 1598, 1599])");
}

TEST(PrintTest, reads_views_through_their_strides) {
  EXPECT_EQ(text(raw::t(tensor({1, 2, 3, 4}, {2, 2}))), "tensor([[1., 3.],\n        [2., 4.]])");
}

}  // namespace
}  // namespace tarn
