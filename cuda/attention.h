// attention.h - our own attention kernels; the backward stands in a file of its own.
#pragma once

#include "tarn/core/kernels/attention.h"

namespace tarn::cuda {

void scaled_dot_product_attention_backward(const AttentionCall& call, const Tensor& out,
                                           const Tensor& logsumexp, const Tensor& gout,
                                           const Tensor& gq, const Tensor& gk, const Tensor& gv,
                                           Stream stream);

/// Every dtype, shape and option; libraries override them where they are better.
AttentionKernels own_attention_kernels();

}  // namespace tarn::cuda
