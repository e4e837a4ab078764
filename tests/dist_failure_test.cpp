// dist_failure_test.cpp - wrong calls, ranks that are late or leave: no wait without an end, and
// every error says which rank and which operation. Processes that die: dist_dead_rank_test.cpp.
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "tarn/core/views.h"
#include "tarn/dist/init.h"
#include "tarn/dist/recorder.h"
#include "tarn/tests/dist_tools.h"
#include "tarn/tests/temp_folder.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::dist {
namespace {

using test::error_without_rank_1;
using test::errors_of;
using test::expect_part;
using test::on;
using test::quick;
using test::wait_until_done;

// ---- arguments

TEST(GroupArguments, what_a_caller_can_get_wrong_is_said) {
  const auto group = make_local_groups(2)[0];
  ProcessGroup& g = *group;
  const Tensor x = zeros({2, 3});
  EXPECT_THROWS_WITH((void)g.all_reduce(Tensor()), ValueError, "all_reduce: a tensor is undefined");
  EXPECT_THROWS_WITH((void)g.all_reduce(std::vector<Tensor>{}), ValueError,
                     "all_reduce: needs at least one tensor");
  EXPECT_THROWS_WITH((void)g.all_reduce(x, ReduceOp::kBitOr), DTypeError,
                     "bit_or is for integers and bool; got f32");
  EXPECT_THROWS_WITH((void)g.all_reduce(zeros({2}, {.dtype = DType::kI32}), ReduceOp::kAvg),
                     DTypeError, "avg is for floating dtypes; got i32; use sum");
  EXPECT_THROWS_WITH((void)g.all_reduce(raw::expand(zeros({1}), {4})), ValueError,
                     "all_reduce: cannot write into an expanded tensor; got [4] f32 cpu");
  EXPECT_THROWS_WITH((void)g.all_reduce({x, zeros({2}, {.dtype = DType::kF64})}), DTypeError,
                     "all_reduce: all tensors must have one dtype; got f32 and f64");
  EXPECT_THROWS_WITH((void)g.broadcast(x, 2), ValueError,
                     "broadcast: root must be in [0, 2) in group world; got 2");
  EXPECT_THROWS_WITH((void)g.reduce(x, -1), ValueError, "reduce: root must be in [0, 2)");
  EXPECT_THROWS_WITH((void)g.all_gather(zeros({5, 3}), x), ShapeError,
                     "all_gather: out must be [2, 2, 3] for 2 ranks with parts of [2, 3]; got");
  EXPECT_THROWS_WITH((void)g.all_gather(std::vector<Tensor>{x}, x), ValueError,
                     "needs one tensor for each of the 2 ranks of group world; got 1");
  EXPECT_THROWS_WITH((void)g.all_gather(std::vector<Tensor>{zeros({1}), x}, x), ShapeError,
                     "all_gather: outs[0] must be of the size of x");
  EXPECT_THROWS_WITH((void)g.all_gather_coalesced(std::vector<Tensor>{}, {x}), ValueError,
                     "got 0 outs for 1 tensors");
  EXPECT_THROWS_WITH((void)g.reduce_scatter(x, zeros({3, 3})), ShapeError,
                     "reduce_scatter: x must be [2, 2, 3]");
  EXPECT_THROWS_WITH((void)g.reduce_scatter_coalesced({x}, {}), ValueError,
                     "got 1 outs for 0 tensors");
  EXPECT_THROWS_WITH((void)g.all_to_all(zeros({3}), zeros({3})), ShapeError,
                     "all_to_all: x and out must be alike, with a first size that 2 ranks divide");
  EXPECT_THROWS_WITH((void)g.gather({}, x, 0), ValueError, "gather: needs one tensor for each");
  EXPECT_THROWS_WITH((void)g.scatter(x, {zeros({1}), x}, 0), ShapeError,
                     "scatter: xs[0] must be of the size of out");
  EXPECT_THROWS_WITH((void)g.send(x, 0), ValueError, "a rank cannot send to itself");
  EXPECT_THROWS_WITH((void)g.recv(x, 0), ValueError, "a rank cannot receive from itself");
  EXPECT_THROWS_WITH((void)g.send(x, 1, -1), ValueError, "send: the tag must be in [0, 1048576)");
  EXPECT_THROWS_WITH((void)g.recv(x, 1, kMaxTag), ValueError, "recv: the tag must be in");
  EXPECT_THROWS_WITH((void)g.subgroup(std::vector<int>{}), ValueError, "at least one rank");
  EXPECT_THROWS_WITH((void)g.subgroup(std::vector<int>{0, 2}), ValueError,
                     "subgroup: every rank must be in [0, 2)");
  EXPECT_THROWS_WITH((void)g.subgroup(std::vector<int>{1, 0, 1}), ValueError,
                     "subgroup: rank 1 is named twice");
  EXPECT_THROWS_WITH(make_local_groups(0), ValueError, "needs at least one rank; got 0");
  EXPECT_THROWS_WITH(make_local_groups(1, {.timeout = Millis(0)}), ValueError,
                     "timeouts must be positive");
}

TEST(GroupInit, a_world_of_one_needs_no_launcher) {
  const auto group = init_process_group(Environment{}, {});
  EXPECT_EQ(group->size(), 1);
  const Tensor x = full({3}, 2);
  group->all_reduce(x)->wait();
  EXPECT_EQ(x.to_vector<double>(), std::vector<double>(3, 2.0));
  EXPECT_THROWS_WITH(init_process_group(Environment{}, {.transport = "mpi"}), ValueError,
                     "transport must be auto, host, gloo or nccl; got \"mpi\"");
  EXPECT_THROWS_WITH(make_store(Environment{}, {.meet = "tcp://x"}), ValueError,
                     "ranks meet at \"env://\" or \"file:///folder\"; got \"tcp://x\"");
}

TEST(GroupInit, the_environment_chooses_where_the_program_does_not) {
  setenv("TARN_DIST_TRANSPORT", "gloo", 1);
  EXPECT_EQ(chosen_transport("auto"), "gloo");
  EXPECT_EQ(chosen_transport("host"), "host");
  unsetenv("TARN_DIST_TRANSPORT");
  EXPECT_EQ(chosen_transport("auto"), "auto");
}

TEST(GroupInit, a_build_without_gloo_says_so) {
  if (gloo_available()) GTEST_SKIP() << "built with Gloo";
  EXPECT_THROWS_WITH(make_gloo_group(std::make_shared<MemoryStore>(), 0, 1), UnsupportedError,
                     "this build of tarn has no Gloo");
}

TEST(GroupInit, missing_ranks_are_named) {
  if (!gloo_available()) GTEST_SKIP() << "built without Gloo";
  const auto store = std::make_shared<MemoryStore>();
  EXPECT_THROWS_WITH(make_gloo_group(store, 0, 3, {.group = quick(Millis(80))}), TimeoutError,
                     "group world: ranks 1, 2 of 3 did not come within 80 ms");
  EXPECT_THROWS_WITH(
      make_gloo_group(std::make_shared<MemoryStore>(), 0, 1, {.interface = "no-such"}), DistError,
      "gloo: cannot use interface no-such");
}

TEST(GroupInit, ranks_meet_in_a_folder) {
  if (!gloo_available()) GTEST_SKIP() << "built without Gloo";
  const tarn::test::TempFolder folder;
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r) {
    ranks.emplace_back([&, r] {
      const auto group = init_process_group(Environment{.rank = r, .size = 2},
                                            {.meet = "file://" + (folder / "meet")});
      const Tensor x = full({2}, r + 1);
      group->all_reduce(x)->wait();
      EXPECT_EQ(x.to_vector<double>(), std::vector<double>(2, 3.0));
    });
  }
  for (auto& t : ranks) t.join();
}

