// apps_shell_test.cpp - run folders, files that fail, interrupts, exit codes.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tarn/apps/common/figures.h"
#include "tarn/apps/common/interrupt.h"
#include "tarn/apps/common/main_guard.h"
#include "tarn/apps/common/run_dir.h"
#include "tarn/tests/temp_folder.h"

namespace tarn::apps {
namespace {

namespace fs = std::filesystem;

class Folder : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tarn-test-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder = pattern;
  }
  void TearDown() override { fs::remove_all(folder); }
  static std::string read(const fs::path& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  template <class F>
  static std::string message(F body) {
    try {
      body();
    } catch (const std::exception& e) {
      return e.what();
    }
    return "";
  }
  fs::path folder;
};

using RunDirTest = Folder;
using FileTest = Folder;

TEST_F(RunDirTest, a_new_run_never_writes_into_an_old_one) {
  EXPECT_EQ(RunDir::create(folder / "runs", "a").path(), folder / "runs" / "a");
  EXPECT_EQ(RunDir::create(folder / "runs", "a").path(), folder / "runs" / "a-2");
  EXPECT_EQ(RunDir::create(folder / "runs", "a").path(), folder / "runs" / "a-3");
}

TEST_F(RunDirTest, it_records_flags_metrics_and_log) {
  RunDir run = RunDir::create(folder, "r");
  double lr = 0.1;
  Options options("tarn-test", "");
  options.add("--lr", &lr, "rate");
  options.parse({"--lr", "0.5"});
  run.write_config(options, 2, JsonObject().add("parameters", 42));
  run.metric(JsonObject().add("step", 1).add("loss", 0.25));
  run.metric(JsonObject().add("step", 2).add("loss", std::nan("")));
  run.log("hello");
  EXPECT_EQ(read(run.path() / "args.txt"), "tarn-test --lr 0.5\n");
  EXPECT_EQ(read(run.path() / "metrics.jsonl"),
            "{\"step\": 1, \"loss\": 0.25}\n{\"step\": 2, \"loss\": null}\n");
  EXPECT_NE(read(run.path() / "train.log").find("  hello\n"), std::string::npos);
  const std::string config = read(run.path() / "config.json");
  EXPECT_NE(config.find("\"threads\": 2,\n  \"flags\": {\n    \"lr\": 0.5\n  },"),
            std::string::npos)
      << config;
  EXPECT_NE(config.find("\"cpu\": "), std::string::npos);
  EXPECT_NE(config.find("\"git\": "), std::string::npos);
}

TEST_F(RunDirTest, a_run_hands_its_flags_on_but_what_is_given_stays) {
  struct Flags {
    double lr = 0.1;
    int64_t epochs = 5;
    bool flip = true;
    std::string name = "x";
    std::optional<std::string> weights;
  };
  const auto declare = [](Options& options, Flags& f) {
    options.add("--lr", &f.lr, "");
    options.add("--epochs", &f.epochs, "").at_least(1);
    options.add("--flip", &f.flip, "");
    options.add("--name", &f.name, "");
    options.add("--weights", &f.weights, "");
  };
  Flags first, second;
  RunDir run = RunDir::create(folder, "r");
  {
    Options options("tarn-test", "");
    declare(options, first);
    options.parse({"--lr", "0.3", "--epochs", "7", "--no-flip", "--name", "a b"});
    run.write_config(options, 2);
  }
  Options options("tarn-test", "");
  declare(options, second);
  options.parse({"--epochs", "9"});
  inherit_flags(options, run.path(), {"--name"});
  run.write_config(options, 2);
  EXPECT_EQ(second.lr, 0.3);
  EXPECT_EQ(second.epochs, 9);
  EXPECT_FALSE(second.flip);
  EXPECT_EQ(second.name, "x");
  EXPECT_FALSE(second.weights.has_value());
  EXPECT_FALSE(options.given("--lr"));
  EXPECT_EQ(read(run.path() / "args.txt"),
            "tarn-test --lr 0.3 --epochs 7 --no-flip --name 'a b'\ntarn-test --epochs 9\n");

  EXPECT_NE(message([&] {
              inherit_flags(options, folder / "no", {});
            }).find("no run to go on with: cannot read " + (folder / "no/config.json").string()),
            std::string::npos);
  std::ofstream(run.path() / "config.json") << "{\"flags\": ";
  EXPECT_NE(message([&] { inherit_flags(options, run.path(), {}); }).find("config.json is damaged"),
            std::string::npos);
  fs::remove(run.path() / "config.json");
  ASSERT_EQ(mkfifo((run.path() / "config.json").c_str(), 0600), 0);
  EXPECT_NE(message([&] { inherit_flags(options, run.path(), {}); }).find("not a plain file"),
            std::string::npos);
}

TEST_F(RunDirTest, texts_that_are_not_utf8_are_handed_on_too) {
  const std::string all[] = {"",       "caf\u00E9", "caf\xE9.txt", "\xFF\x80",
                             "\uF7E9", "\uFFFD",    "\xEF\x9F"};
  for (const std::string& text : all) {
    EXPECT_EQ(unescape_bytes(escape_bytes(text)), text);
    std::string data = text;
    std::optional<std::string> weights = text;
    Options first("tarn-test", ""), second("tarn-test", "");
    for (Options* options : {&first, &second}) {
      options->add("--data", &data, "");
      options->add("--weights", &weights, "");
    }
    const RunDir run = RunDir::create(folder, "r");
    run.write_config(first, 2);
    data = "x";
    weights.reset();
    inherit_flags(second, run.path(), {});
    EXPECT_EQ(data, text);
    EXPECT_EQ(weights, text);
    EXPECT_EQ(flag_of_run(run.path(), "data"), text);
  }
  EXPECT_EQ(escape_bytes("caf\u00E9"), "caf\u00E9");
  EXPECT_EQ(escape_bytes("\xE9"), "\uF7E9");
}

TEST_F(RunDirTest, paths_for_plots_have_their_folder) {
  const RunDir run = RunDir::create(folder, "r");
  EXPECT_EQ(run.plot("loss.svg"), folder / "r/plots/loss.svg");
  EXPECT_TRUE(fs::is_directory(folder / "r/plots"));
}

TEST_F(RunDirTest, an_earlier_run_goes_on_where_it_was) {
  RunDir::create(folder, "r").log("one");
  RunDir again = RunDir::open(folder / "r");
  again.log("two");
  const std::string log = read(folder / "r/train.log");
  EXPECT_NE(log.find("one\n"), std::string::npos);
  EXPECT_NE(log.find("two\n"), std::string::npos);
  EXPECT_NE(message([&] { RunDir::open(folder / "none"); }).find("no run to go on with"),
            std::string::npos);
}

TEST_F(RunDirTest, a_run_that_cannot_be_asked_about_or_cut_is_named) {
  fs::create_symlink(folder / "loop", folder / "loop");
  EXPECT_EQ(message([&] { RunDir::open(folder / "loop"); }),
            "no run to go on with: " + (folder / "loop").string() + " is not a folder");
  const auto read_all = [&] {
    read_metrics(folder, [](const nlohmann::json&) { return true; });  // a folder for the file
  };
  EXPECT_EQ(message(read_all),
            "resume: cannot cut " + folder.string() + " to 0 bytes: Is a directory");
}

TEST_F(RunDirTest, a_file_in_the_way_is_named) {
  std::ofstream(folder / "runs") << "x";
  EXPECT_EQ(message([&] { RunDir::create(folder / "runs", "a"); }),
            "cannot create folder " + (folder / "runs").string() + ": Not a directory");
}

TEST(RunName, odd_characters_become_dashes) {
  const std::string name = default_run_name("resnet20", "cifar10:/data/x");
  EXPECT_TRUE(name.starts_with("resnet20-cifar10--data-x-20")) << name;
}

TEST_F(FileTest, a_full_disk_is_named) {
  LineFile full("/dev/full");
  EXPECT_EQ(message([&] { full.append("x"); }), "cannot write /dev/full: No space left on device");
}

TEST_F(FileTest, a_failed_write_keeps_the_old_content) {
  write_file(folder / "a", "old");
  write_file(folder / "a", "new");
  EXPECT_EQ(read(folder / "a"), "new");
  fs::create_directory(folder / "b");
  EXPECT_EQ(message([&] { write_file(folder / "b", "x"); }),
            "cannot write " + (folder / "b").string() + ": Is a directory");
  EXPECT_EQ(message([&] { write_file(folder / "none/a", "x"); }),
            "cannot write " + (folder / "none/a").string() + ": No such file or directory");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 2);  // no temporary files stay
}

