// trainer.cpp - the training loop.
#include "tarn/apps/resnet/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tarn/apps/common/text.h"
#include "tarn/apps/common/timing.h"
#include "tarn/apps/resnet/setup.h"
#include "tarn/apps/resnet/sharing.h"
#include "tarn/autograd/anomaly.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/saved_tensor_hooks.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/core/transfer.h"
#include "tarn/dist/sync_batch_norm.h"
#include "tarn/dist/waited.h"
#include "tarn/optim/clip.h"

namespace tarn::apps {
namespace {

std::unique_ptr<dist::DistributedDataParallel> make_ddp(const ResnetSettings& s, nn::Module& net,
                                                        const Ranks& ranks) {
  if (!ranks.group()) return nullptr;
  if (s.sync_bn) dist::convert_sync_batch_norm(net, *ranks.group());
  return std::make_unique<dist::DistributedDataParallel>(
      net, *ranks.group(), dist::DdpOptions{.bucket_cap_mb = s.ranks.bucket_cap_mb});
}

std::unique_ptr<dist::DataParallel> make_replicas(const ResnetSettings& s, const ImageData& data,
                                                  nn::Module& net) {
  const std::vector<Device> devices = replica_devices(s.ranks, Device(s.device));
  if (devices.empty()) return nullptr;
  return std::make_unique<dist::DataParallel>(
      net, devices, [&] { return make_model(s, data); }, std::vector<double>{}, s.ranks.rebalance);
}

double percent(int64_t part, int64_t all) {
  return 100.0 * static_cast<double>(part) / static_cast<double>(std::max<int64_t>(all, 1));
}

}  // namespace

Trainer::Trainer(const ResnetSettings& s, const ImageData& data, nn::Module& net, RunDir& run,
                 const Ranks& ranks)
    : s_(s),
      data_(data),
      net_(net),
      run_(run),
      ranks_(ranks),
      shares_(make_shares(s, data, ranks)),
      loader_(training_loader(s, data, ranks, shares_)),
      ddp_(make_ddp(s, net, ranks)),
      replicas_(make_replicas(s, data, net)),
      optimizer_(make_optimizer(s, net)),
      scaler_(make_scaler(s)),
      ema_(make_ema(s, net)),
      checkpoints_(run.path().string(), s.checkpoints, ranks) {
  scheduler_ =
      std::make_unique<optim::Scheduler>(*optimizer_, make_schedule(s, updates_per_epoch()));
  state_.model = s.model;
  state_.epoch = s.start_epoch;
  state_.epoch_batches = loader_.size();
  state_.step = s.start_epoch * loader_.size();
  state_.updates = s.start_epoch * updates_per_epoch();
  scheduler_->set_step(state_.updates);
}

void Trainer::resume(const Checkpoint& c, History history) {
  const std::string at = "resume: " + run_.path().string();
  TrainState was;
  restore_values(c, was);
  TARN_CHECK(was.model == s_.model, at, " trains a ", was.model, ", not a ", s_.model,
             "; pass --model ", was.model, " or leave --model out");
  TARN_CHECK(was.epoch_batches == loader_.size(), at, " has ", was.epoch_batches,
             " batches in an epoch; with these flags there are ", loader_.size(),
             "; pass the same data, --batch-size and --limit, or leave them out");
  restore(c, {net_, *optimizer_, scaler_, ema_.get()}, ranks_);
  state_ = was;
  if (shares_ && c.values.contains("shares")) {
    // Those of another number of ranks are of no use.
    shares_->restart(
        {ranks_.size(), s_.ranks.rebalance, parse_shares(c.text("shares"), ranks_.size())});
    log_shares();
  }
  scheduler_->set_step(state_.updates);
  checkpoints_.resumed(state_.step);
  resumed_ = true;
  history_ = std::move(history);
  run_.log("resumed in epoch " + std::to_string(state_.epoch) + " after " +
           std::to_string(state_.batch) + " batches");
}

bool Trainer::fit() {
  net_.train();
  if (!resumed_) save();  // from here on the run can be killed and goes on
  while (state_.epoch < s_.epochs) {
    if (!train_and_test()) {
      save();
      checkpoints_.finish();
      run_.log("interrupted; state saved");
      return false;
    }
    finish_epoch();
  }
  if (profile_) profile_->finish();
  checkpoints_.finish();
  return true;
}

// Returns false if a signal came. What was begun is then finished by the run that resumes; so it is
// where an image cannot be read.
bool Trainer::train_and_test() {
  try {
    if (!train_epoch()) return false;
    last_score_ = test();
    return last_score_.has_value();
  } catch (const UnreadableImage& e) {
    if (!step_complete() || !checkpoints_.save_alone(checkpoint())) throw;
    detail::fail<FileError>(e.what(), "; the state is saved: --resume ", run_.path().string(),
                            " goes on, with --skip-unreadable without such images");
  }
}

// Goes through the batches that are left of the epoch. Returns false if a signal came.
bool Trainer::train_epoch() {
  if (!profile_) {
    profile_.emplace(s_.measure, net_, ranks_.main() ? &run_ : nullptr,
                     s_.amp ? parse_dtype(s_.amp_dtype) : DType::kF32);
  }
  const std::string label =
      "Epoch " + std::to_string(state_.epoch + 1) + "/" + std::to_string(s_.epochs);
  Progress bar(loader_.size() * batch_images(s_, data_),
               {.label = label, .unit = "img", .enabled = s_.progress && ranks_.main()});
  MetricLogger meters;
  meters.add("lr", MeterStyle::kValue);
  const int64_t seen_before = state_.seen;
  bar.advance(state_.batch * s_.batch_size);
  data::Epoch epoch = loader_.epoch(state_.epoch, state_.batch);
  while (true) {
    own_time_ = now_s() - dist::waited_seconds();
    const std::optional<data::Batch> batch = next_batch(epoch);
    if (!batch) break;
    if (step_complete() && stop_requested()) return false;
    meters.data_ready();
    for (const std::string& path : batch->skipped) {
      if (skipped_.insert(path).second) run_.log("left out, cannot be read: " + path);
    }
    const AnomalyGuard anomaly({.forward = true, .enabled = s_.measure.detect_anomaly});
    const Step step = train_step(*batch, part());
    profile_->step_done();
    count(step);
    meters.step_done(step.images);
    mfu_.update(profile_->mfu(meters.step_time().value()));
    step_seconds_ += meters.step_time().value();
    ++steps_done_;
    meters.update("lr", step.lr);
    meters.update("loss", step.loss, step.images);
    meters.add("acc1", MeterStyle::kPercent);
    meters.update("acc1", percent(step.right, step.images), step.images);
    show(step, meters, bar);
    checkpoints_.check();
    const bool due = checkpoints_.due(state_.step / s_.gradient_accumulation_steps);
    if (due && step_complete() && state_.batch < loader_.size()) save();
  }
  TARN_CHECK_AS(FileError, state_.seen > 0, "training: none of the ", loader_.examples(),
                " images can be read");
  images_per_second_ =
      static_cast<double>(state_.seen - seen_before) / std::max(meters.elapsed(), 1e-9);
  return !stop_requested();
}

// The ranks stop after the same step: the one in which they told each other.
bool Trainer::stop_requested() {
  if (!ranks_.group()) stop_ = interrupt_.requested();
  return stop_;
}

// Turns this rank's results into those of all ranks. With the time it was busy, ranks share out
// anew.
void Trainer::agree(Step& step, bool synced) {
  if (!ranks_.group()) return;
  const double images = static_cast<double>(step.images);
  std::vector<double> mine{step.loss * images, images, static_cast<double>(step.right),
                           interrupt_.requested() ? 1.0 : 0.0};
  const size_t figures = mine.size();
  if (shares_) {
    double busy = now_s() - dist::waited_seconds() - own_time_;
    if (synced && Device(s_.device).is_cuda()) busy -= ddp_->stats().wait_seconds;
    mine.resize(figures + static_cast<size_t>(ranks_.size()));
    mine[figures + static_cast<size_t>(ranks_.rank())] = std::max(busy, 1e-6);
  }
  const auto sums = ranks_.sum(mine);
  if (shares_ &&
      shares_->add(state_.step, batch_images(s_, data_), std::span(sums).subspan(figures))) {
    log_shares();
  }
  step.loss = sums[0] / sums[1];
  step.images = static_cast<int64_t>(sums[1]);
  step.right = static_cast<int64_t>(sums[2]);
  stop_ = sums[3] > 0;
}

void Trainer::log_shares() {
  std::string text = "shares of the ranks:";
  for (const double share : shares_->shares()) text += format(" %.3f", share);
  run_.log(text);
}

// How much more this rank's mean of a batch counts than another's would in equal parts, since ddp
// averages over the ranks. Images that cannot be read are not known before.
double Trainer::weight(int64_t images) const {
  if (!ddp_ || (!shares_ && !s_.skip_unreadable)) return 1;
  const auto own = static_cast<double>(images);
  const double all =
      s_.skip_unreadable ? ranks_.sum({own})[0] : static_cast<double>(batch_images(s_, data_));
  return own * ranks_.size() / all;
}

int64_t Trainer::updates_per_epoch() const {
  const int64_t n = s_.gradient_accumulation_steps;
  return (loader_.size() + n - 1) / n;
}

// No gradients wait for a further batch: the state can be saved.
bool Trainer::step_complete() const {
  return state_.batch % s_.gradient_accumulation_steps == 0 || state_.batch == loader_.size();
}

// The next batch's. At the end of an epoch a step may have fewer batches.
Trainer::Part Trainer::part() const {
  const int64_t n = s_.gradient_accumulation_steps, at = state_.batch % n;
  const int64_t batches = std::min(n, loader_.size() - (state_.batch - at));
  return {.first = at == 0, .last = at + 1 == batches, .batches = batches};
}

Tensor Trainer::forward(const data::Batch& batch, const Tensor& target, Tensor& logits) {
  std::optional<RunProfile::Forward> counted;
  if (profile_) counted.emplace(*profile_);
  std::optional<SaveOnCpu> offload;
  if (s_.memory.offload) offload.emplace(SaveOnCpuOptions{.pin_memory = true});
  const AutocastGuard autocast = autocast_for(s_);
  const Tensor input = to_async(batch.input, Device(s_.device));
  logits = replicas_ ? (*replicas_)(input) : net_(input);
  return cross_entropy(logits, target, {}, {.label_smoothing = s_.label_smoothing});
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
  std::vector<Tensor> ahead;  // as much as the loader prepares meanwhile, on the host
  const int64_t prepared = s_.workers > 0 ? 2 * s_.workers + 1 : 0;
  for (int64_t i = 0; i < prepared; ++i) ahead.push_back(empty_like(images.input));
  const int64_t batches = std::min<int64_t>(s_.gradient_accumulation_steps, 2);
  for (int64_t i = 0; i < 2 * batches; ++i) {
    const int64_t at = i % batches;
    train_step(images, {.first = at == 0, .last = at + 1 == batches, .batches = batches});
  }
  optimizer_->zero_grad();
  TARN_CHECK(!interrupt_.requested(), "--find-batch: interrupted");
}

std::string Trainer::rate_text() const {
  if (!profile_ || steps_done_ == 0) return "";
  return profile_->rate_text(step_seconds_ / static_cast<double>(steps_done_));
}

Trainer::Step Trainer::train_step(const data::Batch& batch, const Part& part) {
  const Device device(s_.device);
  const Tensor target = to_async(batch.target, device);
  Step step{.lr = optimizer_->lr(), .images = batch.size()};

  if (part.first) optimizer_->zero_grad();
  std::optional<dist::DistributedDataParallel::NoSync> alone;
  if (ddp_ && !part.last) alone.emplace(ddp_->no_sync());
  Tensor logits;
  const Tensor loss = forward(batch, target, logits);
  const double share = weight(batch.size()) / static_cast<double>(part.batches);
  scaler_.scale(share == 1 ? loss : loss * share).backward();
  if (part.last) update();

  step.loss = loss.item();
  step.right = count_right(logits.detach(), target);
  agree(step, part.last);
  TARN_CHECK(std::isfinite(step.loss), "training: the loss became ", step.loss, " at step ",
             state_.step + 1, " (epoch ", state_.epoch + 1, ", lr ", number_text(step.lr),
             "); try a lower --lr, --lr-warmup-epochs 1 or --clip-grad-norm 1");
  return step;
}

// Gradients that overflow under loss scaling cost the step, and then neither the schedule nor the
// running mean moves.
void Trainer::update() {
  if (s_.clip_grad_norm > 0) {
    scaler_.unscale_(*optimizer_);
    optim::clip_grad_norm_(items(net_.named_parameters()), s_.clip_grad_norm, 2,
                           !scaler_.enabled());
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

void Trainer::count(const Step& step) {
  ++state_.step;
  ++state_.batch;
  state_.seen += step.images;
  state_.right += step.right;
  state_.loss_sum += step.loss * static_cast<double>(step.images);
}

void Trainer::show(const Step& step, const MetricLogger& meters, Progress& bar) {
  bar.postfix(format("loss=%.4f, acc=%.2f %%", state_.loss_sum / static_cast<double>(state_.seen),
                     percent(state_.right, state_.seen)));
  bar.advance(step.images);
  if (state_.step != 1 && state_.step % s_.print_freq != 0) return;
  const std::string header = "Epoch: [" + std::to_string(state_.epoch) + "]";
  run_.log(meters.line(header, state_.batch, loader_.size()) +
           format("  mfu: %.2f %%", 100 * mfu_.mean()));
  record(
      history_, run_,
      StepFigures{.step = state_.step,
                  .epoch = static_cast<double>(state_.step) / static_cast<double>(loader_.size()),
                  .loss = step.loss,
                  .accuracy = percent(step.right, step.images),
                  .lr = step.lr,
                  .images_per_second = meters["img/s"].mean(),
                  .mfu = mfu_.mean()});
}

// Scores the weights, or their running mean where there is one.
std::optional<Score> Trainer::test() {
  struct Swapped {
    explicit Swapped(optim::Ema* average) : ema(average) { swap(); }
    ~Swapped() { swap(); }
    void swap() const {
      if (ema) ema->swap();
    }
    optim::Ema* ema;
  };
  const Swapped swapped(ema_.get());
  return evaluate(net_, *data_.test, s_, skipped_, &interrupt_, ranks_);
}

void Trainer::finish_epoch() {
  const EpochFigures f{.step = state_.step,
                       .epoch = static_cast<double>(state_.epoch + 1),
                       .train_loss = state_.loss_sum / static_cast<double>(state_.seen),
                       .train_accuracy = percent(state_.right, state_.seen),
                       .test_loss = last_score_->loss,
                       .test_accuracy = last_score_->accuracy(),
                       .lr = optimizer_->lr(),
                       .images_per_second = images_per_second_};
  const bool best = f.test_accuracy > state_.best_accuracy;
  const std::string line =
      format("train loss %.4f  acc %.2f %%   test loss %.4f  acc %.2f %%%s", f.train_loss,
             f.train_accuracy, f.test_loss, f.test_accuracy, best ? "   best" : "");
  if (ranks_.main()) std::printf("         %s\n", line.c_str());
  std::fflush(stdout);
  run_.log("Test: [" + std::to_string(state_.epoch) + "]  " + line);
  record(history_, run_, f);
  ++state_.epoch;
  state_.batch = state_.seen = state_.right = 0;
  state_.loss_sum = 0;
  state_.best_accuracy = std::max(state_.best_accuracy, f.test_accuracy);
  if (best) state_.best_step = state_.step;
  save();
  if (ranks_.main()) save_plots(history_, run_);
}

Checkpoint Trainer::checkpoint() {
  run_.sync();
  Checkpoint c{.step = state_.step, .best = state_.step == state_.best_step};
  store(c, {net_, *optimizer_, scaler_, ema_.get()});
  store_values(c, state_);
  if (shares_) c.values["shares"] = shares_text(shares_->shares());
  return c;
}

void Trainer::save() {
  checkpoints_.save(checkpoint());
}

}  // namespace tarn::apps
