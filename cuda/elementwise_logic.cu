// elementwise_logic.cu - the kernels of the binary comparison, logic and bit operators.
//
// Bytes per element: as elementwise.cuh says.
#include "tarn/cuda/elementwise_tables.cuh"

namespace tarn::cuda {

#define TARN_KERNELS(Name, name) make_binary_kernels<ops::Name>(),
constinit const BinaryKernels kBinaryLogicKernels[] = {TARN_BINARY_LOGIC_OPS(TARN_KERNELS)};
#undef TARN_KERNELS

}  // namespace tarn::cuda
