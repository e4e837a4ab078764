// apps_run_test.cpp - tarn-run: what ranks are told, what is printed, how failures end.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tarn/apps/run/flight.h"
#include "tarn/apps/run/launcher.h"
#include "tarn/apps/run/settings.h"
#include "tarn/tests/apps_process.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::apps {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

const std::string kRun = test::built("tarn-run");

class Run : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kRun)) GTEST_SKIP() << "without apps";
  }
  // Runs "tarn-run FLAGS sh -c SCRIPT" with its output in files; returns the exit code.
  int run(const std::string& flags, const std::string& script, const std::string& before = "") {
    const std::string command = "cd " + folder.str() + " && " + before + " exec " + kRun + " " +
                                flags + " sh -c '" + script + "' >out 2>err";
    const int status = std::system(("sh -c '" + replace(command) + "'").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // Single quotes within single quotes.
  static std::string replace(std::string text) {
    for (size_t at = 0; (at = text.find('\'', at)) != std::string::npos; at += 4) {
      text.replace(at, 1, "'\\''");
    }
    return text;
  }
  // The same in another process, once the scripts have written the files `up`.
  struct Started {
    pid_t process, launcher;
  };
  Started start(const std::string& flags, const std::string& script,
                const std::vector<std::string>& up) {
    const pid_t child = fork();
    if (child == 0) _exit(run(flags, script, "echo $$ >launcher;"));
    const pid_t launcher = std::stoi(wait_for_file("launcher"));
    for (const std::string& name : up) wait_for_file(name);
    return {child, launcher};
  }
  static int code_of(const Started& job) {
    int status = 0;
    waitpid(job.process, &status, 0);
    return WEXITSTATUS(status);
  }
  std::string file(const std::string& name) { return test::slurp(folder / name); }
  std::string wait_for_file(const std::string& name) {
    for (int i = 0; i < 6000 && file(name).empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return file(name);
  }
  // Whether a process is gone, or soon will be; a zombie of another parent counts as ended.
  static bool ends(pid_t pid) {
    for (int i = 0; i < 6000 && kill(pid, 0) == 0; ++i) {
      const std::string status = test::slurp("/proc/" + std::to_string(pid) + "/status");
      if (status.find("State:\tZ") != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return kill(pid, 0) != 0;
  }
  static void expect_part(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "got: " << text << "\nwanted: " << part;
  }
  test::TempFolder folder;
};

TEST_F(Run, ranks_are_told_who_they_are) {
  const std::string show =
      "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $OMP_NUM_THREADS >r$RANK";
  ASSERT_EQ(run("--nproc 2", show, "unset OMP_NUM_THREADS;"), 0) << file("err");
  const std::string share = std::to_string(std::max(1, cores_here() / 2));
  EXPECT_EQ(file("r0"), "0 2 0 2 127.0.0.1 " + share + "\n");
  EXPECT_EQ(file("r1"), "1 2 1 2 127.0.0.1 " + share + "\n");
  // Host 1 of 2, with a number of threads of the user's own.
  ASSERT_EQ(run("--nnodes=2 --node_rank 1 --master-addr h0 --nproc-per-node 2 --master-port 1234",
                show + "; echo $MASTER_PORT >>r$RANK", "OMP_NUM_THREADS=5"),
            0);
  EXPECT_EQ(file("r2"), "2 4 0 2 h0 5\n1234\n");
  EXPECT_EQ(file("r3"), "3 4 1 2 h0 5\n1234\n");
}

TEST_F(Run, rank_0_prints_and_the_others_log) {
  ASSERT_EQ(run("--nproc 3 --log-dir logs", "echo out of $RANK; echo err of $RANK >&2"), 0);
  EXPECT_EQ(file("out"), "out of 0\n");
  EXPECT_EQ(file("err"), "err of 0\n");
  EXPECT_EQ(file("logs/rank-1.log"), "out of 1\nerr of 1\n");
  EXPECT_EQ(file("logs/rank-2.log"), "out of 2\nerr of 2\n");
}

TEST_F(Run, the_first_failure_is_shown_last) {
  // The others end when the launcher has taken note of rank 1's end.
  EXPECT_EQ(run("--nproc 3 --log-dir logs",
                "echo I am $RANK; if test $RANK = 1; then echo $$ >pid1; exit 7; fi;"
                "while ! test -s pid1 || kill -0 $(cat pid1); do sleep 0.02; done 2>nothing;"
                "exit 3"),
            7);
  const std::string err = file("err");
  expect_part(err, "tarn-run: rank 2 ended after it with exit code 3, log logs/rank-2.log\n");
  EXPECT_TRUE(
      err.ends_with("tarn-run: the end of logs/rank-1.log:\nI am 1\n"
                    "tarn-run: error: rank 1 failed first, with exit code 7\n"))
      << err;
}

TEST_F(Run, a_killed_rank_is_named_with_its_signal) {
  EXPECT_EQ(run("--nproc 2 --log-dir logs", "test $RANK = 1 && kill -9 $$; sleep 0.3"), 128 + 9);
  expect_part(file("err"), "error: rank 1 failed first, with signal 9 (Killed)");
  EXPECT_EQ(run("--nproc 2 --log-dir logs", "test $RANK = 0 && exit 4; sleep 0.1"), 4);
  expect_part(file("err"), "what rank 0 printed stands above\n");
}

TEST_F(Run, a_command_line_that_all_ranks_refuse_is_one_error) {
  EXPECT_EQ(run("--nproc 3 --log-dir logs", "echo no such flag $RANK >&2; exit 2"), 2);
  EXPECT_EQ(file("err"),
            "no such flag 0\ntarn-run: error: all 3 ranks ended with exit code 2; what rank 0 "
            "printed stands above, the rest is in logs\n");
  EXPECT_EQ(file("logs/rank-2.log"), "no such flag 2\n");
  EXPECT_EQ(run("--nproc 2 --log-dir logs", "test $RANK = 0 && sleep 0.3; exit $((3 - RANK))"), 2);
  expect_part(file("err"), "tarn-run: error: rank 1 failed first, with exit code 2\n");
}

TEST_F(Run, ranks_that_go_on_after_a_failure_are_ended) {
  const auto start = Clock::now();
  EXPECT_EQ(run("--nproc 3 --log-dir logs --grace 0.2",
                "if test $RANK = 0; then"
                "  while ! test -s pid1 || ! test -s pid2; do sleep 0.02; done; exit 9; fi;"
                "test $RANK = 1 && trap \"\" TERM;"
                "echo $$ >pid$RANK; while :; do sleep 0.1; done"),
            9);
  EXPECT_LT(Clock::now() - start, seconds(60));
  for (const char* name : {"pid1", "pid2"}) EXPECT_NE(kill(std::stoi(file(name)), 0), 0) << name;
}

TEST_F(Run, what_a_rank_left_running_ends_with_it) {
  ASSERT_EQ(run("--nproc 1", "sleep 100 & echo $! >pid"), 0);
  EXPECT_TRUE(ends(std::stoi(file("pid"))));
}

TEST_F(Run, restarts_go_on_until_one_succeeds) {
  const std::string script =
      "echo $RANK try $TORCHELASTIC_RESTART_COUNT;"
      "test $TORCHELASTIC_RESTART_COUNT = 2 || exit 5";
  EXPECT_EQ(run("--nproc 1 --max-restarts 3", script), 0);
  EXPECT_EQ(file("out"), "0 try 0\n0 try 1\n0 try 2\n");
  expect_part(file("err"), "tarn-run: starting all ranks anew (2 of 3)");
  EXPECT_EQ(run("--nproc 1 --max-restarts 1", script), 5);
}

TEST_F(Run, a_signal_is_passed_on_and_the_ranks_end_themselves) {
  const Started job = start("--nproc 2",
                            "trap \"echo saved >saved$RANK; exit 0\" TERM; echo 1 >up$RANK;"
                            "while :; do sleep 0.05; done",
                            {"up0", "up1"});
  kill(job.launcher, SIGTERM);
  EXPECT_EQ(code_of(job), 0);
  EXPECT_EQ(file("saved0") + file("saved1"), "saved\nsaved\n");
}

TEST_F(Run, ranks_do_not_outlive_a_killed_launcher) {
  const Started job = start("--nproc 2", "echo $$ >pid$RANK; exec sleep 100", {"pid0", "pid1"});
  kill(job.launcher, SIGKILL);
  code_of(job);
  for (const char* name : {"pid0", "pid1"}) EXPECT_TRUE(ends(std::stoi(file(name)))) << name;
}

TEST_F(Run, what_a_rank_started_does_not_outlive_a_killed_launcher_either) {
  const Started job = start("--nproc 1", "sleep 100 & echo $! >inner; wait", {"inner"});
  kill(job.launcher, SIGKILL);
  code_of(job);
  EXPECT_TRUE(ends(std::stoi(file("inner"))));
}

TEST_F(Run, a_sigterm_that_comes_twice_at_once_is_one) {
  const Started job =
      start("--nproc 2",
            "trap \"sleep 0.5; echo saved >saved$RANK; exit 0\" TERM; echo 1 >up$RANK;"
            "while :; do sleep 0.05; done",
            {"up0", "up1"});
  for (int i = 0; i < 2; ++i) {
    kill(job.launcher, SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(code_of(job), 0);
  EXPECT_EQ(file("saved0") + file("saved1"), "saved\nsaved\n");
}

// One rank that ends at once by the signal is no failure that shortens the others' time to save.
TEST_F(Run, a_rank_that_the_signal_ended_leaves_the_others_their_time) {
  const Started job = start("--nproc 2 --grace 0.1",
                            "test $RANK = 1 && { echo 1 >up1; exec sleep 100; };"
                            "trap \"sleep 3; echo saved >saved0; exit 0\" TERM; echo 1 >up0;"
                            "while :; do sleep 0.05; done",
                            {"up0", "up1"});
  kill(job.launcher, SIGTERM);
  EXPECT_EQ(code_of(job), 128 + SIGTERM);
  EXPECT_EQ(file("saved0"), "saved\n");
}

// After 3 s tarn-run says that rank 1 has ended.
TEST_F(Run, words_that_nobody_reads_do_not_end_the_job) {
  const std::string command = "cd " + folder.str() + "; { " + kRun +
                              " --nproc 2 sh -c 'test $RANK = 1 || { sleep 4; echo 1 >saved; }'"
                              " 2>&1; echo $? >code; } | true";
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(file("saved"), "1\n");
  EXPECT_EQ(file("code"), "0\n");
  EXPECT_EQ(run("--nproc 1", "kill -PIPE $$; exit 0"), 128 + SIGPIPE);  // ranks are not deaf to it
}

TEST_F(Run, ends_of_ranks_are_heard_where_the_parent_ignored_those_of_its_children) {
  EXPECT_EQ(run("--nproc 2", "exit $((3 * RANK))", "trap \"\" CHLD;"), 3);
}

TEST_F(Run, the_run_folder_of_an_earlier_job_is_forgotten) {
  folder.write("logs/run-folder.txt", "/some/run");
  ASSERT_EQ(run("--nproc 1 --log-dir logs", "test ! -e logs/run-folder.txt"), 0) << file("err");
}

TEST_F(Run, wrong_flags_are_said_before_anything_starts) {
  const auto usage = [&](const std::string& flags, const std::string& part) {
    EXPECT_EQ(run(flags, "echo started >started"), 2) << flags;
    expect_part(file("err"), part);
  };
  usage("--nproc none", "--nproc must be a number from 1 to 1024, auto, cpu or gpu; got \"none\"");
  usage("--grace 1e300", "--grace: expected a number from 0 to 86400; got '1e300'");
  usage("--monitor-interval 1e300", "--monitor-interval: expected a number from 0.001 to 86400");
  usage("--nproc 0", "--nproc must be a number from 1 to 1024");
  usage("--nnodes 2", "--nnodes 2 needs --master-addr");
  usage("--nnodes 2 --master-addr \"\"", "--master-addr: expected a text that is not empty");
  usage("--nnodes 2 --standalone", "--standalone is for one host");
  usage("--node-rank 1", "--node-rank must be below --nnodes; got 1 of 1");
  usage("--nproc 1 no-such-program", "cannot find the program no-such-program on PATH");
  usage("--nproc 1 ./out/none", "cannot run ./out/none: there is no such file");
  usage("--nproc 1 ./err", "cannot run ./err: it is not executable");
  usage("--bad-flag 1", "--bad-flag");
  EXPECT_EQ(file("started"), "");
  folder.write("err", "");
  const std::string alone = "cd " + folder.str() + "; " + kRun + " ";
  EXPECT_NE(std::system((alone + "--nproc-per-node 2>err").c_str()), 0);
  expect_part(file("err"), "--nproc-per-node: expected ");
}

TEST(RunSettings, two_hosts_may_be_tried_out_on_one) {
  RunSettings s;
  s.nodes = 2;
  s.command = {"true"};
  EXPECT_THROWS_WITH(check_run_settings(s), UsageError, "--nnodes 2 needs --master-addr");
  s.master_addr = "127.0.0.1";
  EXPECT_NO_THROW(check_run_settings(s));
}

TEST(RunSettings, flags_end_at_the_program) {
  const auto split =
      split_arguments({"--nproc", "2", "--standalone", "--log-dir=x", "prog", "--nproc"});
  EXPECT_EQ(split.own, (std::vector<std::string>{"--nproc", "2", "--standalone", "--log-dir=x"}));
  EXPECT_EQ(split.command, (std::vector<std::string>{"prog", "--nproc"}));
  EXPECT_EQ(split_arguments({"--nproc", "2", "--", "-odd"}).command,
            std::vector<std::string>{"-odd"});
  EXPECT_THROWS_WITH(check_run_settings({}), UsageError, "which program?");
  EXPECT_THROWS_WITH(split_arguments({"--nproc", "true"}), UsageError,
                     "which program? --nproc took 'true'; tarn-run --nproc N PROGRAM");
  EXPECT_EQ(split_arguments({"--nproc", "cpu"}).own.size(), 2u);
  RunSettings settings;
  Options options("tarn-run", "");
  declare_run_flags(options, settings);
  EXPECT_TRUE(options.help(80).starts_with("usage: tarn-run [options] PROGRAM...\n"));
}

TEST(RunSettings, what_cannot_be_looked_at_is_no_program) {
  const test::TempFolder folder;
  const std::string loop = folder / "loop", blocked = folder.write("file", "x") + "/program";
  std::filesystem::create_symlink("loop", loop);
  for (const std::string& path : {loop, blocked, folder / std::string(300, 'n')}) {
    EXPECT_THROWS_WITH(find_program(path), UsageError,
                       "cannot run " + path + ": there is no such file");
  }
  EXPECT_THROWS_WITH(find_program(folder.str()), UsageError, "it is not executable");
  const std::string path = getenv("PATH") ? getenv("PATH") : "";
  // On the way to sh: a link to itself, and a folder that is one.
  std::filesystem::create_symlink("sh", folder / "sh");
  setenv("PATH", (folder.str() + ":" + loop + ":/bin").c_str(), 1);
  EXPECT_EQ(find_program("sh"), "/bin/sh");
  EXPECT_THROWS_WITH(find_program("loop"), UsageError, "cannot find the program loop on PATH");
  setenv("PATH", path.c_str(), 1);
}

TEST(RunFlight, names_the_ranks_that_are_missing) {
  const test::TempFolder folder;
  EXPECT_EQ(flight_summary(folder.str(), {0, 1}), "");
  folder.write("flight-world-rank-0.txt",
               "group world, rank 0 of 2: x\n6\tdone\t1000\t1005\tall_reduce #6\n"
               "7\tfailed\t2000\t4500\tbarrier #7\n8\tqueued\t0\t0\tbarrier #8\n");
  EXPECT_EQ(flight_summary(folder.str(), {0, 1}),
            "  rank 0: failed barrier #7 after 2.5 s\n  rank 1: no record\n  missing: rank 1\n");
  folder.write("flight-world-rank-1.txt",
               "group world, rank 1 of 2: x\n6\tdone\t1000\t1005\tall_reduce #6\n");
  EXPECT_EQ(flight_summary(folder.str(), {0, 1}),
            "  rank 0: failed barrier #7 after 2.5 s\n  rank 1: done all_reduce #6 after 0.0 s\n"
            "  missing: rank 1\n");
  // Rank 0 had come to what failed there, so it is not the one that is missing.
  folder.write("flight-world-rank-1.txt",
               "group world, rank 1 of 2: x\n7\tdone\t2000\t2001\tbarrier #7\n"
               "8\tfailed\t2001\t4500\tbarrier #8\n");
  EXPECT_EQ(flight_summary(folder.str(), {0, 1}),
            "  rank 0: failed barrier #7 after 2.5 s\n  rank 1: failed barrier #8 after 2.5 s\n");
}

TEST(RunTail, gives_the_last_lines) {
  const test::TempFolder folder;
  EXPECT_EQ(tail(folder.write("a", "1\n2\n3\n"), 2), "2\n3");
  EXPECT_EQ(tail(folder.write("b", "1\n2"), 5), "1\n2");
  EXPECT_EQ(tail(folder.write("c", ""), 5), "");
  EXPECT_EQ(tail(folder / "none", 5), "");
}

}  // namespace
}  // namespace tarn::apps
