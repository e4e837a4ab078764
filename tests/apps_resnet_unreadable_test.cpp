// apps_resnet_unreadable_test.cpp - training goes on past images that cannot be read, in its place.
#include <cmath>

#include "apps_resnet_runs.h"
#include <gtest/gtest.h>

#include "tarn/apps/resnet/setup.h"
#include "tarn/apps/resnet/trainer.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/random.h"
#include "tarn/data/sampler.h"

namespace tarn::apps {
namespace {

using test::slurp;
using test::TempFolder;

using namespace runs;

ResnetSettings skipping() {
  ResnetSettings s = quick();
  s.skip_unreadable = true;
  return s;
}

// The last `count` images of a batch of 8 of epoch 0 cannot be read.
void lose(ImageData& data, int64_t batch, int64_t count) {
  Pictures& train = training_pictures(data);
  train.skip_unreadable = true;
  const auto order =
      data::DistributedSampler(train.size(), {.drop_last = true, .seed = 1}).order(0);
  const auto end = order.begin() + 8 * (batch + 1);
  train.unreadable.insert(end - count, end);
}

// Stopped when picture `at` was taken, `batch` batches being done; a run that goes on is then the
// one that was never stopped.
void expect_same_bits_resumed(const ResnetSettings& s, int64_t at, int64_t batch) {
  const TempFolder stopped, never;
  ImageData data = pictures();
  lose(data, 1, 8);
  lose(data, 3, 3);
  {
    training_pictures(data).signal_at = at;
    OneRun run(s, data, stopped.str());
    EXPECT_FALSE(run.trainer->fit());
    EXPECT_EQ(run.trainer->state().batch, batch);
    EXPECT_EQ(run.trainer->state().step, batch);
  }
  training_pictures(data).signal_at = -1;
  OneRun on(s, data, stopped / "run", true);
  EXPECT_TRUE(on.trainer->fit());
  OneRun whole(s, data, never.str());
  EXPECT_TRUE(whole.trainer->fit());
  EXPECT_EQ(on.weights(), whole.weights());
  EXPECT_EQ(on.momenta(), whole.momenta());
  EXPECT_EQ(on.lines(), whole.lines());
  EXPECT_EQ(on.trainer->state().updates, whole.trainer->state().updates);
  EXPECT_EQ(on.trainer->history().epochs.at(1).train_loss,
            whole.trainer->history().epochs.at(1).train_loss);
}

TEST(resnet_unreadable, a_run_stopped_after_a_batch_without_images_goes_on_to_the_same_bits) {
  expect_same_bits_resumed(skipping(), 11, 1);  // in the batch of which none can be read
  expect_same_bits_resumed(skipping(), 19, 2);  // in the one after it
  expect_same_bits_resumed(skipping(), 35, 4);
  ResnetSettings s = skipping();
  s.gradient_accumulation_steps = 2;  // steps of batches 0 and 1, 2 and 3, 4 alone
  expect_same_bits_resumed(s, 19, 2);
  s.workers = 2;
  const TempFolder folder, alone;
  ImageData data = pictures();
  lose(data, 1, 8);
  OneRun run(s, data, folder.str());
  EXPECT_TRUE(run.trainer->fit());
  s.workers = 0;
  OneRun again(s, data, alone.str());
  EXPECT_TRUE(again.trainer->fit());
  EXPECT_EQ(run.weights(), again.weights());
}

TEST(resnet_unreadable, a_step_without_images_makes_no_update_and_is_counted) {
  const TempFolder folder;
  ImageData data = pictures();
  lose(data, 1, 8);
  ResnetSettings s = skipping();
  s.epochs = 1;
  s.checkpoints = {.keep_last = 20, .save_interval = 1};
  OneRun run(s, data, folder.str());
  ASSERT_TRUE(run.trainer->fit());
  EXPECT_EQ(run.trainer->state().step, 5);
  EXPECT_EQ(run.trainer->state().updates, 4);
  EXPECT_EQ(run.trainer->skipped().size(), 8u);
  const std::vector<StepFigures>& steps = run.trainer->history().steps;
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps[0].step, 1);
  EXPECT_EQ(steps[1].step, 3) << "there are no figures of the second";
  EXPECT_TRUE(std::isfinite(run.trainer->history().epochs.at(0).train_loss));
  const std::string log = slurp((run.run.path() / "train.log").string());
  EXPECT_NE(log.find("no image of this step can be read: no update"), std::string::npos) << log;
  // Nothing moves, neither weights nor momenta nor running statistics.
  const auto at = [&](int step, const char* file) {
    return test::content(
        (run.run.path() / "checkpoints" / ("step-00000" + std::to_string(step)) / file).string());
  };
  for (const char* file : {"model.safetensors", "optim.safetensors"}) {
    EXPECT_EQ(at(1, file), at(2, file)) << file;
    EXPECT_NE(at(2, file), at(3, file)) << file;
  }
}

TEST(resnet_unreadable, the_gradients_of_several_batches_are_the_mean_over_what_can_be_read) {
  for (const int64_t lost : {3, 8}) {
    const TempFolder folder;
    ImageData data = pictures(16, 8);
    lose(data, 1, lost);
    ResnetSettings s = skipping();
    s.epochs = 1;
    s.gradient_accumulation_steps = 2;
    s.weight_decay = 0;
    OneRun run(s, data, folder.str());
    ASSERT_TRUE(run.trainer->fit());
    EXPECT_EQ(run.trainer->state().step, 2);
    EXPECT_EQ(run.trainer->state().updates, 1);
    expect_gradients_by_hand(run, data, 16 - lost, 1e-5);  // of 13 images, or 8
  }
}

TEST(resnet_unreadable, a_run_of_which_no_image_can_be_read_says_so) {
  const TempFolder folder;
  ImageData data = pictures();
  for (int64_t batch = 0; batch < 5; ++batch) lose(data, batch, 8);
  OneRun run(skipping(), data, folder.str());
  EXPECT_MESSAGE(FileError, run.trainer->fit(), "training: none of the 40 images can be read");
  EXPECT_EQ(run.trainer->skipped().size(), 40u);
}

TEST(resnet_unreadable, scores_are_of_the_images_that_can_be_read) {
  ImageData data = pictures();
  auto& test = static_cast<Pictures&>(*data.test);
  test.skip_unreadable = true;
  for (int64_t i = 0; i < 9; ++i) test.unreadable.insert(i);  // a batch of 8 and one more
  const ResnetSettings s = skipping();
  const auto net = make_model(s, data);
  std::set<std::string> skipped;
  const auto score = evaluate(*net, *data.test, s, skipped);
  ASSERT_TRUE(score.has_value());
  EXPECT_EQ(score->count, 7);
  EXPECT_EQ(skipped.size(), 9u);
}

}  // namespace
}  // namespace tarn::apps
