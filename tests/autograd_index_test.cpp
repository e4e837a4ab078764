// autograd_index_test.cpp - picking, writing, joining and padding follow their definitions.
#include <cmath>
#include <limits>

#include "index_tools.h"
#include "tests_throws.h"

#include "tarn/core/parallel.h"

namespace tarn {
namespace {

TEST(IndexTest, index_select_picks_along_any_dim_of_any_layout) {
  const Tensor x = iota({2, 3, 4});
  EXPECT_EQ(values(index_select(x, 1, ints({2, 0, 2}))),
            (Values{8,  9,  10, 11, 0,  1,  2,  3,  8,  9,  10, 11,
                    20, 21, 22, 23, 12, 13, 14, 15, 20, 21, 22, 23}));
  EXPECT_EQ(values(index_select(x.transpose(0, 2), 0, ints({1}))), (Values{1, 13, 5, 17, 9, 21}));
  EXPECT_EQ(index_select(x, -1, ints({})).sizes(), (Shape{2, 3, 0}));
  EXPECT_EQ(index_select(x, -1, zeros({0})).sizes(), (Shape{2, 3, 0}));
  EXPECT_EQ(index_select(zeros({2, 0}), 0, ints({1, 1, 1})).sizes(), (Shape{3, 0}));
  EXPECT_EQ(values(index_select(x, 0, tensor({1}, {.dtype = DType::kI32})))[0], 12);
  for (DType d : {DType::kF32, DType::kF16, DType::kBF16, DType::kI64, DType::kI32, DType::kU8}) {
    EXPECT_EQ(values(index_select(iota({5}, d), 0, ints({4, 0}))), (Values{4, 0})) << d;
  }
}

TEST(IndexTest, picked_rows_add_their_gradients) {
  // REPORTS C4: rows 0,0,2 with output gradients 1,2,3 give 3,0,3.
  Tensor x = zeros({3});
  x.set_requires_grad();
  index_select(x, 0, ints({0, 0, 2})).backward(tensor({1, 2, 3}));
  EXPECT_EQ(values(x.grad()), (Values{3, 0, 3}));
}

TEST(IndexTest, one_value_added_twice_counts_twice) {
  // REPORTS C4: one value 1 at indices 0,0 into three zeros gives 2,0,0.
  const Tensor x = zeros({3});
  EXPECT_EQ(values(index_put(x, {ints({0, 0})}, scalar_tensor(1.0), true)), (Values{2, 0, 0}));
  EXPECT_EQ(values(index_add(x, 0, ints({0, 0}), ones({2}))), (Values{2, 0, 0}));
  EXPECT_EQ(values(scatter_add(x, 0, ints({0, 0}), ones({2}))), (Values{2, 0, 0}));
}

TEST(IndexTest, a_hundred_runs_over_duplicates_are_bit_equal_at_any_thread_count) {
  // REPORTS C4: 10,000 picks over 100 rows; narrow and wide rows take different paths.
  const int before = num_threads();
  for (int64_t width : {1, 8, 300}) {
    Generator g(5);
    const Tensor ix = randint(0, 100, {10000}, {.dtype = DType::kI64}, &g);
    const Tensor src = randn({10000, width}, {}, &g);
    Values first, first_scatter;
    for (int run = 0; run < (width == 1 ? 100 : 6); ++run) {
      set_num_threads(1 + run % 4);
      const Values sum = values(index_add(zeros({100, width}), 0, ix, src));
      const Values scattered = values(
          scatter_add(zeros({100, width}), 0, ix.reshape({-1, 1}).expand({10000, width}), src));
      if (run == 0) first = sum, first_scatter = scattered;
      ASSERT_EQ(sum, first);
      ASSERT_EQ(scattered, first_scatter);
    }
    EXPECT_EQ(first, first_scatter);
  }
  set_num_threads(before);
}

TEST(IndexTest, halves_are_summed_in_f32) {
  // 1 + 4096 times 2^-12: each addition alone would be lost in f16.
  const Tensor x = ones({1}, {.dtype = DType::kF16});
  const Tensor src = full({4096}, 0x1p-12, {.dtype = DType::kF16});
  const Tensor ix = zeros({4096}, {.dtype = DType::kI64});
  EXPECT_EQ(values(index_add(x, 0, ix, src)), (Values{2}));
  EXPECT_EQ(values(scatter_add(x, 0, ix, src)), (Values{2}));
}

TEST(IndexTest, the_last_of_several_writes_wins) {
  EXPECT_EQ(values(index_copy(zeros({3}), 0, ints({1, 1}), tensor({5, 6}))), (Values{0, 6, 0}));
  EXPECT_EQ(values(scatter(zeros({3}), 0, ints({1, 1}), tensor({5, 6}))), (Values{0, 6, 0}));
  EXPECT_EQ(values(index_put(zeros({3}), {ints({1, 1})}, tensor({5, 6}))), (Values{0, 6, 0}));
}

TEST(IndexTest, gather_and_scatter_follow_their_definition) {
  const Tensor x = iota({3, 4, 5});
  for (int dim = 0; dim < 3; ++dim) {
    Shape sizes{2, 3, 4};
    sizes[dim] = 6;
    Generator g(3);
    const Tensor ix = randint(0, x.size(dim), sizes, {.dtype = DType::kI64}, &g);
    const Ints at = ix.to_vector<int64_t>();
    const Values got = values(gather(x, dim, ix));
    const Values turned = values(gather(x.transpose(0, 2).contiguous().transpose(0, 2), dim, ix));
    const Tensor src = iota(sizes);
    const Values added = values(scatter_add(x, dim, ix, src));
    Values want_added = values(x);
    size_t n = 0;
    for (int64_t a = 0; a < sizes[0]; ++a) {
      for (int64_t b = 0; b < sizes[1]; ++b) {
        for (int64_t c = 0; c < sizes[2]; ++c, ++n) {
          int64_t p[3] = {a, b, c};
          p[dim] = at[n];
          const int64_t offset = p[0] * 20 + p[1] * 5 + p[2];
          ASSERT_EQ(got[n], static_cast<double>(offset));
          want_added[static_cast<size_t>(offset)] += static_cast<double>(n);
        }
      }
    }
    EXPECT_EQ(turned, got);
    EXPECT_EQ(added, want_added);
  }
  EXPECT_EQ(values(scatter(zeros({2, 3}), 1, ints({2, 0}, {2, 1}), Scalar(7))),
            (Values{0, 0, 7, 7, 0, 0}));
  EXPECT_EQ(gather(x, 1, zeros({3, 0, 5}, {.dtype = DType::kI64})).sizes(), (Shape{3, 0, 5}));
}

TEST(IndexTest, take_along_dim_broadcasts) {
  const Tensor x = tensor({10, 30, 20, 60, 40, 50}, {2, 3});
  EXPECT_EQ(values(take_along_dim(x, ints({2, 0}, {1, 2}), 1)), (Values{20, 10, 50, 60}));
}

TEST(IndexTest, in_place_forms_write_through_views_and_shared_storage) {
  Tensor x = zeros({4, 3});
  Tensor column = x.select(1, 1);
  index_add_(column, 0, ints({0, 3, 3}), ones({3}));
  EXPECT_EQ(values(x), (Values{0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0}));
  Tensor y = tensor({1, 2, 3, 4});
  index_copy_(y, 0, ints({0, 1, 2}), y.slice(0, 1, 4));  // reads first, then writes
  EXPECT_EQ(values(y), (Values{2, 3, 4, 4}));
  scatter_(y, 0, ints({3}), Scalar(9));
  EXPECT_EQ(values(y), (Values{2, 3, 4, 9}));
  index_put_(y, {ints({-1})}, scalar_tensor(5.0));
  EXPECT_EQ(values(y), (Values{2, 3, 4, 5}));
  const uint32_t version = y.version();
  scatter_add_(y, 0, ints({0}), ones({1}));
  EXPECT_GT(y.version(), version);
  Tensor wide = zeros({1}).expand({4});
  expect_error<Error>([&] { index_add_(wide, 0, ints({0}), ones({1})); }, "index_add");
}

TEST(IndexTest, index_by_tensors_places_dimensions_as_numpy_does) {
  const Tensor x = iota({2, 3, 4});
  EXPECT_EQ(values(index(x, {ints({1, 0}), ints({2, -1})})),
            (Values{20, 21, 22, 23, 8, 9, 10, 11}));
  EXPECT_EQ(index(x, {{}, ints({0, 1, 2, 0}, {2, 2})}).sizes(), (Shape{2, 2, 2, 4}));
  // Separated by a whole dimension: in front.
  const Tensor apart = index(iota({2, 3, 4, 5}), {ints({0}), {}, ints({1, 2, 3})});
  EXPECT_EQ(apart.sizes(), (Shape{3, 3, 5}));
  EXPECT_EQ(values(apart)[15], 10);  // [1][0][0] = x[0][0][2][0]
  // Neighbours further back: where they were.
  EXPECT_EQ(index(iota({2, 3, 4, 5}), {{}, ints({0, 1}), ints({1, 2})}).sizes(), (Shape{2, 2, 5}));
  EXPECT_EQ(values(index(x, {{}, ints({0, 1}), ints({1, 2})})), (Values{1, 6, 13, 18}));
}

TEST(IndexTest, masks_pick_and_write) {
  const Tensor x = iota({2, 3});
  const Tensor mask = gt(x, 2.5);
  EXPECT_EQ(values(masked_select(x, mask)), (Values{3, 4, 5}));
  EXPECT_EQ(values(index(x, {mask})), (Values{3, 4, 5}));
  EXPECT_EQ(values(index(x, {{}, tensor({1, 0, 1}, {.dtype = DType::kBool})})),
            (Values{0, 2, 3, 5}));
  EXPECT_EQ(values(index_put(x, {mask}, scalar_tensor(-1.0, {.dtype = DType::kF64}))),
            (Values{0, 1, 2, -1, -1, -1}));
  EXPECT_EQ(masked_select(x, lt(x, -1)).sizes(), (Shape{0}));
  EXPECT_EQ(values(masked_select(x, tensor({1, 0, 0}, {.dtype = DType::kBool}))), (Values{0, 3}));
}

TEST(IndexTest, nonzero_lists_positions) {
  const Tensor x = tensor({0, NAN, -0.0, 2, 0, 1}, {2, 3});
  EXPECT_EQ(nonzero(x).to_vector<int64_t>(), (Ints{0, 1, 1, 0, 1, 2}));
  EXPECT_EQ(nonzero(zeros({3, 0})).sizes(), (Shape{0, 2}));
  EXPECT_EQ(nonzero(scalar_tensor(5)).sizes(), (Shape{1, 0}));
  const Tensor big = ones({100, 300});
  const Tensor all = nonzero(big.transpose(0, 1));
  EXPECT_EQ(all.sizes(), (Shape{30000, 2}));
  EXPECT_EQ(all[29999].to_vector<int64_t>(), (Ints{299, 99}));
}

TEST(IndexTest, embedding_looks_up_rows_and_spares_the_padding) {
  Tensor w = iota({4, 2});
  w.set_requires_grad();
  const Tensor out = embedding(w, ints({3, 1, 1, 0}, {2, 2}), 1);
  EXPECT_EQ(out.sizes(), (Shape{2, 2, 2}));
  EXPECT_EQ(values(out), (Values{6, 7, 2, 3, 2, 3, 0, 1}));
  out.backward(ones_like(out));
  EXPECT_EQ(values(w.grad()), (Values{1, 1, 0, 0, 0, 0, 1, 1}));
}

TEST(IndexTest, one_hot_triangles_flip_roll) {
  EXPECT_EQ(values(one_hot(ints({2, 0}))), (Values{0, 0, 1, 1, 0, 0}));
  EXPECT_EQ(one_hot(ints({1}), 5).sizes(), (Shape{1, 5}));
  EXPECT_EQ(one_hot(zeros({0}, {.dtype = DType::kI64}), 3).sizes(), (Shape{0, 3}));
  const Tensor x = iota({2, 3});
  EXPECT_EQ(values(triu(x)), (Values{0, 1, 2, 0, 4, 5}));
  EXPECT_EQ(values(triu(x, 1)), (Values{0, 1, 2, 0, 0, 5}));
  EXPECT_EQ(values(tril(x)), (Values{0, 0, 0, 3, 4, 0}));
  EXPECT_EQ(values(tril(x, -1)), (Values{0, 0, 0, 3, 0, 0}));
  EXPECT_EQ(values(tril(x, 9)), values(x));
  EXPECT_EQ(values(tril(x, -9)), (Values(6, 0.0)));
  EXPECT_EQ(values(flip(x, {1})), (Values{2, 1, 0, 5, 4, 3}));
  EXPECT_EQ(values(flip(x, {0, 1})), (Values{5, 4, 3, 2, 1, 0}));
  EXPECT_EQ(values(roll(x, {1}, {1})), (Values{2, 0, 1, 5, 3, 4}));
  EXPECT_EQ(values(roll(x, {-4, 3}, {1, 0})), (Values{4, 5, 3, 1, 2, 0}));
}

TEST(IndexTest, cat_and_stack_join) {
  const Tensor a = iota({2, 1}), b = iota({2, 2});
  EXPECT_EQ(values(cat({a, b}, 1)), (Values{0, 0, 1, 1, 2, 3}));
  EXPECT_EQ(values(stack({b, b}, -1)), (Values{0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_EQ(cat({zeros({0}), b}, 0).sizes(), (Shape{2, 2}));
  EXPECT_EQ(cat({zeros({0, 2}), iota({1, 2}, DType::kF32)}, 0).sizes(), (Shape{1, 2}));
  EXPECT_EQ(cat({ints({1}), ones({1})}, 0).dtype(), DType::kF32);
  EXPECT_EQ(cat({ones({1}, {.dtype = DType::kF16}), ones({1}, {.dtype = DType::kBF16})}).dtype(),
            DType::kF32);
  const Tensor image = randn({2, 3, 4, 4}, {.format = MemoryFormat::kChannelsLast});
  EXPECT_TRUE(cat({image, image}, 1).is_contiguous(MemoryFormat::kChannelsLast));
}

TEST(IndexTest, split_chunk_unbind_are_views) {
  const Tensor x = iota({5, 2});
  const auto parts = split(x, 2);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[2].sizes(), (Shape{1, 2}));
  EXPECT_EQ(parts[1].storage(), x.storage());
  EXPECT_EQ(split(x, std::vector<int64_t>{1, 4})[1].size(0), 4);
  EXPECT_EQ(chunk(x, 4).size(), 3u);  // ceil(5 / 4) = 2 rows each
  EXPECT_EQ(chunk(zeros({0, 2}), 3).size(), 3u);
  EXPECT_EQ(split(zeros({0, 2}), 3).size(), 1u);
  EXPECT_EQ(values(unbind(x, 1)[1]), (Values{1, 3, 5, 7, 9}));
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_THROWS_WITH(split(iota({3}), std::vector<int64_t>{1, kHuge}), ShapeError,
                     "split: sizes must add up to dimension 0");
  EXPECT_EQ(chunk(iota({3}), kHuge).size(), 3u);
  EXPECT_EQ(split(iota({3}), kHuge).size(), 1u);
  EXPECT_THROWS_WITH(repeat(iota({3}), {kHuge}), ShapeError, "more elements than 64 bits");
  EXPECT_THROWS_WITH(repeat_interleave(iota({3}), kHuge, 0), ShapeError, "more elements than 64");
}

TEST(IndexTest, pad_modes) {
  const Tensor x = tensor({1, 2, 3}, {1, 3});
  EXPECT_EQ(values(pad(x, {1, 2}, PadMode::kConstant, 9)), (Values{9, 1, 2, 3, 9, 9}));
  EXPECT_EQ(values(pad(x, {2, 2}, PadMode::kReflect)), (Values{3, 2, 1, 2, 3, 2, 1}));
  EXPECT_EQ(values(pad(x, {1, 2}, PadMode::kReplicate)), (Values{1, 1, 2, 3, 3, 3}));
  EXPECT_EQ(values(pad(x, {1, 3}, PadMode::kCircular)), (Values{3, 1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(values(pad(x, {-1, 1})), (Values{2, 3, 0}));
  EXPECT_EQ(values(pad(x, {0, 0, 1, 0})), (Values{0, 0, 0, 1, 2, 3}));
  EXPECT_EQ(values(pad(x, {-3, 1}, PadMode::kConstant, 4)), (Values{4}));
  EXPECT_EQ(values(pad(x, {-1, 1}, PadMode::kCircular)), (Values{2, 3, 2}));
  EXPECT_EQ(values(pad(x, {1, -2}, PadMode::kReflect)), (Values{2, 1}));
  EXPECT_EQ(pad(zeros({0, 2}), {1, 1}).sizes(), (Shape{0, 4}));
}

TEST(IndexTest, pads_beyond_all_memory_are_refused) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  const Tensor x = zeros({1, 1, 2});
  EXPECT_THROWS_WITH(pad(x, {kHuge, kHuge}), ShapeError,
                     "pad: more places than 64 bits can count; got pads [9223372036854775807, ");
  EXPECT_THROWS_WITH(pad(x, {kHuge, kHuge}, PadMode::kReplicate), ValueError, "pad: pads of this");
  EXPECT_THROWS_WITH(pad(x, {0, kHuge / 32}, PadMode::kReplicate), OutOfMemoryError, "out of mem");
}

TEST(IndexTest, repeat_and_repeat_interleave) {
  const Tensor x = tensor({1, 2, 3}, {3});
  EXPECT_EQ(values(repeat(x, {2})), (Values{1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(values(repeat(x, {2, 1})), (Values{1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(repeat(x, {2, 0}).sizes(), (Shape{2, 0}));
  EXPECT_EQ(values(repeat(tensor({1, 2}, {2, 1}), {1, 2})), (Values{1, 1, 2, 2}));
  EXPECT_NE(repeat(x, {1}).storage(), x.storage());
  EXPECT_EQ(values(repeat_interleave(x, 2, 0)), (Values{1, 1, 2, 2, 3, 3}));
}

}  // namespace
}  // namespace tarn
