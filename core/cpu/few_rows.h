// few_rows.h - products of a few rows with a weight: one token through a linear layer.
//
// The weight is read once and is the whole cost (size of it per call, at the speed of memory); its
// rows are multiplied where they lie, without packing.
#pragma once

#include "tarn/core/cpu/matmul_call.h"

namespace tarn::cpu {

/// Computes the call and returns true if it is of this kind: one batch of up to four rows, B with
/// dense columns (a transposed weight), f32 or halves, and large enough.
bool few_rows_matmul(const MatmulCall& call);

}  // namespace tarn::cpu
