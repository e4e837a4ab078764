// core_allocator_test.cpp - reuse, split and merge, statistics, limit, errors, threads.
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tarn/core/allocator.h"
#include "tarn/core/error.h"
#include "tarn/core/magazine.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/storage.h"

namespace tarn {
namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;
const Stream kHost{kCPU, nullptr};

/// An allocation that is given back at the end of the scope.
class Held {
 public:
  explicit Held(size_t bytes) : allocation_(allocate(bytes, kHost)) {}
  Held(Held&& other) noexcept : allocation_(std::exchange(other.allocation_, {})) {}
  ~Held() { deallocate(allocation_, kCPU); }
  char* ptr() const { return static_cast<char*>(allocation_.ptr); }

 private:
  Allocation allocation_;
};

class AllocatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    empty_cache();
    reset_peak_memory();
    before_ = memory_stats();
  }
  void TearDown() override {
    set_memory_limit(0);
    EXPECT_EQ(memory_stats().allocated, before_.allocated);
  }
  MemoryStats before_;
};

TEST_F(AllocatorTest, size_classes_hold_their_requests_with_little_waste) {
  for (size_t n = 1; n <= detail::kMaxSmallBlock; n = n < 5000 ? n + 1 : n + 97) {
    const int c = detail::size_class(n);
    ASSERT_LT(c, detail::kSizeClasses);
    const size_t size = detail::class_size(c);
    ASSERT_GE(size, n);
    ASSERT_EQ(size % 64, 0u);
    ASSERT_LE(size - n, std::max(size_t{63}, n / 4)) << n;
    if (c > 0) {
      ASSERT_LT(detail::class_size(c - 1), n);
    }
  }
  EXPECT_EQ(detail::class_size(detail::size_class(detail::kMaxSmallBlock)), detail::kMaxSmallBlock);
}

TEST_F(AllocatorTest, every_size_is_aligned_writable_and_apart_from_others) {
  std::vector<Held> held;
  std::vector<size_t> sizes;
  for (size_t n : {size_t{1}, size_t{64}, size_t{65}, size_t{4096}, size_t{4097}, 64 * kKiB,
                   64 * kKiB + 1, kMiB, kMiB + 1, 5 * kMiB, 11 * kMiB}) {
    for (int k = 0; k < 3; ++k) {
      held.emplace_back(n);
      sizes.push_back(n);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(held.back().ptr()) % 64, 0u);
      std::memset(held.back().ptr(), static_cast<int>(held.size()), n);
    }
  }
  for (size_t i = 0; i < held.size(); ++i) {
    EXPECT_EQ(held[i].ptr()[0], static_cast<char>(i + 1));
    EXPECT_EQ(held[i].ptr()[sizes[i] - 1], static_cast<char>(i + 1));
  }
}

TEST_F(AllocatorTest, zero_bytes_give_a_null_pointer) {
  const Allocation a = allocate(0, kHost);
  EXPECT_EQ(a.ptr, nullptr);
  deallocate(a, kCPU);
  EXPECT_EQ(memory_stats().allocations, before_.allocations);
}

TEST_F(AllocatorTest, freed_blocks_are_handed_out_again) {
  for (size_t n : {size_t{100}, 3 * kKiB, 40 * kKiB, 300 * kKiB, 3 * kMiB, 30 * kMiB}) {
    char* first = Held(n).ptr();
    const int64_t calls = memory_stats().system_calls;
    for (int i = 0; i < 5; ++i) EXPECT_EQ(Held(n).ptr(), first) << n;
    EXPECT_EQ(memory_stats().system_calls, calls) << n;
  }
}

TEST_F(AllocatorTest, blocks_split_and_merge_back) {
  // 20 MiB segment: three blocks of 6 MiB beside each other, freed in the order middle, left, right
  // must join to room for one of 10 MiB at the segment's start.
  auto a = std::make_unique<Held>(6 * kMiB);
  auto b = std::make_unique<Held>(6 * kMiB);
  auto c = std::make_unique<Held>(6 * kMiB);
  EXPECT_EQ(b->ptr(), a->ptr() + 6 * kMiB);
  EXPECT_EQ(c->ptr(), b->ptr() + 6 * kMiB);
  char* start = a->ptr();
  const int64_t reserved = memory_stats().reserved;
  b.reset();
  a.reset();
  Held d(10 * kMiB);
  EXPECT_EQ(d.ptr(), start);
  c.reset();
  EXPECT_EQ(Held(9 * kMiB).ptr(), start + 10 * kMiB);
  EXPECT_EQ(memory_stats().reserved, reserved);
}

