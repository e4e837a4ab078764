// blas.h - cuBLAS and cuBLASLt as the engine of floating matrix products.
#pragma once

#include "tarn/core/kernels.h"

namespace tarn::cuda {

/// Takes over the matmul slot, unless TARN_CUBLAS=off or the build has no cuBLAS headers. The
/// libraries are loaded at the first product; without them tarn's own kernels go on (see library.h
/// for the warning, and for TARN_CUBLAS=on).
///
/// f32 is true f32 unless set_allow_tf32(true); halves sum in f32, also across the parts of a split
/// k. A bias, and tanh-GELU, are fused into the product by cuBLASLt (TARN_CUBLASLT=off: separate
/// kernels); other activations follow in a pass of their own, since the library does not promise
/// that its ReLU keeps NaN. Integers, k = 0 and sizes beyond 2^31 stay with the own kernels.
/// Results are the same on every run: one workspace of fixed size per device and stream, and no
/// concurrent use of a handle.
void add_blas_kernels(KernelTable& table);

}  // namespace tarn::cuda
