// dist_meeting_test.cpp - ranks that have nothing to say after they met.
#include <future>

#include "dist_tools.h"

#include "tarn/dist/tcp_store.h"

namespace tarn::dist {
namespace {

// Rank 0 takes the store with it.
std::string error_of_a_short_visit(const std::string& transport, int rank, int size, int port,
                                   const std::function<void(int)>& listening) {
  try {
    const auto store =
        std::make_shared<TcpStore>(TcpStoreOptions{.port = port, .server = rank == 0});
    if (rank == 0) listening(store->port());
    if (transport == "host") {
      make_host_group(store, rank, size, test::quick());
    } else {
      make_gloo_group(store, rank, size, {.group = test::quick()});
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Meeting, who_leaves_right_after_it_harms_nobody_who_is_still_in_it) {
  constexpr int kRanks = 4, kRounds = 25;
  for (const std::string transport : {"host", "gloo"}) {
    if (!test::why_not(transport, kRanks).empty()) continue;
    for (int round = 0; round < kRounds; ++round) {
      std::promise<int> port;
      const std::shared_future<int> known = port.get_future();
      std::vector<std::future<std::string>> errors;
      for (int rank = 0; rank < kRanks; ++rank) {
        errors.push_back(std::async(std::launch::async, [&, rank] {
          return error_of_a_short_visit(transport, rank, kRanks, rank == 0 ? 0 : known.get(),
                                        [&](int p) { port.set_value(p); });
        }));
      }
      for (auto& error : errors) EXPECT_EQ(error.get(), "") << transport;
    }
  }
}

}  // namespace
}  // namespace tarn::dist