// ---- ranks that do not agree, are late or leave

class Failure : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string why = test::why_not(GetParam(), 3);
    if (!why.empty()) GTEST_SKIP() << why;
  }
};
INSTANTIATE_TEST_SUITE_P(All, Failure, testing::Values("local", "host", "gloo", "nccl"));

// Whichever rank notices first, both say what both called.
void expect_difference(const std::string& transport, const test::Body& body, const char* one,
                       const char* other) {
  const auto errors = errors_of(transport, 2, body);
  for (const std::string& error : errors) {
    expect_part(error, one);
    expect_part(error, other);
    expect_part(error, ", but this rank ");
  }
}

TEST_P(Failure, different_operations_are_named_on_both_sides) {
  expect_difference(
      GetParam(),
      [](ProcessGroup& g) {
        const Tensor x = zeros({10}, on(g));
        (g.rank() == 0 ? g.all_reduce(x) : g.reduce_scatter(zeros({5}, on(g)), x))->wait();
      },
      "all_reduce #1 of 40 bytes f32 (sum)", "reduce_scatter #1 of 40 bytes f32 (sum)");
}

// Of equal sums, so that only the parts tell.
TEST(Parts, that_differ_between_ranks_are_found) {
  for (const char* transport : {"host", "gloo"}) {
    const auto errors = errors_of(transport, 2, [](ProcessGroup& g) {
      const int64_t large = 20000, small = 10000;
      const bool first = g.rank() == 0;
      const std::vector<Tensor> xs = {zeros({first ? large : small}),
                                      zeros({first ? small : large})};
      g.reduce_scatter(zeros({large}), xs)->wait();
    });
    for (const std::string& error : errors) {
      expect_part(error, "called reduce_scatter #1 of 120000 bytes f32 (sum) with ");
      expect_part(error, "but this rank with ");
    }
  }
}

