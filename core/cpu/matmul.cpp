// matmul.cpp - fills the matrix product slot: tensors to strides and pointers.
#include "tarn/core/cpu/matmul_dispatch.h"
#include "tarn/core/cpu/table.h"

namespace tarn::cpu {
namespace {

MatmulCall make_call(const Tensor& a, const Tensor& b, const Tensor& out) {
  const int64_t d = a.dim() - 2;  // 1 if there is a batch dimension
  MatmulCall call;
  call.dtype = a.dtype();
  call.m = a.sizes()[d], call.k = a.sizes()[d + 1], call.n = b.sizes()[d + 1];
  call.a = a.data(), call.a_row = a.strides()[d], call.a_col = a.strides()[d + 1];
  call.b = b.data(), call.b_row = b.strides()[d], call.b_col = b.strides()[d + 1];
  call.c = out.data(), call.c_row = out.strides()[d];
  if (d == 1) {
    call.batch = a.sizes()[0];
    call.a_batch = a.strides()[0], call.b_batch = b.strides()[0], call.c_batch = out.strides()[0];
  }
  return call;
}

void matmul_kernel(const Tensor& a, const Tensor& b, const Tensor& bias, double alpha, double beta,
                   Epilogue epilogue, const Tensor& out, Stream) {
  MatmulCall call = make_call(a, b, out);
  call.bias = bias.data_or_null();
  call.alpha = alpha, call.beta = beta;
  call.epilogue = epilogue;
  matmul(call);
}

void matmul_wide_kernel(const Tensor& a, const Tensor& b, const Tensor& out, Stream) {
  MatmulCall call = make_call(a, b, out);
  call.wide_c = true;
  matmul(call);
}

}  // namespace

void add_matmul_kernels(KernelTable& table) {
  table.matmul.matmul = matmul_kernel;
  table.matmul.matmul_wide = matmul_wide_kernel;
}

}  // namespace tarn::cpu
