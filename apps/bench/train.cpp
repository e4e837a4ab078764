// train.cpp - times whole training steps on one fixed batch.
#include "tarn/apps/bench/train.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include <sys/resource.h>

#include "tarn/apps/bench/timing.h"
#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/allocator.h"
#include "tarn/core/backend.h"
#include "tarn/core/factory.h"
#include "tarn/core/profiler.h"
#include "tarn/core/random.h"
#include "tarn/dist/data_parallel.h"
#include "tarn/dist/ddp.h"
#include "tarn/nn/models/gpt.h"
#include "tarn/nn/models/mlp.h"
#include "tarn/nn/models/resnet.h"
#include "tarn/optim/adam.h"
#include "tarn/optim/sgd.h"

namespace tarn::bench {
namespace {

TrainWork make_mlp(const TrainSettings& s) {
  TrainWork w;
  w.net = std::make_unique<nn::models::Mlp>(nn::models::MlpOptions{.sizes = {32, 64, 10}});
  w.x = randn({s.batch, 32});
  w.y = randint(0, 10, {s.batch});
  w.name = "mlp-32-64-10-b" + std::to_string(s.batch);
  w.momentum = 0;
  return w;
}

// "3x32x32", and nothing around it.
std::array<int64_t, 3> image_sizes(const std::string& text) {
  std::array<int64_t, 3> sizes{};
  const char *at = text.data(), *end = at + text.size();
  bool good = true;
  for (size_t i = 0; i < sizes.size() && good; ++i) {
    if (i > 0) good = at != end && *at++ == 'x';
    const auto [stop, error] = std::from_chars(at, end, sizes[i]);
    good = good && error == std::errc() && sizes[i] > 0;
    at = stop;
  }
  TARN_CHECK(good && at == end, "bench: --input must be CxHxW, as 3x32x32; got '", text, "'");
  return sizes;
}

TrainWork make_resnet(const TrainSettings& s) {
  const auto [c, h, width] = image_sizes(s.input);
  TrainWork w;
  const bool cifar = s.stem == "cifar";
  const int64_t classes = cifar ? 10 : 1000;
  w.net =
      nn::models::make_resnet(s.model, {.classes = classes, .in_channels = c, .cifar_stem = cifar});
  w.x = randn({s.batch, c, h, width}).contiguous(MemoryFormat::kChannelsLast);
  w.y = randint(0, classes, {s.batch});
  w.name = s.model + "-" + s.stem + "-" + s.input + "-b" + std::to_string(s.batch);
  return w;
}

bool is_gpt(const TrainSettings& s) {
  return s.model == "gpt" || s.model == "gpt2";
}

TrainWork make_gpt(const TrainSettings& s) {
  nn::models::GptOptions o = nn::models::gpt_options("gpt2");
  if (s.model == "gpt") o = {.vocab = 65, .block = s.block, .layers = 6, .heads = 6, .size = 384};
  TARN_CHECK(s.block <= o.block, "bench: --block of ", s.model, " is at most ", o.block, "; got ",
             s.block);
  TrainWork w;
  w.net = std::make_unique<nn::models::Gpt>(o);
  w.x = randint(0, o.vocab, {s.batch, s.block});
  w.y = randint(0, o.vocab, {s.batch, s.block});
  w.name = s.model + "-b" + std::to_string(s.batch) + "x" + std::to_string(s.block);
  return w;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const TrainSettings& s, const TrainWork& w) {
  if (is_gpt(s)) {
    return std::make_unique<optim::AdamW>(
        w.net->parameters(),
        optim::AdamWOptions{.lr = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1});
  }
  return std::make_unique<optim::SGD>(w.net->parameters(),
                                      optim::SGDOptions{.lr = 0.01, .momentum = w.momentum});
}

double peak_rss_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

double peak_mib(Device device) {
  return static_cast<double>(memory_stats(device).peak_allocated) / (1024.0 * 1024.0);
}

// What is measured: one step of a network, alone, of a rank, or of replicas.
class Steps {
 public:
  Steps(const TrainSettings& s, const apps::Ranks& ranks)
      : bf16_(s.dtype == "bfloat16"), work_(make_work(s)), device_(s.device) {
    work_.net->to(device_);
    work_.x = work_.x.to(device_);
    work_.y = work_.y.to(device_);
    work_.net->train();
    if (ranks.group()) {
      ddp_ = std::make_unique<dist::DistributedDataParallel>(*work_.net, *ranks.group());
    }
    if (s.replicas > 0) {
      TrainSettings one = s;
      one.batch = 1;
      devices_ = apps::replica_devices({.parallel = "dp", .replicas = s.replicas}, device_);
      replicas_ = std::make_unique<dist::DataParallel>(
          *work_.net, devices_, [&] { return std::move(make_work(one).net); });
    }
    optimizer_ = make_optimizer(s, work_);
  }

