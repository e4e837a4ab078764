// column_sums.h - sums over the rows of a matrix: the gradient of a bias.
#pragma once

#include <cstdint>

#include "tarn/core/dtype.h"

namespace tarn::cpu {

/// out[j] = sum over i of x[i, j]; x [rows, columns] dense, one floating dtype. Sums in f32 (f64
/// for f64) in a fixed order: blocks of rows, then the blocks. The same bits at any thread count.
void column_sums(const void* x, DType dtype, int64_t rows, int64_t columns, void* out);

}  // namespace tarn::cpu
