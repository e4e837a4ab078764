// core_leak_guard_test.cpp - LeakGuard counts what grows and names it; memory tags that change.
#include <thread>
#include <vector>

#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/core/error.h"
#include "tarn/core/factory.h"
#include "tarn/core/leak_guard.h"
#include "tarn/core/retag.h"

namespace tarn {
namespace {

TEST(LeakGuardTest, what_is_freed_again_is_no_growth) {
  const LeakGuard leaks;
  { const Tensor x = ones({100}), y = ones({1 << 20}); }
  EXPECT_EQ(leaks.total().bytes, 0);
  EXPECT_EQ(leaks.report(), "");
  leaks.check("nothing");
}

TEST(LeakGuardTest, growth_is_named_by_operation_and_size) {
  std::vector<Tensor> kept;
  const LeakGuard leaks;
  {
    const OpScope op("hoard");
    kept.push_back(empty({256}));
    kept.push_back(empty({1 << 18}));
  }
  const auto by_operation = leaks.by_operation();
  ASSERT_EQ(by_operation.size(), 1u);
  EXPECT_EQ(by_operation[0].op, "hoard");
  EXPECT_EQ(by_operation[0].bytes, 1024 + (4 << 18));
  EXPECT_EQ(by_operation[0].blocks, 2);
  EXPECT_THROWS_WITH(leaks.check("a step"), Error,
                     "a step: grew by 1.00 MiB in 2 blocks and by 0 records of the tape: hoard");
}

TEST(LeakGuardTest, from_a_mark_on_what_replaces_what_was_there_is_no_growth) {
  Tensor state = empty({1000});
  LeakGuard leaks;
  Tensor mine = empty({500});
  leaks.mark();
  state = empty({1000});  // the old one is from before the guard
  mine = empty({500});    // the old one is from before the mark
  EXPECT_EQ(leaks.total().bytes, 0);
  EXPECT_EQ(leaks.report(), "");
  mine = empty({501});
  EXPECT_EQ(leaks.total().bytes, 4);
  EXPECT_NE(leaks.report(), "");
}

TEST(LeakGuardTest, other_threads_count) {
  Tensor kept;
  const LeakGuard leaks;
  std::thread([&] { kept = empty({10}); }).join();
  EXPECT_EQ(leaks.total().bytes, 40);
}

int64_t tagged(MemoryTag tag) {
  return memory_stats().by_tag[static_cast<int>(tag)];
}

TEST(RetagTest, bytes_move_between_tags_once_and_leave_with_the_new_one) {
  for (const int64_t n : {int64_t{10}, int64_t{1} << 18}) {  // a small block and a large one
    const int64_t others = tagged(MemoryTag::kOther), kept = tagged(MemoryTag::kActivations);
    Tensor x = empty({n});
    retag(*x.storage(), MemoryTag::kOther, MemoryTag::kActivations);
    retag(*x.storage(), MemoryTag::kOther, MemoryTag::kParameters);  // is not kOther any more
    EXPECT_EQ(tagged(MemoryTag::kActivations), kept + 4 * n);
    EXPECT_EQ(tagged(MemoryTag::kOther), others);
    x = Tensor();
    EXPECT_EQ(tagged(MemoryTag::kActivations), kept);
    EXPECT_EQ(tagged(MemoryTag::kOther), others);
  }
}

TEST(RetagTest, threads_that_keep_one_tensor_count_it_once) {
  const int64_t kept = tagged(MemoryTag::kActivations);
  std::vector<Tensor> all;
  for (int i = 0; i < 500; ++i) all.push_back(empty({16}));
  const auto keep = [&] {
    for (Tensor& x : all) retag(*x.storage(), MemoryTag::kOther, MemoryTag::kActivations);
  };
  std::thread a(keep), b(keep);
  a.join();
  b.join();
  EXPECT_EQ(tagged(MemoryTag::kActivations), kept + 500 * 64);
  all.clear();
  EXPECT_EQ(tagged(MemoryTag::kActivations), kept);
}

}  // namespace
}  // namespace tarn
