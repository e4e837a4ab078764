// dist_store_test.cpp - the three stores behave alike; waits end with a name; ranks meet.
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include "tarn/dist/file_store.h"
#include "tarn/dist/socket.h"
#include "tarn/dist/tcp_store.h"
#include "tarn/dist/tcp_store_server.h"
#include "tarn/tests/temp_folder.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::dist {
namespace {

enum class StoreKind { kMemory, kFile, kTcp };

// Two handles on one store, as two ranks have them.
class StoreTest : public testing::TestWithParam<StoreKind> {
 protected:
  void SetUp() override {
    switch (GetParam()) {
      case StoreKind::kMemory:
        a = b = std::make_shared<MemoryStore>();
        break;
      case StoreKind::kFile:
        a = std::make_shared<FileStore>(folder / "store");
        b = std::make_shared<FileStore>(folder / "store");
        break;
      case StoreKind::kTcp: {
        auto server = std::make_shared<TcpStore>(TcpStoreOptions{.port = 0, .server = true});
        b = std::make_shared<TcpStore>(TcpStoreOptions{.port = server->port()});
        a = server;
      }
    }
  }
  test::TempFolder folder;
  std::shared_ptr<Store> a, b;
};

TEST_P(StoreTest, what_one_sets_the_other_gets) {
  const std::string bytes("\0a/b %\n\xff", 8);
  a->set("some/key with %", bytes);
  EXPECT_EQ(b->get("some/key with %"), bytes);
  a->set("some/key with %", "");
  EXPECT_EQ(b->get("some/key with %"), "");
  const std::string large(300000, 'x');
  b->set("large", large);
  EXPECT_EQ(a->get("large"), large);
  EXPECT_FALSE(a->try_get("none").has_value());
  EXPECT_TRUE(b->erase("large"));
  EXPECT_FALSE(b->erase("large"));
  EXPECT_FALSE(a->try_get("large").has_value());
}

TEST_P(StoreTest, keys_may_be_longer_than_the_name_of_a_file) {
  const std::string key = "group world/of" + std::string(900, '/');
  a->set(key, "1");
  a->set(key + "/more", "2");
  EXPECT_EQ(b->get(key), "1");
  EXPECT_EQ(b->get(key + "/more"), "2");
  EXPECT_EQ(b->add(key + "/number", 3), 3);
  EXPECT_TRUE(b->erase(key));
  EXPECT_FALSE(a->try_get(key).has_value());
}

TEST_P(StoreTest, a_get_waits_for_the_set) {
  std::thread setter([&] {
    std::this_thread::sleep_for(Millis(150));
    b->set("late", "1");
  });
  EXPECT_EQ(a->get("late", Millis(5000)), "1");
  setter.join();
}

TEST_P(StoreTest, adding_counts_every_call_once) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) (t % 2 ? a : b)->add("count", t < 2 ? 2 : -1);
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(a->add("count", 0), 2 * 25 * 2 - 2 * 25);
  EXPECT_EQ(b->get("count"), "50");
  a->set("text", "no number");
  EXPECT_THROWS_WITH(b->add("text", 1), ValueError,
                     "add needs a number; key \"text\" holds \"no number\"");
}

TEST_P(StoreTest, a_wait_ends_at_its_limit_and_names_the_keys) {
  const auto start = Clock::now();
  EXPECT_THROWS_WITH(a->get("never", Millis(60)), TimeoutError,
                     "nobody set \"never\" within 60 ms");
  a->set("x", "");
  const std::vector<std::string> keys{"x", "y", "z"};
  EXPECT_THROWS_WITH(b->wait(keys, Millis(60)), TimeoutError, "nobody set \"y\", \"z\" within");
  EXPECT_LT(Clock::now() - start, Millis(20000));
}

