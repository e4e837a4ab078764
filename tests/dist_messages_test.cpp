// dist_messages_test.cpp - send and receive, work under way, subgroups, groups that come and go.
#include <mutex>
#include <thread>
#include <vector>

#include "tarn/core/views.h"
#include "tarn/dist/waited.h"
#include "tarn/tests/dist_tools.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::dist {
namespace {

using test::bits;
using test::on;

class Messages : public test::OnRanks {};
INSTANTIATE_TEST_SUITE_P(All, Messages,
                         testing::Combine(testing::Values("local", "host", "gloo", "nccl"),
                                          testing::Values(1, 2, 3, 4)),
                         test::ranks_name);

TEST_P(Messages, sends_and_receives_match_by_tag_and_order) {
  run([](ProcessGroup& g) {
    if (g.size() == 1) return;
    const int right = (g.rank() + 1) % g.size(), left = (g.rank() + g.size() - 1) % g.size();
    for (int64_t n : {int64_t{0}, int64_t{5}, int64_t{100000}}) {
      const auto value = [&](int rank, int k) { return full({n}, 10.0 * rank + k, on(g)); };
      const Tensor a = value(g.rank(), 1), b = value(g.rank(), 2), c = value(g.rank(), 3);
      const Tensor x = zeros({n}, on(g)), y = zeros({n}, on(g)), z = zeros({n}, on(g));
      const WorkPtr sends[] = {g.send(a, right, 7), g.send(b, right, 9), g.send(c, right, 7)};
      const WorkPtr first = g.recv(x, left, 7), second = g.recv(y, left, 7);
      g.recv(z, left, 9)->wait();
      second->wait();  // waits need not follow the order of calls
      first->wait();
      for (const WorkPtr& work : sends) work->wait();
      EXPECT_EQ(bits(x), bits(value(left, 1)));
      EXPECT_EQ(bits(y), bits(value(left, 3)));
      EXPECT_EQ(bits(z), bits(value(left, 2)));
    }
  });
}

TEST_P(Messages, a_send_may_be_waited_for_before_the_receive_that_was_started) {
  run([](ProcessGroup& g) {
    if (g.size() == 1) return;
    const int right = (g.rank() + 1) % g.size(), left = (g.rank() + g.size() - 1) % g.size();
    for (int64_t n : {int64_t{3}, int64_t{300000}}) {
      const Tensor mine = full({n}, g.rank(), on(g)), theirs = zeros({n}, on(g));
      const WorkPtr sent = g.send(mine, right), received = g.recv(theirs, left);
      sent->wait();
      received->wait();
      EXPECT_EQ(bits(theirs), bits(full({n}, left)));
    }
  });
}

// A receive that was called goes on while its rank does something else; the limit is far above what
// these take, and below that of the other tests.
void run_soon(const std::string& transport, int size, const test::Body& body) {
  test::run_ranks(transport, size, body, test::quick(Millis(6000)));
}

TEST_P(Messages, a_receive_that_nobody_waits_for_yet_goes_on) {
  run_soon(transport(), size(), [](ProcessGroup& g) {
    if (g.size() == 1) return;
    const int last = g.size() - 1;
    for (int64_t n : {int64_t{0}, int64_t{3}, int64_t{300000}}) {
      for (const bool sender_first : {false, true}) {
        const Tensor x = full({n, 2}, 7.0, on(g)), y = raw::t(zeros({2, n}, on(g)));
        if (g.rank() == 0) {
          if (!sender_first) std::this_thread::sleep_for(Millis(20));
          g.send(x, last)->wait();
        }
        WorkPtr received;
        if (g.rank() == last) {
          if (sender_first) std::this_thread::sleep_for(Millis(20));
          received = g.recv(y, 0);
        }
        g.barrier()->wait();
        if (received) {
          received->wait();
          EXPECT_EQ(bits(y), bits(x));
        }
      }
    }
  });
}

TEST_P(Messages, a_later_receive_may_be_waited_for_first) {
  run_soon(transport(), size(), [](ProcessGroup& g) {
    if (g.size() == 1) return;
    constexpr int kTags = 6;
    for (int64_t n : {int64_t{3}, int64_t{100000}}) {
      std::vector<Tensor> xs;
      std::vector<WorkPtr> works;
      for (int tag = 0; tag < kTags; ++tag) {
        xs.push_back(full({n}, g.rank() == 0 ? tag + 1 : 0, on(g)));
        if (g.rank() == 0) g.send(xs.back(), 1, tag)->wait();  // one after the other
        if (g.rank() == 1) works.push_back(g.recv(xs.back(), 0, tag));
      }
      for (size_t i = works.size(); i-- > 0;) {
        works[i]->wait();
        EXPECT_EQ(bits(xs[i]), bits(full({n}, static_cast<double>(i) + 1)));
      }
    }
  });
}

TEST_P(Messages, a_receive_goes_on_while_its_rank_waits_in_another_group) {
  run_soon(transport(), size(), [](ProcessGroup& g) {
    if (g.size() == 1) return;
    const auto pair = g.subgroup(std::vector<int>{0, 1});
    const Tensor x = full({70000}, g.rank() + 1.0, on(g));
    WorkPtr received;
    if (g.rank() == 0) pair->send(x, 1)->wait();
    if (g.rank() == 1) received = pair->recv(x, 0);
    g.barrier()->wait();
    if (received) received->wait();
    if (pair) {
      EXPECT_EQ(bits(x), bits(full({70000}, 1.0)));
    }
  });
}

TEST_P(Messages, go_on_with_their_tensors_if_nobody_keeps_them) {
  run([](ProcessGroup& g) {
    if (g.size() == 1) return;
    const int right = (g.rank() + 1) % g.size(), left = (g.rank() + g.size() - 1) % g.size();
    for (int64_t n : {int64_t{3}, int64_t{300000}}) {
      (void)g.send(full({n}, g.rank(), on(g)), right, 7);
      (void)g.recv(zeros({n}, on(g)), left, 7);
      const Tensor theirs = zeros({n}, on(g));
      const WorkPtr sent = g.send(full({n}, g.rank() + 10, on(g)), right, 7);
      g.recv(theirs, left, 7)->wait();
      sent->wait();
      EXPECT_EQ(bits(theirs), bits(full({n}, left + 10))) << "the second";
    }
  });
}

TEST_P(Messages, a_receive_can_be_polled) {
  run([](ProcessGroup& g) {
    const Tensor x = full({3}, g.rank() + 1.0, on(g));
    if (g.rank() == 0 && g.size() > 1) {
      const WorkPtr work = g.recv(x, 1);
      EXPECT_FALSE(work->test());
      EXPECT_THROWS_WITH(work->wait(Millis(5)), TimeoutError, "not done after 5 ms; it goes on");
      g.barrier()->wait();
      while (!work->test()) std::this_thread::sleep_for(Millis(1));
      work->wait();
      EXPECT_EQ(x.to_vector<double>(), std::vector<double>(3, 2.0));
    } else {
      g.barrier()->wait();
      if (g.rank() == 1) g.send(x, 0)->wait();
    }
  });
}

TEST_P(Messages, works_may_be_waited_for_late_and_in_any_order) {
  run([](ProcessGroup& g) {
    std::vector<Tensor> xs;
    std::vector<WorkPtr> works;
    for (int i = 0; i < 20; ++i) {
      xs.push_back(full({i * 1000}, g.rank() + i, on(g)));
      works.push_back(g.all_reduce(xs.back()));
    }
    for (size_t i = works.size(); i-- > 0;) {
      works[i]->wait();
      works[i]->wait(Millis(20000));  // by the host, where wait() is not
      EXPECT_TRUE(works[i]->test());
      const int64_t n = static_cast<int64_t>(i), W = g.size();
      EXPECT_EQ(bits(xs[i]), bits(full({n * 1000}, W * n + W * (W - 1) / 2)));
    }
  });
}

TEST_P(Messages, subgroups_number_their_ranks_anew) {
  run([](ProcessGroup& g) {
    std::vector<int> even, reversed;
    for (int r = 0; r < g.size(); r += 2) even.push_back(r);
    for (int r = g.size(); r-- > 0;) reversed.push_back(r);
    const auto some = g.subgroup(even);
    EXPECT_EQ(some != nullptr, g.rank() % 2 == 0);
    if (some) {
      EXPECT_EQ(some->rank(), g.rank() / 2);
      const Tensor x = full({4}, g.rank(), on(g));
      some->all_reduce(x)->wait();
      const int n = some->size();
      EXPECT_EQ(x.to_vector<double>(), std::vector<double>(4, n * (n - 1.0)));
    }
    const auto back = g.subgroup(reversed), again = g.subgroup(reversed);
    EXPECT_EQ(back->rank(), g.size() - 1 - g.rank());
    EXPECT_NE(again->name(), back->name());
    const Tensor x = full({1}, g.rank(), on(g));
    back->broadcast(x, 0)->wait();
    EXPECT_EQ(x.item(), g.size() - 1);
    again->barrier()->wait();
  });
}

// For others, by the thread that waits; not the time it computes.
TEST_P(Messages, the_time_that_a_rank_waits_for_others_is_counted) {
  if (GetParam() != std::tuple<std::string, int>("local", 2) &&
      GetParam() != std::tuple<std::string, int>("gloo", 2)) {
    GTEST_SKIP() << "two ranks of the CPU";
  }
  run([](ProcessGroup& g) {
    g.barrier()->wait();
    const double before = waited_seconds();
    const Tensor x = zeros({3});
    if (g.rank() == 1) std::this_thread::sleep_for(Millis(200));
    g.all_reduce(x)->wait();
    const double first = waited_seconds() - before;
    if (g.rank() == 1) std::this_thread::sleep_for(Millis(200));
    (g.rank() == 0 ? g.recv(x, 1) : g.send(x, 0))->wait();
    const double second = waited_seconds() - before - first;
    for (const double waited : {first, second}) {
      if (g.rank() == 0) {
        EXPECT_GT(waited, 0.15);
      } else {
        EXPECT_LT(waited, 0.15);
      }
    }
  });
}

// The group ends what is under way while others read its list.
TEST_P(Messages, a_send_may_be_waited_for_while_its_group_is_left) {
  if (transport() == "nccl") GTEST_SKIP() << "waits on a stream";
  for (int round = 0; round < 5; ++round) {
    std::mutex mutex;
    std::vector<std::jthread> waiting;
    run([&](ProcessGroup& g) {
      if (g.size() == 1) return;
      const int right = (g.rank() + 1) % g.size(), left = (g.rank() + g.size() - 1) % g.size();
      for (int tag = 0; tag < 4; ++tag) {
        const Tensor mine = full({300000}, g.rank()), theirs = zeros({300000});
        const WorkPtr sent = g.send(mine, right, tag), received = g.recv(theirs, left, tag);
        const std::lock_guard lock(mutex);
        waiting.emplace_back([sent, received, theirs, left] {
          sent->wait();
          received->wait();
          EXPECT_EQ(bits(theirs), bits(full({300000}, left)));
        });
      }
    });
  }
}

TEST_P(Messages, groups_may_be_made_and_left_at_once) {
  for (int round = 0; round < 5; ++round) {
    run([&](ProcessGroup& g) {
      const Tensor x = full({60000}, 1.0, on(g));
      g.all_reduce(x)->wait();
      EXPECT_EQ(x.to_vector<float>()[59999], static_cast<float>(g.size()));
      if (g.rank() == round % g.size()) std::this_thread::sleep_for(Millis(5));
    });
  }
}

}  // namespace
}  // namespace tarn::dist