  Tensor run() {
    optimizer_->zero_grad();
    const Tensor loss = forward();
    loss.backward();
    optimizer_->step();
    return loss;
  }
  void finish() const { synchronize(device_); }
  const std::string& name() const { return work_.name; }

  /// Of the last step: time that parameters and gradients travelled, and what of it was not hidden.
  std::pair<double, double> communication() const {
    if (ddp_) return {ddp_->stats().comm_seconds, ddp_->stats().wait_seconds};
    if (replicas_) return {replicas_->copy_seconds(), replicas_->copy_seconds()};
    return {0, 0};
  }
  /// Peak memory of the first device or rank, and of the largest of the others.
  std::pair<double, double> memory(const apps::Ranks& ranks) const {
    double first = peak_mib(device_), other = 0;
    for (size_t i = 1; i < devices_.size(); ++i) {
      if (!(devices_[i] == device_)) other = std::max(other, peak_mib(devices_[i]));
    }
    std::vector<double> all(static_cast<size_t>(ranks.size()));
    all[static_cast<size_t>(ranks.rank())] = first;
    all = ranks.sum(all);
    for (size_t r = 1; r < all.size(); ++r) other = std::max(other, all[r]);
    return {all[0], other};
  }

 private:
  Tensor forward() {
    const AutocastGuard autocast(device_.type, DType::kBF16, bf16_);
    if (!replicas_) return class_loss(*work_.net, work_.x, work_.y);
    return replicas_->mean_of(
        [](nn::Module& net, std::span<const Tensor> part) {
          return class_loss(net, part[0], part[1]);
        },
        {work_.x, work_.y});
  }

  bool bf16_;
  TrainWork work_;
  Device device_;
  std::vector<Device> devices_;  // of the replicas
  std::unique_ptr<dist::DistributedDataParallel> ddp_;
  std::unique_ptr<dist::DataParallel> replicas_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

}  // namespace

Tensor class_loss(nn::Module& net, const Tensor& x, const Tensor& y) {
  if (auto* gpt = dynamic_cast<nn::models::Gpt*>(&net)) return gpt->loss(x, y);
  return cross_entropy(net(x), y);
}

TrainWork make_work(const TrainSettings& s) {
  if (s.model == "mlp") return make_mlp(s);
  return is_gpt(s) ? make_gpt(s) : make_resnet(s);
}

double hidden_share(double comm_s, double exposed_s) {
  if (std::isnan(comm_s) || std::isnan(exposed_s)) return NAN;
  return comm_s > 0 ? std::max(0.0, 1 - exposed_s / comm_s) : 1;
}

TrainResult bench_train(const TrainSettings& all, const apps::Ranks& ranks) {
  TrainSettings s = all;
  s.batch = ranks.share(s.batch, "--batch");
  manual_seed(0);
  Steps step(s, ranks);
  const bool small = s.model == "mlp";
  const double first = step.run().item();
  double last = first;
  for (int i = 0; i < (small ? 200 : 3); ++i) last = step.run().item();
  TARN_CHECK(std::isfinite(last) && last < first,
             "bench: the loss must fall on the fixed batch; got ", first, " and then ", last);
  std::optional<Profiler> profiler;
  if (s.profile) profiler.emplace(ProfilerOptions{.synchronize = Device(s.device).is_cuda()});
  std::vector<double> times, comm, exposed;
  const int64_t steps = s.steps ? s.steps : small ? 5000 : 9;
  for (int64_t i = 0; i < steps; ++i) {
    const double start = now_s();
    step.run();
    step.finish();
    times.push_back(now_s() - start);
    if (profiler) profiler->step();
    const auto [travelled, waited] = step.communication();
    comm.push_back(travelled);
    exposed.push_back(waited);
  }
  if (profiler) {
    profiler->stop();
    std::fputs(profiler->table().c_str(), stdout);
  }
  TrainResult r{.name = step.name(), .median_s = median(times)};
  r.best_s = *std::min_element(times.begin(), times.end());
  r.items_per_s = static_cast<double>(all.batch) / r.median_s;
  r.comm_s = median(comm), r.exposed_s = median(exposed);
  // Replicas on GPUs: the host queues the copies and goes on. Ranks have their streams' own times.
  if (s.replicas > 0 && Device(s.device).is_cuda()) r.comm_s = r.exposed_s = NAN;
  std::tie(r.first_mib, r.other_mib) = step.memory(ranks);
  r.rss_mib = peak_rss_mib();
  return r;
}

}  // namespace tarn::bench
