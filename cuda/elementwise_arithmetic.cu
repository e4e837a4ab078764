// elementwise_arithmetic.cu - the kernels of the unary arithmetic operators.
//
// Bytes per element: as elementwise.cuh says.
#include "tarn/cuda/elementwise_tables.cuh"

namespace tarn::cuda {

#define TARN_KERNELS(Name, name) make_unary_kernels<ops::Name>(),
constinit const UnaryKernels kUnaryArithmeticKernels[] = {TARN_UNARY_ARITHMETIC_OPS(TARN_KERNELS)};
#undef TARN_KERNELS

}  // namespace tarn::cuda
