// core_plan_test.cpp - the walk of elementwise kernels: dense where possible, right always.
#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/core/factory.h"
#include "tarn/core/plan.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {

TEST(Plan, dense_operands_of_one_layout_are_one_line) {
  const Tensor a = zeros({2, 3, 4}), b = zeros({2, 3, 4});
  ElementwisePlan p = make_plan({&a, &b});
  EXPECT_TRUE(p.dense);
  EXPECT_EQ(p.ndim, 1);
  EXPECT_EQ(p.sizes[0], 24);
  const TensorOptions last{.format = MemoryFormat::kChannelsLast};
  const Tensor c = zeros({2, 3, 4, 5}, last), d = zeros({2, 3, 4, 5}, last);
  EXPECT_TRUE(make_plan({&c, &d}).dense);
  const Tensor e = raw::transpose(a, 0, 2), f = raw::transpose(b, 0, 2);
  EXPECT_TRUE(make_plan({&e, &f}).dense);  // the same order, whatever it is
}

TEST(Plan, operands_of_two_layouts_are_not) {
  const Tensor a = zeros({2, 3, 4, 5});
  const Tensor b = zeros({2, 3, 4, 5}, {.format = MemoryFormat::kChannelsLast});
  const ElementwisePlan p = make_plan({&a, &b});
  EXPECT_FALSE(p.dense);
  EXPECT_EQ(p.sizes[0], 20);  // the plane, one line in the output
  EXPECT_EQ(p.strides[0][0], 1);
  EXPECT_EQ(p.strides[1][0], 3);
}

TEST(Plan, broadcast_dimensions_have_stride_zero_and_the_rest_merges) {
  const Tensor out = zeros({5, 2, 3}), row = zeros({3}), column = zeros({5, 1, 1});
  ElementwisePlan p = make_plan({&out, &row});
  EXPECT_EQ(p.ndim, 2);
  EXPECT_EQ(p.sizes[0], 3);
  EXPECT_EQ(p.sizes[1], 10);
  EXPECT_EQ(p.strides[1][0], 1);
  EXPECT_EQ(p.strides[1][1], 0);
  p = make_plan({&out, &column});
  EXPECT_EQ(p.ndim, 2);
  EXPECT_EQ(p.sizes[0], 6);
  EXPECT_EQ(p.strides[1][0], 0);
  EXPECT_EQ(p.strides[1][1], 1);
  const Tensor single = zeros({});
  p = make_plan({&out, &single});
  EXPECT_EQ(p.ndim, 1);
  EXPECT_EQ(p.strides[1][0], 0);
  EXPECT_FALSE(p.dense);
}

TEST(Plan, single_elements_are_dense_whatever_their_strides) {
  const Tensor a = zeros({1, 1}), b = raw::as_strided(zeros({9}), {1, 1}, {5, 3}, 2);
  const ElementwisePlan p = make_plan({&a, &b});
  EXPECT_TRUE(p.dense);
  EXPECT_EQ(p.numel, 1);
  EXPECT_EQ(p.sizes[0], 1);
}

TEST(Plan, every_element_is_visited_once_in_any_layout) {
  // Copies between all pairs of layouts, through the plan.
  const Shape sizes{2, 3, 4, 5};
  const Tensor x = raw::view(arange(120), sizes);
  const auto layouts = [&](const Tensor& t) {
    return std::vector<Tensor>{
        t, raw::contiguous(t, MemoryFormat::kChannelsLast),
        raw::permute(raw::contiguous(raw::permute(t, {3, 1, 0, 2})), {2, 1, 3, 0}),
        raw::select(raw::expand(raw::unsqueeze(t, 0), {2, 2, 3, 4, 5}), 0, 1)};
  };
  for (const Tensor& from : layouts(x)) {
    for (const Tensor& like : layouts(x)) {
      const Tensor out = empty_like(like);
      raw::copy_(out, from);
      EXPECT_EQ(out.to_vector<int64_t>(), x.to_vector<int64_t>());
    }
  }
}

TEST(Plan, results_keep_the_layout_of_the_first_full_size_operand) {
  const Tensor image = zeros({2, 3, 4, 5}, {.format = MemoryFormat::kChannelsLast});
  const Tensor bias = zeros({3, 1, 1});
  EXPECT_TRUE(elementwise_output({2, 3, 4, 5}, {&bias, &image}, DType::kF64)
                  .is_contiguous(MemoryFormat::kChannelsLast));
  EXPECT_EQ(elementwise_output({2, 3, 4, 5}, {&bias, &image}, DType::kF64).dtype(), DType::kF64);
  EXPECT_TRUE(elementwise_output({5, 3, 1, 1}, {&bias}, DType::kF32).is_contiguous());
}

TEST(Plan, writes_to_overlapping_elements_are_refused) {
  const Tensor x = zeros({6});
  EXPECT_FALSE(overlaps_itself(x));
  EXPECT_FALSE(overlaps_itself(raw::transpose(zeros({2, 3}), 0, 1)));
  EXPECT_FALSE(overlaps_itself(raw::as_strided(x, {1, 3}, {0, 2}, 0)));
  EXPECT_TRUE(overlaps_itself(raw::expand(zeros({1}), {3})));
  EXPECT_TRUE(overlaps_itself(raw::unfold(x, 0, 3, 1)));
  EXPECT_FALSE(overlaps_itself(raw::unfold(x, 0, 3, 3)));
  EXPECT_FALSE(overlaps_itself(raw::expand(zeros({0, 1}), {0, 3})));
  EXPECT_THROWS_WITH(
      raw::fill_(raw::expand(zeros({1}), {3}), 1), ShapeError,
      "fill_: cannot write in place, elements share memory (an expanded tensor?); got "
      "sizes=[3], strides=[0]; use clone() first");
}

TEST(Plan, reading_what_is_being_written_sees_the_old_values) {
  const Tensor x = raw::to(arange(6), DType::kF32);
  // x[1:] += x[:-1], as if the right side were read first.
  raw::add_(raw::slice(x, 0, 1, 6), raw::slice(x, 0, 0, 5));
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{0, 1, 3, 5, 7, 9}));
  raw::copy_(raw::slice(x, 0, 0, 5), raw::slice(x, 0, 1, 6));
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 3, 5, 7, 9, 9}));
  const Tensor square = raw::view(raw::to(arange(4), DType::kF32), {2, 2});
  raw::copy_(square, raw::transpose(square, 0, 1));
  EXPECT_EQ(square.to_vector<float>(), (std::vector<float>{0, 2, 1, 3}));
  EXPECT_FALSE(overlaps_partly(x, x));
  EXPECT_TRUE(overlaps_partly(raw::slice(x, 0, 0, 4), raw::slice(x, 0, 3, 6)));
  EXPECT_FALSE(overlaps_partly(raw::slice(x, 0, 0, 3), raw::slice(x, 0, 3, 6)));
}

}  // namespace
}  // namespace tarn
