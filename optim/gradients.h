// gradients.h - the gradients of a list of parameters as multi-tensor kernels take them.
#pragma once

#include <functional>
#include <vector>

#include "tarn/core/tensor.h"

namespace tarn::optim::detail {

/// Calls f for each device with its tensors and their places in `list`: kernels take those of one
/// device.
using OfDevice =
    std::function<void(const std::vector<Tensor>& tensors, const std::vector<size_t>& places)>;
void by_device(const std::vector<Tensor>& list, const OfDevice& f);

/// The gradients there are, dense, and whose they are. They may be on several devices.
struct Gradients {
  std::vector<Tensor> list;
  std::vector<size_t> owners;  ///< list[i] is of params[owners[i]]

  /// A gradient that is not dense is replaced by a dense one.
  Gradients(const char* op, const std::vector<Tensor>& params);
  void by_device(const OfDevice& f) const { detail::by_device(list, f); }
  /// The p-norm of each, p in {1, 2, infinity}: one pass over all of a device.
  std::vector<double> norms(double p) const;
  /// Multiplies all of them.
  void scale(double factor) const;
  /// Tells autograd that they were written to.
  void changed() const;
};

/// The norm of norms; scaled, so that their squares cannot overflow. NaN stays.
double total_norm(const std::vector<double>& norms, double norm_type);

}  // namespace tarn::optim::detail
