// table.cpp - fills the CPU's kernel table, family by family: one line per family.
#include "tarn/core/cpu/table.h"

namespace tarn::cpu {

void fill_kernel_table(KernelTable& table) {
  add_reduce_kernels(table);
  add_softmax_kernels(table);
  add_norm_kernels(table);
  add_pool_kernels(table);
}

}  // namespace tarn::cpu
