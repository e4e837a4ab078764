// cuda_index_test.cpp - index kernels of the GPU against those of the CPU, bit for bit.
#include <algorithm>
#include <limits>
#include <random>

#include "gpu_tools.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/kernels.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_index.h"
#include "tarn/core/views.h"
#include "tarn/cuda/radix_sort.h"

namespace tarn {
namespace {

constexpr DType kEveryDType[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16,
                                 DType::kI64, DType::kI32, DType::kU8,  DType::kBool};

class CudaIndex : public testing::Test {
 protected:
  void SetUp() override { TARN_NEEDS_GPU(); }

  Tensor indices(const Shape& sizes, int64_t end, int64_t begin = 0) {
    std::vector<int64_t> v(static_cast<size_t>(sizes.numel()));
    std::uniform_int_distribution<int64_t> draw(begin, end - 1);
    for (int64_t& i : v) i = draw(random_);
    return from_vector(v, sizes);
  }
  /// Values in -8 .. 7.875 by eighths (so that half sums are exact), zeros among them.
  Tensor values(const Shape& sizes, DType dtype = DType::kF32) {
    std::vector<float> v(static_cast<size_t>(sizes.numel()));
    std::uniform_int_distribution<int> draw(-64, 63);
    for (float& f : v) f = static_cast<float>(draw(random_)) / 8;
    if (dtype == DType::kU8) {
      for (float& f : v) f = std::abs(f);
    }
    return from_vector(v, sizes).to(dtype);
  }
  static void expect_same(const Tensor& gpu, const Tensor& cpu, const char* what = "") {
    ASSERT_EQ(gpu.device(), kCuda);
    ASSERT_EQ(gpu.sizes(), cpu.sizes()) << what;
    ASSERT_EQ(gpu.dtype(), cpu.dtype()) << what;
    const std::vector<double> got = gpu.to_vector<double>(), want = cpu.to_vector<double>();
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(got[i], want[i]) << what << " " << cpu.describe() << " at " << i;
    }
  }
  /// write(x, index, src) changes x, on both devices alike.
  template <class Write>
  static void expect_writes_same(const Tensor& x, const Tensor& index, const Tensor& src,
                                 Write write, const char* what = "") {
    const Tensor cpu = raw::clone(x), gpu = x.to(kCuda);
    write(cpu, index, src);
    write(gpu, index.to(kCuda), src.to(kCuda));
    expect_same(gpu, cpu, what);
  }

