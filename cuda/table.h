// table.h - the kernel table of CUDA, family by family.
#pragma once

#include "tarn/core/kernels.h"

namespace tarn::cuda {

void fill_kernel_table(KernelTable& table);

// One per kernel file: each fills the slots it has kernels for.
void add_elementwise_kernels(KernelTable& table);
void add_copy_kernels(KernelTable& table);
void add_random_kernels(KernelTable& table);
void add_conv_kernels(KernelTable& table);
void add_optim_kernels(KernelTable& table);
void add_reduce_kernels(KernelTable& table);
void add_softmax_kernels(KernelTable& table);
void add_attention_kernels(KernelTable& table);
void add_dnn_kernels(KernelTable& table);
void add_dnn_attention_kernels(KernelTable& table);
void add_matmul_kernels(KernelTable& table);
void add_index_kernels(KernelTable& table);
void add_norm_kernels(KernelTable& table);
void add_pool_kernels(KernelTable& table);

}  // namespace tarn::cuda
