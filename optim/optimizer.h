// optimizer.h - Optimizer: parameter groups, gradients to steps, state that is saved and loaded.
//
// An optimizer owns per-parameter state and per-group options. step() updates every parameter that
// has a gradient, all of a group in one fused pass; a parameter without one (absent, not zero) is
// left alone together with its state. Half-precision parameters get an f32 master copy, which takes
// over what others write to them (loaded weights), and state is f32 or wider always.
#pragma once

#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tarn/core/tensor.h"
#include "tarn/core/tensor_dict.h"

namespace tarn::optim {

/// Parameters that share options: SGD({{.params = backbone, .options = {.lr = 0.01}}, ...}).
template <class Options>
struct ParamGroup {
  std::vector<Tensor> params;
  Options options = {};
};

/// Receives every option of a group by its PyTorch name.
class OptionVisitor {
 public:
  virtual ~OptionVisitor() = default;
  virtual void number(const char* name, double& value) = 0;
  virtual void pair(const char* name, double& first, double& second) = 0;
  virtual void flag(const char* name, bool& value) = 0;
};

/// Base of all optimizers. Not thread-safe. Constructors throw ValueError where there is nothing to
/// optimize; a number of a group that is not there is an IndexError.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update from the gradients, each multiplied by grad_scale first. What can fail (memory for
  /// state, a gradient that does not fit) comes first: a step that throws there has changed nothing
  /// and may be made again.
  void step(double grad_scale = 1);
  /// Drops all gradients: absent, so that the next backward starts anew.
  void zero_grad();

  /// Hooks run in the order in which they were registered; each returns an id for remove_hook. What
  /// they throw reaches the caller.
  using Hook = std::function<void(Optimizer& optimizer)>;
  /// Before a step looks at anything.
  int64_t register_step_pre_hook(Hook hook);
  /// After a step that came to its end; not after one that threw.
  int64_t register_step_post_hook(Hook hook);
  /// After zero_grad, for gradients that are kept elsewhere.
  int64_t register_zero_grad_hook(Hook hook);
  void remove_hook(int64_t id);

  size_t num_groups() const { return groups_.size(); }
  const std::vector<Tensor>& params(size_t group) const { return at_group(groups_, group).params; }
  std::vector<Tensor> params() const;
  double lr(size_t group = 0) const;
  /// Of all groups, or of one.
  void set_lr(double lr);
  void set_lr(size_t group, double lr);
  /// What schedules scale: the group's rate when the first Scheduler was made (or as it was in a
  /// state that was loaded); until then, its rate.
  double initial_lr(size_t group) const {
    return at_group(groups_, group).initial_lr.value_or(lr(group));
  }
  void fix_initial_lr();
  /// SGD's momentum or Adam's beta1, for schedules that cycle it; nullptr if there is none.
  virtual double* momentum(size_t) { return nullptr; }

  /// PyTorch's state_dict, flat: "state.<index>.<name>" with parameters counted through all groups,
  /// "param_groups.<g>.<option>" (f64) and "param_groups.<g>.params" (i64). The tensors are the
  /// optimizer's own: save or clone them before the next step.
  TensorDict state_dict() const;
  /// Restores it by copy. Throws ValueError that lists what is missing, unexpected or of another
  /// shape; then nothing was changed.
  void load_state_dict(const TensorDict& dict);

 protected:
  static constexpr int kMaxSlots = 3;

  /// Parameters that go through one kernel call: one group, device, dtype and step count.
  struct Batch {
    size_t group = 0;
    int64_t step = 0;    // this update's number, from 1
    bool fresh = false;  // state was just made
    std::vector<Tensor> params;
    std::vector<Tensor> grads;
    std::vector<Tensor> slots[kMaxSlots];
    std::vector<size_t> members;  // indices through all groups
    Device device() const { return params[0].device(); }
  };

