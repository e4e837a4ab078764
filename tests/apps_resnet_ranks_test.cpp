// apps_resnet_ranks_test.cpp - tarn-run tarn-resnet: several ranks train as one process does.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "apps_resnet_tools.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tarn/apps/common/device_choice.h"
#include "tarn/data/image_folder.h"
#include "tarn/data/sampler.h"
#include "tarn/dist/nccl_group.h"

namespace {

namespace fs = std::filesystem;
using tarn::test::Ended;
using tarn::test::Process;
using tarn::test::slurp;
using tarn::test::TempFolder;

const std::string kRun = tarn::test::built("tarn-run");
const std::string kResnet = tarn::test::built("tarn-resnet");

class ResnetRanks : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kRun) || !fs::exists(kResnet)) GTEST_SKIP() << "built without apps";
    write_mnist(folder, "data", 96, 30);
  }

  std::vector<std::string> command(int ranks, const std::string& name,
                                   const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"--nproc", std::to_string(ranks), "--log-dir", folder / "logs",
                                    kResnet};
    const auto common = tarn::test::run_of_ranks(folder, name);
    all.insert(all.end(), common.begin(), common.end());
    // A run that goes on has a place and a name.
    if (std::count(more.begin(), more.end(), "--resume") > 0) {
      for (const char* flag : {"--output-dir", "--name"}) {
        const auto at = std::find(all.begin(), all.end(), flag);
        if (at != all.end()) all.erase(at, at + 2);
      }
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Ended run(int ranks, const std::string& name, const std::vector<std::string>& more = {}) {
    return Process(kRun, command(ranks, name, more), folder).wait();
  }
  // One figure of every line of metrics.jsonl that has it.
  std::vector<double> figures(const std::string& name, const char* key) const {
    std::istringstream in(slurp(folder / ("runs/" + name + "/metrics.jsonl")));
    std::vector<double> all;
    for (std::string line; std::getline(in, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains(key)) all.push_back(json[key].get<double>());
    }
    return all;
  }

  // The last that train.log speaks of.
  double share_of_rank_0(const std::string& name) const {
    const std::string log = slurp(folder / ("runs/" + name + "/train.log"));
    const std::string mark = "shares of the ranks: ";
    const size_t at = log.rfind(mark);
    return at == std::string::npos ? 0 : std::atof(log.c_str() + at + mark.size());
  }

  TempFolder folder;
};

