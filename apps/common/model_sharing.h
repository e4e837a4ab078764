// model_sharing.h - ModelSharing: how the ranks of a run share its model, for the training loop.
#pragma once

#include <memory>
#include <vector>

#include "tarn/apps/common/ranks.h"
#include "tarn/core/tensor_dict.h"
#include "tarn/nn/module.h"
#include "tarn/optim/optimizer.h"
#include "tarn/optim/scaler.h"

namespace tarn::apps {

/// A process alone; several ranks share by one of its heirs: a replica each (ddp), or parts of the
/// training state (ZeRO). Loops do the same with all of them. All ranks call what sends messages.
class ModelSharing {
 public:
  /// Ends what it stands for when the last copy goes; null where there is nothing to end.
  using Guard = std::shared_ptr<void>;

  explicit ModelSharing(nn::Module& net) : net_(net) {}
  virtual ~ModelSharing() = default;
  ModelSharing(const ModelSharing&) = delete;
  ModelSharing& operator=(const ModelSharing&) = delete;

  /// What an optimizer holds in place of these parameters.
  virtual std::vector<Tensor> held(const std::vector<Tensor>& params) const { return params; }
  template <class Options>
  std::vector<optim::ParamGroup<Options>> held(
      std::vector<optim::ParamGroup<Options>> groups) const {
    for (optim::ParamGroup<Options>& group : groups) group.params = held(group.params);
    return groups;
  }
  /// Once they are made.
  virtual void attach(optim::Optimizer&, optim::GradScaler&) {}

  /// Several ranks, which take part in each other's backwards.
  virtual bool has_ranks() const { return false; }
  /// Gradients only add up on this rank.
  virtual Guard no_sync() { return {}; }
  /// The parameters are in memory, also for functions that are not the model's forward.
  virtual Guard whole() { return {}; }
  /// Of the last backward, for others.
  virtual double wait_seconds() const { return 0; }
  /// Of the gradients of all ranks; optim::clip_grad_norm_ and grad_norm.
  virtual double clip_grad_norm_(double max_norm, bool error_if_nonfinite);
  virtual double grad_norm();

  /// A copy of the model's state, or a part of it, that a checkpoint may keep; empty where another
  /// rank saves it.
  virtual TensorDict model_state() { return net_.state_dict(); }
  /// As if one rank had it all.
  virtual TensorDict optimizer_state(const optim::Optimizer& optimizer);
  virtual void load_optimizer_state(optim::Optimizer& optimizer, const TensorDict& state);
  /// Whether a rank has all there is to save, without the others.
  virtual bool saves_alone() const { return true; }

 protected:
  nn::Module& net_;
};

/// What the flags and the ranks there are ask for. net and ranks' group outlive it.
std::unique_ptr<ModelSharing> share_model(nn::Module& net, const RankSettings& settings,
                                          const Ranks& ranks);

}  // namespace tarn::apps
