// zero.h - ZeroDataParallel: data parallelism in which each rank keeps its part of the training
// state.
//
//   auto group = init_process_group();
//   Net net;
//   ZeroDataParallel zero(net, *group, {.stage = 2});
//   optim::AdamW adamw(zero.shards(), {.lr = 1e-3});
//   zero.attach(adamw);
//   for (...) {
//     adamw.zero_grad();
//     loss_of(net(x), target).backward();  // shards get their part of the average over the ranks
//     zero.clip_grad_norm_(1.0);
//     adamw.step();                        // of this rank's shards; then all get all parameters
//   }
//
// Parameters lie one after another in buffers, each cut into as many pieces as there are ranks
// (flat_unit.h); the optimizer of a rank sees what its pieces hold, as 1-d shards. Every optimizer
// of tarn::optim works element by element, so the pieces are updated as the whole would be: in f32
// all stages train to the same bits as DistributedDataParallel (Note [Rank order]).
//
// Bytes per rank for P parameters of f32, Adam, W ranks, between backward and step:
//   DDP      parameters 4 P      gradients 4 P              optimizer 8 P
//   stage 1  parameters 4 P      gradients 4 P + 4 P / W    optimizer 8 P / W
//   stage 2  parameters 4 P      gradients 4 P / W          optimizer 8 P / W
//   stage 3  parameters 4 P / W  gradients 4 P / W          optimizer 8 P / W
// Stage 3 gathers the parameters of a unit, a block of the model, when its module is called and
// when backward comes to it, and gives them back afterwards (unit_gather.h). Under autocast the
// tape keeps half-precision casts of the parameters a forward used, 2 bytes each, until backward is
// done with them, unless the blocks are checkpointed. To read or write parameters at other times:
//   {
//     const auto whole = zero.gathered();  // on all ranks
//     net.load_state_dict(...);
//   }
// Functions of a module that pass its hooks by (Translator::encode) need that guard too, from their
// forward to the end of backward. Hooks that were registered before ZeroDataParallel was made run
// before its own, which is before the parameters are there.
//
// Gradients are sent in the reverse order of registration, the same on all ranks: a parameter that
// is registered last and used first holds up all others until backward is over. Only the time
// depends on it.
//
// Source: Rajbhandari et al. 2020, arXiv:1910.02054.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tarn/dist/claim.h"
#include "tarn/dist/flat_unit.h"
#include "tarn/dist/no_sync.h"
#include "tarn/dist/shard_reducer.h"
#include "tarn/dist/unit_gather.h"
#include "tarn/dist/unit_plan.h"
#include "tarn/nn/module.h"
#include "tarn/optim/clip.h"
#include "tarn/optim/optimizer.h"
#include "tarn/optim/scaler.h"

namespace tarn::dist {

struct ZeroOptions {
  /// What is sharded. 1: the optimizer's state. 2: gradients too; the buffers in which they travel
  /// are given back as soon as they were sent. 3: parameters too.
  int stage = 2;
  double bucket_cap_mb = 25, first_bucket_mb = 1, last_bucket_mb = 1;  ///< as DdpOptions
  /// As DdpOptions. Ranks may use other parameters than each other, so in stage 3 all units are
  /// gathered together and stay from a forward with gradients to the end of its backward.
  bool find_unused_parameters = false;
  bool broadcast_buffers = true;  ///< rank 0's, before each forward in training
  bool overlap = true;            ///< communicate during backward

  // ---- of stage 3
  /// The modules whose parameters come and go together; what is left stays from the model's forward
  /// to the end of its backward. Empty: members of lists (ModuleList, Sequential) with at least
  /// min_unit_numel parameters.
  UnitRule unit = {};
  int64_t min_unit_numel = 100000;
  bool prefetch = true;  ///< gather the next unit while one computes
};

/// Works with frozen and shared parameters, several forwards before a backward, recomputation,
/// gradient accumulation and half-precision parameters. After a backward that synchronised, the
/// gradients are those of the shards, and the parameters' own are gone; further backwards add to
/// them. Parameters of one buffer share a version: who writes to one of them between a forward and
/// its backward gets autograd's error for all. Every rank runs the same number of backwards, and in
/// stage 3 calls the same units in the same order, also without gradients (only there, with
/// find_unused_parameters); modules are called as functions there, since hooks gather. Not
/// thread-safe.
class ZeroDataParallel {
 public:
  /// All ranks call it. Throws ValueError for another stage or bucket sizes that are not above 0,
  /// if no parameter requires a gradient or one belongs to another ZeroDataParallel or
  /// DistributedDataParallel, and, on all ranks, if the models differ, naming the first parameter
  /// or buffer, or train other parameters; DeviceError if this rank's module is spread over several
  /// devices. Then it gives everyone rank 0's values and moves the parameters that require a
  /// gradient now to buffers (stage 3: all of them): they stay the same tensors, and are converted
  /// or moved no longer. module and group outlive it; optimizers may go before it or after.
  /// Parameters of stage 3 cannot be read after it is gone.
  ZeroDataParallel(nn::Module& module, ProcessGroup& group, ZeroOptions options = {});
  ~ZeroDataParallel();
  ZeroDataParallel(const ZeroDataParallel&) = delete;
  ZeroDataParallel& operator=(const ZeroDataParallel&) = delete;

  Tensor operator()(const Tensor& x) { return module_(x); }
  nn::Module& module() { return module_; }
  ProcessGroup& group() { return group_; }
  const ZeroOptions& options() const { return options_; }

