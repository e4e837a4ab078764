// dist_zero_tools.h - a model for tests of ZeRO, and training that is the same whatever the stage.
#pragma once

#include <optional>
#include <random>
#include <sstream>

#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/recompute.h"
#include "tarn/core/random.h"
#include "tarn/core/views.h"
#include "tarn/dist/ddp.h"
#include "tarn/dist/zero.h"
#include "tarn/nn/linear.h"
#include "tarn/nn/norm.h"
#include "tarn/nn/sequential.h"
#include "tarn/optim/adam.h"
#include "tarn/optim/clip.h"
#include "tarn/optim/sgd.h"
#include "tarn/tests/dist_tools.h"

namespace tarn::dist::test {

/// Of several tensors, one after another.
inline std::string bits_of(const std::vector<Tensor>& tensors) {
  std::string all;
  for (const Tensor& t : tensors) all += bits(t);
  return all;
}

/// A way to train, of which stage 0 is DistributedDataParallel.
struct ZeroPlan {
  int stage = 0, ranks = 1, micro_batches = 1, steps = 5;
  bool clip = false, adam = false, tied = false, frozen = false, unused = false, overlap = true;
  bool checkpointed = false, autocast = false, scaled = false, norm = false, prefetch = true;
  DType dtype = DType::kF32;
  double bucket_mb = 0.3 / 1024;  // a few buckets
  unsigned seed = 1;

  std::string text() const {
    std::ostringstream out;
    out << "seed " << seed << ": stage " << stage << ", " << ranks << " ranks, " << micro_batches
        << " micro-batches, clip " << clip << ", adam " << adam << ", tied " << tied << ", frozen "
        << frozen << ", unused " << unused << ", overlap " << overlap << ", checkpointed "
        << checkpointed << ", autocast " << autocast << ", scaled " << scaled << ", norm " << norm
        << ", prefetch " << prefetch << ", " << dtype << ", buckets of " << bucket_mb << " MiB";
    return out.str();
  }
};

class ZeroBlock : public nn::Module {
 public:
  using Module::Module;
  Tensor forward(const Tensor& x) override { return x + second(relu(first(x))); }
  nn::Linear first{this, "first", {.in = 7, .out = 9}};
  nn::Linear second{this, "second", {.in = 9, .out = 7}};
};

/// Sizes that no number of ranks divides, a parameter of one element, blocks in a list.
class ZeroNet : public nn::Module {
 public:
  explicit ZeroNet(const ZeroPlan& plan = {}, unsigned salt = 0) : plan_(plan) {
    for (int i = 0; i < 3; ++i) blocks.add(std::make_unique<ZeroBlock>());
    std::mt19937 random(plan.seed + salt);
    for (Tensor& p : parameters()) {
      for (int64_t i = 0; i < p.numel(); ++i) {
        p.data<float>()[i] = static_cast<float>(static_cast<int>(random() % 200) - 100) / 250.f;
      }
    }
    if (plan.tied) blocks[2].first.weight.tie(blocks[0].first.weight);
    if (plan.frozen) {
      blocks[1].first.weight.set_requires_grad(false);
      in.bias.set_requires_grad(false);
    }
    if (!plan.norm) bn.requires_grad_(false);
    if (plan.dtype != DType::kF32) to(plan.dtype);
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = relu(in(x));
    if (plan_.norm) h = bn(h);
    for (ZeroBlock* block : blocks) {
      h = plan_.checkpointed ? checkpoint([block](const Tensor& t) { return (*block)(t); }, h)
                             : (*block)(h);
    }
    if (branch) h = h + extra(h);
    return out(h) * scale;
  }
  nn::Linear in{this, "in", {.in = 5, .out = 7}};
  nn::BatchNorm1d bn{this, "bn", {.features = 7}};
  nn::ModuleList<ZeroBlock> blocks{this, "blocks"};
  nn::Linear extra{this, "extra", {.in = 7, .out = 7}};
  nn::Linear out{this, "out", {.in = 7, .out = 3}};
  nn::Parameter scale{this, "scale", ones({1})};
  bool branch = true;