TEST(InterruptTest, the_first_signal_sets_the_flag) {
  testing::internal::CaptureStderr();
  {
    const Interrupt interrupt;
    EXPECT_FALSE(interrupt.requested());
    raise(SIGTERM);
    EXPECT_TRUE(interrupt.requested());
    EXPECT_EQ(interrupt.signal(), SIGTERM);
    raise(SIGTERM);  // as timeout(1) sends it: to the process and to its group
  }
  testing::internal::GetCapturedStderr();
  EXPECT_FALSE(Interrupt().requested());  // a new guard starts anew
}

TEST(InterruptDeathTest, the_second_ctrl_c_ends_at_once) {
  EXPECT_EXIT(
      {
        const Interrupt interrupt;
        raise(SIGINT);
        raise(SIGINT);
      },
      testing::ExitedWithCode(130), "press Ctrl-C again");
}

TEST(MainGuard, exceptions_become_messages_and_exit_codes) {
  const auto run = [](const std::function<int()>& body) {
    testing::internal::CaptureStderr();
    const int code = main_guard("tarn-test", body);
    return std::to_string(code) + "|" + testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(run([] { return 0; }), "0|");
  EXPECT_EQ(run([] { return 7; }), "7|");
  EXPECT_EQ(run([]() -> int { throw std::runtime_error("no such file"); }),
            "1|tarn-test: error: no such file\n");
  EXPECT_EQ(run([]() -> int { throw UsageError("unknown option -x"); }),
            "2|tarn-test: error: unknown option -x\nTry 'tarn-test --help'.\n");
  EXPECT_EQ(run([]() -> int { throw std::bad_alloc(); }), "1|tarn-test: error: out of memory\n");
  EXPECT_EQ(run([]() -> int { throw 3; }), "1|tarn-test: error: an unknown exception\n");
}

// As under a parent that ignores the ends of its children.
TEST(MainGuard, hears_how_its_children_end) {
  signal(SIGCHLD, SIG_IGN);
  const int code =
      main_guard("tarn-test", [] { return WEXITSTATUS(pclose(popen("exit 3", "r"))); });
  signal(SIGCHLD, SIG_DFL);
  EXPECT_EQ(code, 3);
}

TEST(MainGuard, leaves_the_reason_to_torchrun) {
  const test::TempFolder folder;
  setenv("TORCHELASTIC_ERROR_FILE", (folder / "error.json").c_str(), 1);
  testing::internal::CaptureStderr();
  main_guard("tarn-test", []() -> int { throw std::runtime_error("no \"such\" file"); });
  testing::internal::GetCapturedStderr();
  unsetenv("TORCHELASTIC_ERROR_FILE");
  const std::string text = test::slurp(folder / "error.json");
  const std::string said = "\"no \\\"such\\\" file\"";
  EXPECT_TRUE(text.starts_with("{\"message\": {\"message\": " + said +
                               ", \"extraInfo\": {\"py_callstack\": " + said +
                               ", \"timestamp\": \""))
      << text;
}

TEST(Json, objects_keep_order_and_quote) {
  EXPECT_EQ(JsonObject().text(), "{}");
  EXPECT_EQ(JsonObject().add("b", "x\"\n").add("a", JsonObject().add("t", true)).text(),
            "{\"b\": \"x\\\"\\n\", \"a\": {\"t\": true}}");
}

}  // namespace
}  // namespace tarn::apps
