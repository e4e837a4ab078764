// dist_fault_test.cpp - faults on demand: TARN_FAULT is read once per process, so this program runs
// again for each.
#include <cstdlib>
#include <string>
#include <vector>

#include <sys/wait.h>

#include "tarn/dist/fault.h"
#include "tarn/tests/dist_tools.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::dist {
namespace {

using test::expect_part;
using test::on;

TEST(Fault, is_read_from_text) {
  const Fault f = parse_fault("rank=1 at=20 do=delay:500");
  EXPECT_EQ(f.rank, 1);
  EXPECT_EQ(f.at, 20);
  EXPECT_EQ(f.kind, Fault::Kind::kDelay);
  EXPECT_EQ(f.delay_ms, 500);
  EXPECT_EQ(parse_fault("every=3 rank=0 do=hang").every, 3);
  EXPECT_EQ(parse_fault("rank=0 at=1 do=drop").kind, Fault::Kind::kDrop);
  for (const char* wrong :
       {"", "rank=1", "rank=1 at=2", "rank=1 at=2 do=fly", "rank=x at=2 do=kill",
        "rank=1 at=2 every=3 do=kill", "at=2 do=kill", "rank=1 at=2 do=delay:"}) {
    EXPECT_THROWS_WITH(parse_fault(wrong), ValueError, "TARN_FAULT must be like");
  }
}

// ---- a dropped call. In all of these rank 1 drops its second one, the first after a barrier.

constexpr Millis kLimit{400};

std::vector<std::string> errors(const std::string& transport, int size, const test::Body& body) {
  return test::errors_of(
      transport, size,
      [&](ProcessGroup& g) {
        g.barrier()->wait();
        body(g);
      },
      test::late(kLimit));
}

// The ranks that wait say for whom, and in what; the one that dropped it goes on and learns that.
void drop_collective(const std::string& transport) {
  const auto all = errors(transport, 3, [](ProcessGroup& g) {
    const Tensor x = full({7}, 1, on(g)), y = full({7}, 1, on(g));
    g.all_reduce(x)->wait();
    EXPECT_EQ(g.rank(), 1);
    EXPECT_EQ(x.to_vector<double>(), std::vector<double>(7, 1.0));
    g.all_reduce(y)->wait();
  });
  for (size_t r : {0u, 1u, 2u}) {
    expect_part(all[r], "all_reduce #2 ([7] f32, sum) on rank ");
    expect_part(all[r], "rank 1 did not answer within ");
  }
  expect_part(all[1], "all_reduce #3 ([7] f32, sum) on rank 1 of 3 in group world: rank ");
}

// Another message of the tag does not take the dropped one's place.
void drop_message(const std::string& transport, bool sends, int64_t n) {
  const auto all = errors(transport, 2, [&](ProcessGroup& g) {
    const Tensor x = full({n}, 1, on(g)), y = full({n}, 2, on(g));
    for (const Tensor& t : {x, y}) {
      (sends == (g.rank() == 1) ? g.send(t, 1 - g.rank(), 3) : g.recv(t, 1 - g.rank(), 3))->wait();
    }
  });
  const std::string size = "([" + std::to_string(n) + "] f32, ";
  expect_part(all[0], (sends ? "recv " + size + "from" : "send " + size + "to") +
                          " rank 1, tag 3) on rank 0 of 2 in group world: rank 1 did not answer "
                          "within ");
  expect_part(all[1],
              (sends ? "send " + size + "to" : "recv " + size + "from") + " rank 0, tag 3)");
  expect_part(all[1], "rank 1 did not answer within ");
}

TEST(ChildDrop, runs) {
  const char* transport = std::getenv("TARN_TEST_TRANSPORT");
  const char* mode = std::getenv("TARN_TEST_DROP");
  if (!transport || !mode) GTEST_SKIP() << "only in the processes that Drop starts";
  const std::string what = mode;
  if (what == "collective") return drop_collective(transport);
  drop_message(transport, what.starts_with("send"), what.ends_with("large") ? 100000 : 7);
}

class Drop : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string why = test::why_not(GetParam(), 3);
    if (!why.empty()) GTEST_SKIP() << why;
  }
  // This program again; its exit code.
  int child(const std::string& mode) const {
    const pid_t pid = test::start_again(
        "ChildDrop.runs", {"TARN_FAULT=rank=1 at=2 do=drop", "TARN_TEST_TRANSPORT=" + GetParam(),
                           "TARN_TEST_DROP=" + mode});
    int status = -1;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return status;
  }
};
INSTANTIATE_TEST_SUITE_P(All, Drop, testing::Values("local", "host", "gloo", "nccl"));

TEST_P(Drop, of_a_collective_is_noticed_by_the_others) {
  EXPECT_EQ(child("collective"), 0);
}

TEST_P(Drop, of_a_message_is_noticed_by_the_other_side) {
  for (const char* mode : {"send", "send large", "recv", "recv large"}) {
    EXPECT_EQ(child(mode), 0) << mode;
  }
}

}  // namespace
}  // namespace tarn::dist
