// apps_zero_test.cpp - --zero-stage: trainers whose ranks share the training state lose as before.
#include <filesystem>
#include <fstream>

#include "apps_gpt_tools.h"
#include "apps_resnet_tools.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace {

namespace fs = std::filesystem;
using tarn::test::built;
using tarn::test::Ended;
using tarn::test::Process;
using tarn::test::TempFolder;

const std::string kGpt = built("tarn-gpt"), kResnet = built("tarn-resnet");

class Zero : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* program : {"tarn-gpt", "tarn-resnet", "tarn-run"}) {
      if (!fs::exists(built(program))) GTEST_SKIP() << "built without apps";
    }
  }

  Ended run(int ranks, const std::string& program, const std::vector<std::string>& flags) {
    std::vector<std::string> all = {"--nproc", std::to_string(ranks), "--log-dir", folder / "logs",
                                    program};
    all.insert(all.end(), flags.begin(), flags.end());
    return Process(built("tarn-run"), all, folder).wait();
  }
  // A figure of every line of a run's metrics.jsonl that has it.
  std::vector<double> figures(const std::string& run, const char* key) const {
    std::ifstream in(folder / (run + "/metrics.jsonl"));
    std::vector<double> all;
    for (std::string line; std::getline(in, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains(key)) all.push_back(json[key].get<double>());
    }
    return all;
  }

  TempFolder folder;
};

class ZeroGpt : public Zero {
 protected:
  std::vector<std::string> small(const std::string& name, const std::vector<std::string>& more) {
    if (text.empty()) text = tarn::test::write_words(folder);
    std::vector<std::string> flags = {"--lr-decay-iters", "60", "--eval-interval", "15"};
    flags.insert(flags.end(), more.begin(), more.end());
    return tarn::test::small_gpt(text, folder / name, flags);
  }
  std::string text;
};

TEST_F(ZeroGpt, losses_are_those_of_stage_0) {
  for (const char* stage : {"0", "1", "2", "3"}) {
    const Ended ended = run(2, kGpt, small(std::string("stage") + stage, {"-z", stage}));
    ASSERT_EQ(ended.code, 0) << ended.out << ended.err;
    EXPECT_NE(ended.out.find("Final: train loss "), std::string::npos);
    const std::string said = std::string("(ZeRO stage ") + stage + ")";
    EXPECT_EQ(ended.out.find(said) != std::string::npos, *stage != '0') << ended.out;
    for (const char* key : {"loss", "val_loss"}) {
      const auto zero = figures("stage0", key), ours = figures(std::string("stage") + stage, key);
      ASSERT_EQ(ours.size(), zero.size());
      ASSERT_GT(ours.size(), 4u);
      // The norm by which gradients are clipped is summed in another order, in f64.
      for (size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], zero[i], 1e-5) << stage;
    }
  }
}

TEST_F(ZeroGpt, a_run_goes_on_with_other_ranks_and_another_stage) {
  ASSERT_EQ(run(2, kGpt, small("whole", {"--dropout", "0"})).code, 0);
  const auto whole = figures("whole", "loss");
  struct Leg {
    int ranks;
    const char *stage, *until;
  };
  // Half-precision products have masters and a scale in the checkpoint as well.
  for (const char* dtype : {"float32", "float16"}) {
    const std::string name = std::string("legs-") + dtype;
    bool first = true;
    for (const Leg& leg : {Leg{2, "3", "15"}, {4, "1", "30"}, {2, "0", "45"}, {4, "2", "60"}}) {
      std::vector<std::string> flags = first ? small(name, {"--dropout", "0", "--dtype", dtype})
                                             : std::vector<std::string>{"--resume", folder / name};
      flags.insert(flags.end(), {"--zero-stage", leg.stage, "--max-iters", leg.until});
      const Ended ended = run(leg.ranks, kGpt, flags);
      ASSERT_EQ(ended.code, 0) << ended.out << ended.err;
      first = false;
    }
    const auto legs = figures(name, "loss");
    ASSERT_EQ(legs.size(), whole.size());
    const double near = std::string(dtype) == "float32" ? 1e-3 : 0.05;
    for (size_t i = 0; i < legs.size(); ++i) EXPECT_NEAR(legs[i], whole[i], near) << dtype << i;
  }
  // A process alone estimates the losses of such a run, and goes on with it.
  const std::vector<std::string> resume = {"--resume", folder / "legs-float32"};
  const auto alone = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), resume.begin(), resume.end());
    return Process(kGpt, flags, folder).wait();
  };
  const Ended estimate = alone({"--eval-only"});
  EXPECT_EQ(estimate.code, 0) << estimate.err;
  EXPECT_NE(estimate.out.find("val loss "), std::string::npos) << estimate.out;
  const Ended asks = alone({"--zero-stage", "2"});
  EXPECT_EQ(asks.code, 2) << asks.out;
  EXPECT_NE(asks.err.find("--zero-stage 2 shares the training state"), std::string::npos);
  const Ended goes_on = alone({"--max-iters", "62"});
  EXPECT_EQ(goes_on.code, 0) << goes_on.err;
  EXPECT_EQ(figures("legs-float32", "loss").size(), whole.size() + 2);
}