TEST_F(ResnetRanks, losses_and_scores_are_those_of_one_process) {
  ASSERT_EQ(run(1, "one").code, 0);
  for (int ranks : {2, 3}) {
    const std::string name = "of" + std::to_string(ranks);
    const Ended end = run(ranks, name);
    ASSERT_EQ(end.code, 0) << end.err;
    EXPECT_NE(end.out.find(std::to_string(ranks) + " ranks over "), std::string::npos) << end.out;
    const auto one = figures("one", "loss"), many = figures(name, "loss");
    ASSERT_EQ(one.size(), 16u);  // 2 epochs of 8 batches of 12
    ASSERT_EQ(many.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(many[i], one[i], 2e-3) << ranks << " " << i;
    const auto a = figures("one", "test_loss"), b = figures(name, "test_loss");
    ASSERT_EQ(b.size(), 2u);
    EXPECT_NEAR(b[1], a[1], 1e-2);
    EXPECT_EQ(figures(name, "test_acc").size(), 2u);
  }
}

// Rank 1 is late at every collective, so rank 0 gets more and more of each batch.
TEST_F(ResnetRanks, a_slow_rank_takes_fewer_images_and_no_loss_changes) {
  const std::vector<std::string> few = {"--epochs",       "1",       "--lr", "0.0005",
                                        "--lr-scheduler", "constant"};
  ASSERT_EQ(run(1, "one", few).code, 0);
  std::vector<std::string> more = few;
  more.insert(more.end(), {"--rebalance", "2", "-j", "0"});
  setenv("TARN_FAULT", "rank=1 every=1 do=delay:4", 1);
  const Ended end = run(2, "uneven", more);
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_NE(end.out.find("6 of 12 images a step at first, then by speed"), std::string::npos)
      << end.out;
  const auto one = figures("one", "loss"), many = figures("uneven", "loss");
  ASSERT_EQ(one.size(), 8u);
  ASSERT_EQ(many.size(), 8u);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(many[i], one[i], 1e-6) << i;
  EXPECT_EQ(figures("uneven", "acc"), figures("one", "acc"));
  EXPECT_GT(share_of_rank_0("uneven"), 0.6);

  // Where it goes on, it begins with the shares that it had.
  more.insert(more.end(), {"--resume", folder / "runs/uneven", "--epochs", "2"});
  const Ended on = run(2, "ignored", more);
  unsetenv("TARN_FAULT");
  ASSERT_EQ(on.code, 0) << on.err;
  EXPECT_EQ(figures("uneven", "loss").size(), 16u);
  const std::string log = slurp(folder / "runs/uneven/train.log");
  const size_t resumed = log.find("resumed in epoch 1");
  ASSERT_NE(resumed, std::string::npos) << log;
  const std::string line = log.substr(0, resumed);
  EXPECT_EQ(
      std::atof(line.substr(line.rfind("shares of the ranks: ") + 21).c_str()),
      std::atof(
          log.substr(log.rfind("shares of the ranks: ", log.find("Test: [0]")) + 21).c_str()));
}

// Of the four batches of an epoch the first can be read. Of the second, rank 1 of 2 can read
// nothing of its part, of the third nobody anything, of the last rank 0 all but two images.
std::string write_pictures(const TempFolder& folder) {
  uint32_t random = 1;
  for (const auto& [place, n] : {std::pair{"train", 24}, std::pair{"val", 6}}) {
    for (int i = 0; i < 2 * n; ++i) {
      std::string picture = "P6 16 16 255\n";
      for (int p = 0; p < 3 * 16 * 16; ++p) {
        random = random * 1664525 + 1013904223;
        const bool light = (p < 3 * 16 * 8) == (i % 2 == 0);
        picture += static_cast<char>((light ? 150 : 20) + (random >> 16) % 80);
      }
      folder.write(std::string("pictures/") + place + (i % 2 ? "/b/" : "/a/") +
                       std::to_string(100 + i) + ".ppm",
                   picture);
    }
  }
  const tarn::data::ImageFolder train(folder / "pictures/train");
  const auto order = tarn::data::DistributedSampler(48, {.seed = 1}).order(0);
  std::vector<size_t> lost = {36, 38};
  for (size_t i = 13; i < 24; i += 2) lost.push_back(i);
  for (size_t i = 24; i < 36; ++i) lost.push_back(i);
  for (const size_t i : lost) std::ofstream(train.name(order[i])) << "not a picture";
  return "imagefolder:" + folder / "pictures";
}

TEST_F(ResnetRanks, they_stay_in_step_where_some_can_read_nothing_of_their_part) {
  const std::vector<std::string> flags = {"--data-path",
                                          write_pictures(folder),
                                          "--train-crop-size",
                                          "16",
                                          "--val-resize-size",
                                          "16",
                                          "--val-crop-size",
                                          "16",
                                          "--epochs",
                                          "1",
                                          "--lr",
                                          "0.0005",
                                          "--lr-scheduler",
                                          "constant",
                                          "--skip-unreadable"};
  const auto run_with = [&](int ranks, const std::string& name,
                            const std::vector<std::string>& more) {
    std::vector<std::string> all = flags;
    all.insert(all.end(), more.begin(), more.end());
    const Ended end = run(ranks, name, all);
    EXPECT_EQ(end.code, 0) << name << end.err;
    EXPECT_EQ(figures(name, "loss").size(), 3u) << name;  // of a step without images there is none
    return end;
  };
  const auto expect_equal = [&](const std::string& one, const std::string& many) {
    for (const char* key : {"loss", "acc", "test_loss"}) {
      const auto a = figures(one, key), b = figures(many, key);
      ASSERT_EQ(b.size(), a.size()) << many << key;
      for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(b[i], a[i], 1e-4) << many << key << i;
    }
  };
  const std::vector<std::string> two_batches = {"--gradient-accumulation-steps", "2"};
  const Ended one = run_with(1, "one", {});
  EXPECT_NE(one.out.find("Left out 20 images that cannot be read"), std::string::npos) << one.out;
  run_with(2, "two", {});
  expect_equal("one", "two");
  const std::string log = slurp(folder / "runs/two/train.log");
  EXPECT_NE(log.find("no image of this step can be read: no update"), std::string::npos) << log;
  run_with(1, "one-of-2", two_batches);
  run_with(2, "two-of-2", two_batches);
  expect_equal("one-of-2", "two-of-2");
  run_with(2, "by-speed", {"--rebalance", "1", "-j", "0"});
  expect_equal("one", "by-speed");
  run_with(2, "own-norms", {"--no-sync-bn"});
  run_with(3, "three", {});
  expect_equal("one", "three");
}

// Without --sync-bn each rank's norms have a mean of their own, and those of rank 0 are saved.
TEST_F(ResnetRanks, the_score_is_that_of_the_network_that_is_saved) {
  for (const std::string stage : {"0", "2"}) {
    std::vector<std::string> flags = {"--no-sync-bn", "--epochs", "1", "--zero-stage", stage};
    if (stage == "2") {
      flags.insert(flags.end(),
                   {"--model-ema", "--model-ema-steps", "1", "--model-ema-decay", "0.5"});
    }
    const std::string name = "own" + stage;
    const Ended end = run(2, name, flags);
    ASSERT_EQ(end.code, 0) << end.err;
    const Ended test =
        Process(kResnet, {"--test-only", "--resume", folder / ("runs/" + name), "--threads", "1"},
                folder)
            .wait();
    ASSERT_EQ(test.code, 0) << test.err;
    const std::string mark = "Test: loss ";
    const size_t at = test.out.find(mark);
    ASSERT_NE(at, std::string::npos) << test.out;
    EXPECT_NEAR(std::atof(test.out.c_str() + at + mark.size()), figures(name, "test_loss").at(0),
                1e-4)
        << stage;
  }
}

TEST_F(ResnetRanks, a_run_is_resumed_by_another_number_of_ranks) {
  ASSERT_EQ(run(2, "r", {"--epochs", "1", "--lr-scheduler", "constant"}).code, 0);
  const std::vector<std::string> more = {"--resume", folder / "runs/r", "--epochs", "2"};
  const Ended end = run(3, "ignored", more);
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(figures("r", "loss").size(), 16u);
}

TEST_F(ResnetRanks, a_signal_to_the_launcher_saves_once) {
  Process process(kRun, command(2, "s", {"--epochs", "500"}), folder);
  for (int i = 0; i < 6000 && slurp(folder / "runs/s/metrics.jsonl").size() < 200; ++i) {
    usleep(10000);
  }
  process.signal(SIGTERM);
  const Ended end = process.wait();
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_TRUE(fs::exists(folder / "runs/s/checkpoints/last/model.safetensors")) << end.out;
  EXPECT_NE(end.out.find("Stopped and saved"), std::string::npos) << end.out;
}

TEST_F(ResnetRanks, a_rank_that_dies_ends_the_run_and_is_named) {
  for (const char* fault : {"rank=1 at=20 do=kill", "rank=1 at=20 do=exit"}) {
    setenv("TARN_FAULT", fault, 1);
    const Ended end = run(3, "dead");
    unsetenv("TARN_FAULT");
    EXPECT_NE(end.code, 0);
    EXPECT_NE(end.err.find("tarn-run: error: rank 1 failed first, with "), std::string::npos)
        << end.err;
    EXPECT_NE(end.err.find("missing: rank 1\n"), std::string::npos) << end.err;
    EXPECT_NE(end.err.find("rank 1 is gone: it ended or was killed"), std::string::npos) << end.err;
  }
}

TEST_F(ResnetRanks, a_restart_goes_on_from_the_last_checkpoint) {
  // In the third of 3 epochs; what is left after the restart takes fewer collectives than that.
  setenv("TARN_FAULT", "rank=1 at=700 do=kill", 1);
  Process process(kRun, command(2, "again", {"--epochs", "3", "-b", "6"}), folder);
  const Ended once = process.wait();
  EXPECT_EQ(once.code, 128 + SIGKILL) << once.err;
  auto arguments = command(2, "again", {"--epochs", "3", "-b", "6"});
  arguments.insert(arguments.begin(), {"--max-restarts", "1"});
  const Ended end = Process(kRun, arguments, folder).wait();
  unsetenv("TARN_FAULT");
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_NE(end.out.find("resumed in epoch 3, after 0 of 16 batches"), std::string::npos)
      << end.out << end.err;
}

TEST_F(ResnetRanks, on_gpus_they_train_over_nccl) {
  const std::string why = tarn::dist::why_no_nccl();
  if (!why.empty()) GTEST_SKIP() << why;
  tarn::Backend& gpus = tarn::backend(tarn::DeviceType::kCUDA);
  if (!tarn::apps::is_emulated(gpus.info(0)) && gpus.device_count() != 2)
    GTEST_SKIP() << "not two GPUs";
  setenv("TARN_EMU_DEVICES", "2", 1);
  const std::vector<std::string> few = {"--epochs", "1", "--limit", "24", "--device", "cuda"};
  const Ended one = run(1, "one", few), two = run(2, "two", few), three = run(3, "three", few);
  unsetenv("TARN_EMU_DEVICES");
  ASSERT_EQ(one.code, 0) << one.err;
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_NE(two.out.find("2 ranks over nccl"), std::string::npos) << two.out;
  const auto a = figures("one", "loss"), b = figures("two", "loss");
  ASSERT_EQ(a.size(), 2u);
  ASSERT_EQ(b.size(), 2u);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(b[i], a[i], 2e-3) << i;
  EXPECT_NE(three.code, 0);
  EXPECT_NE(three.err.find("3 ranks were started on this host, but it has 2 GPUs"),
            std::string::npos)
      << three.err;
}

TEST_F(ResnetRanks, a_batch_that_ranks_cannot_share_is_an_error) {
  const Ended end = run(5, "b");
  EXPECT_EQ(end.code, 2);
  EXPECT_NE(end.err.find("--batch-size 12 is shared by all ranks: it must be a multiple of their "
                         "number, 5"),
            std::string::npos)
      << end.err;
}

TEST_F(ResnetRanks, replicas_in_one_process_learn_as_ranks_do) {
  // Each replica's norms see its own rows, and so do ranks' without --sync-bn.
  const std::vector<std::string> ranks = {"--no-sync-bn"};
  const Ended two = run(2, "ranks", ranks);
  ASSERT_EQ(two.code, 0) << two.err;
  const Ended end = run(1, "dp",
                        {"--no-sync-bn", "--parallel", "dp", "--replicas", "2", "--device", "cpu",
                         "--lr-base-size", "6", "--lr", "0.0025"});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_NE(end.out.find("2 replicas on cpu, cpu\nlearning rate 0.005\n"), std::string::npos)
      << end.out;
  // Other rows share a norm here and there, so the losses are alike but not equal.
  const auto a = figures("ranks", "loss"), b = figures("dp", "loss");
  ASSERT_EQ(a.size(), 16u);
  ASSERT_EQ(b.size(), 16u);
  EXPECT_NEAR(a.front(), b.front(), 0.3);
  EXPECT_LT(b.back(), b.front());
}

TEST_F(ResnetRanks, shares_need_ranks_or_replicas_and_an_image_for_each) {
  const Ended alone = run(1, "a", {"--rebalance", "2"});
  EXPECT_EQ(alone.code, 2);
  EXPECT_NE(alone.err.find("--rebalance needs parts to share the batch: several ranks, or "
                           "--parallel dp"),
            std::string::npos)
      << alone.err;
  const Ended few = run(3, "b", {"--rebalance", "2", "--limit", "2"});
  EXPECT_EQ(few.code, 2);
  EXPECT_NE(few.err.find("--rebalance: 2 images are too few for 3 ranks"), std::string::npos)
      << few.err;
}

TEST_F(ResnetRanks, dp_is_for_one_process_and_batches_of_their_own) {
  const Ended end = run(2, "b", {"--no-sync-bn", "--parallel", "dp", "--replicas", "2"});
  EXPECT_EQ(end.code, 2);
  EXPECT_NE(end.err.find("--parallel dp is one process with several devices, but 2 ranks were "
                         "started"),
            std::string::npos)
      << end.err;
  const Ended norms = run(1, "b", {"--parallel", "dp", "--replicas", "2"});
  EXPECT_EQ(norms.code, 2);
  EXPECT_NE(norms.err.find("--sync-bn is for ranks"), std::string::npos) << norms.err;
}

TEST_F(ResnetRanks, ddp_without_a_launcher_says_how_to_get_one) {
  const Ended end =
      Process(kResnet, {"--parallel", "ddp", "--data-path", "mnist:" + folder / "data"}, folder)
          .wait();
  EXPECT_EQ(end.code, 2);
  EXPECT_NE(
      end.err.find("--parallel ddp: no launcher started this process; try tarn-run --nproc 2"),
      std::string::npos)
      << end.err;
}

}  // namespace
