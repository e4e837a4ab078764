// state.cpp - Optimizer::state_dict and load_state_dict.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>

#include "tarn/core/allocator.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/optim/optimizer.h"

namespace tarn::optim {
namespace {

constexpr const char* kMaster = "master_param";
const TensorOptions kNumber{.dtype = DType::kF64};

class OptionWriter final : public OptionVisitor {
 public:
  OptionWriter(TensorDict& dict, std::string prefix) : dict_(dict), prefix_(std::move(prefix)) {}
  void number(const char* name, double& value) override {
    dict_.add(prefix_ + name, scalar_tensor(value, kNumber));
  }
  void pair(const char* name, double& first, double& second) override {
    dict_.add(prefix_ + name, tensor({first, second}, kNumber));
  }
  void flag(const char* name, bool& value) override {
    dict_.add(prefix_ + name, scalar_tensor(value ? 1.0 : 0.0, kNumber));
  }

 private:
  TensorDict& dict_;
  std::string prefix_;
};

/// Reads options; with `problems` it only looks whether they are there.
class OptionReader final : public OptionVisitor {
 public:
  OptionReader(const TensorDict& dict, std::string prefix, std::string* problems)
      : dict_(dict), prefix_(std::move(prefix)), problems_(problems) {}
  void number(const char* name, double& value) override {
    if (const auto v = values(name, 1); !v.empty()) value = v[0];
  }
  void pair(const char* name, double& first, double& second) override {
    if (const auto v = values(name, 2); !v.empty()) {
      first = v[0];
      second = v[1];
    }
  }
  void flag(const char* name, bool& value) override {
    if (const auto v = values(name, 1); !v.empty()) value = v[0] != 0;
  }

