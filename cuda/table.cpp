// table.cpp - fills CUDA's kernel table; libraries override what they do better.
#include "tarn/cuda/table.h"

namespace tarn::cuda {

void fill_kernel_table(KernelTable& table) {
  add_elementwise_kernels(table);
  add_copy_kernels(table);
  add_random_kernels(table);
  add_conv_kernels(table);
  add_optim_kernels(table);
}

}  // namespace tarn::cuda
