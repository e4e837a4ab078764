// table.h - every family of CPU kernels enters the table here.
#pragma once

#include "tarn/core/kernels.h"

namespace tarn::cpu {

void add_elementwise_kernels(KernelTable& table);
void add_reduce_kernels(KernelTable& table);
void add_softmax_kernels(KernelTable& table);
void add_norm_kernels(KernelTable& table);
void add_matmul_kernels(KernelTable& table);
void add_linalg_kernels(KernelTable& table);
void add_spectral_kernels(KernelTable& table);  ///< by add_linalg_kernels
void add_conv_kernels(KernelTable& table);
void add_pool_kernels(KernelTable& table);
void add_index_kernels(KernelTable& table);
void add_random_kernels(KernelTable& table);
void add_attention_kernels(KernelTable& table);
void add_optim_kernels(KernelTable& table);

void fill_kernel_table(KernelTable& table);

}  // namespace tarn::cpu
