// table.h - the kernel table of CUDA, family by family.
#pragma once

#include "tarn/core/kernels.h"

namespace tarn::cuda {

void fill_kernel_table(KernelTable& table);

// One per kernel file: each fills the slots it has kernels for.

}  // namespace tarn::cuda