  std::mt19937 random_{7};
};

TEST_F(CudaIndex, index_select_takes_rows_of_every_width_and_dtype) {
  for (DType dtype : kEveryDType) {
    for (int64_t inner : {1, 3, 8, 33}) {
      const Tensor x = values({2, 50, inner}, dtype), index = indices({301}, 50);
      expect_same(raw::index_select(x.to(kCuda), 1, index.to(kCuda)),
                  raw::index_select(x, 1, index));
    }
  }
}

TEST_F(CudaIndex, index_select_of_an_unaligned_part) {
  const Tensor x = values({321});
  const Tensor cpu = raw::view(raw::narrow(x, 0, 1, 320), {40, 8});
  const Tensor gpu = raw::view(raw::narrow(x.to(kCuda), 0, 1, 320), {40, 8});
  const Tensor index = indices({77}, 40);
  expect_same(raw::index_select(gpu, 0, index.to(kCuda)), raw::index_select(cpu, 0, index));
}

TEST_F(CudaIndex, index_add_sums_in_the_order_of_the_cpu) {
  // Few and many distinct rows, short lists and long ones, wide, narrow and odd rows.
  struct Case {
    int64_t outer, size, n, inner;
  };
  for (const Case c : {Case{1, 7, 1, 5}, Case{1, 3, 100, 8}, Case{2, 40, 33, 12}, Case{3, 1, 70, 1},
                       Case{1, 5000, 900, 4}, Case{4, 50, 60, 1}, Case{1, 300, 9000, 4}}) {
    // Thirds do not add exactly, so a different order would show.
    const Tensor x = div(values({c.outer, c.size, c.inner}), 3);
    const Tensor src = div(values({c.outer, c.n, c.inner}), 3);
    expect_writes_same(
        x, indices({c.n}, c.size), src,
        [](const Tensor& a, const Tensor& i, const Tensor& s) { raw::index_add_(a, 1, i, s); });
  }
}

// Their sums are cut (segment_sums.cuh); those of eighths are exact in any order.
TEST_F(CudaIndex, long_runs_of_equal_indices_are_added) {
  const auto add_rows = [](const Tensor& a, const Tensor& i, const Tensor& s) {
    raw::index_add_(a, 1, i, s, 3);
  };
  const auto add_elements = [](const Tensor& a, const Tensor& i, const Tensor& s) {
    raw::scatter_add_(a, 0, i, s);
  };
  const auto check = [&](const Tensor& index, int64_t size, DType dtype) {
    const int64_t n = index.numel();
    for (int64_t inner : {4, 3}) {
      expect_writes_same(values({2, size, inner}, dtype), index, values({2, n, inner}, dtype),
                         add_rows, "rows");
    }
    expect_writes_same(values({size}, dtype), index, values({n}, dtype), add_elements, "elements");
  };
  // Runs that begin, end or go on at multiples of 256, in this order; then shuffled.
  std::vector<int64_t> index;
  const int64_t runs[] = {256, 256, 1, 511, 257, 600, 1, 1300, 255, 80};
  for (int64_t run : runs) index.insert(index.end(), run, static_cast<int64_t>(index.size() % 97));
  const auto n = static_cast<int64_t>(index.size());
  for (DType dtype : {DType::kF32, DType::kF64, DType::kI64, DType::kU8, DType::kBool}) {
    check(from_vector(index, {n}), 97, dtype);
    std::shuffle(index.begin(), index.end(), random_);
    check(from_vector(index, {n}), 97, dtype);
  }
  for (int64_t length : {255, 256, 257, 511, 512, 513, 9000, 66000}) {
    check(indices({length}, 1), 2, DType::kF32);
    check(indices({length}, 3), 3, DType::kF32);
  }
}

TEST_F(CudaIndex, index_add_and_copy_take_every_dtype) {
  for (DType dtype : kEveryDType) {
    for (int64_t inner : {16, 5}) {  // rows of whole vectors and of single elements
      const Tensor x = values({3, 20, inner}, dtype), src = values({3, 50, inner}, dtype);
      const Tensor index = indices({50}, 20);
      expect_writes_same(x, index, src, [](const Tensor& a, const Tensor& i, const Tensor& s) {
        raw::index_add_(a, 1, i, s, 2);
      });
      expect_writes_same(x, index, src, [](const Tensor& a, const Tensor& i, const Tensor& s) {
        raw::index_copy_(a, 1, i, s);
      });
    }
  }
}

TEST_F(CudaIndex, the_last_of_equal_indices_is_copied_in_long_lists_too) {
  expect_writes_same(
      values({12, 3}), indices({8200}, 12), values({8200, 3}),
      [](const Tensor& a, const Tensor& i, const Tensor& s) { raw::index_copy_(a, 0, i, s); });
}

TEST_F(CudaIndex, gather_and_scatter_take_every_dtype_and_stride) {
  for (DType dtype : kEveryDType) {
    const Tensor x = values({5, 6, 7}, dtype);
    for (int64_t dim : {0, 1, 2}) {
      const Tensor index = indices({4, 5, 6}, x.size(dim)), src = values({4, 5, 6}, dtype);
      expect_same(raw::gather(x.to(kCuda), dim, index.to(kCuda)), raw::gather(x, dim, index));
      const Tensor turned = raw::permute(x, {2, 0, 1}), gpu = raw::permute(x.to(kCuda), {2, 0, 1});
      const Tensor low = indices({4, 5, 6}, 5);
      expect_same(raw::gather(gpu, dim, low.to(kCuda)), raw::gather(turned, dim, low));
      expect_writes_same(x, index, src, [dim](const Tensor& a, const Tensor& i, const Tensor& s) {
        raw::scatter_(a, dim, i, s);
      });
      expect_writes_same(x, index, src, [dim](const Tensor& a, const Tensor& i, const Tensor& s) {
        raw::scatter_add_(a, dim, i, s);
      });
    }
  }
}

TEST_F(CudaIndex, scatter_writes_through_strides) {
  expect_writes_same(values({6, 8}), indices({5, 3}, 8), values({5, 3}),
                     [](const Tensor& a, const Tensor& i, const Tensor& s) {
                       raw::scatter_add_(raw::permute(a, {1, 0}), 0, raw::permute(i, {1, 0}),
                                         raw::permute(s, {1, 0}));
                     });
}

TEST_F(CudaIndex, scatter_sorts_where_lines_are_few_and_long) {
  for (DType dtype : kEveryDType) {
    for (const Shape& sizes : {Shape{1000}, Shape{2, 9000}, Shape{70, 3}}) {
      const int dim = sizes.dim() == 2 && sizes[0] == 2 ? 1 : 0;
      Shape target = sizes;
      target[dim] = 90;
      const Tensor whole = values(sizes, dtype), src = is_floating(dtype) ? div(whole, 3) : whole;
      expect_writes_same(values(target, dtype), indices(sizes, 90), src,
                         [dim](const Tensor& a, const Tensor& i, const Tensor& s) {
                           raw::scatter_add_(a, dim, i, s);
                         });
      expect_writes_same(values(target, dtype), indices(sizes, 90), src,
                         [dim](const Tensor& a, const Tensor& i, const Tensor& s) {
                           raw::scatter_(a, dim, i, s);
                         });
    }
  }
}

// Only the places that indices name are in memory.
TEST_F(CudaIndex, more_than_2_to_the_32_places_are_sorted_by_64_bit_keys) {
  const Stream stream = current_stream(kCuda);
  for (const ScatterOp op : {ScatterOp::kWrite, ScatterOp::kAdd}) {
    const Tensor x = values({3, 90}), src = div(values({3, 500}), 3);
    const Tensor index = indices({3, 500}, 90), gpu = x.to(kCuda);
    const Tensor lines(gpu.storage(), {3, int64_t{1} << 31}, {90, 1}, 0, gpu.dtype());
    kernels(kCuda).index.scatter(op, lines, 1, index.to(kCuda), src.to(kCuda), stream);
    op == ScatterOp::kAdd ? raw::scatter_add_(x, 1, index, src) : raw::scatter_(x, 1, index, src);
    expect_same(gpu, x, "scatter");
  }
  for (const ScatterOp op : {ScatterOp::kWrite, ScatterOp::kAdd}) {
    const Tensor x = values({91, 5}), src = div(values({500, 5}), 3), gpu = x.to(kCuda);
    const Tensor index = indices({500}, 91);
    // Row 90 is outside on the GPU, where its key is the number of rows.
    const Tensor outside = where(eq(index, 90), -1, index).to(kCuda);
    const Tensor rows(gpu.storage(), {1, int64_t{1} << 33, 5}, {int64_t{5} << 33, 5, 1}, 0,
                      gpu.dtype());
    kernels(kCuda).index.index_add(op, rows, outside, raw::view(src.to(kCuda), {1, 500, 5}), 1,
                                   stream);
    op == ScatterOp::kAdd ? raw::index_add_(x, 0, index, src) : raw::index_copy_(x, 0, index, src);
    expect_same(raw::narrow(gpu, 0, 0, 90), raw::narrow(x, 0, 0, 90), "rows");
  }
}

TEST_F(CudaIndex, nonzero_lists_positions_of_every_dtype_in_order) {
  for (DType dtype : kEveryDType) {
    for (const Shape& sizes : {Shape{1}, Shape{5, 7}, Shape{3, 17, 271}}) {
      const Tensor x = values(sizes, dtype);
      expect_same(raw::nonzero(x.to(kCuda)), raw::nonzero(x));
    }
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor odd = from_vector(std::vector<float>{0.0f, -0.0f, nan, 1e-45f}, {4});
  EXPECT_EQ(raw::nonzero(odd.to(kCuda)).to_vector<int64_t>(), std::vector<int64_t>({2, 3}));
  EXPECT_EQ(raw::nonzero(zeros({4}).to(kCuda)).sizes(), Shape({0, 1}));
  EXPECT_EQ(raw::nonzero(zeros({0, 2}).to(kCuda)).sizes(), Shape({0, 2}));
}

TEST_F(CudaIndex, triangles_at_every_diagonal) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBool}) {
    const Tensor x = values({2, 5, 300}, dtype);
    for (int64_t diagonal :
         {int64_t{0}, int64_t{-2}, int64_t{3}, int64_t{299}, INT64_MAX, INT64_MIN}) {
      expect_same(raw::triu(x.to(kCuda), diagonal), raw::triu(x, diagonal));
      expect_same(raw::tril(x.to(kCuda), diagonal), raw::tril(x, diagonal));
    }
  }
}

