// core_shape_test.cpp - lists of sizes, strides, broadcasting, dimension numbers.
#include <limits>
#include <sstream>

#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/core/shape.h"

namespace tarn {
namespace {

TEST(Shape, it_is_a_short_list) {
  Shape s{2, 3};
  EXPECT_EQ(s.dim(), 2);
  EXPECT_EQ(s.numel(), 6);
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_TRUE(Shape{}.empty());
  s.insert(1, 5);
  EXPECT_EQ(s, (Shape{2, 5, 3}));
  s.insert(3, 7);
  EXPECT_EQ(s, (Shape{2, 5, 3, 7}));
  s.erase(0);
  EXPECT_EQ(s, (Shape{5, 3, 7}));
  EXPECT_EQ(s.back(), 7);
  EXPECT_TRUE(s.contains(3));
  EXPECT_FALSE(s.contains(2));
  EXPECT_FALSE(s == (Shape{5, 3}));
  EXPECT_EQ(Shape::filled(3, 4), (Shape{4, 4, 4}));
  std::ostringstream out;
  out << s << Shape{};
  EXPECT_EQ(out.str(), "[5, 3, 7][]");
}

TEST(Shape, more_than_eight_dimensions_are_refused) {
  EXPECT_THROWS_WITH(Shape(std::vector<int64_t>(9, 1)), ShapeError,
                     "shape: at most 8 dimensions are supported; got 9");
  Shape full = Shape::filled(8, 1);
  EXPECT_THROWS_WITH(full.push_back(1), ShapeError, "shape: at most 8 dimensions are supported");
}

TEST(Shape, strides_of_dense_tensors) {
  EXPECT_EQ(contiguous_strides({2, 3, 4}), (Shape{12, 4, 1}));
  EXPECT_EQ(contiguous_strides({}), Shape{});
  EXPECT_EQ(contiguous_strides({2, 0, 4}), (Shape{4, 4, 1}));  // a size of 0 counts as 1
  EXPECT_EQ(channels_last_strides({2, 3, 4, 5}), (Shape{60, 1, 15, 3}));
  EXPECT_THROWS_WITH(channels_last_strides({2, 3, 4}), ShapeError,
                     "channels_last: needs 4 dimensions [N, C, H, W]; got [2, 3, 4]");
}

TEST(Shape, dims_by_stride_go_from_the_fastest) {
  EXPECT_EQ(dims_by_stride({12, 4, 1}), (Shape{2, 1, 0}));
  EXPECT_EQ(dims_by_stride({60, 1, 15, 3}), (Shape{1, 3, 2, 0}));
  EXPECT_EQ(dims_by_stride({1, 1}), (Shape{1, 0}));  // equal: last first
  EXPECT_EQ(dims_by_stride({0, 5, 0}), (Shape{2, 0, 1}));
}

TEST(Shape, broadcasting_is_numpys) {
  EXPECT_EQ(broadcast_shapes("op", {2, 1, 3}, {4, 1}), (Shape{2, 4, 3}));
  EXPECT_EQ(broadcast_shapes("op", {}, {2, 3}), (Shape{2, 3}));
  EXPECT_EQ(broadcast_shapes("op", {0}, {1}), (Shape{0}));
  EXPECT_EQ(broadcast_shapes("op", {2, 0}, {2, 1}), (Shape{2, 0}));
  EXPECT_THROWS_WITH(broadcast_shapes("op", {4, 3}, {4}), ShapeError,
                     "op: shapes do not broadcast; got a=[4, 3], b=[4] (dimension 1: 3 vs 4)");
  EXPECT_THROWS_WITH(broadcast_shapes("op", {0}, {2}), ShapeError, "(dimension 0: 0 vs 2)");
}

TEST(Shape, dimension_numbers_wrap) {
  EXPECT_EQ(wrap_dim("op", -1, 3), 2);
  EXPECT_EQ(wrap_dim("op", 2, 3), 2);
  EXPECT_EQ(wrap_dim("op", 0, 0), 0);
  EXPECT_EQ(wrap_dim("op", -1, 0), 0);
  EXPECT_THROWS_WITH(wrap_dim("op", 3, 3), IndexError,
                     "op: dimension out of range; got 3 for a tensor with 3 dimensions (expected "
                     "-3 to 2)");
  EXPECT_THROWS_WITH(wrap_dim("op", -2, 0), IndexError, "(expected -1 to 0)");
}

TEST(Shape, element_counts_do_not_overflow_silently) {
  constexpr int64_t kBig = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(checked_numel("op", {2, 3}), 6);
  EXPECT_EQ(checked_numel("op", {kBig, kBig, 0}), 0);
  EXPECT_THROWS_WITH(checked_numel("op", {kBig, 2}), ShapeError,
                     "op: more elements than 64 bits can count; got [");
  EXPECT_THROWS_WITH(checked_numel("op", {2, -1}), ShapeError,
                     "op: sizes must not be negative; got [2, -1]");
}

}  // namespace
}  // namespace tarn
