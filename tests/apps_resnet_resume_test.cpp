// apps_resnet_resume_test.cpp - what a run that goes on takes from its flags, and what is not
// saved.
#include <cmath>
#include <limits>

#include "apps_resnet_runs.h"
#include <gtest/gtest.h>

#include "tarn/autograd/functions.h"
#include "tarn/optim/sgd.h"

namespace tarn::apps {
namespace {

using test::TempFolder;
using namespace runs;

// One epoch in folder/run, then one more with other flags.
template <class Change>
Checkpoint two_epochs(const ResnetSettings& s, const TempFolder& folder, Change change) {
  ImageData data = pictures();
  ResnetSettings first = s;
  first.epochs = 1;
  EXPECT_TRUE(OneRun(first, data, folder.str()).trainer->fit());
  ResnetSettings second = s;
  second.epochs = 2;
  change(second);
  OneRun run(second, data, folder / "run", true);
  EXPECT_TRUE(run.trainer->fit());
  return load_newest_checkpoint(folder / "run");
}

TEST(resnet_resume, flags_that_are_given_now_are_what_trains) {
  const TempFolder folder;
  ResnetSettings s = quick();
  s.scheduler = "constant";
  const Checkpoint c = two_epochs(s, folder, [](ResnetSettings& on) {
    on.lr = 0.01;
    on.momentum = 0.3;
    on.weight_decay = 0.5;
  });
  const auto option = [&](const std::string& name) {
    return c.dict("optim").at("param_groups.0." + name).item();
  };
  EXPECT_EQ(option("lr"), 0.01);
  EXPECT_EQ(option("initial_lr"), 0.01);
  EXPECT_EQ(option("momentum"), 0.3);
  EXPECT_EQ(option("weight_decay"), 0.5);
  const History history = load_history(folder / "run/metrics.jsonl", c.step, 2);
  EXPECT_EQ(history.steps.back().lr, 0.01);
  EXPECT_EQ(history.steps.front().lr, 0.05);
}

// Stopped in the test of an epoch: nothing is left to train, so there is no rate.
TEST(resnet_resume, an_epoch_that_was_trained_shows_all_of_its_images_and_no_rate) {
  const TempFolder folder;
  ResnetSettings s = quick();
  s.epochs = 1;
  s.batch_size = 64;  // more than the 40 there are
  ImageData data = pictures();
  auto& tested = static_cast<Pictures&>(*data.test);
  tested.signal_at = 1;
  EXPECT_FALSE(OneRun(s, data, folder.str()).trainer->fit());
  tested.signal_at = -1;
  s.progress = true;
  OneRun on(s, data, folder / "run", true);
  testing::internal::CaptureStderr();
  EXPECT_TRUE(on.trainer->fit());
  const std::string bars = testing::internal::GetCapturedStderr();
  EXPECT_NE(bars.find("Epoch 1/1: 100%"), std::string::npos) << bars;
  EXPECT_NE(bars.find(" 40/40 "), std::string::npos) << bars;
  EXPECT_EQ(on.trainer->images_per_second(), 0);
  EXPECT_NE(test::slurp(folder / "run/metrics.jsonl").find("\"img_s\": null"), std::string::npos);
}

TEST(resnet_resume, groups_that_differ_are_still_refused) {
  const TempFolder folder;
  EXPECT_MESSAGE(Error,
                 two_epochs(quick(), folder, [](ResnetSettings& on) { on.norm_weight_decay = 0; }),
                 "param_groups");
}

TEST(resnet_resume, a_mean_that_the_run_had_not_starts_from_its_weights) {
  const TempFolder folder, other;
  ResnetSettings s = quick();
  s.epochs = 1;
  ImageData data = pictures();
  EXPECT_TRUE(OneRun(s, data, other.str()).trainer->fit());  // the weights after one epoch
  const Checkpoint one = load_newest_checkpoint(other / "run");
  ResnetSettings constant = quick();
  const Checkpoint c = two_epochs(constant, folder, [](ResnetSettings& on) {
    on.model_ema = true;
    on.model_ema_decay = 1;  // the mean stays where it starts
  });
  ASSERT_FALSE(c.dict("ema").empty());
  for (const auto& [name, tensor] : one.dict("model")) {
    if (!is_floating(tensor.dtype())) continue;  // counters go on
    EXPECT_TRUE(equal(c.dict("ema").at(name), tensor)) << name;
  }
}

TEST(resnet_resume, weights_that_are_not_finite_are_never_saved) {
  const TempFolder folder;
  ImageData data = pictures();
  ResnetSettings s = quick();
  s.batch_size = 40;  // one step: its loss is finite, what it leaves is not
  s.epochs = 1;
  s.lr = 1e38;
  s.scheduler = "constant";
  OneRun run(s, data, folder.str());
  EXPECT_MESSAGE(Error, run.trainer->fit(), "training: the test loss became ");
  EXPECT_EQ(load_newest_checkpoint(folder / "run").step, 0);
  EXPECT_EQ(run.trainer->state().best_step, -1);

  const auto net = make_model(s, data);
  optim::SGD sgd(net->parameters(), {.lr = 1});
  optim::GradScaler scaler({.enabled = false});
  net->parameters().front().detach().fill_(std::numeric_limits<double>::infinity());
  Checkpoint c{.step = 7};
  EXPECT_MESSAGE(Error, store(c, {*net, sgd, scaler}), "are not finite after step 7, so they are");
}

TEST(resnet_setup, a_warm_up_leads_to_where_one_cycle_begins) {
  ResnetSettings s = quick();
  s.lr = 0.1;
  s.epochs = 3;
  s.warmup_epochs = 1;
  for (const char* method : {"linear", "constant"}) {
    s.warmup_method = method;
    const optim::Schedule schedule = make_schedule(s, 10);
    EXPECT_NEAR(schedule.lr(0.1, 0), 0.1 / 25 * 0.01, 1e-12);
    EXPECT_LT(schedule.lr(0.1, 9), 0.1 / 25);
    EXPECT_NEAR(schedule.lr(0.1, 10), 0.1 / 25, 1e-12);
    ASSERT_TRUE(schedule.momentum);
    for (const int64_t t : {0, 9, 10}) EXPECT_DOUBLE_EQ(schedule.momentum(t), 0.95);
  }
  const TempFolder folder;
  ImageData data = pictures();
  EXPECT_TRUE(OneRun(s, data, folder.str()).trainer->fit());
}

std::string usage_error(const std::vector<std::string>& arguments) {
  return test::message_of<UsageError>([&] {
    ResnetSettings s;
    Options options("tarn-resnet", "");
    declare_flags(options, s);
    options.parse(arguments);
    options.preset("--amp-dtype", "float16");  // as from a run
    check_settings(s, &options);
  });
}

TEST(resnet_settings, a_dtype_of_the_run_is_no_contradiction) {
  EXPECT_EQ(usage_error({"--no-amp"}), "");
  EXPECT_NE(usage_error({"--no-amp", "--amp-dtype", "float16"}).find("without --amp"),
            std::string::npos);
}

TEST(resnet_settings, numbers_have_their_limits) {
  for (const char* flag : {"--threads", "--workers"}) {
    for (const char* value : {"1025", "4294967297", "100000", "-1"}) {
      EXPECT_NE(usage_error({flag, value}).find("an integer from 0 to 1024; got"),
                std::string::npos)
          << flag << " " << value;
    }
    EXPECT_EQ(usage_error({flag, "1024"}), "");
  }
  EXPECT_NE(usage_error({"-b", "9999999999"}).find("from 1 to 1048576"), std::string::npos);
  EXPECT_EQ(usage_error({"--dist-timeout", "1e9"}), "");
  for (const char* value : {"1e10", "1e300", "inf"}) {
    EXPECT_NE(usage_error({"--dist-timeout", value}).find("--dist-timeout: expected a number"),
              std::string::npos)
        << value;
  }
}

TEST(resnet_settings, what_a_run_that_goes_on_cannot_get_is_refused) {
  for (const char* flag : {"--name", "--output-dir", "--start-epoch"}) {
    EXPECT_NE(usage_error({"--resume", "none", flag, "3"}).find(" is for a new run, and --resume"),
              std::string::npos)
        << flag;
  }
  const TempFolder folder;
  folder.write("run/config.json", R"({"flags": {"opt": "sgd", "lr": 0.5}})");
  EXPECT_NE(usage_error({"--resume", folder / "run", "--opt", "adam"}).find("the run used sgd"),
            std::string::npos);
  EXPECT_NE(usage_error({"--resume", folder / "run", "--norm-weight-decay", "0"})
                .find("--norm-weight-decay: the run had none"),
            std::string::npos);
  folder.write("two/config.json", R"({"flags": {"opt": "sgd", "norm-weight-decay": 0.0}})");
  EXPECT_EQ(usage_error({"--resume", folder / "two", "--norm-weight-decay", "0.1"}), "");
  EXPECT_EQ(flag_of_run(folder / "run", "lr"), "0.5");
  EXPECT_EQ(flag_of_run(folder / "run", "wd"), "");
  EXPECT_EQ(flag_of_run(folder / "none", "wd"), "");
  for (const char* name : {".", "..", "a/..", "/", ""}) {
    EXPECT_NE(usage_error({"--name", name}).find("--name: expected the name of a new folder"),
              std::string::npos)
        << name;
  }
  EXPECT_EQ(usage_error({"--name", "a/"}), "");
  EXPECT_NE(usage_error({"--output-dir", ""}).find("--output-dir: expected a folder"),
            std::string::npos);
}

}  // namespace
}  // namespace tarn::apps