TEST_P(Failure, different_sizes_dtypes_and_reductions_are_found) {
  const auto differ = [&](const test::Body& body, const char* one, const char* other) {
    expect_difference(GetParam(), body, one, other);
  };
  differ([](ProcessGroup& g) { g.all_reduce(zeros({10 + g.rank()}, on(g)))->wait(); },
         "all_reduce #1 of 44 bytes", "all_reduce #1 of 40 bytes");
  differ([](ProcessGroup& g) { g.all_reduce(zeros({20000 + 20 * g.rank()}, on(g)))->wait(); },
         "of 80080 bytes", "of 80000 bytes");
  differ([](ProcessGroup& g) { g.all_reduce(zeros({g.rank() ? 10 : 20000}, on(g)))->wait(); },
         "of 40 bytes f32", "of 80000 bytes f32");
  differ(
      [](ProcessGroup& g) {
        g.all_reduce(zeros({4}, on(g, g.rank() ? DType::kF32 : DType::kI32)))->wait();
      },
      "of 16 bytes f32", "of 16 bytes i32");
  differ(
      [](ProcessGroup& g) {
        g.all_reduce(zeros({4}, on(g)), g.rank() ? ReduceOp::kMax : ReduceOp::kMin)->wait();
      },
      "f32 (max)", "f32 (min)");
  differ(
      [](ProcessGroup& g) {
        if (g.rank() == 0) {
          g.send(zeros({50000}, on(g)), 1)->wait();
        } else {
          g.recv(zeros({4}, on(g)), 0)->wait();
        }
      },
      "send of 200000 bytes f32", "send of 16 bytes f32");
}

TEST_P(Failure, a_late_rank_is_named_at_the_limit) {
  const std::string error = error_without_rank_1(GetParam(), Millis(200), [](ProcessGroup& g) {
    const WorkPtr work = g.all_reduce(zeros({7}, on(g)));
    wait_until_done(*work);
    work->wait();
  });
  expect_part(error,
              "all_reduce #2 ([7] f32, sum) on rank 0 of 2 in group world: rank 1 did not "
              "answer within ");
}

