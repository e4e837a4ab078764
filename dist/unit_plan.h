// unit_plan.h - which parameters are gathered together: those of a block, and the rest.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tarn/core/tensor_dict.h"
#include "tarn/nn/module.h"

namespace tarn::dist {

/// Whether a module, known by this name in the model, is a unit.
using UnitRule = std::function<bool(const std::string& name, nn::Module& module)>;

/// The members of lists ("transformer.h.3", "layer2.0") with at least min_numel parameters.
UnitRule list_members(int64_t min_numel);

/// A module and the parameters that are gathered when it is called.
struct UnitPlan {
  nn::Module* module = nullptr;
  TensorDict parameters = {};
};

/// The root first, with what belongs to no other unit: also parameters that modules of several
/// units share (tied weights), since all their users must find them. Then the units in the order of
/// the model. A module inside a unit is never one itself. Units without parameters are left out,
/// the root is not.
std::vector<UnitPlan> plan_units(nn::Module& root, const UnitRule& is_unit);

}  // namespace tarn::dist
