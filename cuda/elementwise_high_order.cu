// elementwise_high_order.cu - second and third derivatives of the unary operators.
//
// Bytes per element: as elementwise.cuh says.
#include "tarn/cuda/elementwise_tables.cuh"

namespace tarn::cuda {

#define TARN_KERNELS(Name, name) make_high_order_kernel<ops::Name>(),
constinit const HighOrderKernel kHighOrderKernels[] = {TARN_UNARY_OPS(TARN_KERNELS)};
#undef TARN_KERNELS

}  // namespace tarn::cuda
