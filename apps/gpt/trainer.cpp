// trainer.cpp - the training loop.
#include "tarn/apps/gpt/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tarn/apps/common/text.h"
#include "tarn/apps/common/timing.h"
#include "tarn/apps/gpt/setup.h"
#include "tarn/apps/gpt/write_text.h"
#include "tarn/autograd/anomaly.h"
#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/autograd/saved_tensor_hooks.h"
#include "tarn/core/transfer.h"

namespace tarn::apps {
namespace {

// Windows of estimates come from streams of their own, so that they change nothing for training.
constexpr uint64_t kTrainStream = 0x7472'6169'6e00'0000, kValStream = 0x7661'6c00'0000'0000;
constexpr uint64_t kTextStream = 0x7465'7874'0000'0000;
// Far below any --dist-timeout.
constexpr double kSecondsToMeeting = 2;

data::TokenDataset windows(const data::Tokens& tokens, const nn::models::Gpt& gpt) {
  return data::TokenDataset(tokens, {.block = gpt.options().block, .vocab = gpt.options().vocab});
}

std::unique_ptr<dist::DataParallel> make_replicas(const GptSettings& s, nn::models::Gpt& gpt) {
  const std::vector<Device> devices = replica_devices(s.ranks, Device(s.device));
  if (devices.empty()) return nullptr;
  const auto make = [&] {
    auto replica = std::make_unique<nn::models::Gpt>(gpt.options());
    replica->set_checkpoint(s.grad_checkpoint);
    return replica;
  };
  return std::make_unique<dist::DataParallel>(gpt, devices, make, std::vector<double>{},
                                              s.ranks.rebalance);
}

}  // namespace

GptTrainer::GptTrainer(const GptSettings& s, const Corpus& corpus, nn::models::Gpt& gpt,
                       RunDir* run, const Ranks& ranks)
    : s_(s),
      corpus_(corpus),
      gpt_(gpt),
      run_(run),
      ranks_(ranks),
      interrupt_(run ? std::make_unique<Interrupt>() : nullptr),
      train_(windows(corpus.train, gpt)),
      val_(windows(corpus.val, gpt)),
      sharing_(share_model(gpt, s.ranks, ranks)),
      replicas_(make_replicas(s, gpt)),
      optimizer_(make_optimizer(s, gpt, *sharing_)),
      scaler_({.enabled = parse_dtype(s.dtype) == DType::kF16}),
      checkpoints_(run ? run->path().string() : "", s.checkpoints, ranks) {
  sharing_->attach(*optimizer_, scaler_);
  scheduler_ = std::make_unique<optim::Scheduler>(*optimizer_, make_schedule(s));
  if (sharing_->has_ranks() && s.ranks.rebalance > 0)
    balancer_.emplace(ranks.size(), s.ranks.rebalance);
  ranks_.draw_apart();  // the weights are made: from here on only dropout draws
}

void GptTrainer::resume(const Checkpoint& c, GptHistory history) {
  const nn::models::GptOptions was = restore_sizes(c), &is = gpt_.options();
  const auto text = [](const nn::models::GptOptions& o) {
    return format("%lld layers, %lld heads, width %lld, block %lld, vocabulary %lld%s%s",
                  static_cast<long long>(o.layers), static_cast<long long>(o.heads),
                  static_cast<long long>(o.size), static_cast<long long>(o.block),
                  static_cast<long long>(o.vocab), o.bias ? ", biases" : "",
                  o.tanh_gelu ? "" : ", exact GELU");
  };
  TARN_CHECK(text(was) == text(is), "resume: ", run_->path().string(), " trains a model of ",
             text(was), "; these flags and data make one of ", text(is));
  restore(c, trained(), ranks_);
  restore_values(c, state_);
  scheduler_->set_step(state_.step);
  checkpoints_.resumed(state_.step);
  history_ = std::move(history);
  run_->log("resumed after step " + std::to_string(state_.step));
}

// Estimates at every multiple of --eval-interval and at the end, steps between them.
bool GptTrainer::fit() {
  gpt_.train();
  while (true) {
    const bool due = state_.step % s_.eval_interval == 0 || state_.step >= s_.max_iters;
    const bool done = !due || state_.evaluated_step == state_.step || evaluate();
    if (done && state_.step >= s_.max_iters) break;
    const int64_t next = (state_.step / s_.eval_interval + 1) * s_.eval_interval;
    if (!done || !train_until(std::min(next, s_.max_iters))) {
      save();
      checkpoints_.finish();
      run_->log("interrupted; state saved");
      return false;
    }
  }
  if (profile_) profile_->finish();
  checkpoints_.finish();
  return true;
}

// Returns false if a signal came.
bool GptTrainer::train_until(int64_t last) {
  if (!profile_) {
    profile_.emplace(s_.measure, gpt_, ranks_.main() ? run_ : nullptr, parse_dtype(s_.dtype));
  }
  Progress bar(last - state_.step, {.label = format("step %lld/%lld", static_cast<long long>(last),
                                                    static_cast<long long>(s_.max_iters)),
                                    .enabled = s_.progress && ranks_.main(),
                                    .leave = false});
  while (state_.step < last) {
    if (stop_requested()) return false;
    const AnomalyGuard anomaly({.forward = true, .enabled = s_.measure.detect_anomaly});
    GptStepFigures f = train_step();
    profile_->step_done();
    f.mfu = profile_->mfu(f.milliseconds * 1e-3);
    bar.postfix(format("loss=%.4f, %.0f tok/s", f.loss, f.tokens_per_second));
    bar.advance();
    if (f.step == 1 || f.step % s_.log_interval == 0) show(f);
    checkpoints_.check();
    if (checkpoints_.due(f.step) && f.step < last)
      save();  // at the last there is an estimate first
  }
  return true;
}

void GptTrainer::show(const GptStepFigures& f) {
  run_->log(format("iter %lld: loss %.4f, lr %s, norm %.3f, time %.2fms, %.0f tok/s, mfu %.2f%%",
                   static_cast<long long>(f.step), f.loss, number_text(f.lr).c_str(), f.norm,
                   f.milliseconds, f.tokens_per_second, 100 * f.mfu));
  record(history_, *run_, f);
}

// The mean over the tokens of a batch, for training and for estimates.
Tensor GptTrainer::loss(const data::Batch& batch) {
  const Device device(s_.device);
  const DType dtype = parse_dtype(s_.dtype);
  const AutocastGuard autocast(device.type, is_half(dtype) ? dtype : DType::kBF16, is_half(dtype));
  const Tensor input = to_async(batch.input, device), target = to_async(batch.target, device);
  if (!replicas_ || !gpt_.training()) return gpt_.loss(input, target);
  return replicas_->mean_of(
      [](nn::Module& replica, std::span<const Tensor> part) {
        return static_cast<nn::models::Gpt&>(replica).loss(part[0], part[1]);
      },
      {input, target});
}

// The ranks stop after the same step: the one in which they told each other.
bool GptTrainer::stop_requested() {
  if (!ranks_.group()) stop_ = interrupted();
  return stop_;
}

// A rank's loss to the mean over the ranks. With the seconds it took, ranks share out anew.
double GptTrainer::agree(double loss, double seconds) {
  if (!ranks_.group()) return loss;
  std::vector<double> mine(static_cast<size_t>(2 + ranks_.size()));
  mine[0] = loss;
  mine[1] = interrupted() ? 1.0 : 0.0;
  mine[static_cast<size_t>(2 + ranks_.rank())] = seconds;
  const auto sums = ranks_.sum(mine);
  stop_ = stop_ || sums[1] > 0;
  if (balancer_ && seconds > 0)
    balancer_->add(balancer_->cut(s_.batch_size), {sums.begin() + 2, sums.end()});
  return sums[0] / ranks_.size();
}

// Where this rank's rows of a micro-batch begin, and how many they are.
std::pair<int64_t, int64_t> GptTrainer::own_rows() const {
  if (!balancer_) {
    const int64_t rows = ranks_.share(s_.batch_size, "--batch-size");
    return {ranks_.rank() * rows, rows};
  }
  const auto [begin, end] = dist::rows_of(balancer_->cut(s_.batch_size), ranks_.rank());
  return {begin, end - begin};
}

// Adds the gradients of share * loss, and returns that. Ranks exchange theirs in the last one.
double GptTrainer::backward(const data::Batch& batch, double share, bool last) {
  const ModelSharing::Guard alone = last ? nullptr : sharing_->no_sync();
  Tensor part;
  {
    std::optional<RunProfile::Forward> counted;
    if (profile_) counted.emplace(*profile_);
    std::optional<SaveOnCpu> offload;
    if (s_.memory.offload) offload.emplace(SaveOnCpuOptions{.pin_memory = true});
    part = loss(batch) * share;
  }
  scaler_.scale(part).backward();
  return part.item();
}

// One step: the mean over all tokens of its micro-batches. A rank takes its rows of each; backward
// averages over the ranks, so each counts as often as it has more tokens than its even share.
GptStepFigures GptTrainer::train_step() {
  const double start = now_s();
  const int64_t micro = s_.gradient_accumulation_steps;
  const auto [begin, rows] = own_rows();
  const auto tokens = static_cast<double>(micro * s_.batch_size * gpt_.options().block);
  GptStepFigures f{.step = state_.step + 1, .lr = optimizer_->lr()};
  optimizer_->zero_grad();
  for (int64_t i = 0; i < micro; ++i) {
    const data::Batch batch =
        train_.random(static_cast<uint64_t>(s_.seed), state_.step, rows, i * s_.batch_size + begin);
    const double share = static_cast<double>(batch.target.numel() * ranks_.size()) / tokens;
    f.loss += backward(batch, share, i + 1 == micro);
  }
  f.loss = agree(f.loss, now_s() - start - sharing_->wait_seconds());
  TARN_CHECK(std::isfinite(f.loss), "training: the loss became ", number_text(f.loss), " at step ",
             f.step, " (lr ", format("%.6g", f.lr),
             "); try a lower --learning-rate or a longer --warmup-iters");
  if (s_.grad_clip > 0) {
    f.norm = scaler_.clip_grad_norm_(*optimizer_, s_.grad_clip);
  } else {
    scaler_.unscale_(*optimizer_);
    f.norm = sharing_->grad_norm();
  }
  scaler_.step(*optimizer_);
  scaler_.update();
  scheduler_->step();  // also where float16 skipped the step: the rate follows the step number
  ++state_.step;
  const double seconds = std::max(now_s() - start, 1e-9);
  f.milliseconds = seconds * 1e3;
  f.tokens_per_second = tokens / seconds;
  seconds_ += seconds;
  ++steps_done_;
  return f;
}

// Returns false if a signal came.
bool GptTrainer::evaluate() {
  const std::optional<GptLosses> losses = estimate();
  if (!losses) return false;
  TARN_CHECK(
      std::isfinite(losses->train) && std::isfinite(losses->val), "training: the estimates became ",
      number_text(losses->train), " and ", number_text(losses->val), " after step ", state_.step,
      "; the newest checkpoint stays; try a lower --learning-rate or a longer ", "--warmup-iters");
  const bool best = losses->val < state_.best_val_loss;
  const bool trained = state_.step > 0 || s_.from_file();  // one that is not is not kept
  if (best && trained) state_.best_step = state_.step;
  const std::string line = format("step %lld: train loss %.4f, val loss %.4f",
                                  static_cast<long long>(state_.step), losses->train, losses->val);
  if (ranks_.main()) std::printf("%s\n", line.c_str());
  run_->log(line + (best ? "   best" : ""));
  record(history_, *run_,
         GptEvalFigures{.step = state_.step, .train_loss = losses->train, .val_loss = losses->val});
  state_.best_val_loss = std::min(state_.best_val_loss, losses->val);
  state_.evaluated_step = state_.step;
  show_text();
  std::fflush(stdout);
  save();
  if (ranks_.main()) save_plots(history_, *run_);
  return true;
}

std::optional<GptLosses> GptTrainer::estimate() {
  const std::optional<double> train = mean_loss(train_, kTrainStream);
  const std::optional<double> val = train ? mean_loss(val_, kValStream) : std::nullopt;
  if (!val) return std::nullopt;
  return GptLosses{*train, *val};
}

std::optional<double> GptTrainer::mean_loss(const data::TokenDataset& data, uint64_t stream) {
  const InferenceModeGuard inference;
  const nn::Module::EvalScope evaluation(gpt_);
  double sum = 0;
  int64_t done = 0;
  const int64_t rows = ranks_.share(s_.batch_size, "--batch-size");
  for (; done < s_.eval_iters && !stop_requested(); ++done) {
    const data::Batch batch =
        data.random(static_cast<uint64_t>(s_.seed) ^ stream, done, rows, ranks_.rank() * rows);
    sum += agree(loss(batch).item());
  }
  if (done < s_.eval_iters) return std::nullopt;
  return unsigned_nan(sum / static_cast<double>(done));
}

// A few words of the model's, on the terminal and in samples/.
void GptTrainer::show_text() {
  if (s_.sample_tokens == 0 || !corpus_.tokenizer) return;
  const ModelSharing::Guard whole = sharing_->whole();
  // The others meet the main rank while it writes: they would give up on one that does not answer.
  if (!ranks_.main()) {
    while (ranks_.sum({0})[0] > 0) {
    }
    return;
  }
  double met = now_s();
  Generator generator(static_cast<uint64_t>(s_.seed) ^ kTextStream);
  std::vector<int32_t> ids;
  write_tokens(gpt_, prompt_ids("", *corpus_.tokenizer),
               text_options(s_, s_.sample_tokens, generator), [&](int32_t id) {
                 // A vocabulary that is padded has tokens without a text.
                 if (id >= corpus_.tokenizer->vocab_size()) return false;
                 ids.push_back(id);
                 if (now_s() - met > kSecondsToMeeting) {
                   ranks_.sum({1});
                   met = now_s();
                 }
                 return !interrupted();
               });
  ranks_.sum({0});
  const std::string text = corpus_.tokenizer->decode(ids);
  make_folder(run_->path() / "samples");
  write_file(
      run_->path() / "samples" / format("step-%06lld.txt", static_cast<long long>(state_.step)),
      text);
  std::string indented = "    ";
  for (const char c : shown_text(text)) {
    indented += c;
    if (c == '\n') indented += "    ";
  }
  std::printf("%s\n", indented.c_str());
}

void GptTrainer::save() {
  run_->sync();
  Checkpoint c{.step = state_.step, .best = state_.step == state_.best_step};
  store(c, trained());
  store_values(c, state_);
  store_sizes(c, gpt_.options());
  checkpoints_.save(std::move(c));
}

void GptTrainer::try_steps() {
  gpt_.train();
  for (int i = 0; i < 2; ++i) train_step();
  optimizer_->zero_grad();
}

std::string GptTrainer::rate_text() const {
  if (!profile_ || steps_done_ == 0) return "";
  return profile_->rate_text(seconds_ / static_cast<double>(steps_done_));
}

double GptTrainer::tokens_per_second() const {
  const auto tokens = static_cast<double>(steps_done_ * s_.gradient_accumulation_steps *
                                          s_.batch_size * gpt_.options().block);
  return tokens / std::max(seconds_, 1e-9);
}

}  // namespace tarn::apps