TEST_F(AllocatorTest, the_tightest_hole_is_used) {
  auto big = std::make_unique<Held>(8 * kMiB);
  const Held wall1(2 * kMiB);
  auto tight = std::make_unique<Held>(4 * kMiB);
  const Held wall2(2 * kMiB);
  char* hole = tight->ptr();
  big.reset();
  tight.reset();
  EXPECT_EQ(Held(4 * kMiB).ptr(), hole);
}

TEST_F(AllocatorTest, statistics_follow_each_block) {
  {
    const Held small(1000), middle(50 * kKiB), large(5 * kMiB);
    const MemoryStats s = memory_stats();
    const auto expected = static_cast<int64_t>(1000 + 50 * kKiB + 5 * kMiB);
    EXPECT_EQ(s.allocated - before_.allocated, expected);
    EXPECT_EQ(s.allocations - before_.allocations, 3);
    EXPECT_GE(s.reserved, s.allocated);
  }
  const MemoryStats s = memory_stats();
  EXPECT_EQ(s.allocated, before_.allocated);
  EXPECT_GE(s.peak_allocated - before_.allocated,
            static_cast<int64_t>(1000 + 50 * kKiB + 5 * kMiB));
  reset_peak_memory();
  EXPECT_EQ(memory_stats().peak_allocated, memory_stats().allocated);
}

TEST_F(AllocatorTest, the_peak_counts_small_blocks) {
  {
    std::vector<Held> held;
    for (int i = 0; i < 1000; ++i) held.emplace_back(512);
  }
  EXPECT_GE(memory_stats().peak_allocated - before_.allocated, 512000);
}

TEST_F(AllocatorTest, tags_follow_the_guard_and_outlive_it) {
  const auto of = [](const MemoryStats& s, MemoryTag tag) {
    return s.by_tag[static_cast<int>(tag)];
  };
  std::vector<Held> held;
  {
    const MemoryTagGuard outer(MemoryTag::kParameters);
    held.emplace_back(100);
    const MemoryTagGuard inner(MemoryTag::kGradients);
    held.emplace_back(3 * kMiB);
  }
  held.emplace_back(200);
  MemoryStats s = memory_stats();
  EXPECT_EQ(of(s, MemoryTag::kParameters) - of(before_, MemoryTag::kParameters), 100);
  EXPECT_EQ(of(s, MemoryTag::kGradients) - of(before_, MemoryTag::kGradients), 3 << 20);
  EXPECT_EQ(of(s, MemoryTag::kOther) - of(before_, MemoryTag::kOther), 200);
  held.clear();
  s = memory_stats();
  EXPECT_EQ(of(s, MemoryTag::kParameters), of(before_, MemoryTag::kParameters));
  EXPECT_EQ(of(s, MemoryTag::kGradients), of(before_, MemoryTag::kGradients));
}

TEST_F(AllocatorTest, empty_cache_returns_what_is_free) {
  { const Held a(30 * kMiB), b(200 * kKiB), c(100); }
  EXPECT_GE(memory_stats().reserved, static_cast<int64_t>(32 * kMiB));
  empty_cache();
  EXPECT_LE(memory_stats().reserved, before_.reserved);
}

TEST_F(AllocatorTest, the_limit_is_kept_by_flushing_first) {
  set_memory_limit(static_cast<size_t>(before_.reserved) + 48 * kMiB);
  { const Held a(30 * kMiB); }
  const Held b(40 * kMiB);  // fits only once the cached 30 MiB went back
  EXPECT_LE(memory_stats().reserved, before_.reserved + static_cast<int64_t>(48 * kMiB));
}

