// elementwise_walk.h - how CPU kernels walk an ElementwisePlan: rows, blocks, threads.
//
// An operator is a "row": a loop over n elements of densely packed operands in the types it
// computes in. The walk feeds rows. Where an operand is dense and of the row's type the row reads
// and writes it in place; where it is strided, broadcast or a half, blocks of it pass through a
// small buffer that stays in the first-level cache. So an operator is compiled once per computing
// type, not once per layout and storage type.
//
// Results do not depend on the number of threads: work is cut at multiples of a fixed block.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tarn/core/elementwise.h"
#include "tarn/core/parallel.h"
#include "tarn/core/plan.h"

namespace tarn::cpu {

/// p[0] the output, p[1..] the inputs, each n packed elements. Output and input may be the same.
using Row = void (*)(char* const* p, int64_t n, const Scalars& s);

/// A row, with the types of its operands and which operand of the plan each one is.
struct RowCall {
  static constexpr int kMaxOperands = 4;
  Row row = nullptr;
  Row first_scalar = nullptr;   ///< as row, operand 1 being one element; may be absent
  Row second_scalar = nullptr;  ///< as row, operand 2 being one element; may be absent
  int operands = 0;
  DType types[kMaxOperands] = {};
  uint8_t source[kMaxOperands] = {0, 1, 2, 3};
};

/// Runs a row over the whole plan.
void walk(const ElementwisePlan& plan, const RowCall& call, const Scalars& s);

/// Elements below which a second thread costs more than it brings.
inline constexpr int64_t kGrain = 16384;
/// Threads' parts of a dense walk begin at multiples of this.
inline constexpr int64_t kDenseBlock = 1024;

/// f(begin, end) over parts of [0, n) that begin at multiples of kDenseBlock.
template <class F>
void for_dense_parts(int64_t n, F&& f) {
  if (n < 2 * kGrain) {
    f(int64_t{0}, n);
    return;
  }
  const int64_t blocks = (n + kDenseBlock - 1) / kDenseBlock;
  parallel_for(blocks, kGrain / kDenseBlock, [&](int64_t begin, int64_t end) {
    f(begin * kDenseBlock, std::min(n, end * kDenseBlock));
  });
}

/// Walks the rows along dimension 0 in blocks of at most `block` elements: f(p, n), p the block's
/// first element in each operand. Operands keep their strides[o][0] within a block.
template <class F>
void for_each_block(const ElementwisePlan& plan, int64_t block, F&& f) {
  const int64_t inner = plan.sizes[0];
  const int64_t blocks_per_row = (inner + block - 1) / block;
  const int64_t units = plan.numel / inner * blocks_per_row;
  const int count = plan.operands;
  const auto run = [&](int64_t unit, int64_t end) {
    int64_t stride[ElementwisePlan::kMaxOperands][kMaxDims];  // in bytes
    int64_t index[kMaxDims];
    char* row[ElementwisePlan::kMaxOperands];
    int64_t at_block = unit % blocks_per_row, rest = unit / blocks_per_row;
    for (int o = 0; o < count; ++o) row[o] = static_cast<char*>(plan.data[o]);
    for (int d = 0; d < plan.ndim; ++d) {
      index[d] = d == 0 ? 0 : rest % plan.sizes[d];
      if (d > 0) rest /= plan.sizes[d];
      for (int o = 0; o < count; ++o) {
        stride[o][d] = plan.strides[o][d] * item_size(plan.dtype[o]);
        row[o] += index[d] * stride[o][d];
      }
    }
    for (; unit < end; ++unit) {
      char* p[ElementwisePlan::kMaxOperands];
      for (int o = 0; o < count; ++o) p[o] = row[o] + at_block * block * stride[o][0];
      f(p, std::min(block, inner - at_block * block));
      if (++at_block < blocks_per_row) continue;
      at_block = 0;
      for (int d = 1; d < plan.ndim; ++d) {
        const bool carry = ++index[d] == plan.sizes[d];
        for (int o = 0; o < count; ++o) {
          row[o] += carry ? -stride[o][d] * (plan.sizes[d] - 1) : stride[o][d];
        }
        if (!carry) break;
        index[d] = 0;
      }
    }
  };
  if (plan.numel < 2 * kGrain) {
    run(0, units);
  } else {
    parallel_for(units, std::max<int64_t>(1, kGrain / std::min(inner, block)), run);
  }
}

/// Copies n elements with a cast, strides in elements.
using CastRow = void (*)(char* to, int64_t to_stride, const char* from, int64_t from_stride,
                         int64_t n);
CastRow cast_row(DType from, DType to);

/// out = a cast to out's dtype, for any two dtypes and layouts.
void copy_kernel(const ElementwisePlan& plan, Stream stream);

}  // namespace tarn::cpu