// Whatever part of it was left for the rank that is missing.
TEST_P(Failure, the_limit_is_named_in_full_where_another_rank_was_late_too) {
  std::atomic<bool> over = false;
  const auto errors = errors_of(
      GetParam(), 3,
      [&](ProcessGroup& g) {
        g.barrier()->wait();
        if (g.rank() == 1) std::this_thread::sleep_for(Millis(200));
        while (g.rank() == 2 && !over) std::this_thread::sleep_for(Millis(5));
        if (g.rank() == 2) return;
        const Tensor all = zeros({3, 7}, on(g));
        try {
          g.all_gather(all, zeros({7}, on(g)))->wait();
        } catch (const std::exception&) {
          over = true;
          throw;
        }
      },
      test::late(Millis(1000)));
  expect_part(errors[0],
              "all_gather #2 ([7] f32) on rank 0 of 3 in group world: rank 2 did not answer within "
              "1 s");
}

// By the rank that receives, before it waits; the other one does.
TEST_P(Failure, a_message_of_another_size_is_named_before_its_receiver_waits) {
  if (GetParam() != "local" && GetParam() != "host") GTEST_SKIP() << "said when it is waited for";
  const auto errors = errors_of(GetParam(), 2, [](ProcessGroup& g) {
    g.barrier()->wait();
    if (g.rank() == 0) return g.send(zeros({50000}), 1)->wait();
    const WorkPtr received = g.recv(zeros({4}), 0);
    g.barrier()->wait();
  });
  expect_part(errors[0],
              "send ([50000] f32, to rank 1, tag 0) on rank 0 of 2 in group world: rank 1");
  for (const std::string& error : errors) {
    expect_part(error,
                "rank 0 called send of 200000 bytes f32, but this rank send of 16 bytes f32");
  }
}

TEST_P(Failure, a_rank_that_leaves_ends_the_others_at_once) {
  const auto start = Clock::now();
  std::atomic<int> past{0};  // a barrier may be over for one rank and not yet for another
  const auto errors = errors_of(GetParam(), 3, [&past](ProcessGroup& g) {
    g.barrier()->wait();
    ++past;
    while (g.rank() == 1 && past < 3) std::this_thread::yield();
    if (g.rank() == 1) return g.abort("it was told to");
    g.all_reduce(zeros({7}, on(g)))->wait();
  });
  EXPECT_LT(Clock::now() - start, Millis(15000)) << "the limit is 20 s";
  EXPECT_EQ(errors[1], "");
  for (int r : {0, 2}) {
    expect_part(errors[static_cast<size_t>(r)], "all_reduce #2 ([7] f32, sum) on rank");
    expect_part(errors[static_cast<size_t>(r)], "it was told to");
  }
}

TEST_P(Failure, a_dead_group_says_why) {
  const std::string error = error_without_rank_1(GetParam(), Millis(100), [](ProcessGroup& g) {
    const WorkPtr first = g.all_reduce(zeros({7}, on(g))), queued = g.barrier();
    EXPECT_THROW(first->wait(), TimeoutError);
    EXPECT_THROWS_WITH(
        queued->wait(), DistError,
        "barrier #3 on rank 0 of 2 in group world: the group ended earlier (all_reduce #2");
    EXPECT_THROWS_WITH((void)g.send(zeros({1}, on(g)), 1), DistError, "make a new one");
    g.all_reduce(zeros({7}, on(g)))->wait();
  });
  expect_part(error,
              "all_reduce #4 ([7] f32, sum) on rank 0 of 2 in group world: the group ended earlier "
              "(all_reduce #2 ");
}

