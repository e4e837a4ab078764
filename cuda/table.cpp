// table.cpp - fills CUDA's kernel table; libraries override what they do better.
#include "tarn/cuda/table.h"

#include "tarn/cuda/blas.h"

namespace tarn::cuda {

void fill_kernel_table(KernelTable& table) {
  add_elementwise_kernels(table);
  add_copy_kernels(table);
  add_random_kernels(table);
  add_conv_kernels(table);
  add_optim_kernels(table);
  add_reduce_kernels(table);
  add_softmax_kernels(table);
  add_attention_kernels(table);
#if TARN_HAVE_CUDNN
  add_dnn_kernels(table);  // convolutions, in front of our own
  add_dnn_attention_kernels(table);
#endif
  add_matmul_kernels(table);
  add_blas_kernels(table);  // takes over from the own matrix products
  add_index_kernels(table);
  add_norm_kernels(table);
  add_pool_kernels(table);
}

}  // namespace tarn::cuda
