// apps_resnet_trainer_test.cpp - the trainer's parts: loop, checkpoints, history, setup.
#include <algorithm>
#include <cmath>

#include "apps_resnet_runs.h"
#include <gtest/gtest.h>
#include <signal.h>

#include "tarn/apps/resnet/setup.h"
#include "tarn/apps/resnet/trainer.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/core/serialize.h"
#include "tarn/nn/models/resnet.h"

namespace tarn::apps {
namespace {

namespace fs = std::filesystem;
using test::slurp;
using test::TempFolder;

using namespace runs;

TEST(resnet_trainer, it_learns_what_is_easy) {
  const TempFolder folder;
  ImageData data = pictures(64, 32);
  ResnetSettings s = quick();
  s.epochs = 4;
  OneRun run(s, data, folder.str());
  EXPECT_TRUE(run.trainer->fit());
  EXPECT_GT(run.trainer->last_score()->accuracy(), 90);
  EXPECT_LT(run.trainer->history().epochs.back().train_loss, 0.3);
}

TEST(resnet_trainer, the_same_seed_gives_the_same_bits_whatever_the_workers) {
  ResnetSettings s = quick();
  const std::string weights = whole_run(s);
  for (const int64_t workers : {1, 3}) {
    s.workers = workers;
    EXPECT_TRUE(whole_run(s) == weights) << workers;
  }
  s.seed = 2;
  EXPECT_FALSE(whole_run(s) == weights);
}

TEST(resnet_trainer, a_run_stopped_in_the_middle_of_an_epoch_goes_on_to_the_same_bits) {
  // Epochs of 5 batches of 8: picture 19 is in batch 2 of epoch 0, picture 60 in batch 2 of
  // epoch 1. A batch that was prepared when the signal came is not trained on.
  expect_resume_is_exact(quick(), 19, 2);
  expect_resume_is_exact(quick(), 60, 2);
  ResnetSettings s = quick();
  s.optimizer = "adamw";
  s.lr = 0.003;
  s.model_ema = true;
  s.scheduler = "cosineannealinglr";
  expect_resume_is_exact(s, 19, 2);
}

TEST(resnet_trainer, the_gradients_of_several_batches_make_one_step) {
  const TempFolder folder;
  ImageData data = pictures(16, 8);
  ResnetSettings s = quick();
  s.epochs = 1;
  s.gradient_accumulation_steps = 2;
  s.weight_decay = 0;
  OneRun run(s, data, folder.str());
  ASSERT_TRUE(run.trainer->fit());
  EXPECT_EQ(run.trainer->state().step, 2);
  EXPECT_EQ(run.trainer->state().updates, 1);
  expect_gradients_by_hand(run, data, 16, 0);
}

TEST(resnet_trainer, a_signal_waits_for_the_end_of_a_step) {
  ResnetSettings s = quick();
  s.gradient_accumulation_steps = 2;  // steps of batches 0 and 1, 2 and 3, 4 alone
  s.clip_grad_norm = 1;
  expect_resume_is_exact(s, 11, 2);  // in batch 1
  expect_resume_is_exact(s, 19, 2);  // in batch 2, which is not begun
  expect_resume_is_exact(s, 27, 4);
}

TEST(resnet_trainer, a_signal_while_testing_leaves_the_epoch_to_the_run_that_goes_on) {
  const TempFolder folder;
  ImageData data = pictures();
  static_cast<Pictures&>(*data.test).signal_at = 3;
  {
    OneRun run(quick(), data, folder.str());
    EXPECT_FALSE(run.trainer->fit());
    EXPECT_EQ(run.trainer->state().epoch, 0);
    EXPECT_EQ(run.trainer->state().batch, 5);
    EXPECT_TRUE(run.trainer->history().epochs.empty());
  }
  OneRun run(quick(), data, folder / "run", true);
  EXPECT_TRUE(run.trainer->fit());
  EXPECT_EQ(run.trainer->history().epochs.size(), 2u);
  EXPECT_EQ(run.weights(), whole_run(quick()));
}

TEST(resnet_trainer, a_loss_that_is_not_finite_names_the_step_and_what_to_try) {
  const TempFolder folder;
  ImageData data = pictures();
  ResnetSettings s = quick();
  s.lr = 1e30;
  s.scheduler = "constant";
  OneRun run(s, data, folder.str());
  EXPECT_MESSAGE(Error, run.trainer->fit(), " at step 2 (epoch 1, lr 1e+30); try a lower --lr, ");
}

TEST(resnet_trainer, another_model_or_other_batches_cannot_go_on) {
  const TempFolder folder;
  ImageData data = pictures();
  ResnetSettings s = quick();
  s.epochs = 1;
  OneRun(s, data, folder.str()).trainer->fit();
  ResnetSettings other = s;
  other.model = "resnet20";
  EXPECT_MESSAGE(Error, OneRun(other, data, folder / "run", true),
                 "trains a resnet8, not a resnet20; pass --model resnet8 or leave --model out");
  other = s;
  other.batch_size = 10;
  EXPECT_MESSAGE(Error, OneRun(other, data, folder / "run", true),
                 "has 5 batches in an epoch; with these flags there are 4; pass the same data");
}

TEST(resnet_trainer, weight_averages_are_what_is_tested) {
  const TempFolder folder;
  ImageData data = pictures();
  ResnetSettings s = quick();
  s.epochs = 1;
  s.model_ema = true;
  s.model_ema_decay = 1;  // the average stays at the first weights
  manual_seed(1);
  const auto first = make_model(s, data);
  std::set<std::string> skipped;
  const Score before = *evaluate(*first, *data.test, s, skipped);
  OneRun run(s, data, folder.str());
  run.trainer->fit();
  EXPECT_EQ(run.trainer->last_score()->loss, before.loss);
}

TEST(resnet_evaluate, the_network_gets_its_modes_back_also_after_an_exception) {
  ImageData data = pictures();
  const ResnetSettings s = quick();
  const auto net = make_model(s, data);
  nn::Module* frozen = nullptr;
  for (const auto& [name, module] : net->named_modules()) {
    if (name == "bn1") frozen = module;
  }
  ASSERT_TRUE(frozen);
  frozen->eval();
  std::set<std::string> skipped;
  ASSERT_TRUE(evaluate(*net, *data.test, s, skipped));
  EXPECT_TRUE(net->training());
  EXPECT_FALSE(frozen->training());
  net->register_forward_pre_hook([&](nn::Module&, const Tensor&) -> Tensor {
    EXPECT_FALSE(net->training());
    throw std::runtime_error("enough");
  });
  EXPECT_MESSAGE(std::runtime_error, evaluate(*net, *data.test, s, skipped), "enough");
  EXPECT_TRUE(net->training());
  EXPECT_FALSE(frozen->training());
}

TEST(resnet_checkpoint, every_member_of_the_state_is_kept) {
  TrainState s;
  s.model = "resnet8";
  s.epoch = 3;
  s.batch = 2;
  s.step = 17;
  s.updates = 16;
  s.epoch_batches = 5;
  s.loss_sum = 0.1;
  s.right = 7;
  s.seen = 16;
  s.best_accuracy = 91.25;
  s.best_step = 15;
  const TempFolder folder;
  Checkpoint c;
  store_values(c, s);
  save_checkpoint(folder / "c", c);
  TrainState back;
  restore_values(load_checkpoint(folder / "c"), back);
  Checkpoint again;
  store_values(again, back);
  EXPECT_EQ(again.values, c.values);
  EXPECT_EQ(back.model, "resnet8");
  EXPECT_EQ(back.loss_sum, 0.1);
  EXPECT_EQ(back.best_step, 15);
  c.values.erase("seen");
  EXPECT_MESSAGE(FileError, restore_values(c, back), "has no integer 'seen'");
}

TEST(resnet_checkpoint, one_at_every_save_interval_goes_on_to_the_same_bits) {
  ResnetSettings s = quick();
  s.checkpoints = {.keep_last = 20, .save_interval = 2, .async_save = true};
  s.model_ema = true;
  s.model_ema_steps = 3;
  s.workers = 2;
  const TempFolder folder;
  ImageData data = pictures();
  std::string weights, momenta;
  {
    OneRun whole(s, data, folder.str());
    ASSERT_TRUE(whole.trainer->fit());
    weights = whole.weights();
    momenta = whole.momenta();
  }
  CheckpointManager m(folder / "run/checkpoints", {.keep_last = 20});
  EXPECT_EQ(m.steps(), (std::vector<int64_t>{0, 2, 4, 5, 6, 8, 10}));
  for (const int64_t step : {8, 6, 5, 4, 2, 0}) {
    for (const int64_t later : m.steps()) {
      if (later > step) fs::remove_all(m.path(later));
    }
    OneRun again(s, data, folder / "run", true);
    EXPECT_EQ(again.trainer->state().step, step);
    ASSERT_TRUE(again.trainer->fit());
    EXPECT_EQ(again.weights(), weights) << step;
    EXPECT_EQ(again.momenta(), momenta) << step;
    EXPECT_EQ(again.lines(), 12) << "each step and epoch once, from " << step;
  }
}

TEST(resnet_checkpoint, a_damaged_one_costs_the_way_from_the_one_before) {
  const ResnetSettings s = quick();
  const TempFolder folder;
  ImageData data = pictures();
  std::string weights;
  {
    OneRun whole(s, data, folder.str());
    ASSERT_TRUE(whole.trainer->fit());
    weights = whole.weights();
  }
  const fs::path newest = folder / "run/checkpoints/step-000010/model.safetensors";
  std::string bytes = slurp(newest.string());
  bytes[1000] ^= 4;
  std::ofstream(newest, std::ios::binary) << bytes;
  testing::internal::CaptureStderr();
  OneRun again(s, data, folder / "run", true);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("step-000010 is damaged: model.safetensors has checksum "), std::string::npos)
      << said;
  EXPECT_NE(said.find("; taking that of step 5 instead\n"), std::string::npos) << said;
  ASSERT_TRUE(again.trainer->fit());
  EXPECT_EQ(again.weights(), weights);
  EXPECT_EQ(again.lines(), 12);
}

TEST(resnet_checkpoint, a_failure_in_the_background_ends_the_training) {
  ResnetSettings s = quick();
  s.checkpoints.async_save = true;
  const TempFolder folder;
  ImageData data = pictures();
  OneRun run(s, data, folder.str());
  folder.write("run/checkpoints", "a file where the folder should be");
  EXPECT_MESSAGE(FileError, run.trainer->fit(), "checkpoint: cannot save ");
}

TEST(resnet_trainer, only_images_are_files_that_can_be_left_out) {
  const TempFolder folder;
  ImageData data = pictures();
  OneRun run(quick(), data, folder.str());
  run.net->register_forward_pre_hook(
      [](nn::Module&, const Tensor&) -> Tensor { throw FileError("no such table"); });
  EXPECT_EQ(test::message_of<FileError>([&] { run.trainer->fit(); }), "no such table");
}

TEST(resnet_report, history_ends_where_the_checkpoint_stands) {
  const TempFolder folder;
  const std::string path = folder.write(
      "metrics.jsonl",
      "{\"step\": 1, \"epoch\": 0.5, \"loss\": 2, \"acc\": 10, \"lr\": 0.1, \"img_s\": 9}\n"
      "{\"step\": 2, \"epoch\": 1, \"train_loss\": 2, \"train_acc\": 1, \"test_loss\": null, "
      "\"test_acc\": 50, \"lr\": 0.1, \"img_s\": 9}\n"
      "{\"step\": 3, \"epoch\": 1.5, \"loss\": 2, \"acc\": 10, \"lr\": 0.1, \"img_s\": 9}\n"
      "{\"step\": 4, \"epo");
  const History h = load_history(path, 2, 1);
  ASSERT_EQ(h.steps.size(), 1u);
  ASSERT_EQ(h.epochs.size(), 1u);
  EXPECT_EQ(h.steps[0].loss, 2);
  EXPECT_TRUE(std::isnan(h.epochs[0].test_loss));
  EXPECT_EQ(h.epochs[0].test_accuracy, 50);
  EXPECT_EQ(load_history(path, 2, 1).epochs.size(), 1u);
  const std::string kept = slurp(path);
  EXPECT_EQ(std::count(kept.begin(), kept.end(), '\n'), 2) << kept;
  EXPECT_TRUE(load_history(path, 2, 0).epochs.empty()) << "the epoch's test comes again";
  folder.write("metrics.jsonl", "{\"step\": 1}\n");
  EXPECT_MESSAGE(FileError, load_history(path, 2, 1), "resume: line 1 of " + path + " is damaged");
  EXPECT_TRUE(load_history(folder / "none", 2, 1).steps.empty());
}

TEST(resnet_setup, norms_and_biases_can_decay_on_their_own) {
  const ImageData data = pictures();
  ResnetSettings s = quick();
  const auto net = make_model(s, data);
  EXPECT_EQ(make_optimizer(s, *net, ModelSharing(*net))->num_groups(), 1u);
  s.norm_weight_decay = 0;
  for (const char* name : {"sgd", "adam", "adamw"}) {
    s.optimizer = name;
    EXPECT_EQ(make_optimizer(s, *net, ModelSharing(*net))->num_groups(), 2u);
  }
}

TEST(resnet_setup, schedules_are_torchvisions) {
  ResnetSettings s = quick();
  s.lr = 0.1;
  s.epochs = 90;
  s.scheduler = "steplr";
  const optim::Schedule step = make_schedule(s, 10);
  EXPECT_DOUBLE_EQ(step.lr(0.1, 299), 0.1);  // 30 epochs of 10 steps
  EXPECT_DOUBLE_EQ(step.lr(0.1, 300), 0.1 * 0.1);
  s.scheduler = "exponentiallr";
  s.gamma = 0.5;
  EXPECT_DOUBLE_EQ(make_schedule(s, 10).lr(0.1, 25), 0.1 * 0.25);
  s.scheduler = "cosineannealinglr";
  s.epochs = 2;
  EXPECT_NEAR(make_schedule(s, 10).lr(0.1, 10), 0.05, 1e-12);
  s.scheduler = "constant";
  s.warmup_epochs = 1;
  const optim::Schedule warm = make_schedule(s, 10);
  EXPECT_DOUBLE_EQ(warm.lr(0.1, 0), 0.1 * 0.01);
  EXPECT_NEAR(warm.lr(0.1, 5), 0.1 * (0.01 + 0.99 * 0.5), 1e-12);
  EXPECT_DOUBLE_EQ(warm.lr(0.1, 10), 0.1);
  s.warmup_method = "constant";
  EXPECT_DOUBLE_EQ(make_schedule(s, 10).lr(0.1, 9), 0.1 * 0.01);
}

TEST(resnet_settings, flags_that_do_not_go_together_are_refused) {
  const auto message = [](auto change) {
    ResnetSettings s;
    change(s);
    return test::message_of<UsageError>([&] { check_settings(s); });
  };
  EXPECT_EQ(message([](ResnetSettings&) {}), "");
  EXPECT_NE(message([](ResnetSettings& s) { s.resume = s.weights = "x"; }).find("pass one"),
            std::string::npos);
  EXPECT_NE(message([](ResnetSettings& s) { s.test_only = true; }).find("needs weights to test"),
            std::string::npos);
  EXPECT_NE(message([](ResnetSettings& s) {
              s.nesterov = true;
              s.momentum = 0;
            }).find("--nesterov needs"),
            std::string::npos);
  EXPECT_NE(
      message([](ResnetSettings& s) { s.start_epoch = s.epochs; }).find("must be below --epochs"),
      std::string::npos);
  EXPECT_NE(message([](ResnetSettings& s) { s.amp_dtype = "float16"; }).find("without --amp"),
            std::string::npos);
}

}  // namespace
}  // namespace tarn::apps