  /// This rank's [n] of each parameter that requires a gradient, in the order of the module's
  /// parameters: what optimizers are made of. n may be 0; an empty shard keeps its place in the
  /// list, so that the numbers of parameters in an optimizer's state are the same on all ranks.
  std::vector<Tensor> shards() const;
  /// The same under the names of the parameters.
  TensorDict named_shards() const;
  /// Groups of parameters as groups of their shards: shard(decay_groups(net.named_parameters(),
  /// options)). Parameters that do not require a gradient stay what they are, but for stage 3.
  /// Throws ValueError for a tensor that is not a parameter of the module.
  template <class Options>
  std::vector<optim::ParamGroup<Options>> shard(
      std::vector<optim::ParamGroup<Options>> groups) const {
    for (optim::ParamGroup<Options>& group : groups) group.params = shard(group.params);
    return groups;
  }
  std::vector<Tensor> shard(const std::vector<Tensor>& params) const;

  /// All ranks call it. From now on the parameters follow the optimizer's steps (as they do those
  /// it has made already), also of groups that are added to it later, and its zero_grad() also
  /// drops what no_sync() added up of its parameters. The optimizer's master copies of
  /// half-precision parameters take over what others wrote to the parameters. Throws ValueError if
  /// the optimizer holds other tensors than shards (or parameters that do not require a gradient),
  /// is attached already, or shares a shard with one that is; step() does so of groups that were
  /// added, and if a parameter was unfrozen after ZeroDataParallel was made. Needed before the
  /// second backward that synchronises.
  void attach(optim::Optimizer& optimizer);

  /// While the guard lives, backward only adds up whole gradients on this rank; the first one after
  /// it sends all.
  using NoSync = dist::NoSync<ShardReducer>;
  [[nodiscard]] NoSync no_sync() { return NoSync(*reducer_); }

  /// While the guard lives, stage 3 has all parameters in memory; other stages have them anyway.
  /// All ranks make one. What is written to the parameters meanwhile, the same on all ranks, goes
  /// to the shards at its end. An attached optimizer does not step within it.
  class Gathered {
   public:
    explicit Gathered(UnitGather* units) : units_(units) {
      if (units_) units_->hold();
    }
    ~Gathered() {
      if (units_) units_->let_go();
    }
    Gathered(Gathered&& other) noexcept : units_(std::exchange(other.units_, nullptr)) {}
    Gathered& operator=(Gathered&&) = delete;

   private:
    UnitGather* units_;
  };
  [[nodiscard]] Gathered gathered() { return Gathered(gather_.get()); }

  /// optim::clip_grad_norm_ and grad_norm of the gradients of all shards of all ranks, which all
  /// call it and get the same. The norm is summed in f64, shard by shard, so that its last bits
  /// depend on the cut.
  double clip_grad_norm_(double max_norm, double norm_type = 2, bool error_if_nonfinite = false);
  double grad_norm(double norm_type = 2);
  /// Makes the scaler skip a step on all ranks if a gradient of any rank overflowed, and its
  /// clip_grad_norm_ clip by the norm over all ranks. The scaler must not outlive the group.
  void agree(optim::GradScaler& scaler);

  /// The state of the optimizer as if it held the parameters of `shard(...)` or shards() whole:
  /// optim::Optimizer::state_dict of a run on one rank, or under DistributedDataParallel. All ranks
  /// call it; rank 0 gets it, on the CPU, and others nothing, unless on_all. It is gathered one
  /// tensor after another.
  TensorDict full_optimizer_state(const optim::Optimizer& optimizer, bool on_all = false);
  /// Restores such a state, from whatever number of ranks and stage: every rank takes its pieces of
  /// the whole, which all are given. Throws ValueError that lists what does not fit; then nothing
  /// was changed.
  void load_optimizer_state(optim::Optimizer& optimizer, const TensorDict& full);

  /// Throws DistError that names the first parameter in which the ranks differ.
  void check_replicas();

 private:
  // Shared with the hooks of one optimizer, which may die before or after this object.
  struct Attachment {
    ZeroDataParallel* zero;
    const optim::Optimizer* optimizer;
    size_t groups;                 // that it had when the units were looked up
    std::vector<FlatUnit*> units;  // that hold its shards
  };
  struct Place {
    FlatUnit* unit = nullptr;  // null: does not require a gradient and is not sharded
    const FlatUnit::Member* member = nullptr;
  };
  using PlaceOf = std::unordered_map<const TensorImpl*, Place>;

  std::vector<FlatUnit*> make_buckets();
  std::vector<FlatUnit*> make_module_units();
  FlatUnit* add_unit(const TensorDict& parameters);
  void make_reducer(std::vector<FlatUnit*> trained);
  void before_forward();
  void before_reduce();
  std::vector<FlatUnit*> units_of(const optim::Optimizer& optimizer, const char* caller) const;
  void drop_whole_gradients(const optim::Optimizer& optimizer) const;
  void before_step(Attachment& attached);
  void after_step(const Attachment& attached);
  std::vector<std::shared_ptr<Attachment>> attachments() const;
  optim::NormAgreement norm_agreement();
  Place place_of(const std::vector<Tensor>& params, const std::string& name) const;
  Tensor gather_whole(const Place& place, const Tensor& shard, bool on_all);

  nn::Module& module_;
  ProcessGroup& group_;
  ZeroOptions options_;
  std::optional<ParameterClaim> claim_;
  std::vector<Tensor> buffers_;
  TensorDict frozen_;  // parameters that required no gradient when this was made
  std::vector<std::unique_ptr<FlatUnit>> units_;
  PlaceOf by_param_, by_shard_;
  std::unique_ptr<ShardReducer> reducer_;
  std::unique_ptr<UnitGather> gather_;  // of stage 3
  std::vector<std::weak_ptr<Attachment>> attached_;
  int64_t hook_ = 0;
};

}  // namespace tarn::dist
