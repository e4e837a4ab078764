// claim.h - who exchanges the gradients of a parameter.
#pragma once

#include <string>
#include <vector>

#include "tarn/core/tensor.h"
#include "tarn/core/tensor_dict.h"

namespace tarn::dist {

/// Keeps parameters for one owner while it lives: two that average the same gradients would do so
/// twice, or wait for messages that the other has taken, and nothing would say why.
class ParameterClaim {
 public:
  /// Throws ValueError, as `who`, that names a parameter which has an owner, and the owner.
  ParameterClaim(const char* who, const char* owner, const TensorDict& parameters);
  ~ParameterClaim();
  ParameterClaim(const ParameterClaim&) = delete;
  ParameterClaim& operator=(const ParameterClaim&) = delete;

 private:
  std::vector<Tensor> parameters_;
};

}  // namespace tarn::dist