 private:
  ZeroPlan plan_;
};

inline constexpr int64_t kZeroBatch = 48;  // divisible by 1 to 4 and 6 ranks times 1, 2 and 4

/// Numbers of one step, [kZeroBatch, columns].
inline Tensor zero_batch(const ZeroPlan& plan, int step, int64_t columns) {
  std::mt19937 random(plan.seed * 100 + static_cast<unsigned>(step * 10 + columns));
  Tensor x = empty({kZeroBatch, columns});
  for (int64_t i = 0; i < x.numel(); ++i) {
    x.data<float>()[i] = static_cast<float>(static_cast<int>(random() % 2000) - 1000) / 600.f;
  }
  return x;
}

/// The loss of a rank's rows of one micro-batch.
inline Tensor zero_loss(const ZeroPlan& plan, ZeroNet& net, int step, int micro, int rank,
                        int ranks) {
  const int64_t block = kZeroBatch / plan.micro_batches, rows = block / ranks;
  const Device device = net.in.weight.device();
  const auto part = [&](const Tensor& x) {
    return raw::to(
        raw::to(raw::contiguous(raw::narrow(x, 0, micro * block + rank * rows, rows)), plan.dtype),
        device);
  };
  net.branch = !plan.unused || (plan.seed + static_cast<unsigned>(step + micro)) % 3 != 0;
  const AutocastGuard autocast(device.type, DType::kBF16, plan.autocast);
  const Tensor d = net(part(zero_batch(plan, step, 5))) - part(zero_batch(plan, step, 3));
  return mean(d * d) / static_cast<double>(plan.micro_batches);
}

inline ZeroOptions zero_options(const ZeroPlan& plan) {
  return {.stage = plan.stage,
          .bucket_cap_mb = plan.bucket_mb,
          .first_bucket_mb = plan.bucket_mb,
          .last_bucket_mb = 0.1 / 1024,
          .find_unused_parameters = plan.unused,
          .overlap = plan.overlap,
          .min_unit_numel = 10,
          .prefetch = plan.prefetch};
}

inline std::unique_ptr<optim::Optimizer> zero_optimizer(const ZeroPlan& plan,
                                                        const std::vector<Tensor>& params) {
  if (plan.adam) {
    return std::make_unique<optim::AdamW>(params, optim::AdamWOptions{.lr = 0.02});
  }
  return std::make_unique<optim::SGD>(params, optim::SGDOptions{.lr = 0.05, .momentum = 0.9});
}

/// How ranks share a model: by DistributedDataParallel at stage 0, else by ZeRO.
struct Sharing {
  std::optional<DistributedDataParallel> ddp;
  std::optional<ZeroDataParallel> zero;

  Sharing(nn::Module& net, ProcessGroup& group, const ZeroOptions& options) {
    if (options.stage == 0) {
      ddp.emplace(net, group, DdpOptions{.find_unused_parameters = options.find_unused_parameters});
    } else {
      zero.emplace(net, group, options);
    }
  }
  /// What an optimizer holds of the parameters that require a gradient.
  std::vector<Tensor> held() {
    if (zero) return zero->shards();
    std::vector<Tensor> list;
    for (const Tensor& p : ddp->module().parameters()) {
      if (p.requires_grad()) list.push_back(p);
    }
    return list;
  }
  void attach(optim::Optimizer& optimizer) {
    if (zero) zero->attach(optimizer);
  }
  std::optional<ZeroDataParallel::Gathered> gathered() {
    if (zero) return zero->gathered();
    return {};
  }
};

/// Of a net of [N, 7]: its parameters after three steps.
inline std::string bits_after_steps(nn::Module& net, ProcessGroup& group, Sharing& sharing,
                                    optim::Optimizer& optimizer) {
  sharing.attach(optimizer);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Tensor y = net(full({3, 7}, 0.1 * (group.rank() + step + 1)));
    mean(y * y).backward();
    optimizer.step();
  }
  const auto whole = sharing.gathered();
  return bits_of(net.parameters());
}

