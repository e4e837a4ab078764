// matmul.h - one matrix product on device memory, as cuBLAS and tarn's own kernels take it.
#pragma once

#include <cstdint>

#include "tarn/core/kernels/matmul.h"

namespace tarn::cuda {

/// C = epilogue(alpha * A B + beta * C + bias), `batch` times.
/// A: [m, k] and B: [k, n] with any strides (a transpose is a swap of strides), C: [m, n] with
/// dense rows, bias: [n] or null. Strides count elements; a batch stride may be 0 in A and B. With
/// beta = 0, C is not read. All of one dtype; halves accumulate in f32.
struct MatmulCall {
  DType dtype = DType::kF32;
  Epilogue epilogue = Epilogue::kNone;
  int64_t batch = 1, m = 0, n = 0, k = 0;
  const void* a = nullptr;
  int64_t a_batch = 0, a_row = 0, a_col = 1;
  const void* b = nullptr;
  int64_t b_batch = 0, b_row = 0, b_col = 1;
  void* c = nullptr;
  int64_t c_batch = 0, c_row = 0;
  const void* bias = nullptr;
  double alpha = 1, beta = 0;
};

/// The slot's arguments as strides and pointers.
MatmulCall make_matmul_call(const Tensor& a, const Tensor& b, const Tensor& bias, double alpha,
                            double beta, Epilogue epilogue, const Tensor& out);

/// The own kernels: every dtype, size and stride of the contract.
void own_matmul(const MatmulCall& call, Stream stream);
/// The same for min(m, n) <= kSkinny and floating types: bound by the memory of the wide operand.
void skinny_matmul(const MatmulCall& call, Stream stream);
inline constexpr int64_t kSkinny = 8;

/// C = bias in every row, as a start for beta = 1.
void spread_bias(const MatmulCall& call, Stream stream);
/// C = epilogue(C), for floating types.
void apply_epilogue(const MatmulCall& call, Stream stream);
/// C from the sums of `parts` parts of k, [parts, batch, m, n] in the accumulation type: added in
/// order, then as the call says.
void finish_parts(const MatmulCall& call, int64_t parts, const void* sums, Stream stream);

/// The slot with tarn's own kernels alone; what the table holds until a library overrides it.
void own_matmul_slot(const Tensor& a, const Tensor& b, const Tensor& bias, double alpha,
                     double beta, Epilogue epilogue, const Tensor& out, Stream stream);

}  // namespace tarn::cuda
