// number_check.h - does a number fit the dtype of the tensor it is to fill?
#pragma once

#include "tarn/core/dtype.h"

namespace tarn {

/// Throws ValueError unless dtype can hold value: floating and bool dtypes hold all, integers those
/// of their range, fractions cut off, u8 also negative ones down to -255, which wrap as in PyTorch.
void check_number_fits(const char* op, const Scalar& value, DType dtype);

}  // namespace tarn