 private:
  std::vector<double> values(const char* name, int64_t count) {
    const Tensor* t = dict_.find(prefix_ + name);
    if (t && !t->defined()) t = nullptr;
    if (t && t->numel() == count && !problems_) return t->to_vector<double>();
    if (problems_ && (!t || t->numel() != count)) *problems_ += "\n  missing: " + prefix_ + name;
    return {};
  }
  const TensorDict& dict_;
  std::string prefix_;
  std::string* problems_;
};

std::string group_prefix(size_t group) {
  return "param_groups." + std::to_string(group) + ".";
}
std::string state_prefix(size_t index) {
  return "state." + std::to_string(index) + ".";
}

}  // namespace

TensorDict Optimizer::state_dict() const {
  TensorDict dict;
  for (size_t i = 0, group = 0; i < states_.size(); ++i) {
    while (i >= groups_[group].first + groups_[group].params.size()) ++group;
    const ParamState& state = states_[i];
    const std::string prefix = state_prefix(i);
    const bool begun =
        state.step > 0 || std::any_of(std::begin(state.slots), std::end(state.slots),
                                      [](const Tensor& slot) { return slot.defined(); });
    if (counts_steps_ && state.step > 0) {
      dict.add(prefix + "step", scalar_tensor(state.step, {.dtype = DType::kF32}));
    }
    for (size_t s = 0; s < slot_names_.size(); ++s) {
      if (state.slots[s].defined()) {
        dict.add(prefix + slot_names_[s], state.slots[s]);
      } else if (begun && uses_slot(group, static_cast<int>(s))) {
        // An option that was switched on since: it will start from zeros.
        const DType dtype = is_half(param(i).dtype()) ? DType::kF32 : param(i).dtype();
        dict.add(prefix + slot_names_[s],
                 zeros(param(i).sizes(), {.dtype = dtype, .device = param(i).device()}));
      }
    }
    if (state.master.defined()) dict.add(prefix + kMaster, state.master);
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    OptionWriter writer(dict, group_prefix(g));
    const_cast<Optimizer*>(this)->visit_options(g, writer);
    double initial = initial_lr(g);
    writer.number("initial_lr", initial);
    std::vector<int64_t> indices;
    for (size_t k = 0; k < groups_[g].params.size(); ++k) {
      indices.push_back(static_cast<int64_t>(groups_[g].first + k));
    }
    const auto count = static_cast<int64_t>(indices.size());
    dict.add(group_prefix(g) + "params", from_vector(indices, {count}));
  }
  return dict;
}

// Parameters of a group have the same state, or none yet: one without a part of it would silently
// start that part anew.
std::vector<std::string> Optimizer::missing_slots(const TensorDict& dict) const {
  std::vector<std::string> missing;
  for (const Group& group : groups_) {
    const auto has = [&](size_t k, const std::string& name) {
      return dict.contains(state_prefix(group.first + k) + name);
    };
    const auto any_has = [&](const std::string& name) {
      for (size_t k = 0; k < group.params.size(); ++k) {
        if (has(k, name)) return true;
      }
      return false;
    };
    std::vector<std::string> wanted;
    std::copy_if(slot_names_.begin(), slot_names_.end(), std::back_inserter(wanted), any_has);
    if (any_has("step")) {
      wanted.push_back("step");
      if (wanted.size() == 1) wanted.insert(wanted.begin(), slot_names_.front());
    }
    for (size_t k = 0; k < group.params.size(); ++k) {
      const auto given = std::count_if(wanted.begin(), wanted.end(),
                                       [&](const std::string& name) { return has(k, name); });
      for (const std::string& name : wanted) {
        if (given > 0 && !has(k, name)) missing.push_back(state_prefix(group.first + k) + name);
      }
    }
  }
  return missing;
}

void Optimizer::load_state_dict(const TensorDict& dict) {
  std::string problems;
  std::map<std::string, size_t> owner;  // name of a state entry to its parameter
  for (size_t i = 0; i < states_.size(); ++i) {
    for (const std::string& slot : slot_names_) owner[state_prefix(i) + slot] = i;
    owner[state_prefix(i) + "step"] = owner[state_prefix(i) + kMaster] = i;
  }
  // Look at everything before anything is changed.
  for (const auto& [name, tensor] : dict) {
    if (!tensor.defined()) {
      problems += "\n  undefined: " + name;
      continue;
    }
    if (name.rfind("param_groups.", 0) == 0) continue;
    const auto found = owner.find(name);
    if (found == owner.end()) {
      problems += "\n  unexpected: " + name + "=" + tensor.describe();
    } else if (name.ends_with(".step")) {
      if (tensor.numel() != 1) problems += "\n  not a number: " + name + "=" + tensor.describe();
    } else if (!(tensor.sizes() == param(found->second).sizes())) {
      problems += "\n  another shape: " + name + "=" + tensor.describe() + ", the parameter is " +
                  param(found->second).describe();
    }
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    OptionReader reader(dict, group_prefix(g), &problems);
    visit_options(g, reader);
    const Tensor* members = dict.find(group_prefix(g) + "params");
    const auto count = static_cast<int64_t>(groups_[g].params.size());
    if (!members || !members->defined()) {
      problems += "\n  missing: " + group_prefix(g) + "params";
    } else if (members->numel() != count) {
      problems += tarn::detail::concat("\n  another size: ", group_prefix(g), "params has ",
                                       members->numel(), " parameters, the group has ", count);
    }
  }
  for (const std::string& name : missing_slots(dict)) problems += "\n  missing: " + name;
  if (dict.contains(group_prefix(groups_.size()) + "params")) {
    problems += "\n  unexpected: " + group_prefix(groups_.size()) + "params";
  }
  TARN_CHECK_AS(ValueError, problems.empty(),
                "load_state_dict: the state must be of an optimizer with the same groups and "
                "parameters; got",
                problems);

  rebuild_ = true;
  const MemoryTagGuard tag(MemoryTag::kOptimizer);
  for (size_t i = 0; i < states_.size(); ++i) {
    ParamState state;
    const std::string prefix = state_prefix(i);
    const auto restore = [&](const std::string& name, Tensor& to) {
      const Tensor* from = dict.find(prefix + name);
      if (!from) return;
      const DType dtype = is_half(param(i).dtype()) ? DType::kF32 : param(i).dtype();
      to = empty_strided(param(i).sizes(), param(i).strides(),
                         {.dtype = dtype, .device = param(i).device()});
      raw::copy_(to, *from);
    };
    for (size_t s = 0; s < slot_names_.size(); ++s) restore(slot_names_[s], state.slots[s]);
    restore(kMaster, state.master);
    if (const Tensor* step = dict.find(prefix + "step")) state.step = step->item<int64_t>();
    states_[i] = std::move(state);
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    OptionReader reader(dict, group_prefix(g), nullptr);
    visit_options(g, reader);
    double initial = std::numeric_limits<double>::quiet_NaN();
    reader.number("initial_lr", initial);
    if (!std::isnan(initial)) groups_[g].initial_lr = initial;
  }
}

}  // namespace tarn::optim
