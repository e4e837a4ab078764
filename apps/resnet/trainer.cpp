// trainer.cpp - the training loop.
#include "tarn/apps/resnet/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tarn/apps/common/metrics.h"
#include "tarn/apps/resnet/setup.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/core/serialize.h"
#include "tarn/optim/clip.h"

namespace tarn::apps {
namespace {

std::string text(const char* format, double a, double b = 0, double c = 0) {
  char buffer[160];
  std::snprintf(buffer, sizeof buffer, format, a, b, c);
  return buffer;
}

int64_t count_right(const Tensor& logits, const Tensor& target) {
  return sum(eq(argmax(logits, 1), target)).item<int64_t>();
}

data::DataLoader training_loader(const ResnetSettings& s, const ImageData& data) {
  const int64_t all = data.train->size();
  const int64_t n = s.limit > 0 ? std::min(s.limit, all) : all;
  const auto seed = static_cast<uint64_t>(s.seed);
  return data::DataLoader(*data.train, std::make_unique<data::RandomSampler>(n, seed),
                          {.batch_size = s.batch_size,
                           .drop_last = n >= s.batch_size,  // batch norm wants full batches
                           .workers = static_cast<int>(s.workers),
                           .seed = seed});
}

std::vector<TensorDict::Item> named(const TensorDict& tensors) {
  return {tensors.begin(), tensors.end()};
}

bool use_cifar_stem(const ResnetSettings& s, const ImageData& data) {
  return s.stem == "cifar" || (s.stem == "auto" && data.image_size <= 64);
}

}  // namespace

std::unique_ptr<nn::Module> make_model(const ResnetSettings& s, const ImageData& data) {
  auto net = nn::models::make_resnet(
      s.model, {.classes = data.classes,
                .in_channels = data.channels,
                .shortcut = s.shortcut == "A" ? nn::models::Shortcut::kPad
                                              : nn::models::Shortcut::kProjection,
                .cifar_stem = use_cifar_stem(s, data),
                .zero_init_residual = s.zero_init_residual});
  if (s.weights) net->load_state_dict(load_safetensors(*s.weights).tensors);
  net->to(Device(s.device));
  return net;
}

Score evaluate(nn::Module& net, const data::ImageDataset& data, const ResnetSettings& s,
               std::vector<std::string>& skipped) {
  const InferenceModeGuard inference;
  const bool was_training = net.training();
  net.eval();
  const data::DataLoader loader(
      data, {.batch_size = s.batch_size, .workers = static_cast<int>(s.workers)});
  Progress bar(loader.examples(),
               {.label = "   test", .unit = "img", .enabled = s.progress, .leave = false});
  Score score;
  const Device device(s.device);
  for (const data::Batch& batch : loader.epoch(0)) {
    skipped.insert(skipped.end(), batch.skipped.begin(), batch.skipped.end());
    if (batch.size() == 0) continue;
    const Tensor target = batch.target.to(device);
    const Tensor logits = net(batch.input.to(device));
    score.loss += cross_entropy(logits, target).item() * static_cast<double>(batch.size());
    score.right += count_right(logits, target);
    score.count += batch.size();
    bar.advance(batch.size());
  }
  bar.close();
  if (score.count) score.loss /= static_cast<double>(score.count);
  if (was_training) net.train();
  return score;
}

Trainer::Trainer(const ResnetSettings& s, const ImageData& data, nn::Module& net, RunDir& run)
    : s_(s),
      data_(data),
      net_(net),
      run_(run),
      loader_(training_loader(s, data)),
      optimizer_(make_optimizer(s, net)) {
  scheduler_ = std::make_unique<optim::Scheduler>(*optimizer_, make_schedule(s, loader_.size()));
  if (s.model_ema) {
    ema_ = std::make_unique<optim::Ema>(named(net.state_dict()),
                                        optim::Ema::Options{.decay = s.model_ema_decay});
  }
  state_.epoch = s.start_epoch;
  state_.step = s.start_epoch * loader_.size();
  scheduler_->set_step(state_.step);
}

void Trainer::resume(const std::filesystem::path& folder) {
  const Checkpoint c = load_checkpoint(folder);
  TARN_CHECK(c.model_name == s_.model, "resume: ", folder.string(), " holds a ", c.model_name,
             "; this run trains a ", s_.model, "; pass --model ", c.model_name);
  net_.load_state_dict(c.model);
  optimizer_->load_state_dict(c.optimizer);
  if (ema_ && !c.ema.empty()) ema_->load_state_dict(c.ema);
  state_ = c.state;
  scheduler_->set_step(state_.step);
  default_generator().set_state(state_.random);
  run_.log("resumed from " + folder.string() + " at epoch " + std::to_string(state_.epoch));
}

bool Trainer::fit() {
  net_.train();
  while (state_.epoch < s_.epochs) {
    if (!train_epoch(state_.epoch)) {
      save("last");
      run_.log("interrupted; state saved");
      return false;
    }
  }
  return true;
}

bool Trainer::train_epoch(int64_t epoch) {
  const std::string label = "Epoch " + std::to_string(epoch + 1) + "/" + std::to_string(s_.epochs);
  Progress bar(loader_.examples(), {.label = label, .unit = "img", .enabled = s_.progress});
  EpochFigures figures{.epoch = static_cast<double>(epoch + 1)};
  MetricLogger meters;
  meters.add("lr", MeterStyle::kValue);
  int64_t seen = 0;
  const int64_t first = state_.batch;
  bar.advance(first * s_.batch_size);
  for (const data::Batch& batch : loader_.epoch(epoch, first)) {
    meters.data_ready();
    skipped_.insert(skipped_.end(), batch.skipped.begin(), batch.skipped.end());
    if (batch.size() > 1) train_step(batch, figures, seen);
    ++state_.batch;
    meters.step_done(batch.size());
    bar.advance(batch.size());
    if (!history_.step_loss.empty()) {
      meters.update("lr", history_.step_lr.back());
      meters.update("loss", history_.step_loss.back(), batch.size());
    }
    if (seen) {
      const double n = static_cast<double>(seen);
      bar.postfix(
          text("loss=%.4f, acc=%.2f %%", figures.train_loss / n, 100 * figures.train_accuracy / n));
    }
    if (state_.batch % s_.print_freq == 0) {
      run_.log(meters.line("Epoch: [" + std::to_string(epoch) + "]", state_.batch, loader_.size()));
    }
    if (interrupt_.requested()) return false;
  }
  images_per_second_ = static_cast<double>(seen) / std::max(meters.elapsed(), 1e-9);
  bar.close();
  if (seen) {
    figures.train_loss /= static_cast<double>(seen);
    figures.train_accuracy *= 100.0 / static_cast<double>(seen);
  }
  finish_epoch(figures);
  return true;
}

void Trainer::train_step(const data::Batch& batch, EpochFigures& figures, int64_t& seen) {
  const Device device(s_.device);
  const Tensor target = batch.target.to(device);
  const double lr = optimizer_->lr();
  optimizer_->zero_grad();
  const Tensor logits = net_(batch.input.to(device));
  const Tensor loss = cross_entropy(logits, target, {}, {.label_smoothing = s_.label_smoothing});
  loss.backward();
  if (s_.clip_grad_norm > 0) {
    optim::clip_grad_norm_(named(net_.named_parameters()), s_.clip_grad_norm, 2, true);
  }
  optimizer_->step();
  scheduler_->step();
  if (ema_) ema_->update();
  ++state_.step;

  const double value = loss.item();
  TARN_CHECK(std::isfinite(value), "training: the loss became ", value, " at step ", state_.step,
             "; a lower --lr, --lr-warmup-epochs or --clip-grad-norm 1 may help");
  const auto n = static_cast<double>(batch.size());
  figures.train_loss += value * n;
  figures.train_accuracy += static_cast<double>(count_right(logits.detach(), target));
  seen += batch.size();
  history_.step.push_back(static_cast<double>(state_.step) / static_cast<double>(loader_.size()));
  history_.step_loss.push_back(value);
  history_.step_lr.push_back(lr);
}

void Trainer::finish_epoch(EpochFigures figures) {
  if (ema_) ema_->swap();
  last_score_ = evaluate(net_, *data_.test, s_, skipped_);
  if (ema_) ema_->swap();
  figures.test_loss = last_score_.loss;
  figures.test_accuracy = last_score_.accuracy();
  history_.epochs.push_back(figures);
  const bool best = last_score_.accuracy() > state_.best_accuracy;
  state_.best_accuracy = std::max(state_.best_accuracy, last_score_.accuracy());
  ++state_.epoch;
  state_.batch = 0;
  const double lr = history_.step_lr.empty() ? optimizer_->lr() : history_.step_lr.back();
  run_.metric(JsonObject()
                  .add("step", state_.step)
                  .add("epoch", state_.epoch)
                  .add("train_loss", figures.train_loss)
                  .add("train_acc", figures.train_accuracy)
                  .add("test_loss", figures.test_loss)
                  .add("test_acc", figures.test_accuracy)
                  .add("lr", lr)
                  .add("img_s", images_per_second_)
                  .add("mem_mib", peak_memory_mib()));
  const std::string line =
      text("         train loss %.4f  acc %.2f %%", figures.train_loss, figures.train_accuracy) +
      text("   test loss %.4f  acc %.2f %%", figures.test_loss, figures.test_accuracy) +
      (best ? "  best" : "");
  std::puts(line.c_str());
  std::fflush(stdout);
  run_.log("Epoch " + std::to_string(state_.epoch) + ":" + line);
  save_plots(history_, run_);
  save("last");
  if (best) save("best");
}

void Trainer::save(const char* name) {
  state_.random = default_generator().state();
  save_checkpoint(run_.checkpoint(name), {.model = net_.state_dict(),
                                          .optimizer = optimizer_->state_dict(),
                                          .ema = ema_ ? ema_->state_dict() : TensorDict(),
                                          .state = state_,
                                          .model_name = s_.model});
}

}  // namespace tarn::apps
