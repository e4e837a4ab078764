// elementwise_math.cu - the kernels of the unary math operators.
//
// Bytes per element: as elementwise.cuh says.
#include "tarn/cuda/elementwise_tables.cuh"

namespace tarn::cuda {

#define TARN_KERNELS(Name, name) make_unary_kernels<ops::Name>(),
constinit const UnaryKernels kUnaryMathKernels[] = {TARN_UNARY_MATH_OPS(TARN_KERNELS)};
#undef TARN_KERNELS

}  // namespace tarn::cuda
