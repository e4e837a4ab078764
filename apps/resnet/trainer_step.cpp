// trainer_step.cpp - one step of the training loop: its batches, their gradients, the update.
#include <algorithm>
#include <cmath>

#include "tarn/apps/common/text.h"
#include "tarn/apps/common/timing.h"
#include "tarn/apps/resnet/setup.h"
#include "tarn/apps/resnet/sharing.h"
#include "tarn/apps/resnet/trainer.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/autograd/saved_tensor_hooks.h"
#include "tarn/core/factory.h"
#include "tarn/core/transfer.h"
#include "tarn/dist/waited.h"

namespace tarn::apps {

// Note [Images that cannot be read]
// Batches keep their places whatever can be read of them, so a batch may have fewer images than its
// size, or none, on some ranks or on all. The gradient of a step is the mean over the images that
// its batches have on all ranks together. Backward averages over the ranks, and batches add up:
// each batch's mean counts by its images, and by the same `whole` in all of them, on all ranks.
// Where `whole` turns out not to be what the step had, the sum is put right before the update. A
// rank whose batch is empty takes its part in what the ranks do together. A step without any image
// makes no update: as where gradients overflow, neither the schedule nor the running mean moves.

// The next batch's. At the end of an epoch a step may have fewer batches.
Trainer::Part Trainer::part() const {
  const int64_t n = s_.gradient_accumulation_steps, at = state_.batch % n;
  const int64_t batches = std::min(n, loader_.size() - (state_.batch - at));
  return {.first = at == 0, .last = at + 1 == batches, .batches = batches};
}

// How many images of a batch all ranks have. Which of them cannot be read is not known before.
int64_t Trainer::images_of_all(int64_t own) const {
  if (s_.skip_unreadable) return static_cast<int64_t>(ranks_.sum({static_cast<double>(own)})[0]);
  return shares_ ? batch_images(s_, data_) : own * ranks_.size();
}

// The mean loss. Without images: a loss of 0, from no rows, which gives zeros as gradients after
// all that ddp and norms over the ranks do in a forward and its backward.
Tensor Trainer::forward(const data::Batch& batch, const Tensor& target, Tensor& logits) {
  std::optional<RunProfile::Forward> counted;
  if (profile_) counted.emplace(*profile_);
  std::optional<SaveOnCpu> offload;
  if (s_.memory.offload && batch.size() > 0) offload.emplace(SaveOnCpuOptions{.pin_memory = true});
  const AutocastGuard autocast = autocast_for(s_);
  const Device device(s_.device);
  if (batch.size() == 0) {
    const int64_t size = data_.image_size;
    logits = net_(empty({0, data_.channels, size, size},
                        {.device = device, .format = MemoryFormat::kChannelsLast}));
    return sum(logits);
  }
  const Tensor input = to_async(batch.input, device);
  logits = replicas_ ? (*replicas_)(input) : net_(input);
  return cross_entropy(logits, target, {}, {.label_smoothing = s_.label_smoothing});
}

Trainer::Step Trainer::train_step(const data::Batch& batch, const Part& part) {
  Step step{.lr = optimizer_->lr(), .images = batch.size()};
  if (part.first) {
    optimizer_->zero_grad();
    step_images_ = 0;
  }
  const int64_t all = images_of_all(step.images);
  step_images_ += all;
  // What batches to come will lack is not known yet.
  const bool open = s_.skip_unreadable && part.batches > 1;
  const int64_t whole = part.batches * (open ? batch_images(s_, data_) : all);

  const ModelSharing::Guard alone = part.last ? nullptr : sharing_->no_sync();
  Tensor target, loss, logits;
  if (step.images > 0) target = to_async(batch.target, Device(s_.device));
  if (step.images > 0 || sharing_->has_ranks()) {
    loss = forward(batch, target, logits);
    const double share = static_cast<double>(step.images * ranks_.size()) /
                         static_cast<double>(std::max<int64_t>(whole, 1));
    scaler_.scale(share == 1 ? loss : loss * share).backward();
  }
  if (part.last) update(whole);

  if (step.images > 0) {
    step.loss = loss.item();
    step.right = count_right(logits.detach(), target);
  }
  agree(step, part.last);
  TARN_CHECK(std::isfinite(step.loss), "training: the loss became ", number_text(step.loss),
             " at step ", state_.step + 1, " (epoch ", state_.epoch + 1, ", lr ",
             format("%.6g", step.lr),
             "); try a lower --lr, --lr-warmup-epochs 1 or --clip-grad-norm 1");
  return step;
}

// Gradients that overflow under loss scaling cost the step, and then neither the schedule nor the
// running mean moves.
void Trainer::update(int64_t whole) {
  if (step_images_ == 0) {
    run_.log("no image of this step can be read: no update");
    return;
  }
  if (step_images_ != whole) {
    const NoGradGuard no_grad;
    for (const Tensor& p : optimizer_->params()) {
      Tensor grad = p.grad();
      if (grad.defined()) {
        grad.mul_(static_cast<double>(whole) / static_cast<double>(step_images_));
      }
    }
  }
  if (s_.clip_grad_norm > 0) {
    scaler_.unscale_(*optimizer_);
    sharing_->clip_grad_norm_(s_.clip_grad_norm, !scaler_.enabled());
  }
  const bool stepped = scaler_.step(*optimizer_);
  scaler_.update();
  if (!stepped) {
    run_.log(format("gradients overflowed: step skipped, loss scale now %g", scaler_.get_scale()));
    return;
  }
  ++state_.updates;
  scheduler_->step();
  if (ema_ && state_.updates % s_.model_ema_steps == 0) ema_->update();
}

// Turns this rank's results into those of all ranks. With the time it was busy, ranks share out
// anew.
void Trainer::agree(Step& step, bool synced) {
  if (!ranks_.group()) return;
  const double images = static_cast<double>(step.images);
  std::vector<double> mine{step.loss * images, images, static_cast<double>(step.right),
                           interrupt_.requested() ? 1.0 : 0.0};
  const size_t figures = mine.size();
  const auto ranks = static_cast<size_t>(ranks_.size()), rank = static_cast<size_t>(ranks_.rank());
  if (shares_) {
    double busy = now_s() - dist::waited_seconds() - own_time_;
    if (synced && Device(s_.device).is_cuda()) busy -= sharing_->wait_seconds();
    mine.resize(figures + 2 * ranks);
    mine[figures + rank] = images;
    mine[figures + ranks + rank] = std::max(busy, 1e-6);
  }
  const auto sums = ranks_.sum(mine);
  if (shares_) {
    std::vector<int64_t> rows;
    for (size_t r = 0; r < ranks; ++r) rows.push_back(static_cast<int64_t>(sums[figures + r]));
    if (shares_->add(state_.step, rows, std::span(sums).subspan(figures + ranks))) log_shares();
  }
  step.images = static_cast<int64_t>(sums[1]);
  step.loss = step.images > 0 ? sums[0] / sums[1] : 0;
  step.right = static_cast<int64_t>(sums[2]);
  stop_ = sums[3] > 0;
}

void Trainer::try_steps(int64_t batch) {
  net_.train();
  const int64_t first[] = {0};
  const Shape one = data_.train->batch(first, {}).input.sizes();
  TARN_CHECK_AS(FileError, one.dim() == 4, "--find-batch: the first image cannot be read");
  const data::Batch images{
      .input = zeros({batch, one[1], one[2], one[3]}, {.format = MemoryFormat::kChannelsLast}),
      .target = zeros({batch}, {.dtype = DType::kI64}),
      .skipped = {}};
  // As much as the loader prepares meanwhile, on the host, and one that it is copying to
  // page-locked memory.
  std::vector<Tensor> ahead;
  const int64_t prepared = loader_.ahead() > 0 ? loader_.ahead() + 1 : 0;
  for (int64_t i = 0; i < prepared; ++i) ahead.push_back(empty_like(images.input));
  const int64_t batches = std::min<int64_t>(s_.gradient_accumulation_steps, 2);
  for (int64_t i = 0; i < 2 * batches; ++i) {
    const int64_t at = i % batches;
    train_step(images, {.first = at == 0, .last = at + 1 == batches, .batches = batches});
  }
  optimizer_->zero_grad();
  TARN_CHECK(!interrupt_.requested(), "--find-batch: interrupted");
}

}  // namespace tarn::apps
