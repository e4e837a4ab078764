// table.cpp - fills CUDA's kernel table; libraries override what they do better.
#include "tarn/cuda/table.h"

namespace tarn::cuda {

void fill_kernel_table([[maybe_unused]] KernelTable& table) {}

}  // namespace tarn::cuda