TEST_P(StoreTest, prefixes_keep_groups_apart) {
  PrefixStore one(a, "one/"), two(b, "two/");
  one.set("k", "1");
  EXPECT_FALSE(two.try_get("k").has_value());
  EXPECT_EQ(b->get("one/k"), "1");
  EXPECT_EQ(two.add("n", 3), 3);
  EXPECT_EQ(a->get("two/n"), "3");
}

TEST_P(StoreTest, ranks_meet_and_get_all_values_in_order) {
  std::vector<std::vector<std::string>> got(3);
  std::vector<std::thread> ranks;
  for (int r = 0; r < 3; ++r) {
    ranks.emplace_back([&, r] {
      got[static_cast<size_t>(r)] =
          exchange(r % 2 ? *a : *b, "meet", r, 3, "v" + std::to_string(r));
    });
  }
  for (auto& t : ranks) t.join();
  for (const auto& values : got) EXPECT_EQ(values, (std::vector<std::string>{"v0", "v1", "v2"}));
}

TEST_P(StoreTest, a_meeting_names_the_missing_ranks) {
  EXPECT_THROWS_WITH(exchange(*a, "meet", 1, 4, "", Millis(80)), TimeoutError,
                     "meet: ranks 0, 2, 3 of 4 did not come within 80 ms (rank 1 waited");
}

TEST_P(StoreTest, two_processes_with_one_rank_are_told_both) {
  std::string first;
  std::thread waiting([&] {
    try {
      exchange(*a, "meet", 1, 3, "", Millis(5000));
    } catch (const DistError& error) {
      first = error.what();
    }
  });
  while (!b->try_get("meet/rank/1")) std::this_thread::sleep_for(Millis(1));
  EXPECT_THROWS_WITH(exchange(*b, "meet", 1, 3, "", Millis(5000)), DistError,
                     "meet: rank 1 was claimed by two processes");
  waiting.join();
  EXPECT_NE(first.find("claimed by two processes"), std::string::npos) << first;
}

TEST_P(StoreTest, different_world_sizes_are_an_error) {
  std::string first;
  std::thread waiting([&] {
    try {
      exchange(*a, "meet", 0, 3, "", Millis(5000));
    } catch (const DistError& error) {
      first = error.what();
    }
  });
  EXPECT_THROWS_WITH(exchange(*b, "meet", 1, 2, "", Millis(5000)), DistError,
                     "WORLD_SIZE must be the same everywhere");
  waiting.join();
  EXPECT_NE(first.find("WORLD_SIZE"), std::string::npos) << first;
}

