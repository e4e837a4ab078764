// apps_resnet_precision_test.cpp - the trainer in mixed precision and with checkpointed blocks.
#include "apps_resnet_runs.h"

namespace tarn::apps {
namespace {

using namespace runs;
using test::slurp;
using test::TempFolder;

TEST(resnet_precision, a_resumed_run_in_mixed_precision_is_the_one_never_stopped) {
  ResnetSettings s = quick();
  s.amp = true;
  expect_resume_is_exact(s, 19, 2);
  s.amp_dtype = "float16";
  s.clip_grad_norm = 1;
  expect_resume_is_exact(s, 19, 2);
}

TEST(resnet_precision, checkpointed_blocks_give_the_same_bits) {
  ResnetSettings s = quick();
  const std::string plain = whole_run(s);
  s.grad_checkpoint = true;
  EXPECT_EQ(whole_run(s), plain) << "weights and running statistics";
}

TEST(resnet_precision, mixed_precision_keeps_f32_weights_and_learns) {
  for (const char* dtype : {"bfloat16", "float16"}) {
    const TempFolder folder;
    ImageData data = pictures();
    ResnetSettings s = quick();
    s.amp = true;
    s.amp_dtype = dtype;
    OneRun run(s, data, folder.str());
    ASSERT_TRUE(run.trainer->fit());
    const Checkpoint c = load_newest_checkpoint(run.run.path().string());
    for (const auto& [name, value] : c.dict("model")) {
      if (!is_floating(value.dtype())) continue;
      EXPECT_EQ(value.dtype(), DType::kF32) << name;
    }
    EXPECT_EQ(c.dict("scaler").empty(), s.amp_dtype == "bfloat16")
        << "only float16 scales its loss";
    const auto& epochs = run.trainer->history().epochs;
    EXPECT_LT(epochs.at(1).train_loss, epochs.at(0).train_loss) << dtype;
  }
}

TEST(resnet_precision, a_skipped_step_moves_neither_schedule_nor_mean) {
  const TempFolder folder;
  ImageData data = pictures();
  ResnetSettings s = quick();
  s.amp = true;
  s.amp_dtype = "float16";
  s.epochs = 1;
  OneRun run(s, data, folder.str());
  // A scale at which the first gradients overflow for certain; it halves until they do not.
  optim::GradScaler scaler({.init_scale = 0x1p60});
  Checkpoint c;
  store(c, {*run.net, *make_optimizer(s, *run.net, ModelSharing(*run.net)), scaler});
  TrainState state;
  state.model = s.model;
  state.epoch_batches = 5;
  store_values(c, state);
  run.trainer->resume(c, {});
  EXPECT_TRUE(run.trainer->fit());
  EXPECT_EQ(run.trainer->state().step, 5);
  EXPECT_EQ(run.trainer->state().updates, 0);
  EXPECT_NE(slurp(run.run.path() / "train.log").find("step skipped, loss scale now"),
            std::string::npos);
}

}  // namespace
}  // namespace tarn::apps
