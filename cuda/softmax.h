// softmax.h - the kernels of the softmax family that stand in other files than softmax.cu.
#pragma once

#include "tarn/core/kernels/softmax.h"

namespace tarn::cuda {

void cross_entropy(const Tensor& logits, const Tensor& target, const Tensor& weight,
                   int64_t ignore_index, double smoothing, const Tensor& loss, const Tensor& stats,
                   const Tensor& totals, Stream stream);
void cross_entropy_backward(const Tensor& gloss, const Tensor& logits, const Tensor& target,
                            const Tensor& weight, int64_t ignore_index, double smoothing,
                            const Tensor& stats, const Tensor& glogits, Stream stream);

}  // namespace tarn::cuda
