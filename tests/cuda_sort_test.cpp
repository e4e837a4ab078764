// cuda_sort_test.cpp - sort and topk on the GPU give the CPU's results, to the order of ties.
#include <limits>

#include "gpu_compare.h"

#include "tarn/core/raw_reduce.h"

namespace tarn {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void expect_same_order(const Both& x, int64_t k, int64_t dim) {
  for (bool largest : {true, false}) {
    const auto cpu = raw::topk("topk", x.cpu, k, dim, largest);
    const auto gpu = raw::topk("topk", x.gpu, k, dim, largest);
    const std::string what = "k=" + std::to_string(k) + " of " + x.cpu.describe() + " along " +
                             std::to_string(dim) + (largest ? ", largest" : ", smallest");
    expect_agree(gpu.second, cpu.second, 0, "positions, " + what);
    expect_agree(gpu.first, cpu.first, 0, "values, " + what);
  }
}

TEST(CudaSort, slices_of_every_length_sort_in_every_dtype) {
  TARN_NEEDS_GPU();
  const Shape shapes[] = {{1}, {2}, {33}, {70, 3}, {5, 31}, {3, 1000}, {6, 40, 7}, {2, 2049}};
  for (DType dtype : kEveryDType) {
    for (const Shape& sizes : shapes) {
      const Both flat(typed(halves_of_integers(sizes.numel(), 1), dtype));  // many ties
      const Both x = flat.view(sizes, contiguous_strides(sizes));
      for (int64_t dim = 0; dim < sizes.dim(); ++dim) {
        const int64_t n = sizes[static_cast<int>(dim)];
        for (int64_t k : {int64_t{1}, (n + 1) / 2, n}) expect_same_order(x, k, dim);
      }
    }
  }
}

TEST(CudaSort, long_slices_are_merged_or_narrowed_to_k) {
  TARN_NEEDS_GPU();
  for (DType dtype : {DType::kF32, DType::kF64}) {
    std::vector<double> values = halves_of_integers(2 * 20001, 2);
    for (size_t i = 0; i < values.size(); i += 3) values[i] += 1e-3 * static_cast<double>(i % 601);
    const Both x = Both(typed(values, dtype)).view({2, 20001}, {20001, 1});
    for (int64_t k : {1, 50, 700, 1500, 20001}) expect_same_order(x, k, 1);
    const Both y = Both(typed(values, dtype)).view({20001, 2}, {2, 1});
    for (int64_t k : {3, 20001}) expect_same_order(y, k, 0);
  }
}

TEST(CudaSort, nan_is_the_largest_and_zeros_of_both_signs_are_equal) {
  TARN_NEEDS_GPU();
  for (DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    std::vector<double> values = {0.0,  -0.0, kNan, 1,    -kInf, kInf, -1,
                                  kNan, 0.0,  -0.0, 6e-8, -6e-8, -kNan};
    const Both x(typed(values, dtype));
    expect_same_order(x, 13, 0);
    expect_same_order(x, 5, 0);
  }
}

TEST(CudaSort, extreme_integers_keep_their_order) {
  TARN_NEEDS_GPU();
  constexpr int64_t kLow = std::numeric_limits<int64_t>::min();
  constexpr int64_t kHigh = std::numeric_limits<int64_t>::max();
  const Both x(from_vector(std::vector<int64_t>{0, kHigh, -1, kLow, 1, kLow + 1, kHigh - 1}, {7}));
  expect_same_order(x, 7, 0);
  const Both y(from_vector(std::vector<int32_t>{0, 2147483647, -1, -2147483647 - 1, 5}, {5}));
  expect_same_order(y, 5, 0);
}

}  // namespace
}  // namespace tarn
