// table.cpp - fills the CPU's kernel table, family by family.
#include "tarn/core/cpu/table.h"

namespace tarn::cpu {

void fill_kernel_table(KernelTable& table) {
  add_elementwise_kernels(table);
  add_reduce_kernels(table);
  add_softmax_kernels(table);
  add_norm_kernels(table);
  add_pool_kernels(table);
  add_matmul_kernels(table);
  add_linalg_kernels(table);
  add_conv_kernels(table);
  add_index_kernels(table);
  add_random_kernels(table);
  add_attention_kernels(table);
  add_optim_kernels(table);
}

}  // namespace tarn::cpu
