// cuda_index_check_test.cpp - an index out of range is told, touches nothing, and ends nothing.
#include "gpu_tools.h"
#include "tests_throws.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/allocator.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_index.h"
#include "tarn/core/transfer.h"
#include "tarn/cuda/graph.h"
#include "tarn/cuda/index_check.h"
#include "tarn/cuda/launch.h"

namespace tarn {
namespace {

constexpr const char* kHint =
    "on cuda:0; found by an earlier operation, set TARN_CUDA_BLOCKING=1 to see it where it happens";

class CudaIndexCheck : public testing::Test {
 protected:
  void SetUp() override {
    TARN_NEEDS_GPU();
    blocking_ = cuda::set_blocking(false);
  }
  void TearDown() override {
    if (!has_backend(DeviceType::kCUDA)) return;
    EXPECT_NO_THROW(synchronize(kCuda));  // nothing is left behind
    cuda::set_blocking(blocking_);
  }
  static Tensor ints(const std::vector<int64_t>& v, const Shape& sizes) {
    return from_vector(v, sizes).to(kCuda);
  }
  static Tensor rows(int64_t n, int64_t width) {
    return arange(n * width).to(DType::kF32).reshape({n, width}).to(kCuda);
  }

 private:
  bool blocking_ = false;
};

TEST_F(CudaIndexCheck, whoever_waits_next_learns_of_it_and_the_rest_is_right) {
  const Tensor weight = rows(3, 2), index = ints({0, 9, 2, -1}, {2, 2});
  const Tensor out = embedding(weight, index);  // goes on
  EXPECT_THROWS_WITH(synchronize(kCuda), IndexError,
                     "embedding: index 9 at position [0, 1] is out of range for dimension 0 of "
                     "size 3 " +
                         std::string(kHint));
  EXPECT_EQ(out.to_vector<float>(), std::vector<float>({0, 1, 0, 0, 4, 5, 0, 0}));
}

TEST_F(CudaIndexCheck, every_way_to_wait_tells) {
  const Tensor x = rows(3, 1), bad = ints({3}, {1});
  const char* text =
      "index_select: index 3 at position 0 is out of range for dimension 0 of size 3";
  const Tensor out = index_select(x, 0, bad);
  EXPECT_THROWS_WITH(out.to_vector<float>(), IndexError, text);
  EXPECT_EQ(out.to_vector<float>(), std::vector<float>({0}));
  EXPECT_THROWS_WITH(index_select(x, 0, bad).item<float>(), IndexError, text);
  EXPECT_THROWS_WITH(index_select(x, 0, bad).to(kCPU), IndexError, text);
  Event event(kCuda);
  const Tensor again = index_select(x, 0, bad);
  event.record(current_stream(kCuda));
  EXPECT_THROWS_WITH(event.synchronize(), IndexError, text);
  const Tensor more = index_select(x, 0, bad);
  EXPECT_THROWS_WITH(nonzero(x), IndexError, text);  // needs a count on the host
}

TEST_F(CudaIndexCheck, memory_that_comes_back_while_an_error_waits_keeps_it_for_the_user) {
  const Tensor out = index_select(rows(3, 1), 0, ints({3}, {1}));
  const Stream side = backend(DeviceType::kCUDA).create_stream(0, 0);
  {
    const Tensor lent = zeros({1 << 20}, {.device = kCuda});
    record_stream(lent, side);
  }
  EXPECT_THROWS_WITH(empty_cache(kCuda), IndexError, "index 3 at position 0");
  EXPECT_NO_THROW(empty_cache(kCuda));
  backend(DeviceType::kCUDA).destroy_stream(side);
}

TEST_F(CudaIndexCheck, the_first_of_several_is_told_with_its_smallest_position) {
  std::vector<int64_t> many(40000, 1);  // more than one block looks at
  many[39999] = 99;
  many[35000] = 77;
  many[35001] = 88;
  const Tensor x = rows(5, 1);
  const Tensor a = index_select(x, 0, ints(many, {40000}));
  const Tensor b = gather(x, 0, ints({6}, {1, 1}));
  EXPECT_THROWS_WITH(synchronize(kCuda), IndexError, "index_select: index 77 at position 35000 ");
  EXPECT_NO_THROW(synchronize(kCuda));
  const Tensor c = gather(x, 0, ints({6}, {1, 1}));  // and the next is told again
  EXPECT_THROWS_WITH(synchronize(kCuda), IndexError, "gather: index 6 at position [0, 0]");
}

TEST_F(CudaIndexCheck, writes_out_of_range_write_nothing) {
  const Tensor index = ints({1, 5, -3, 0}, {4}), src = rows(4, 3);
  const Tensor added = zeros({2, 3}, {.device = kCuda}), copied = zeros({2, 3}, {.device = kCuda});
  raw::index_add_(added, 0, index, src);
  raw::index_copy_(copied, 0, index, src);
  const Tensor wide = ints({1, 1, 1, 5, 5, 5, -3, -3, -3, 0, 0, 0}, {4, 3});
  const Tensor scattered = zeros({2, 3}, {.device = kCuda});
  raw::scatter_add_(scattered, 0, wide, src);
  EXPECT_THROWS_WITH(synchronize(kCuda), IndexError, "index_add: index 5 at position 1 is");
  const std::vector<float> want = {9, 10, 11, 0, 1, 2};
  EXPECT_EQ(added.to_vector<float>(), want);
  EXPECT_EQ(copied.to_vector<float>(), want);
  EXPECT_EQ(scattered.to_vector<float>(), want);
}

TEST_F(CudaIndexCheck, long_scatters_skip_what_is_out_of_range) {
  std::vector<int64_t> to(300, 2);
  to[7] = 100;
  to[8] = -1;
  const Tensor out = zeros({3}, {.device = kCuda});
  raw::scatter_add_(out, 0, ints(to, {300}), ones({300}, {.device = kCuda}));
  EXPECT_THROWS_WITH(synchronize(kCuda), IndexError, "scatter_add: index 100 at position 7 is");
  EXPECT_EQ(out.to_vector<float>(), std::vector<float>({0, 0, 298}));
}

TEST_F(CudaIndexCheck, an_index_into_nothing_is_out_of_range) {
  const Tensor x = zeros({0, 3}, {.device = kCuda});
  const Tensor out = index_select(x, 0, ints({0}, {1}));
  EXPECT_THROWS_WITH(synchronize(kCuda), IndexError,
                     "index 0 at position 0 is out of range for dimension 0 of size 0");
}

TEST_F(CudaIndexCheck, negative_indices_are_checked_before_they_are_wrapped) {
  const Tensor x = rows(3, 1);
  EXPECT_EQ(index(x, {ints({-1, -3, 2}, {3})}).to_vector<float>(), std::vector<float>({2, 0, 2}));
  const Tensor out = index(x, {ints({-4}, {1})});
  EXPECT_THROWS_WITH(synchronize(kCuda), IndexError,
                     "index: index -4 at position 0 is out of range for dimension 0 of size 3");
}

TEST_F(CudaIndexCheck, targets_are_checked_as_well) {
  raw::check_values(
      ints({1, -100, 0}, {3}),
      {.op = "cross_entropy", .high = 3, .labels = true, .ignore_index = -100, .sizes = {3}});
  EXPECT_NO_THROW(synchronize(kCuda));
  raw::check_values(
      ints({1, -100, 3}, {3}),
      {.op = "cross_entropy", .high = 3, .labels = true, .ignore_index = -100, .sizes = {3}});
  EXPECT_THROWS_WITH(synchronize(kCuda), IndexError,
                     "cross_entropy: targets must be in [0, 3) or equal ignore_index=-100; got 3 "
                     "at position 2 of target=[3] i64 cuda:0");
}

TEST_F(CudaIndexCheck, blocking_the_operation_itself_throws_in_the_words_of_the_cpu) {
  cuda::set_blocking(true);
  const Tensor weight = rows(3, 2);
  try {
    embedding(weight, ints({0, 9}, {2}));
    FAIL() << "nothing was thrown";
  } catch (const IndexError& error) {
    EXPECT_STREQ(error.what(),
                 "embedding: index 9 at position 1 is out of range for dimension 0 of size 3");
  }
  EXPECT_THROWS_WITH(index(weight, {ints({-4}, {1})}), IndexError, "index: index -4 at position 0");
  EXPECT_EQ(index(weight, {ints({-1}, {1})}).to_vector<float>(), std::vector<float>({4, 5}));
  EXPECT_NO_THROW(synchronize(kCuda));
}

TEST_F(CudaIndexCheck, a_recorded_graph_is_not_checked_but_reads_nothing_outside) {
  const Tensor x = rows(3, 2), index = ints({1, 2}, {2});
  const Tensor out = zeros({2, 2}, {.device = kCuda});
  cuda::Graph graph(kCuda);
  graph.capture([&] { raw::copy_(out, raw::index_select(x, 0, index)); });
  raw::copy_(index, ints({2, 3}, {2}));
  graph.replay();
  EXPECT_NO_THROW(synchronize(kCuda));
  EXPECT_EQ(out.to_vector<float>(), std::vector<float>({4, 5, 0, 0}));
}

}  // namespace
}  // namespace tarn
