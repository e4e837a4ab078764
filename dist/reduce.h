// reduce.h - combines the values of several ranks, always in the order of ranks.
#pragma once

#include <cstdint>
#include <span>

#include "tarn/core/dtype.h"
#include "tarn/dist/collective.h"

namespace tarn::dist {

/// out[i] = ((inputs[0][i] op inputs[1][i]) op inputs[2][i]) ... for i in [0, n); kAvg then divides
/// by inputs.size(). f16 and bf16 are accumulated in f32. out may be one of the inputs. Runs in the
/// calling thread: communication must not take the threads that compute.
void fold(ReduceOp op, DType dtype, std::span<const void* const> inputs, void* out, int64_t n);

}  // namespace tarn::dist
