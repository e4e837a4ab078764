// dnn_attention.h - which attention is cuDNN's.
#pragma once

#include <span>

#include "tarn/core/kernels/attention.h"

namespace tarn::cuda {

/// Whether cuDNN is asked for a plan at all; `tensors` are all operands but the log-sum-exps.
///   - f16 or bf16, on a GPU of compute capability 8.0 or later, by cuDNN 9.16 or later (earlier
///     ones err for some lengths)
///   - no mask, no dropout (tarn's draws are not cuDNN's), at least one key
///   - at least 64 queries: a plan takes half a second to make, and whoever writes text token by
///     token, with kept keys and values, comes with a new shape for each
///   - D and E multiples of 8, at most 128
///   - every operand at an address, and with steps between batches, heads and rows, that are
///     multiples of 16 bytes, and below 2^31 elements
bool dnn_attention_fits(const AttentionCall& call, std::span<const Tensor> tensors);

}  // namespace tarn::cuda
