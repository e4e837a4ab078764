// cuda_walk_test.cu - offsets in index spaces too large for 32 bits.
#include <algorithm>
#include <vector>

#include "tarn/core/factory.h"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/long_walk.cuh"
#include "tarn/cuda/scratch.h"
#include "tarn/tests/gpu_tools.h"

namespace tarn::cuda {
namespace {

__global__ void find_offsets(LongWalk<2> walk, const int64_t* positions, int64_t* offsets) {
  int64_t at[2];
  walk.offsets(positions[threadIdx.x], at);
  offsets[2 * threadIdx.x] = at[0];
  offsets[2 * threadIdx.x + 1] = at[1];
}

/// Offsets of positions in `sizes`, fastest first, compared with divisions.
void expect_offsets(const Shape& sizes, const Shape& a, const Shape& b) {
  constexpr int kCount = 32;
  const Stream stream = current_stream(kCuda);
  const LongWalk<2> walk(sizes.dim(), sizes.data(), {a.data(), b.data()});
  std::vector<int64_t> positions(kCount);
  int64_t got[2 * kCount];
  for (int i = 0; i < kCount; ++i) {
    // The ends of the space, and both sides of every carry of the first dimensions.
    const int64_t around = i % 2 == 0 ? sizes[0] * (sizes.numel() / sizes[0] / 17 * (i / 2)) : 0;
    positions[i] = i == 0 ? 0 : i == 1 ? sizes.numel() - 1 : std::max<int64_t>(0, around - i % 3);
  }
  const Tensor in = from_vector(positions, {kCount}, kCuda);
  const Scratch out(sizeof(got), stream);
  launch(find_offsets, 1, kCount, 0, stream, walk, in.data<int64_t>(), out.as<int64_t>());
  read_back(got, out.as<int64_t>(), sizeof(got), stream);
  for (int i = 0; i < kCount; ++i) {
    int64_t rest = positions[i], want_a = 0, want_b = 0;
    for (int d = 0; d < sizes.dim(); ++d) {
      want_a += rest % sizes[d] * a[d];
      want_b += rest % sizes[d] * b[d];
      rest /= sizes[d];
    }
    EXPECT_EQ(got[2 * i], want_a) << "position " << positions[i] << " of " << sizes;
    EXPECT_EQ(got[2 * i + 1], want_b) << "position " << positions[i] << " of " << sizes;
  }
}

TEST(CudaWalk, offsets_are_exact_on_both_sides_of_32_bits) {
  TARN_NEEDS_GPU();
  expect_offsets({7, 5, 3}, {1, 7, 35}, {15, 3, 1});
  expect_offsets({1000003, 2000, 3}, {1, 1000003, int64_t{1} << 33}, {0, 1, 2000});
  expect_offsets({(int64_t{1} << 31) + 11, 5, 3}, {1, 4, int64_t{1} << 40}, {3, 0, 1});
  expect_offsets({3, 1, 1000000007, 40}, {40, 0, 1, 7}, {1, 1, 3, int64_t{1} << 35});
}

}  // namespace
}  // namespace tarn::cuda
