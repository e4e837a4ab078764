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
#include "tarn/core/random.h"
#include "tarn/dist/agree.h"
#include "tarn/dist/sync_batch_norm.h"
#include "tarn/dist/waited.h"

namespace tarn::apps {
namespace {

constexpr const char* kAccumulation = "gradient_accumulation_steps";

std::unique_ptr<ModelSharing> make_sharing(const ResnetSettings& s, nn::Module& net,
                                           const Ranks& ranks) {
  if (ranks.group() && s.sync_bn) dist::convert_sync_batch_norm(net, *ranks.group());
  return share_model(net, s.ranks, ranks);
}

std::unique_ptr<dist::DataParallel> make_replicas(const ResnetSettings& s, const ImageData& data,
                                                  nn::Module& net) {
  const std::vector<Device> devices = replica_devices(s.ranks, Device(s.device));
  if (devices.empty()) return nullptr;
  return std::make_unique<dist::DataParallel>(
      net, devices, [&] { return make_model(s, data); }, std::vector<double>{}, s.ranks.rebalance);
}

// Rank 0 saves its own, and without --sync-bn each rank has running statistics of its own rows.
void share_buffers(const nn::Module& net, const Ranks& ranks) {
  if (!ranks.group()) return;
  std::vector<Tensor> buffers;
  for (const auto& [name, buffer] : net.named_buffers()) buffers.push_back(buffer);
  dist::broadcast_values(*ranks.group(), buffers);
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
      sharing_(make_sharing(s, net, ranks)),
      replicas_(make_replicas(s, data, net)),
      optimizer_(make_optimizer(s, net, *sharing_)),
      scaler_(make_scaler(s)),
      ema_(make_ema(s, net)),
      checkpoints_(run.path().string(), s.checkpoints, ranks) {
  sharing_->attach(*optimizer_, scaler_);
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
  const auto refuse = [&](const Error& e) {
    detail::fail<ValueError>(at, " trains another network than these flags and data make; leave ",
                             "--shortcut, --stem and --data-path out: ", e.what());
  };
  try {
    restore(c, trained(), ranks_);
  } catch (const ShapeError& e) {
    refuse(e);
  } catch (const ValueError& e) {
    refuse(e);
  }
  state_ = was;
  if (shares_ && c.values.contains("shares")) {
    // Those of another number of ranks are of no use.
    shares_->restart(
        {ranks_.size(), s_.ranks.rebalance, parse_shares(c.text("shares"), ranks_.size())});
    log_shares();
  }
  const int64_t n = s_.gradient_accumulation_steps;
  if (c.values.contains(kAccumulation) && c.integer(kAccumulation) != n) {
    // Steps of another length: the schedule goes on where this epoch would be.
    state_.updates = state_.epoch * updates_per_epoch() + state_.batch / n;
    run_.log("resumed with " + std::to_string(n) + " batches to a step instead of " +
             std::to_string(c.integer(kAccumulation)));
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
      tell_left_out();
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
    const bool can_save = step_complete() && sharing_->saves_alone();
    if (!can_save || !checkpoints_.save_alone(checkpoint())) throw;
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
  const int64_t each = batch_images(s_, data_);
  Progress bar(loader_.size() * each, {.label = label,
                                       .unit = "img",
                                       .initial = std::min(state_.batch, loader_.size()) * each,
                                       .enabled = s_.progress && ranks_.main()});
  MetricLogger meters;
  meters.add("lr", MeterStyle::kValue);
  const int64_t seen_before = state_.seen;
  data::Epoch epoch = loader_.epoch(state_.epoch, state_.batch);
  while (true) {
    own_time_ = now_s() - dist::waited_seconds();
    const std::optional<data::Batch> batch = next_batch(epoch);
    if (!batch) break;
    if (step_complete() && stop_requested()) return false;
    meters.data_ready();
    for (const std::string& path : batch->skipped) {
      if (!skipped_.contains(path)) untold_.insert(path);
      leave_out(path);
    }
    const AnomalyGuard anomaly({.forward = true, .enabled = s_.measure.detect_anomaly});
    const Step step = train_step(*batch, part());
    if (batch->size() > 0) profile_->step_done();
    count(step);
    meters.step_done(step.images);
    if (step.images > 0) show(step, meters, bar);
    checkpoints_.check();
    const bool due = checkpoints_.due(state_.step / s_.gradient_accumulation_steps);
    if (due && step_complete() && state_.batch < loader_.size()) save();
  }
  TARN_CHECK_AS(FileError, state_.seen > 0, "training: none of the ", loader_.examples(),
                " images can be read");
  if (state_.seen > seen_before) {  // else the epoch's last figure stays: nothing was left to do
    images_per_second_ =
        static_cast<double>(state_.seen - seen_before) / std::max(meters.elapsed(), 1e-9);
  }
  return !stop_requested();
}

// The ranks stop after the same step: the one in which they told each other.
bool Trainer::stop_requested() {
  if (!ranks_.group()) stop_ = interrupt_.requested();
  return stop_;
}

void Trainer::leave_out(const std::string& image) {
  if (skipped_.insert(image).second) run_.log("left out, cannot be read: " + image);
}

// The log is rank 0's: so that it names what the others could not read. Called by all ranks.
void Trainer::tell_left_out() {
  if (!s_.skip_unreadable) return;
  for (const std::string& image : of_all_ranks(untold_, ranks_)) leave_out(image);
  untold_.clear();
}

void Trainer::log_shares() {
  std::string text = "shares of the ranks:";
  for (const double share : shares_->shares()) text += format(" %.3f", share);
  run_.log(text);
}

int64_t Trainer::updates_per_epoch() const {
  const int64_t n = s_.gradient_accumulation_steps;
  return (loader_.size() + n - 1) / n;
}

// No gradients wait for a further batch: the state can be saved.
bool Trainer::step_complete() const {
  return state_.batch % s_.gradient_accumulation_steps == 0 || state_.batch == loader_.size();
}

std::string Trainer::rate_text() const {
  if (!profile_ || steps_done_ == 0) return "";
  return profile_->rate_text(step_seconds_ / static_cast<double>(steps_done_));
}

void Trainer::count(const Step& step) {
  ++state_.step;
  ++state_.batch;
  state_.seen += step.images;
  state_.right += step.right;
  state_.loss_sum += step.loss * static_cast<double>(step.images);
}

// Of steps with images.
void Trainer::show(const Step& step, MetricLogger& meters, Progress& bar) {
  mfu_.update(profile_->mfu(meters.step_time().value()));
  step_seconds_ += meters.step_time().value();
  ++steps_done_;
  meters.update("lr", step.lr);
  meters.update("loss", step.loss, step.images);
  meters.add("acc1", MeterStyle::kPercent);
  meters.update("acc1", percent(step.right, step.images), step.images);
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

// Scores the weights, or their running mean where there is one, as they are saved.
std::optional<Score> Trainer::test() {
  struct Swapped {
    explicit Swapped(optim::Ema* average) : ema(average) { swap(); }
    ~Swapped() { swap(); }
    void swap() const {
      if (ema) ema->swap();
    }
    optim::Ema* ema;
  };
  const ModelSharing::Guard whole = sharing_->whole();  // ranks have other numbers of batches
  const Swapped swapped(ema_.get());
  share_buffers(net_, ranks_);
  std::set<std::string> images;
  const std::optional<Score> score = evaluate(net_, *data_.test, s_, images, &interrupt_, ranks_);
  for (const std::string& image : images) leave_out(image);
  return score;
}

void Trainer::finish_epoch() {
  tell_left_out();
  const EpochFigures f{.step = state_.step,
                       .epoch = static_cast<double>(state_.epoch + 1),
                       .train_loss = state_.loss_sum / static_cast<double>(state_.seen),
                       .train_accuracy = percent(state_.right, state_.seen),
                       .test_loss = last_score_->loss,
                       .test_accuracy = last_score_->accuracy(),
                       .lr = optimizer_->lr(),
                       // A run that goes on where an epoch was to be tested has none.
                       .images_per_second = images_per_second_ > 0 ? images_per_second_ : NAN};
  TARN_CHECK(std::isfinite(f.test_loss), "training: the test loss became ",
             number_text(f.test_loss), " after epoch ", state_.epoch + 1, " (lr ",
             number_text(f.lr), "); the newest checkpoint stays; try a lower --lr, ",
             "--lr-warmup-epochs 1 or --clip-grad-norm 1");
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
  store(c, trained());
  store_values(c, state_);
  c.values[kAccumulation] = s_.gradient_accumulation_steps;
  if (shares_) c.values["shares"] = shares_text(shares_->shares());
  return c;
}

void Trainer::save() {
  checkpoints_.save(checkpoint());
}

}  // namespace tarn::apps
