// dist_dead_rank_test.cpp - processes that die or hang: this program again, as one rank of three.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tarn/dist/init.h"
#include "tarn/dist/socket.h"
#include "tarn/tests/dist_tools.h"
#include "tarn/tests/temp_folder.h"

namespace tarn::dist {
namespace {

using test::expect_part;

// What a child does: joins, counts in, then follows TARN_TEST_MODE at the second all_reduce.
TEST(ChildRank, runs) {
  const char* mode = std::getenv("TARN_TEST_MODE");
  if (!mode) GTEST_SKIP() << "only in the processes that DeadRank starts";
  const auto group =
      init_process_group({.group = {.timeout = Millis(std::atoi(std::getenv("TARN_TEST_TIMEOUT"))),
                                    .start_timeout = Millis(20000)}});
  const Tensor x = full({100000}, 1, test::on(*group));
  group->all_reduce(x)->wait();
  if (std::getenv("TARN_FAULT") && group->rank() < 2) {  // its message counts as well
    (group->rank() == 0 ? group->send(x, 1) : group->recv(x, 0))->wait();
  }
  if (group->rank() == 1) {
    std::this_thread::sleep_for(Millis(50));
    if (std::string(mode) == "kill") raise(SIGKILL);
    if (std::string(mode) == "exit") _exit(3);
    if (std::string(mode) == "hang") raise(SIGSTOP);
  }
  const auto start = Clock::now();
  std::ostringstream report;
  try {
    group->all_reduce(x)->wait();
  } catch (const std::exception& error) {
    report << std::chrono::round<Millis>(Clock::now() - start).count() << " " << error.what();
  }
  const std::string out = std::getenv("TARN_TEST_OUT");
  std::ofstream(out + std::getenv("RANK")) << report.str();
  // Rank 0 serves the store: what it knows of rank 1 must be there until rank 2 has read it.
  const auto limit = Clock::now() + Millis(20000);
  while (group->rank() == 0 && !std::filesystem::exists(out + "2") && Clock::now() < limit) {
    std::this_thread::sleep_for(Millis(5));
  }
  _exit(0);
}

struct Death {
  int64_t ms = 0;
  std::string text;
};

// Starts 3 ranks, of which number 1 fails, and returns what ranks 0 and 2 say.
std::vector<Death> die(const std::string& transport, const std::string& mode, int timeout_ms) {
  const tarn::test::TempFolder folder;
  const std::string port = std::to_string(free_port());
  std::vector<pid_t> children;
  for (int r = 0; r < 3; ++r) {
    std::vector<std::string> variables = {"TARN_TEST_MODE=" + mode,
                                          "TARN_TEST_TIMEOUT=" + std::to_string(timeout_ms),
                                          "TARN_TEST_OUT=" + (folder / "rank"),
                                          "TARN_DIST_TRANSPORT=" + transport,
                                          "TARN_NCCL_BLOCKING_WAIT=1",
                                          "RANK=" + std::to_string(r),
                                          "LOCAL_RANK=" + std::to_string(r),
                                          "LOCAL_WORLD_SIZE=3",
                                          "WORLD_SIZE=3",
                                          "MASTER_ADDR=127.0.0.1",
                                          "MASTER_PORT=" + port};
    if (mode == "fault") variables.push_back("TARN_FAULT=rank=1 at=3 do=kill");
    children.push_back(test::start_again("ChildRank.runs", variables));
  }
  for (int r : {0, 2, 1}) {
    const pid_t child = children[static_cast<size_t>(r)];
    if (r == 1) kill(child, SIGKILL);  // the hung one
    waitpid(child, nullptr, 0);
  }
  std::vector<Death> deaths;
  for (int r : {0, 2}) {
    Death d;
    std::istringstream in(tarn::test::slurp(folder / ("rank" + std::to_string(r))));
    in >> d.ms;
    std::getline(in, d.text);
    deaths.push_back(d);
  }
  return deaths;
}

class DeadRank : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string why = test::why_not(GetParam(), 3);
    if (!why.empty()) GTEST_SKIP() << why;
  }
};
INSTANTIATE_TEST_SUITE_P(All, DeadRank, testing::Values("host", "gloo", "nccl"));

TEST_P(DeadRank, ends_the_others_long_before_the_limit_and_is_named) {
  for (const char* mode : {"kill", "exit", "fault"}) {
    for (const Death& d : die(GetParam(), mode, 20000)) {
      EXPECT_LT(d.ms, 10000) << d.text;
      expect_part(d.text, "all_reduce #2 ([100000] f32, sum) on rank ");
      expect_part(d.text, "rank 1 ");
      expect_part(d.text, ": it ended or was killed");
    }
  }
}

TEST_P(DeadRank, that_only_hangs_ends_the_others_at_the_limit) {
  for (const Death& d : die(GetParam(), "hang", 700)) {
    EXPECT_GE(d.ms, 600) << d.text;
    EXPECT_LT(d.ms, 10000) << d.text;
    expect_part(d.text, "rank 1 did not answer within ");
  }
}

}  // namespace
}  // namespace tarn::dist
