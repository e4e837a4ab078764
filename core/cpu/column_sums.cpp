// column_sums.cpp - blocks of rows are summed in parallel, then the blocks in order.
#include "tarn/core/cpu/column_sums.h"

#include <algorithm>

#include "tarn/core/cpu/scratch.h"
#include "tarn/core/cpu/tasks.h"

namespace tarn::cpu {
namespace {

constexpr int64_t kBlockRows = 256;
constexpr int64_t kMaxBlocks = 256;
constexpr int64_t kSerialElements = 1 << 15;

template <typename T>
void sum_rows(const T* x, int64_t rows, int64_t columns, compute_t<T>* sum) {
  std::fill(sum, sum + columns, compute_t<T>(0));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) sum[j] += compute_t<T>(x[i * columns + j]);
  }
}

template <typename T>
void column_sums_of(const T* x, int64_t rows, int64_t columns, T* out) {
  using A = compute_t<T>;
  const int64_t block = std::max(kBlockRows, (rows + kMaxBlocks - 1) / kMaxBlocks);
  const int64_t blocks = std::max<int64_t>(1, (rows + block - 1) / block);
  A* sums = static_cast<A*>(
      scratch(ScratchSlot::kShared, static_cast<size_t>(blocks * columns) * sizeof(A)));
  const auto one = [&](int64_t b) {
    const int64_t first = b * block;
    sum_rows(x + first * columns, std::min(block, rows - first), columns, sums + b * columns);
  };
  if (rows * columns < kSerialElements) {
    for (int64_t b = 0; b < blocks; ++b) one(b);
  } else {
    parallel_tasks(blocks, one);
  }
  for (int64_t b = 1; b < blocks; ++b) {
    for (int64_t j = 0; j < columns; ++j) sums[j] += sums[b * columns + j];
  }
  for (int64_t j = 0; j < columns; ++j) out[j] = T(sums[j]);
}

}  // namespace

void column_sums(const void* x, DType dtype, int64_t rows, int64_t columns, void* out) {
  visit_floating(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    column_sums_of(static_cast<const T*>(x), rows, columns, static_cast<T*>(out));
  });
}

}  // namespace tarn::cpu
