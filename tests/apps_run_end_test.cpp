// apps_run_end_test.cpp - tarn-run: what it says of ranks that end, and the logs that it leaves.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "apps_process.h"
#include <gtest/gtest.h>

namespace {

using tarn::test::Ended;
using tarn::test::Process;

const std::string kRun = tarn::test::built("tarn-run");

// What this process does, and those that it starts then, when the terminal hangs up.
struct OnHangup {
  explicit OnHangup(sighandler_t action) : before(::signal(SIGHUP, action)) {}
  ~OnHangup() { ::signal(SIGHUP, before); }
  OnHangup(const OnHangup&) = delete;
  sighandler_t before;
};

class RunEnd : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kRun)) GTEST_SKIP() << "built without apps";
    std::filesystem::create_directory(temporary());
  }
  std::string temporary() const { return folder / "tmp"; }
  // tarn-run that keeps its temporary folders in temporary().
  Process start(std::vector<std::string> flags, const std::string& script) {
    flags.insert(flags.begin(), {"TMPDIR=" + temporary(), kRun});
    flags.insert(flags.end(), {"sh", "-c", "cd " + folder.str() + "; " + script});
    return Process("/usr/bin/env", flags, folder);
  }
  Ended run(std::vector<std::string> flags, const std::string& script) {
    return start(std::move(flags), script).wait();
  }
  bool left_a_folder() const { return !std::filesystem::is_empty(temporary()); }
  void wait_for(const std::string& name) const {
    for (int i = 0; i < 6000 && !std::filesystem::exists(folder / name); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  static void expect_part(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "got: " << text << "\nwanted: " << part;
  }
  tarn::test::TempFolder folder;
};

TEST_F(RunEnd, a_log_that_cannot_be_opened_is_named_before_anything_starts) {
  std::filesystem::create_directories(folder / "logs/rank-2.log");
  const std::string logs = folder / "logs";
  const Ended end = run({"--nproc", "3", "--log-dir", logs}, "echo 1 >started");
  EXPECT_EQ(end.code, 1);
  expect_part(end.err, "error: cannot open the log " + logs + "/rank-2.log: it is a folder\n");
  EXPECT_FALSE(std::filesystem::exists(folder / "started"));
}

TEST_F(RunEnd, a_temporary_folder_that_is_none_is_named) {
  const Ended end = Process("/usr/bin/env", {"TMPDIR=/no/such", kRun, "true"}, folder).wait();
  EXPECT_EQ(end.code, 2);
  expect_part(end.err, "error: TMPDIR=/no/such is not a folder; pass --log-dir\n");
}

TEST_F(RunEnd, logs_stay_only_if_a_message_names_them) {
  Ended end = run({"--nproc", "2"}, "exit 3");
  EXPECT_EQ(end.code, 3);
  EXPECT_FALSE(left_a_folder()) << end.err;
  end = run({"--nproc", "2"}, "test $RANK = 0 || exit 3; sleep 20");
  EXPECT_EQ(end.code, 3);
  expect_part(end.err, "tarn-run: rank 1 printed nothing\n");
  EXPECT_FALSE(left_a_folder()) << end.err;
  end = run({"--nproc", "2"}, "test $RANK = 0 || { echo why; exit 3; }; sleep 20");
  expect_part(end.err, "/rank-1.log:\nwhy\n");
  EXPECT_TRUE(left_a_folder());
}

TEST_F(RunEnd, logs_that_a_message_names_outlive_a_restart) {
  const Ended end = run({"--nproc", "2", "--max-restarts", "1"},
                        "test $RANK$TORCHELASTIC_RESTART_COUNT = 10 || exit 0; echo why; exit 3");
  EXPECT_EQ(end.code, 0);
  expect_part(end.err, "/rank-1.log:\nwhy\n");
  EXPECT_TRUE(left_a_folder());
}

TEST_F(RunEnd, a_rank_that_leaves_the_others_behind_is_named) {
  // Rank 0 looks at what tarn-run has printed so far, and gives up after 20 s.
  const Ended end = run({"--nproc", "3"},
                        "test $RANK = 0 || exit 0; for i in $(seq 200); do"
                        "  grep -q ended err.txt && break; sleep 0.1; done");
  EXPECT_EQ(end.code, 0);
  EXPECT_EQ(end.err, "tarn-run: ranks 1, 2 have ended with exit code 0; 1 still running\n");
}

TEST_F(RunEnd, ctrl_c_is_no_failure_of_a_rank) {
  Process once = start({"--nproc", "2"}, "echo 1 >up$RANK; exec sleep 20");
  for (const char* name : {"up0", "up1"}) wait_for(name);
  once.signal(SIGINT);
  Ended end = once.wait();
  EXPECT_EQ(end.code, 128 + SIGINT);
  EXPECT_EQ(end.err, "tarn-run: interrupted\n");

  Process twice = start({"--nproc", "2"},
                        "trap 'echo 1 >told$RANK' INT; echo 1 >deaf$RANK;"
                        "while :; do sleep 0.05; done");
  for (const char* name : {"deaf0", "deaf1"}) wait_for(name);
  twice.signal(SIGINT);
  for (const char* name : {"told0", "told1"}) wait_for(name);
  twice.signal(SIGINT);
  end = twice.wait();
  EXPECT_EQ(end.code, 128 + SIGINT);
  EXPECT_EQ(end.err, "tarn-run: interrupted\n");
  EXPECT_FALSE(left_a_folder());
}

TEST_F(RunEnd, a_second_hangup_lets_the_ranks_save) {
  const OnHangup action(SIG_DFL);
  Process process = start({"--nproc", "2"},
                          "trap 'echo 1 >told$RANK' HUP; echo 1 >up$RANK;"
                          "until test -e told$RANK; do sleep 0.05; done;"
                          "sleep 0.5; echo 1 >saved$RANK; exit 129");
  for (const char* name : {"up0", "up1"}) wait_for(name);
  process.signal(SIGHUP);
  for (const char* name : {"told0", "told1"}) wait_for(name);
  process.signal(SIGHUP);
  const Ended end = process.wait();
  EXPECT_EQ(end.code, 128 + SIGHUP);
  expect_part(end.err, "tarn-run: ended by signal 1 (Hangup)\n");  // a shell says more
  for (const char* name : {"saved0", "saved1"}) {
    EXPECT_TRUE(std::filesystem::exists(folder / name)) << name;
  }
}

TEST_F(RunEnd, an_ignored_hangup_does_nothing) {
  const OnHangup action(SIG_IGN);
  Process process = start({"--nproc", "1", "--max-restarts", "1"},
                          "test $TORCHELASTIC_RESTART_COUNT = 0 || exit 0;"
                          "echo 1 >up; sleep 0.5; exit 3");
  wait_for("up");
  process.signal(SIGHUP);
  const Ended end = process.wait();
  EXPECT_EQ(end.code, 0) << end.err;  // after a signal nothing would have been started anew
}

TEST_F(RunEnd, a_failure_after_ctrl_c_is_still_one) {
  Process process =
      start({"--nproc", "1"}, "trap 'exit 5' INT; echo 1 >up; while :; do sleep 0.05; done");
  wait_for("up");
  process.signal(SIGINT);
  const Ended end = process.wait();
  EXPECT_EQ(end.code, 5);
  expect_part(end.err, "error: rank 0 failed first, with exit code 5\n");
}

TEST_F(RunEnd, the_grace_does_not_wait_for_the_next_look) {
  const auto start = std::chrono::steady_clock::now();
  const Ended end = run({"--nproc", "2", "--monitor-interval", "1000", "--grace", "0.2"},
                        "test $RANK = 0 && exit 3; trap '' TERM; while :; do sleep 0.1; done");
  EXPECT_EQ(end.code, 3);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST_F(RunEnd, a_terminal_that_stops_writers_does_not_stop_rank_0) {
  const Ended end = run({"--nproc", "1"}, "grep SigIgn /proc/self/status");
  ASSERT_EQ(end.code, 0) << end.err;
  const unsigned long long ignored =
      std::stoull(end.out.substr(end.out.find(':') + 1), nullptr, 16);
  EXPECT_NE(ignored >> (SIGTTOU - 1) & 1, 0u) << end.out;
}

}  // namespace