/// A rank's model.
struct ZeroModel {
  ZeroPlan plan;
  ProcessGroup& group;
  ZeroNet net;

  ZeroModel(const ZeroPlan& p, ProcessGroup& g)
      : plan(p), group(g), net(plan, static_cast<unsigned>(g.rank())) {  // rank 0's values win
    net.to(device_of(group));
  }
};

/// A rank's model that is shared.
struct ZeroShared : ZeroModel, Sharing {
  ZeroShared(const ZeroPlan& p, ProcessGroup& g)
      : ZeroModel(p, g), Sharing(net, g, zero_options(p)) {}
};

/// The same, with what trains it.
struct ZeroRank : ZeroShared {
  std::unique_ptr<optim::Optimizer> optimizer;
  optim::GradScaler scaler;
  int step = 0;

  ZeroRank(const ZeroPlan& p, ProcessGroup& g)
      : ZeroShared(p, g),
        optimizer(zero_optimizer(plan, held())),
        scaler({.init_scale = 1024, .enabled = plan.scaled}) {
    attach(*optimizer);
    if (zero) zero->agree(scaler);
  }
  void backward(int micro) {
    Tensor loss = zero_loss(plan, net, step, micro, group.rank(), group.size());
    // Step 2 of scaled training overflows, on the last rank.
    if (plan.scaled && step == 2 && group.rank() + 1 == group.size()) loss = loss * INFINITY;
    scaler.scale(loss).backward();
  }
  void train(int until) {
    for (; step < until; ++step) {
      optimizer->zero_grad();
      for (int micro = 0; micro < plan.micro_batches; ++micro) {
        std::optional<DistributedDataParallel::NoSync> ddp_guard;
        std::optional<ZeroDataParallel::NoSync> zero_guard;
        const bool last = micro + 1 == plan.micro_batches;
        if (ddp && !last) ddp_guard.emplace(ddp->no_sync());
        if (zero && !last) zero_guard.emplace(zero->no_sync());
        backward(micro);
      }
      if (plan.clip && plan.scaled) {
        scaler.clip_grad_norm_(*optimizer, 0.5);
      } else if (plan.clip && zero) {
        zero->clip_grad_norm_(0.5);
      } else if (plan.clip) {
        optim::clip_grad_norm_(net.parameters(), 0.5);
      }
      EXPECT_EQ(scaler.step(*optimizer), !(plan.scaled && step == 2)) << plan.text();
      scaler.update();
    }
  }
  /// Stands for the bits of the parameters, and of rank 0's buffers.
  size_t weights() {
    const auto whole = gathered();
    std::string all;
    for (const Tensor& p : net.parameters()) all += bits(p);
    const Tensor buffers = net.bn.running_var.clone();
    group.broadcast(buffers, 0)->wait();
    return std::hash<std::string>()(all + bits(buffers));
  }
  std::vector<double> values() {
    const auto whole = gathered();
    std::vector<double> all;
    for (const auto& [name, tensor] : net.state_dict()) {
      const auto part = tensor.to_vector<double>();
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
};

/// What all ranks agree on after training.
inline size_t zero_train(const ZeroPlan& plan, const std::string& transport = "local") {
  std::vector<size_t> results(static_cast<size_t>(plan.ranks));
  run_ranks(transport, plan.ranks, [&](ProcessGroup& group) {
    ZeroRank rank(plan, group);
    rank.train(plan.steps);
    results[static_cast<size_t>(group.rank())] = rank.weights();
  });
  for (size_t r : results) EXPECT_EQ(r, results[0]) << plan.text();
  return results[0];
}

/// The same stages of sharding, from 1 on.
inline constexpr int kZeroStages[] = {1, 2, 3};

}  // namespace tarn::dist::test
