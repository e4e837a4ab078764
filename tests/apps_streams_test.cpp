// apps_streams_test.cpp - standard streams that are closed or full, devices, links, locks,
// hang-ups.
#include <chrono>
#include <filesystem>
#include <sstream>
#include <thread>

#include "apps_resnet_tools.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "tarn/apps/common/interrupt.h"
#include "tarn/apps/common/run_dir.h"
#include "tarn/core/file.h"

namespace tarn::apps {
namespace {

namespace fs = std::filesystem;
using test::Ended;
using test::Process;
using test::slurp;
using test::TempFolder;

const std::string kProgram = tarn::test::built("tarn-resnet");

class Streams : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kProgram)) GTEST_SKIP() << "built without apps";
    write_mnist(folder, "data", 48, 16);
  }
  /// The program in a shell, with redirections behind its arguments.
  Ended shell(const std::string& arguments) {
    return Process("/bin/sh", {"-c", "exec " + kProgram + " " + arguments}, folder).wait();
  }
  std::string quick(const std::string& name) const {
    return "--data-path mnist:" + folder / "data" + " -b 16 --epochs 1 --lr 0.02 --threads 1 " +
           "--device cpu --print-freq 1 --output-dir " + folder / "runs" + " --name " + name + " ";
  }
  TempFolder folder;
};

TEST_F(Streams, help_that_cannot_be_written_is_an_error) {
  const Ended end = shell("--help >/dev/full");
  EXPECT_EQ(end.code, 1);
  EXPECT_NE(end.err.find("cannot write to standard output: "), std::string::npos) << end.err;
}

TEST_F(Streams, what_is_printed_to_a_closed_stream_lands_in_no_file) {
  const Ended end = shell(quick("a") + ">&-");
  EXPECT_EQ(end.code, 1);
  EXPECT_NE(end.err.find("cannot write to standard output: "), std::string::npos) << end.err;
  EXPECT_EQ(shell(quick("b") + ">&- 2>&-").code, 1);
  EXPECT_EQ(shell(quick("c") + "<&-").code, 0);
  for (const char* name : {"a", "b", "c"}) {
    std::istringstream metrics(
        test::content(folder / (std::string("runs/") + name + "/metrics.jsonl")));
    int lines = 0;
    for (std::string line; std::getline(metrics, line); ++lines) {
      EXPECT_FALSE(nlohmann::json::parse(line, nullptr, false).is_discarded()) << line;
    }
    EXPECT_EQ(lines, 4) << name;  // 3 steps and an epoch
  }
}

// As with `| tee log`, which the Ctrl-C that is meant for the run ends as well.
TEST_F(Streams, a_run_whose_reader_has_gone_saves_and_ends) {
  const Ended end =
      Process("/bin/sh",
              {"-c", "{ " + kProgram + " " + quick("a") + "--epochs 100000 2>&1; echo $? >" +
                         folder / "code" + "; } | head -n 1"},
              folder)
          .wait();
  EXPECT_EQ(end.code, 0);
  const std::string log = test::content(folder / "runs/a/train.log");
  EXPECT_NE(log.find("interrupted; state saved"), std::string::npos) << log;
  EXPECT_EQ(slurp(folder / "code"), "0\n");
}

TEST_F(Streams, two_processes_do_not_train_in_one_folder) {
  const std::string run = folder / "runs/a";
  const TempFolder other;  // of the first one's output
  Process first("/bin/sh", {"-c", "exec " + kProgram + " " + quick("a") + "--epochs 100000"},
                other);
  while (first.running() && slurp(run + "/metrics.jsonl").size() < 100) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const Ended second = shell("--resume " + run);
  EXPECT_EQ(second.code, 1);
  EXPECT_NE(second.err.find("another process trains in " + run), std::string::npos) << second.err;
  first.signal(SIGHUP);  // as a terminal does that closes
  const Ended end = first.wait();
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_NE(end.out.find("Stopped and saved"), std::string::npos) << end.out;
  EXPECT_EQ(shell("--resume " + run + " --epochs 1").code, 0);
}