TEST_F(ZeroGpt, needs_ranks_and_says_so) {
  const std::vector<std::string> flags = small("none", {"--zero-stage", "2"});
  const Ended alone = Process(kGpt, flags, folder).wait();
  EXPECT_EQ(alone.code, 2);
  EXPECT_NE(alone.err.find("--zero-stage 2 shares the training state of several ranks; try "
                           "tarn-run --nproc 2 tarn-gpt ..."),
            std::string::npos)
      << alone.err;
  const Ended both = run(2, kGpt, small("none", {"-z", "1", "--rebalance", "5"}));
  EXPECT_NE(both.code, 0);
  EXPECT_NE(both.err.find("--rebalance measures ranks of --zero-stage 0"), std::string::npos)
      << both.err;
  const Ended four = Process(kGpt, small("none", {"--zero-stage", "4"}), folder).wait();
  EXPECT_EQ(four.code, 2);
}

TEST_F(Zero, resnet_loses_and_scores_as_stage_0) {
  write_mnist(folder, "data", 96, 30);
  const auto flags = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> all = run_of_ranks(folder, name);
    for (const char* flag : {"--clip-grad-norm", "1", "--gradient-accumulation-steps", "2"}) {
      all.push_back(flag);
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  for (const char* stage : {"0", "1", "2", "3"}) {
    std::vector<std::string> more = {"--zero-stage", stage};
    if (*stage < '3') more.push_back("--model-ema");
    const std::string name = std::string("stage") + stage;
    const Ended ended = run(2, kResnet, flags(name, more));
    ASSERT_EQ(ended.code, 0) << ended.out << ended.err;
    const std::string said = std::string("(ZeRO stage ") + stage + ")";
    EXPECT_EQ(ended.out.find(said) != std::string::npos, *stage != '0') << ended.out;
    const auto zero = figures("runs/stage0", "loss"), ours = figures("runs/" + name, "loss");
    ASSERT_EQ(ours.size(), 16u);
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], zero[i], 1e-4) << stage;
    if (*stage == '3') continue;  // tests the weights, not their mean
    const auto tests = figures("runs/stage0", "test_loss"),
               now = figures("runs/" + name, "test_loss");
    ASSERT_EQ(now.size(), 2u);
    EXPECT_NEAR(now[1], tests[1], 1e-3) << stage;
  }
  const Ended resumed =
      run(3, kResnet, {"--resume", folder / "runs/stage3", "--zero-stage", "2", "--epochs", "3"});
  EXPECT_EQ(resumed.code, 0) << resumed.out << resumed.err;
  EXPECT_EQ(figures("runs/stage3", "test_loss").size(), 3u);
  // A process alone tests such a run, and goes on with it.
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--test-only"}, {"--epochs", "4"}}) {
    std::vector<std::string> alone = {"--resume", folder / "runs/stage3"};
    alone.insert(alone.end(), more.begin(), more.end());
    const Ended ended = Process(kResnet, alone, folder).wait();
    EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
    EXPECT_NE(ended.out.find("Test: Acc@1 "), std::string::npos) << ended.out;
  }
  EXPECT_EQ(figures("runs/stage3", "test_loss").size(), 4u);
  const Ended mean = run(2, kResnet, flags("mean", {"-z", "3", "--model-ema"}));
  EXPECT_NE(mean.err.find("--model-ema keeps a copy of all weights on each rank"),
            std::string::npos)
      << mean.err;
}

}  // namespace