std::string kind_of(const testing::TestParamInfo<StoreKind>& info) {
  constexpr const char* kNames[] = {"memory", "file", "tcp"};
  return kNames[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(All, StoreTest,
                         testing::Values(StoreKind::kMemory, StoreKind::kFile, StoreKind::kTcp),
                         kind_of);

TEST(Socket, a_deadline_may_be_beyond_what_poll_counts) {
  Socket listener = Socket::listen(0);
  Socket client = Socket::connect("127.0.0.1", listener.port(), Clock::now() + Millis(5000));
  std::thread late([&] {
    std::this_thread::sleep_for(Millis(150));
    Socket(::accept(listener.fd(), nullptr, nullptr)).send("x", 1, Clock::now() + Millis(5000));
  });
  char got = 0;
  EXPECT_TRUE(client.receive(&got, 1, Clock::now() + Millis((int64_t{1} << 32) + 20)));
  EXPECT_EQ(got, 'x');
  late.join();
}

TEST(TcpStore, a_used_port_is_named) {
  const TcpStore first({.port = 0, .server = true});
  EXPECT_THROWS_WITH(TcpStore({.port = first.port(), .server = true}), DistError,
                     "port " + std::to_string(first.port()) + " of this host is in use");
}

TEST(TcpStore, an_unreachable_master_is_named) {
  const int port = free_port();
  EXPECT_THROWS_WITH(TcpStore({.port = port, .timeout = Millis(100)}), TimeoutError,
                     "cannot reach rank 0 at 127.0.0.1:" + std::to_string(port));
  EXPECT_THROWS_WITH(TcpStore({.host = "no-such-host.invalid", .timeout = Millis(50)}),
                     TimeoutError, "no-such-host.invalid:29500");
  EXPECT_THROWS_WITH(TcpStore({.port = 0}), ValueError, "port must be in [1, 65535]; got 0");
}

TEST(TcpStore, something_else_on_the_port_is_noticed) {
  Socket other = Socket::listen(0);
  EXPECT_THROWS_WITH(TcpStore({.port = other.port(), .timeout = Millis(500)}), DistError,
                     "is no tarn store");
}

TEST(TcpStore, a_server_that_has_stopped_holds_nobody_longer_than_the_patience) {
  Socket listener = Socket::listen(0);
  const auto deadline = Clock::now() + Millis(20000);
  std::thread mute([&] {                          // greets, then hangs, as a stopped rank 0 does
    pollfd connection{listener.fd(), POLLIN, 0};  // which does not block
    ::poll(&connection, 1, 20000);
    Socket client(::accept(listener.fd(), nullptr, nullptr));
    std::string greeting = store_greeting(0);
    client.send(greeting.data(), greeting.size(), deadline);
    client.receive(greeting.data(), greeting.size(), deadline);
    char last;
    while (client.receive(&last, 1, deadline)) {
    }
  });
  {
    TcpStore store({.port = listener.port(), .patience = Millis(200)});
    const auto start = Clock::now();
    EXPECT_THROWS_WITH(store.set("k", "v"), DistError, "store: lost rank 0");
    EXPECT_THROWS_WITH((void)store.try_get("k"), DistError, "store: lost rank 0");  // at once
    EXPECT_LT(Clock::now() - start, Millis(3000));
  }
  mute.join();
}

TEST(TcpStore, clients_wait_for_a_server_that_starts_later) {
  const int port = free_port();
  std::string got;
  std::thread client([&] {
    TcpStore store({.port = port, .timeout = Millis(5000)});
    got = store.get("k");
  });
  std::this_thread::sleep_for(Millis(60));
  TcpStore server({.port = port, .server = true});
  server.set("k", "v");
  client.join();
  EXPECT_EQ(got, "v");
}

TEST(TcpStore, clients_wait_for_the_server_of_their_own_start_of_the_job) {
  auto before = std::make_unique<TcpStore>(TcpStoreOptions{.port = 0, .server = true, .start = 1});
  const int port = before->port();
  EXPECT_THROWS_WITH(TcpStore({.port = port, .start = 2, .timeout = Millis(300)}), TimeoutError,
                     "is of another start of the job (TORCHELASTIC_RESTART_COUNT 1, here 2)");
  std::string got;
  std::thread client([&] {
    TcpStore store({.port = port, .start = 2, .timeout = Millis(20000)});
    got = store.get("k");
  });
  std::this_thread::sleep_for(Millis(150));
  before.reset();
  TcpStore server({.port = port, .server = true, .start = 2});
  server.set("k", "v");
  client.join();
  EXPECT_EQ(got, "v");
}

TEST(TcpStore, clients_notice_that_the_server_is_gone) {
  auto server = std::make_unique<TcpStore>(TcpStoreOptions{.port = 0, .server = true});
  TcpStore client({.port = server->port()});
  server.reset();
  EXPECT_THROWS_WITH(client.get("k", Millis(5000)), DistError, "lost rank 0, which serves the TCP");
  EXPECT_THROWS_WITH(client.set("k", ""), DistError, "lost rank 0");
}

TEST(FileStore, a_folder_that_cannot_be_made_is_named) {
  const test::TempFolder folder;
  const std::string file = folder.write("file", "");
  EXPECT_THROWS_WITH(FileStore(file + "/sub"), FileError, "cannot make the folder " + file);
}

}  // namespace
}  // namespace tarn::dist
