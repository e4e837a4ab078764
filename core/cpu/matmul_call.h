// matmul_call.h - one matrix product on raw memory, as every CPU engine takes it.
#pragma once

#include <cstdint>

#include "tarn/core/dtype.h"
#include "tarn/core/kernels/matmul.h"

namespace tarn::cpu {

/// C = epilogue(alpha * A B + beta * C + bias), `batch` times.
/// A: [m, k] and B: [k, n] with any strides (a transpose is a swap of strides), C: [m, n] with
/// dense rows, bias: [n] or null. Strides count elements. Operands do not overlap C. With beta = 0,
/// C is not read. All of one dtype; halves accumulate in f32, and wide_c makes C f32 (with alpha 1,
/// beta 0, no bias and no epilogue).
struct MatmulCall {
  DType dtype = DType::kF32;
  bool wide_c = false;
  int64_t batch = 1, m = 0, n = 0, k = 0;
  const void* a = nullptr;
  int64_t a_batch = 0, a_row = 0, a_col = 1;
  const void* b = nullptr;
  int64_t b_batch = 0, b_row = 0, b_col = 1;
  void* c = nullptr;
  int64_t c_batch = 0, c_row = 0;
  const void* bias = nullptr;
  double alpha = 1, beta = 0;
  Epilogue epilogue = Epilogue::kNone;

  int64_t macs() const { return batch * m * n * k; }
};

}  // namespace tarn::cpu
