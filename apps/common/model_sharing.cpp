// model_sharing.cpp - how the ranks of a run share its model.
#include "tarn/apps/common/model_sharing.h"

#include "tarn/core/raw_elementwise.h"
#include "tarn/dist/ddp.h"
#include "tarn/dist/zero.h"
#include "tarn/optim/clip.h"

namespace tarn::apps {
namespace {

class Replicated final : public ModelSharing {
 public:
  Replicated(nn::Module& net, const RankSettings& s, const Ranks& ranks)
      : ModelSharing(net), ddp_(net, *ranks.group(), {.bucket_cap_mb = s.bucket_cap_mb}) {}

  bool has_ranks() const override { return true; }
  Guard no_sync() override {
    return std::make_shared<dist::DistributedDataParallel::NoSync>(ddp_.no_sync());
  }
  double wait_seconds() const override { return ddp_.stats().wait_seconds; }

 private:
  dist::DistributedDataParallel ddp_;
};

class Sharded final : public ModelSharing {
 public:
  Sharded(nn::Module& net, const RankSettings& s, const Ranks& ranks)
      : ModelSharing(net),
        zero_(net, *ranks.group(),
              {.stage = static_cast<int>(s.zero_stage), .bucket_cap_mb = s.bucket_cap_mb}) {}

  std::vector<Tensor> held(const std::vector<Tensor>& params) const override {
    return zero_.shard(params);
  }
  void attach(optim::Optimizer& optimizer, optim::GradScaler& scaler) override {
    zero_.attach(optimizer);
    zero_.agree(scaler);
  }
  bool has_ranks() const override { return true; }
  Guard no_sync() override {
    return std::make_shared<dist::ZeroDataParallel::NoSync>(zero_.no_sync());
  }
  Guard whole() override {
    return std::make_shared<dist::ZeroDataParallel::Gathered>(zero_.gathered());
  }
  double clip_grad_norm_(double max_norm, bool error_if_nonfinite) override {
    return zero_.clip_grad_norm_(max_norm, 2, error_if_nonfinite);
  }
  double grad_norm() override { return zero_.grad_norm(); }

  // The parameters of stage 3 have gone before they are written: a copy, on the host.
  TensorDict model_state() override {
    if (zero_.options().stage < 3) return ModelSharing::model_state();
    const dist::ZeroDataParallel::Gathered whole = zero_.gathered();
    TensorDict state;
    if (zero_.group().rank() > 0) return state;
    for (const auto& [name, tensor] : net_.state_dict()) {
      state.add(name, raw::to(tensor, kCPU).clone());
    }
    return state;
  }
  TensorDict optimizer_state(const optim::Optimizer& optimizer) override {
    return zero_.full_optimizer_state(optimizer);
  }
  void load_optimizer_state(optim::Optimizer& optimizer, const TensorDict& state) override {
    zero_.load_optimizer_state(optimizer, state);
  }
  bool saves_alone() const override { return false; }

 private:
  dist::ZeroDataParallel zero_;
};

}  // namespace

double ModelSharing::clip_grad_norm_(double max_norm, bool error_if_nonfinite) {
  return optim::clip_grad_norm_(net_.named_parameters(), max_norm, 2, error_if_nonfinite);
}

double ModelSharing::grad_norm() {
  return optim::grad_norm(net_.parameters());
}

TensorDict ModelSharing::optimizer_state(const optim::Optimizer& optimizer) {
  return optimizer.state_dict();
}

void ModelSharing::load_optimizer_state(optim::Optimizer& optimizer, const TensorDict& state) {
  optimizer.load_state_dict(state);
}

std::unique_ptr<ModelSharing> share_model(nn::Module& net, const RankSettings& s,
                                          const Ranks& ranks) {
  if (!ranks.group()) return std::make_unique<ModelSharing>(net);
  if (s.zero_stage > 0) return std::make_unique<Sharded>(net, s, ranks);
  return std::make_unique<Replicated>(net, s, ranks);
}

}  // namespace tarn::apps
