// nn_tools.h - the names of what a module has.
#pragma once

#include <string>
#include <vector>

#include "tarn/core/tensor_dict.h"

namespace tarn::nn::test {

using Names = std::vector<std::string>;

inline Names names_of(const TensorDict& dict) {
  Names names;
  for (const auto& [name, tensor] : dict) names.push_back(name);
  return names;
}

}  // namespace tarn::nn::test