TEST_P(Failure, what_nobody_waits_for_is_reported_and_ends_the_group_as_well) {
  const tarn::test::TempFolder folder;
  setenv("TARN_FLIGHT_DIR", folder.str().c_str(), 1);
  const std::string error = error_without_rank_1(GetParam(), Millis(200), [&](ProcessGroup& g) {
    wait_until_done(*g.all_reduce(zeros({7}, on(g))));
    expect_part(tarn::test::slurp(folder / "flight-world-rank-0.txt"), "\n2\tfailed\t");
    g.barrier()->wait();
  });
  unsetenv("TARN_FLIGHT_DIR");
  expect_part(error,
              "barrier #3 on rank 0 of 2 in group world: the group ended earlier (all_reduce #2 "
              "([7] f32, sum) on rank 0 of 2 in group world: rank 1 did not answer within ");
}

// Its Work may be kept or not.
TEST_P(Failure, a_message_that_nobody_waits_for_is_reported_and_ends_the_group_as_well) {
  for (const bool sends : {true, false}) {
    for (const bool kept : {true, false}) {
      const tarn::test::TempFolder folder;
      setenv("TARN_FLIGHT_DIR", folder.str().c_str(), 1);
      const std::string error = error_without_rank_1(GetParam(), Millis(200), [&](ProcessGroup& g) {
        const Tensor x = zeros({7}, on(g));
        WorkPtr work = sends ? g.send(x, 1, 3) : g.recv(x, 1, 3);
        if (!kept) work.reset();
        const auto limit = Clock::now() + Millis(15000);
        while (!std::filesystem::exists(folder / "flight-world-rank-0.txt") &&
               Clock::now() < limit) {
          std::this_thread::sleep_for(Millis(5));
        }
        g.barrier()->wait();
      });
      unsetenv("TARN_FLIGHT_DIR");
      expect_part(error, "barrier #2 on rank 0 of 2 in group world: the group ended earlier (" +
                             std::string(sends ? "send ([7] f32, to" : "recv ([7] f32, from") +
                             " rank 1, tag 3) on rank 0 of 2 in group world: rank 1 did not "
                             "answer within 200 ms");
    }
  }
}

TEST_P(Failure, an_exception_of_one_rank_reaches_the_caller) {
  EXPECT_THROWS_WITH(test::run_ranks(GetParam(), 3,
                                     [](ProcessGroup& g) {
                                       if (g.rank() == 2) throw ValueError("rank 2 has no data");
                                       g.barrier()->wait();
                                     }),
                     ValueError, "rank 2 has no data");
}

// ---- the flight recorder

TEST(FlightRecorder, keeps_the_last_collectives_with_their_state) {
  FlightRecorder recorder;
  for (uint64_t i = 1; i <= FlightRecorder::kMost + 2; ++i) {
    recorder.queued(i, "barrier #" + std::to_string(i));
  }
  recorder.changed(1, FlightRecorder::State::kDone);  // forgotten
  recorder.changed(3, FlightRecorder::State::kFailed);
  const std::string text = recorder.text();
  EXPECT_EQ(text.rfind("3\tfailed\t0\t", 0), 0u) << text.substr(0, 100);
  EXPECT_NE(text.find("\n1002\tqueued\t0\t0\tbarrier #1002\n"), std::string::npos);
}

TEST(FlightRecorder, is_written_when_a_group_dies) {
  const tarn::test::TempFolder folder;
  setenv("TARN_FLIGHT_DIR", folder.str().c_str(), 1);
  errors_of("local", 2, [](ProcessGroup& g) {
    g.barrier()->wait();
    if (g.rank() == 0) throw DistError("enough");
    g.all_reduce(zeros({3}))->wait();
  });
  unsetenv("TARN_FLIGHT_DIR");
  const std::string text = tarn::test::slurp(folder / "flight-world-rank-1.txt");
  expect_part(text, "group world, rank 1 of 2: all_reduce #2 ([3] f32, sum) on rank 1 of 2");
  expect_part(text, "\n1\tdone\t");
  expect_part(text, "\n2\tfailed\t");
}

}  // namespace
}  // namespace tarn::dist
