// train.cpp - times whole training steps on one fixed batch.
#include "tarn/apps/bench/train.h"

#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include <sys/resource.h>

#include "tarn/apps/bench/timing.h"
#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/backend.h"
#include "tarn/core/factory.h"
#include "tarn/core/profiler.h"
#include "tarn/core/random.h"
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

TrainWork make_resnet(const TrainSettings& s) {
  int64_t c = 0, h = 0, width = 0;
  TARN_CHECK(std::sscanf(s.input.c_str(), "%ldx%ldx%ld", &c, &h, &width) == 3 && c > 0 && h > 0 &&
                 width > 0,
             "bench: --input must be CxHxW, as 3x32x32; got '", s.input, "'");
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
  w.name = s.model + "-" + std::to_string(s.batch) + "x" + std::to_string(s.block);
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

Tensor loss_of(const TrainWork& w) {
  if (auto* gpt = dynamic_cast<nn::models::Gpt*>(w.net.get())) return gpt->loss(w.x, w.y);
  return cross_entropy((*w.net)(w.x), w.y);
}

double peak_rss_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

}  // namespace

TrainWork make_work(const TrainSettings& s) {
  if (s.model == "mlp") return make_mlp(s);
  return is_gpt(s) ? make_gpt(s) : make_resnet(s);
}

TrainResult bench_train(const TrainSettings& all, const apps::Ranks& ranks) {
  TrainSettings s = all;
  s.batch = ranks.share(s.batch, "--batch");
  manual_seed(0);
  const Device device(s.device);
  TrainWork w = make_work(s);
  w.net->to(device);
  w.x = w.x.to(device);
  w.y = w.y.to(device);
  w.net->train();
  std::unique_ptr<dist::DistributedDataParallel> ddp;
  if (ranks.group()) {
    ddp = std::make_unique<dist::DistributedDataParallel>(*w.net, *ranks.group());
  }
  const std::unique_ptr<optim::Optimizer> optimizer = make_optimizer(s, w);
  const auto step = [&] {
    optimizer->zero_grad();
    Tensor loss;
    {
      const AutocastGuard autocast(device.type, DType::kBF16, s.dtype == "bfloat16");
      loss = loss_of(w);
    }
    loss.backward();
    optimizer->step();
    return loss;
  };
  const bool small = s.model == "mlp";
  const double first = step().item();
  double last = first;
  for (int i = 0; i < (small ? 200 : 3); ++i) last = step().item();
  TARN_CHECK(std::isfinite(last) && last < first,
             "bench: the loss must fall on the fixed batch; got ", first, " and then ", last);
  std::optional<Profiler> profiler;
  if (s.profile) profiler.emplace(ProfilerOptions{.synchronize = device.is_cuda()});
  std::vector<double> times, comm, exposed;
  const int64_t steps = s.steps ? s.steps : small ? 5000 : 9;
  for (int64_t i = 0; i < steps; ++i) {
    const double start = now_s();
    step();
    synchronize(device);
    times.push_back(now_s() - start);
    if (profiler) profiler->step();
    if (!ddp) continue;
    comm.push_back(ddp->stats().comm_seconds);
    exposed.push_back(ddp->stats().wait_seconds);
  }
  if (profiler) {
    profiler->stop();
    std::fputs(profiler->table().c_str(), stdout);
  }
  TrainResult r{.name = w.name, .median_s = median(times)};
  r.best_s = *std::min_element(times.begin(), times.end());
  r.items_per_s = static_cast<double>(all.batch) / r.median_s;
  if (ddp) r.comm_s = median(comm), r.exposed_s = median(exposed);
  r.rss_mib = peak_rss_mib();
  return r;
}

}  // namespace tarn::bench