TEST_F(CudaIndex, empty_and_0d_operands) {
  const Tensor none = zeros({0}, {.dtype = DType::kI64});
  EXPECT_EQ(raw::index_select(values({3, 4}).to(kCuda), 0, none.to(kCuda)).sizes(), Shape({0, 4}));
  EXPECT_EQ(raw::gather(values({3}).to(kCuda), 0, none.to(kCuda)).sizes(), Shape({0}));
  const Tensor x = values({3}).to(kCuda);
  raw::index_add_(x, 0, none.to(kCuda), zeros({0}).to(kCuda));
  raw::scatter_(x, 0, none.to(kCuda), zeros({0}).to(kCuda));
  const Tensor one = values({}), at = zeros({}, {.dtype = DType::kI64});
  expect_same(raw::index_select(one.to(kCuda), 0, at.to(kCuda)), one);
  expect_same(raw::gather(one.to(kCuda), 0, at.to(kCuda)), one);
}

TEST_F(CudaIndex, negative_indices_count_from_the_end) {
  const Tensor x = values({6, 5}), index_cpu = indices({40}, 6, -6);
  expect_same(tarn::index(x.to(kCuda), {index_cpu.to(kCuda)}), tarn::index(x, {index_cpu}));
}

TEST_F(CudaIndex, radix_sort_is_stable_however_many_blocks_share_the_work) {
  const int64_t n = 5000;
  for (const int64_t end : {int64_t{1}, int64_t{200}, int64_t{70000}}) {
    const Tensor keys = indices({n}, end);
    const std::vector<int64_t> k = keys.to_vector<int64_t>();
    std::vector<int32_t> want(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i) want[static_cast<size_t>(i)] = i;
    std::stable_sort(want.begin(), want.end(), [&](int32_t a, int32_t b) {
      return k[static_cast<size_t>(a)] < k[static_cast<size_t>(b)];
    });
    for (const int64_t most_blocks : {1, 2, 1024}) {
      const TensorOptions on_gpu{.dtype = DType::kI32, .device = kCuda};
      const Tensor a = keys.to(kCuda), b = empty({n}, {.dtype = DType::kI64, .device = kCuda});
      const Tensor va = empty({n}, on_gpu), vb = empty({n}, on_gpu);
      cuda::SortBuffers<uint64_t> buffers{
          static_cast<uint64_t*>(a.data()), static_cast<uint64_t*>(b.data()),
          static_cast<uint32_t*>(va.data()), static_cast<uint32_t*>(vb.data())};
      cuda::radix_sort(buffers, n, 17, current_stream(kCuda), most_blocks);
      const Tensor& order = buffers.values == va.data() ? va : vb;
      EXPECT_EQ(order.to_vector<int32_t>(), want);
    }
  }
}

}  // namespace
}  // namespace tarn