TEST_F(AllocatorTest, out_of_memory_names_sizes_tags_owners_and_advice) {
  set_memory_limit(static_cast<size_t>(before_.reserved) + 64 * kMiB);
  const MemoryTagGuard tag(MemoryTag::kActivations);
  std::vector<Held> held;
  {
    const OpScope op("conv2d");
    held.emplace_back(20 * kMiB);
    held.emplace_back(12 * kMiB);
  }
  {
    const OpScope op("relu");
    held.emplace_back(16 * kMiB);
  }
  try {
    const OpScope op("matmul");
    const Held too_much(24 * kMiB);
    FAIL() << "no error";
  } catch (const OutOfMemoryError& e) {
    const std::string text = e.what();
    for (const char* part :
         {"matmul: out of memory on cpu; asked for 24.0 MiB", "limit", "smaller batch",
          "set_memory_limit()", "activations", "conv2d", "32.0 MiB", "relu", "16.0 MiB"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " in:\n" << text;
    }
    EXPECT_LT(text.find("conv2d"), text.find("relu"));
  }
  const Held after(1 * kMiB);  // the allocator still works
}

TEST_F(AllocatorTest, impossible_sizes_are_an_error_too) {
  EXPECT_THROW(Held(SIZE_MAX), OutOfMemoryError);
  EXPECT_THROW(Held(size_t{1} << 60), OutOfMemoryError);
  try {
    set_memory_limit(10 * kMiB);
    const Held a(100 * kMiB);
  } catch (const OutOfMemoryError& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("the request alone exceeds the limit"), std::string::npos);
    EXPECT_NE(text.back(), '\n');
  }
}

TEST_F(AllocatorTest, the_summary_names_the_owners) {
  const OpScope op("batch_norm");
  const Held a(7 * kMiB), b(100);
  const std::string text = memory_summary();
  for (const char* part : {"memory of cpu", "allocated", "reserved", "by tag", "batch_norm",
                           "7.00 MiB", "(blocks up to 64 KiB)"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in:\n" << text;
  }
}

TEST_F(AllocatorTest, threads_may_free_what_others_allocated) {
  constexpr int kRounds = 200, kPerRound = 50;
  std::vector<Allocation> mailbox[2];
  for (int round = 0; round < kRounds; ++round) {
    std::thread threads[2];
    for (int t = 0; t < 2; ++t) {
      threads[t] = std::thread([&, t, round] {
        for (const Allocation& a : mailbox[t]) {
          EXPECT_EQ(*static_cast<size_t*>(a.ptr), a.size);
          deallocate(a, kCPU);
        }
        mailbox[t].clear();
        for (int i = 0; i < kPerRound; ++i) {
          const size_t n = 8 + static_cast<size_t>((i * 7919 + round * 104729 + t) % 90000);
          const Allocation a = allocate(n, kHost);
          *static_cast<size_t*>(a.ptr) = n;
          mailbox[t].push_back(a);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::swap(mailbox[0], mailbox[1]);
  }
  for (auto& box : mailbox) {
    for (const Allocation& a : box) deallocate(a, kCPU);
  }
}

TEST_F(AllocatorTest, no_block_is_handed_out_twice_under_contention) {
  std::vector<std::vector<Held>> held(4);
  std::vector<std::thread> threads;
  for (auto& mine : held) {
    threads.emplace_back([&mine] {
      for (int i = 0; i < 2000; ++i) {
        { const Held passing(static_cast<size_t>(64 + i % 3000)); }
        if (i % 4 == 0) mine.emplace_back(static_cast<size_t>(64 + i % 3000));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<char*> seen;
  for (auto& mine : held) {
    for (const Held& h : mine) EXPECT_TRUE(seen.insert(h.ptr()).second);
  }
}

// A static that allocates before main() and frees after it.
struct EarlyAndLate {
  Ref<Storage> storage = Storage::create(1000, kCPU);
} early_and_late;

TEST(StorageTest, statics_may_own_storage) {
  std::memset(early_and_late.storage->data(), 1, 1000);
}

TEST(StorageTest, wrap_releases_once_after_the_last_view) {
  char memory[64];
  int released = 0;
  {
    Ref<Storage> a = Storage::wrap(memory, sizeof memory, kCPU, [&] { ++released; });
    const Ref<Storage> b = a;
    EXPECT_EQ(a->data(), memory);
    a = Ref<Storage>();
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
  Storage::wrap(memory, sizeof memory, kCPU, {});
}

#if defined(__SANITIZE_ADDRESS__)
TEST(AllocatorDeathTest, use_after_free_of_cached_memory_is_caught) {
  for (size_t n : {size_t{100}, 2 * kMiB}) {
    const Allocation a = allocate(n, kHost);
    deallocate(a, kCPU);
    EXPECT_DEATH(static_cast<volatile char*>(a.ptr)[10] = 1, "use-after-poison");
    const Allocation b = allocate(n, kHost);
    EXPECT_DEATH(static_cast<volatile char*>(b.ptr)[n] = 1, "use-after-poison");
    deallocate(b, kCPU);
  }
}
#endif

}  // namespace
}  // namespace tarn
