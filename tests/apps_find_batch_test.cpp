// apps_find_batch_test.cpp - the largest batch that fits, and measuring a run.
#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/apps/common/find_batch.h"
#include "tarn/apps/common/peak.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/allocator.h"
#include "tarn/core/error.h"
#include "tarn/core/factory.h"
#include "tarn/core/parallel.h"
#include "tarn/core/random.h"

namespace tarn::apps {
namespace {

TEST(FindLargestTest, powers_of_two_first_then_bisection) {
  std::vector<int64_t> tried;
  const auto fits = [&](int64_t n) {
    tried.push_back(n);
    return n <= 11;
  };
  EXPECT_EQ(find_largest(1000, fits), 11);
  EXPECT_EQ(tried, (std::vector<int64_t>{1, 2, 4, 8, 16, 12, 10, 11}));
}

TEST(FindLargestTest, every_answer_is_found_and_large_ones_nearly) {
  for (int64_t truth = 0; truth <= 70; ++truth) {
    for (const int64_t most : {truth, truth + 1, int64_t{1000}}) {
      const int64_t found = find_largest(most, [&](int64_t n) {
        EXPECT_GE(n, 1);
        EXPECT_LE(n, most);
        return n <= truth;
      });
      EXPECT_LE(found, truth);
      EXPECT_GE(found, truth - truth / 32) << "of at most " << most;
    }
  }
  EXPECT_EQ(find_largest(5, [](int64_t) { return true; }), 5);
}

TEST(FindBatchTest, the_limit_decides_and_is_put_back_as_is_the_random_state) {
  manual_seed(3);
  const float expected = rand({1}).item<float>();
  manual_seed(3);
  const MemorySettings settings{.limit_gib = 64.0 / 1024};
  int64_t found = 0;
  {
    const KeepRandom keep;
    found = find_batch(settings, kCPU, 1 << 20, true, [](int64_t n) {
      const Tensor x = rand({n, 1 << 18});
    });  // n MiB
  }
  EXPECT_GE(found, 32);
  EXPECT_LE(found, 64);
  EXPECT_EQ(rand({1}).item<float>(), expected);
  EXPECT_THROWS_WITH(empty({1 << 25}), OutOfMemoryError,
                     "limit 64.0 MiB");  // as --memory-limit says
  apply_memory_limit({}, kCPU);
  EXPECT_EQ(empty({1 << 25}).numel(), 1 << 25);
}

TEST(FindBatchTest, no_batch_at_all_is_one_clear_error) {
  const MemorySettings settings{.limit_gib = 4.0 / 1024};
  EXPECT_THROWS_WITH(
      find_batch(settings, kCPU, 8, true, [](int64_t) { const Tensor x = empty({1 << 22}); }),
      OutOfMemoryError, "not even a batch of 1 fits");
  EXPECT_THROWS_WITH(
      find_batch(settings, kCPU, 8, true, [](int64_t) { throw ValueError("other"); }), ValueError,
      "other");
  apply_memory_limit({}, kCPU);
}

TEST(RunOrAdviseTest, the_error_says_what_would_fit) {
  const MemorySettings settings{.limit_gib = 0.5};
  const auto too_large = []() -> int { throw OutOfMemoryError("asked for 2.00 GiB"); };
  int64_t most = 0;
  const auto find = [&](int64_t at_most) {
    most = at_most;
    return int64_t{13};
  };
  EXPECT_THROWS_WITH(run_or_advise(settings, kCPU, 64, too_large, find), OutOfMemoryError,
                     "--batch-size 64 does not fit into --memory-limit 0.5; --batch-size 13 would");
  EXPECT_EQ(most, 63);
  EXPECT_THROWS_WITH(run_or_advise(settings, kCPU, 1, too_large, find), OutOfMemoryError,
                     "asked for 2.00 GiB");
  EXPECT_EQ(run_or_advise(
                settings, kCPU, 64, [] { return 7; }, find),
            7);
}

TEST(PeakTest, a_measured_peak_is_above_a_gigaflop_and_draws_no_random_numbers) {
  manual_seed(3);
  const float expected = rand({1}).item<float>();
  manual_seed(3);
  const double peak = measure_peak_gflops(kCPU, DType::kF32);
  EXPECT_GT(peak, 1);
  EXPECT_LT(peak, 500 * num_threads());  // more than any core does: the work was optimised away
  EXPECT_GT(measure_peak_gflops(kCPU, DType::kBF16), 0.1);
  EXPECT_EQ(rand({1}).item<float>(), expected);
}

}  // namespace
}  // namespace tarn::apps