TEST(RunDirLock, is_of_one_run_folder_at_a_time) {
  const TempFolder folder;
  {
    const RunDir run = RunDir::create(folder.str(), "r/");
    EXPECT_EQ(run.path(), fs::path(folder.str()) / "r");
    EXPECT_MESSAGE(std::runtime_error, RunDir::open(run.path()), "another process trains in ");
  }
  RunDir::open(folder / "r").log("on");
  EXPECT_MESSAGE(UsageError, RunDir::create(folder.str(), "."), "expected the name of a new");
  EXPECT_MESSAGE(UsageError, RunDir::create(folder.str(), ".."), "got '..'");
}

TEST(RunDirAdvice, a_folder_that_is_no_run_is_told_apart) {
  const TempFolder folder;
  Options options("tarn-gpt", "");
  const auto inherit = [&](const std::string& path) { inherit_flags(options, path, {}); };
  folder.write("a/config.json", R"({"program": "tarn-resnet", "flags": {}})");
  fs::create_directories(folder / "a/checkpoints/last");
  EXPECT_MESSAGE(std::runtime_error, inherit(folder / "a"), "a is a run of tarn-resnet, not of");
  for (const char* inside : {"a/checkpoints", "a/checkpoints/last", "a/checkpoints/last/"}) {
    EXPECT_MESSAGE(std::runtime_error, inherit(folder / inside),
                   "; pass the run's folder: --resume " + folder / "a");
  }
  EXPECT_MESSAGE(std::runtime_error, inherit(folder / "none"), "; there is no such folder");
  fs::create_directory(folder / "empty");
  EXPECT_MESSAGE(std::runtime_error, inherit(folder / "empty"), "not the folder of a run");
}

// What both ways of writing a whole file do with a path.
void expect_written(const std::string& path, const std::function<std::string()>& read) {
  write_file(path, "one");
  EXPECT_EQ(read(), "one") << path;
  OutputFile file("test", path);
  file.write("two");
  file.commit();
  EXPECT_EQ(read(), "two") << path;
}

TEST(WriteTarget, links_stay_links) {
  const TempFolder folder;
  folder.write("there/old", "old");
  fs::create_symlink("there/old", folder / "link");
  fs::create_symlink("link", folder / "second");
  fs::create_symlink("there/new", folder / "dangling");
  expect_written(folder / "second", [&] { return slurp(folder / "there/old"); });
  expect_written(folder / "dangling", [&] { return slurp(folder / "there/new"); });
  for (const char* name : {"link", "second", "dangling"}) {
    EXPECT_TRUE(fs::is_symlink(folder / name)) << name;
  }
  EXPECT_EQ(folder.entries(), 4u);  // nothing temporary stays
}

TEST(WriteTarget, devices_and_pipes_are_written_to) {
  const TempFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  expect_written(pipe, [&] {
    char text[16];
    const ssize_t got = read(reader, text, sizeof text);
    return std::string(text, static_cast<size_t>(std::max<ssize_t>(got, 0)));
  });
  close(reader);
  EXPECT_TRUE(fs::is_fifo(pipe));
  fs::create_symlink("/dev/full", folder / "full");
  EXPECT_MESSAGE(std::runtime_error, write_file(folder / "full", "x"), "No space left on device");
  OutputFile null("test", "/dev/null");
  null.write("x");
  null.commit();
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(InterruptTest, a_hang_up_stops_softly_and_a_second_one_is_no_haste) {
  testing::internal::CaptureStderr();
  {
    const Interrupt interrupt;
    raise(SIGHUP);
    EXPECT_EQ(interrupt.signal(), SIGHUP);
    raise(SIGHUP);
  }
  signal(SIGHUP, SIG_IGN);  // nohup
  {
    const Interrupt interrupt;
    raise(SIGHUP);
    EXPECT_FALSE(interrupt.requested());
  }
  signal(SIGHUP, SIG_DFL);
  testing::internal::GetCapturedStderr();
}

}  // namespace
}  // namespace tarn::apps
