// apps_kill_test.cpp - trainings that are killed with signal 9 at random moments, saves included,
// and resumed until they are done, end with the figures and weights of one never stopped.
//
// The suite kills a few times. By hand: TARN_KILLS=50 test_apps --gtest_filter='Kill*'
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <random>
#include <sstream>
#include <thread>

#include "apps_gpt_tools.h"
#include "apps_resnet_tools.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace {

namespace fs = std::filesystem;
using tarn::test::built;
using tarn::test::Ended;
using tarn::test::Process;
using tarn::test::slurp;
using tarn::test::TempFolder;
using Clock = std::chrono::steady_clock;
using Arguments = std::vector<std::string>;

int kills_wanted() {
  const char* text = std::getenv("TARN_KILLS");
  return text ? std::atoi(text) : 3;
}

/// One kind of training: what starts it in a run folder, and what goes on there.
struct Training {
  std::string program;
  std::function<Arguments(const std::string& name)> start;
  Arguments resume;  // before the run folder
};

class Kill : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* program : {"tarn-gpt", "tarn-resnet", "tarn-run"}) {
      if (!fs::exists(built(program))) GTEST_SKIP() << "built without apps";
    }
    fs::create_directory(folder / "runs");
  }

  std::string run_folder(const std::string& name) const { return folder / "runs/" + name; }

  // metrics.jsonl without what a clock says.
  std::string figures(const std::string& name) const {
    std::istringstream in(slurp(run_folder(name) + "/metrics.jsonl"));
    std::string text;
    for (std::string line; std::getline(in, line);) {
      nlohmann::json j = nlohmann::json::parse(line);
      for (const char* timing : {"ms", "tok_s", "img_s", "mem_mib", "mfu"}) j.erase(timing);
      text += j.dump() + "\n";
    }
    return text;
  }
  std::string weights(const std::string& name, const char* file) const {
    return tarn::test::content(run_folder(name) + "/checkpoints/last/" + file + ".safetensors");
  }

  // Runs to the end with at most `left` kills on the way; returns how many there were.
  int run_with_kills(const Training& t, const std::string& name, int left, double seconds) {
    int kills = 0;
    while (true) {
      const bool on = fs::exists(run_folder(name));
      Arguments arguments = on ? t.resume : t.start(name);
      if (on) arguments.push_back(run_folder(name));
      Process process(t.program, arguments, folder);
      if (kills < left) {
        const double moment = std::uniform_real_distribution<>(0, seconds)(random_);
        std::this_thread::sleep_for(std::chrono::duration<double>(moment));
        if (process.running()) {
          ++kills;
          process.signal(SIGKILL);
        }
      }
      const Ended end = process.wait();
      if (end.code == 128 + SIGKILL) continue;
      if (end.code == 0) return kills;
      // Killed before it had written anything to go on from: it starts anew.
      const bool nothing = end.err.find("no run to go on with") != std::string::npos ||
                           end.err.find("resume: no checkpoint in") != std::string::npos;
      EXPECT_TRUE(on && nothing) << end.err;
      if (!on || !nothing) return kills;
      fs::remove_all(run_folder(name));
    }
  }

  void expect_kills_change_nothing(const Training& t, std::initializer_list<const char*> files) {
    const auto start = Clock::now();
    const Ended whole = Process(t.program, t.start("whole"), folder).wait();
    ASSERT_EQ(whole.code, 0) << whole.err;
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    ASSERT_GT(figures("whole").size(), 1000u);
    const int wanted = kills_wanted();
    for (int kills = 0, round = 1; kills < wanted; ++round) {
      const std::string name = "killed" + std::to_string(round);
      const int here = run_with_kills(t, name, std::min(wanted - kills, 8), seconds);
      kills += std::max(here, 1);  // a run too fast to be killed counts, so that this ends
      std::cout << "killed " << here << " times\n";
      ASSERT_EQ(figures(name), figures("whole"));
      for (const char* file : files) EXPECT_TRUE(weights(name, file) == weights("whole", file));
    }
  }

  Arguments gpt(const std::string& name, const Arguments& more) const {
    Arguments all = tarn::test::small_gpt(
        folder / "words.txt", run_folder(name),
        {"--dtype", "float16", "--sample-tokens", "0", "--save-interval", "3"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  TempFolder folder;
  std::mt19937 random_{std::random_device{}()};
};

TEST_F(Kill, gpt_with_accumulation_dropout_and_float16) {
  tarn::test::write_words(folder);
  for (const char* async : {"--async-save", "--no-async-save"}) {
    expect_kills_change_nothing({built("tarn-gpt"),
                                 [&](const std::string& name) { return gpt(name, {async}); },
                                 {"--resume"}},
                                {"model", "optim", "scaler"});
    fs::remove_all(folder / "runs");
    fs::create_directory(folder / "runs");
  }
}

TEST_F(Kill, two_ranks_of_gpt) {
  tarn::test::write_words(folder);
  const Arguments launch = {"--nproc", "2", "--log-dir", folder / "logs", built("tarn-gpt")};
  Arguments resume = launch;
  resume.push_back("--resume");
  expect_kills_change_nothing({built("tarn-run"),
                               [&](const std::string& name) {
                                 Arguments all = launch;
                                 for (const std::string& a : gpt(name, {})) all.push_back(a);
                                 return all;
                               },
                               resume},
                              {"model", "optim", "scaler"});
}

TEST_F(Kill, resnet_with_accumulation_float16_workers_and_a_mean_of_weights) {
  write_mnist(folder, "data", 96, 16);
  const auto start = [&](const std::string& name) {
    return Arguments{"--data-path",
                     "mnist:" + folder / "data",
                     "--output-dir",
                     folder / "runs",
                     "--name",
                     name,
                     "--device",
                     "cpu",
                     "--threads",
                     "1",
                     "--epochs",
                     "3",
                     "-b",
                     "8",
                     "--lr",
                     "0.02",
                     "-j",
                     "2",
                     "--amp",
                     "--amp-dtype",
                     "float16",
                     "--clip-grad-norm",
                     "1",
                     "--gradient-accumulation-steps",
                     "2",
                     "--model-ema",
                     "--model-ema-steps",
                     "2",
                     "--print-freq",
                     "1",
                     "--save-interval",
                     "1",
                     "--async-save"};
  };
  expect_kills_change_nothing({built("tarn-resnet"), start, {"--resume"}},
                              {"model", "optim", "ema", "scaler"});
}

}  // namespace
