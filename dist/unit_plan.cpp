// unit_plan.cpp - which parameters are gathered together.
#include "tarn/dist/unit_plan.h"

#include <algorithm>
#include <unordered_map>

namespace tarn::dist {
namespace {

constexpr size_t kRoot = 0;

bool is_below(const std::string& name, const std::string& unit) {
  return name.size() > unit.size() && name[unit.size()] == '.' && name.starts_with(unit);
}

}  // namespace

UnitRule list_members(int64_t min_numel) {
  return [min_numel](const std::string& name, nn::Module& module) {
    const std::string last = name.substr(name.rfind('.') + 1);
    const bool is_number = !last.empty() && last.find_first_not_of("0123456789") == last.npos;
    return is_number && module.num_parameters() >= min_numel;
  };
}

std::vector<UnitPlan> plan_units(nn::Module& root, const UnitRule& is_unit) {
  std::vector<UnitPlan> units = {{&root}};
  std::unordered_map<const TensorImpl*, size_t> unit_of;
  std::string open;  // the unit that the walk is in; parents come before what is in them
  for (const auto& [name, module] : root.named_modules()) {
    if (!open.empty() && !is_below(name, open)) open.clear();
    if (open.empty() && !name.empty() && is_unit(name, *module)) {
      open = name;
      units.push_back({module});
    }
    const size_t unit = open.empty() ? kRoot : units.size() - 1;
    for (const auto& [parameter, tensor] : module->named_parameters()) {
      if (parameter.find('.') != parameter.npos) break;  // own ones come before the members'
      const auto [known, is_new] = unit_of.emplace(tensor.impl().get(), unit);
      if (!is_new && known->second != unit) known->second = kRoot;
    }
  }
  for (const auto& [name, tensor] : root.named_parameters()) {
    units[unit_of.at(tensor.impl().get())].parameters.add(name, tensor);
  }
  const auto first = units.begin() + 1;
  units.erase(std::remove_if(first, units.end(),
                             [](const UnitPlan& unit) { return unit.parameters.empty(); }),
              units.end());
  return units;
}

}  // namespace tarn::dist
