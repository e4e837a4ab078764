// composed_norm.h - the gradient of normalisation in recorded operations, for create_graph.
#pragma once

#include <functional>

#include "tarn/core/tensor.h"

namespace tarn {

struct NormGrads {
  Tensor x;
  Tensor weight, bias;  ///< still to be summed to the weight's sizes
};

/// Where mean and rstd come from: x itself (kUncentred: without a mean, as RMS norm), or given.
enum class NormStatistics : uint8_t { kCentred, kUncentred, kFixed };

/// Gradients of (x - mean) * rstd * weight + bias with mean and rstd of x over `dims`, taken again
/// so that they are on the tape; weight has sizes that broadcast to x's, or is undefined. mean_of:
/// the mean over `dims`, kept as dimensions of 1, where x is only a part of what is normalised.
NormGrads composed_norm_backward(const Tensor& g, const Tensor& x, const Tensor& weight,
                                 const Shape& dims, double eps, NormStatistics statistics,
                                 const Tensor& mean = {}, const Tensor& rstd = {},
                                 const std::function<Tensor(const Tensor&)>& mean_of = {});

}  // namespace tarn
