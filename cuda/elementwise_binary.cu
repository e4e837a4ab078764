// elementwise_binary.cu - the kernels of the binary arithmetic operators.
//
// Bytes per element: as elementwise.cuh says.
#include "tarn/cuda/elementwise_tables.cuh"

namespace tarn::cuda {

#define TARN_KERNELS(Name, name) make_binary_kernels<ops::Name>(),
constinit const BinaryKernels kBinaryArithmeticKernels[] = {
    TARN_BINARY_ARITHMETIC_OPS(TARN_KERNELS)};
#undef TARN_KERNELS

}  // namespace tarn::cuda