  /// slot_names: the state tensors of a parameter, as PyTorch names them.
  Optimizer(std::vector<std::string> slot_names, bool counts_steps)
      : slot_names_(std::move(slot_names)), counts_steps_(counts_steps) {}
  /// Throws unless the parameters are dense floating leaves that are in no group yet.
  void add_group(const std::vector<Tensor>& params);
  /// At the end of a constructor: throws ValueError if no group has a parameter.
  void check_has_params(const char* name) const;

  /// What a list holds for a group. Throws IndexError if there is no such group.
  template <class List>
  static auto at_group(List& list, size_t group) -> decltype(list[group]) {
    TARN_CHECK_AS(IndexError, group < list.size(), "optimizer: no group ", group, "; there are ",
                  list.size());
    return list[group];
  }

  virtual void update(const Batch& batch, double grad_scale) = 0;
  virtual bool uses_slot(size_t group, int slot) const = 0;
  virtual double& lr_ref(size_t group) = 0;
  virtual void visit_options(size_t group, OptionVisitor& visitor) = 0;

 private:
  struct ParamState {
    int64_t step = 0;
    Tensor slots[kMaxSlots];
    Tensor master;                    // f32 copy of a half-precision parameter
    uint32_t written = ~uint32_t{0};  // the parameter's version at the last rounding
    unsigned made = 0;  // by the step that runs: bit s is slot s, bit kMaxSlots the master
    bool is_fresh() const { return (made & ((1u << kMaxSlots) - 1)) != 0; }
  };
  struct Group {
    std::vector<Tensor> params;
    std::optional<double> initial_lr;
    size_t first = 0;  // index of its first parameter through all groups
  };

  enum class When : uint8_t { kBeforeStep, kAfterStep, kAfterZeroGrad };
  struct HookEntry {
    int64_t id;
    When when;
    Hook call;
  };

  int64_t add_hook(When when, Hook hook);
  void run_hooks(When when);
  void step_batches(double grad_scale);
  bool refresh_active();
  /// False where a batch lacks state that its options ask for now, or its parameters were
  /// converted.
  bool batches_fit() const;
  void rebuild_batches();
  void ensure_state(size_t group, const Tensor& param, ParamState& state);
  void update_masters(const Batch& batch);
  void collect_gradients(Batch& batch);
  void finish(const Batch& batch);
  void drop_unfinished();
  std::vector<std::string> missing_slots(const TensorDict& dict) const;
  const Tensor& param(size_t index) const { return *all_[index]; }

  std::vector<Group> groups_;
  std::vector<const Tensor*> all_;  // every parameter, through all groups
  std::vector<ParamState> states_;
  std::vector<std::string> slot_names_;
  bool counts_steps_;
  // Kept between steps: most steps have the same parameters with gradients.
  std::vector<char> active_;
  std::vector<Batch> batches_;
  bool rebuild_ = true;
  std::vector<HookEntry> hooks_;
  int64_t next_hook_ = 0;
};

/// Named parameters split by the usual rule: matrices and kernels decay, vectors (biases, norms) do
/// not. report: the lines that say which is where.
struct DecaySplit {
  std::vector<Tensor> decay, no_decay;
  std::string report;
};
DecaySplit split_by_decay(const TensorDict& named_params);

/// Two groups with the same options, the second without weight decay; prints the split to `log`.
template <class Options>
std::vector<ParamGroup<Options>> decay_groups(const TensorDict& named_params,
                                              const Options& options, std::ostream* log = nullptr) {
  const DecaySplit split = split_by_decay(named_params);
  if (log) *log << split.report;
  Options without = options;
  without.weight_decay = 0;
  return {{split.decay, options}, {split.no_decay, without}};
}

namespace detail {
/// Throws ValueError "<optimizer>: <name> must be <rule>; got <value>" unless ok.
void check_option(bool ok, const char* optimizer, const char* name, const char* rule, double value);
/// The same for options, by name, that must be at least 0.
void check_not_negative(const char* optimizer,
                        std::initializer_list<std::pair<const char*, double>> options);
}  // namespace detail

}  // namespace tarn::optim
