// raw_softmax.h - tarn::raw: softmax and fused cross entropy, unrecorded.
#pragma once

#include "tarn/core/kernels/softmax.h"
#include "tarn/core/tensor.h"

namespace tarn::raw {

/// softmax or log_softmax along dim, in x's dtype and order of dimensions.
Tensor softmax(const Tensor& x, int64_t dim, bool log);
/// The gradient from gy and the result y.
Tensor softmax_backward(const Tensor& gy, const Tensor& y, int64_t dim, bool log);

/// Throws IndexError that names the first label outside [0, classes) that is not ignore_index.
/// target: dense i64. May be reported late, see check_values.
void check_targets(const char* op, const Tensor& target, int64_t classes, int64_t ignore_index);

struct CrossEntropyRows {
  Tensor loss;    ///< [M], f32 (f64 for f64)
  Tensor stats;   ///< [M, 3]: maximum, log sum exp(x - maximum), weight of the target or 0
  Tensor totals;  ///< [3]: sum of loss, sum of the weights, their quotient
};
/// Per-row losses of logits [M, V] against targets [M]; shapes have been checked.
CrossEntropyRows cross_entropy(const Tensor& logits, const Tensor& target, const Tensor& weight,
                               int64_t ignore_index, double smoothing);
Tensor cross_entropy_backward(const Tensor& gloss, const Tensor& logits, const Tensor& target,
                              const Tensor& weight, int64_t ignore_index, double smoothing,
                              const Tensor& stats);

}  // namespace tarn::raw
