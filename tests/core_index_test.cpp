// core_index_test.cpp - index operations whose operands share memory.
#include "numeric_tools.h"

#include "tarn/core/raw_index.h"

namespace tarn {
namespace {

using namespace testing;  // NOLINT

TEST(IndexTest, indices_in_the_memory_that_is_written_are_read_first) {
  const std::vector<int64_t> start{2, 0, 1}, written{11, 12, 10};
  const Tensor src = labels({10, 11, 12}, {3});  // to places 2, 0 and 1
  const Tensor x = labels(start, {3});
  raw::scatter_(x, 0, x, src);
  EXPECT_EQ(x.to_vector<int64_t>(), written);
  const Tensor y = labels(start, {3});
  raw::index_copy_(y, 0, y, src);
  EXPECT_EQ(y.to_vector<int64_t>(), written);
  const Tensor z = labels(start, {3});
  raw::index_add_(z, 0, z, src, 1);
  EXPECT_EQ(z.to_vector<int64_t>(), (std::vector<int64_t>{2 + 11, 0 + 12, 1 + 10}));
}

TEST(IndexTest, a_0d_source_is_one_element) {
  const Tensor x = zeros({3}), at = labels({1}, {1});
  const Tensor src = tensor(5).set_requires_grad();
  EXPECT_EQ(numbers(scatter(x, 0, at, src)), (Doubles{0, 5, 0}));
  const Tensor y = scatter_add(x, 0, at, src);
  (y * y).sum().backward();
  EXPECT_EQ(src.grad().sizes(), Shape());
  EXPECT_EQ(src.grad().item(), 10);
  expect_error<ShapeError>("scatter: index must not be larger than src", [&] {
    scatter(x, 0, labels({1, 2}, {2}), src);
  });
}

}  // namespace
}  // namespace tarn
