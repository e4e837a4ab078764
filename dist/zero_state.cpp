// zero_state.cpp - the state of an optimizer of shards as that of one of whole parameters, and
// back.
#include <charconv>
#include <optional>
#include <string_view>

#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"
#include "tarn/dist/agree.h"
#include "tarn/dist/zero.h"

namespace tarn::dist {
namespace {

// The number of the parameter in "state.12.exp_avg", whose tensor is of the parameter's size.
std::optional<size_t> parameter_number(std::string_view name) {
  constexpr std::string_view kPrefix = "state.";
  if (!name.starts_with(kPrefix) || name.ends_with(".step")) return {};
  name.remove_prefix(kPrefix.size());
  size_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end == name.data() + name.size() || *end != '.') return {};
  return number;
}

// A tensor that is missing on one rank would leave the others waiting for it.
void check_same_names(ProcessGroup& group, const TensorDict& state) {
  std::string names;
  for (const auto& [name, tensor] : state) names += name + " ";
  const auto texts = all_gather_text(group, names);
  for (size_t r = 1; r < texts.size(); ++r) {
    TARN_CHECK_AS(ValueError, texts[r] == texts[0],
                  "full_optimizer_state: the optimizers must hold state for the same parameters on "
                  "all ranks; got ",
                  texts[0], "on rank 0, and ", texts[r], "on rank ", r);
  }
}

}  // namespace

ZeroDataParallel::Place ZeroDataParallel::place_of(const std::vector<Tensor>& params,
                                                   const std::string& name) const {
  const auto number = parameter_number(name);
  if (!number || *number >= params.size()) return {};
  const auto found = by_shard_.find(params[*number].impl().get());
  return found == by_shard_.end() ? Place{} : found->second;
}

// On the CPU; undefined on ranks that do not get it.
Tensor ZeroDataParallel::gather_whole(const Place& place, const Tensor& shard, bool on_all) {
  const bool here = on_all || group_.rank() == 0;
  const Tensor& param = place.member->param;
  const Tensor whole =
      empty({here ? param.numel() : 0}, {.dtype = shard.dtype(), .device = shard.device()});
  std::vector<Tensor> parts;
  for (int r = 0; here && r < group_.size(); ++r) {
    const Span of_rank = place.unit->owned(*place.member, r);
    parts.push_back(raw::narrow(whole, 0, of_rank.begin, of_rank.count));
  }
  (on_all ? group_.all_gather(parts, shard) : group_.gather(parts, shard, 0))->wait();
  return here ? raw::view(raw::to(whole, kCPU), param.sizes()) : Tensor();
}

TensorDict ZeroDataParallel::full_optimizer_state(const optim::Optimizer& optimizer, bool on_all) {
  const TensorDict state = optimizer.state_dict();
  check_same_names(group_, state);
  const std::vector<Tensor> params = optimizer.params();
  TensorDict full;
  for (const auto& [name, tensor] : state) {
    const Place place = place_of(params, name);
    const Tensor whole =
        place.unit ? gather_whole(place, tensor, on_all) : raw::to(tensor, kCPU).clone();
    if (on_all || group_.rank() == 0) full.add(name, whole);
  }
  return full;
}

void ZeroDataParallel::load_optimizer_state(optim::Optimizer& optimizer, const TensorDict& full) {
  const std::vector<Tensor> params = optimizer.params();
  TensorDict mine;
  std::string problems;
  for (const auto& [name, tensor] : full) {
    const Place place = place_of(params, name);
    if (!place.unit) {
      mine.add(name, tensor);
      continue;
    }
    const Tensor& param = place.member->param;
    if (!(tensor.sizes() == param.sizes())) {
      problems += "\n  another shape: " + name + "=" + tensor.describe() + ", the parameter " +
                  place.member->name + " is " + param.describe();
      continue;
    }
    const Span own = place.unit->owned(*place.member, group_.rank());
    mine.add(name, raw::narrow(raw::reshape(tensor, {param.numel()}), 0, own.begin, own.count));
  }
  TARN_CHECK_AS(ValueError, problems.empty(),
                "load_optimizer_state: the state must be that of whole parameters, as "
                "full_optimizer_state returns it; got",
                problems);
  optimizer.load_state_dict(mine);
}

}  // namespace tarn::dist
