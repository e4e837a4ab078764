// core_views_test.cpp - views share memory, show the right elements, and refuse what they cannot.
#include <limits>

#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {

using Values = std::vector<int64_t>;

// 0, 1, 2, ... in these sizes.
Tensor counting(const Shape& sizes) {
  return raw::view(arange(sizes.numel()), sizes);
}
Values values(const Tensor& x) {
  return x.to_vector<int64_t>();
}

constexpr int64_t kHuge = int64_t{1} << 32, kMost = std::numeric_limits<int64_t>::max();

TEST(Views, they_share_storage_and_version) {
  const Tensor x = counting({2, 3});
  for (const Tensor& v : {raw::view(x, {6}), raw::transpose(x, 0, 1), raw::unsqueeze(x, 0),
                          raw::squeeze(x), raw::expand(x, {2, 2, 3}), raw::slice(x, 0, 0, 1),
                          raw::permute(x, {1, 0}), raw::alias(x), raw::t(x)}) {
    EXPECT_EQ(v.storage(), x.storage());
    EXPECT_TRUE(v.impl()->view);
  }
  const Tensor row = raw::select(x, 0, 1);
  const uint32_t before = x.version();
  raw::fill_(row, 7);
  EXPECT_EQ(x.version(), before + 1);
  EXPECT_EQ(values(x), (Values{0, 1, 2, 7, 7, 7}));
}

TEST(Views, view_finds_strides_wherever_there_are_some) {
  const Tensor x = counting({2, 3, 4});
  EXPECT_EQ(raw::view(x, {6, -1}).sizes(), (Shape{6, 4}));
  EXPECT_EQ(raw::view(x, {4, 3, 2}).strides(), (Shape{6, 2, 1}));
  EXPECT_EQ(raw::view(x, {1, 24, 1}).sizes(), (Shape{1, 24, 1}));
  // Every second row: the first two dimensions cannot be joined, the last can be cut.
  const Tensor rows = raw::slice(counting({4, 6}), 0, 0, 4, 2);
  EXPECT_EQ(raw::view(rows, {2, 2, 3}).strides(), (Shape{12, 3, 1}));
  EXPECT_EQ(values(raw::view(rows, {2, 2, 3})), (Values{0, 1, 2, 3, 4, 5, 12, 13, 14, 15, 16, 17}));
  EXPECT_THROWS_WITH(raw::view(rows, {12}), ShapeError,
                     "view: sizes [12] cannot be shown over a tensor of sizes [2, 6] and strides "
                     "[12, 1] without a copy; use reshape");
  // Sizes of 1 do not matter, wherever they stand.
  const Tensor t = raw::transpose(counting({2, 1, 3}), 0, 1);  // [1, 2, 3]
  EXPECT_EQ(values(raw::view(t, {6})), (Values{0, 1, 2, 3, 4, 5}));
  const Tensor across = raw::transpose(counting({2, 3}), 0, 1);
  EXPECT_EQ(raw::view(across, {3, 1, 2, 1}).sizes(), (Shape{3, 1, 2, 1}));
  EXPECT_EQ(values(raw::view(across, {3, 1, 2, 1})), (Values{0, 3, 1, 4, 2, 5}));
  // Expanded: stride 0 stays apart.
  const Tensor spread = raw::expand(counting({1, 4}), {3, 4});
  EXPECT_EQ(values(raw::view(spread, {3, 2, 2})), (Values{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(raw::view(zeros({2, 0, 3}), {0, 7}).sizes(), (Shape{0, 7}));
  EXPECT_EQ(raw::view(zeros({}), {1, 1}).sizes(), (Shape{1, 1}));
}

TEST(Views, view_names_sizes_that_do_not_fit) {
  const Tensor x = counting({2, 3});
  EXPECT_THROWS_WITH(raw::view(x, {4}), ShapeError,
                     "view: sizes must hold exactly 6 elements; got [4]");
  EXPECT_THROWS_WITH(raw::view(x, {-1, 4}), ShapeError, "view: sizes must hold exactly 6 elements");
  EXPECT_THROWS_WITH(raw::view(x, {-1, -1}), ShapeError, "view: only one size may be -1");
  EXPECT_THROWS_WITH(raw::view(x, {-6}), ShapeError, "view: sizes must not be negative; got [-6]");
  EXPECT_THROWS_WITH(raw::view(zeros({0}), {-1, 0}), ShapeError,
                     "view: sizes must hold exactly 0 elements; got [-1, 0]");
  // 2^64 elements, which 64 bits would take for none.
  EXPECT_THROWS_WITH(raw::view(zeros({0}), {kHuge, kHuge}), ShapeError,
                     "view: sizes must hold exactly 0 elements");
  EXPECT_EQ(raw::view(zeros({0}), {kHuge, kHuge, 0}).numel(), 0);
}

TEST(Views, reshape_copies_only_where_it_must) {
  const Tensor x = counting({2, 3});
  EXPECT_EQ(raw::reshape(x, {3, 2}).storage(), x.storage());
  const Tensor across = raw::transpose(x, 0, 1);
  const Tensor flat = raw::reshape(across, {6});
  EXPECT_FALSE(flat.storage() == x.storage());
  EXPECT_EQ(values(flat), (Values{0, 3, 1, 4, 2, 5}));
  EXPECT_THROWS_WITH(raw::reshape(x, {5}), ShapeError,
                     "reshape: sizes must hold exactly 6 elements; got [5]");
}

TEST(Views, transpose_and_permute) {
  const Tensor x = counting({2, 3, 4});
  EXPECT_EQ(raw::transpose(x, 0, -1).sizes(), (Shape{4, 3, 2}));
  EXPECT_EQ(raw::transpose(zeros({}), 0, -1).dim(), 0);
  EXPECT_EQ(raw::permute(x, {2, 0, 1}).strides(), (Shape{1, 12, 4}));
  EXPECT_EQ(raw::permute(zeros({}), {}).dim(), 0);
  EXPECT_EQ(values(raw::t(counting({2, 3}))), (Values{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(raw::t(counting({3})).sizes(), (Shape{3}));
  EXPECT_THROWS_WITH(raw::t(x), ShapeError, "t: at most 2 dimensions; got [2, 3, 4] i64 cpu");
  EXPECT_THROWS_WITH(raw::permute(x, {0, 1}), ShapeError,
                     "permute: one entry per dimension; got [0, 1] for [2, 3, 4] i64 cpu");
  EXPECT_THROWS_WITH(raw::permute(x, {0, 1, 1}), ShapeError,
                     "permute: dimension 1 is named twice; got [0, 1, 1]");
  EXPECT_THROWS_WITH(raw::permute(x, {0, 1, 3}), IndexError, "permute: dimension out of range");
}

TEST(Views, unsqueeze_and_squeeze) {
  const Tensor x = counting({2, 3});
  EXPECT_EQ(raw::unsqueeze(x, 0).sizes(), (Shape{1, 2, 3}));
  EXPECT_EQ(raw::unsqueeze(x, -1).sizes(), (Shape{2, 3, 1}));
  EXPECT_TRUE(raw::unsqueeze(x, 1).is_contiguous());
  EXPECT_EQ(raw::squeeze(counting({1, 2, 1})).sizes(), (Shape{2}));
  EXPECT_EQ(raw::squeeze(counting({1, 2, 1}), -1).sizes(), (Shape{1, 2}));
  EXPECT_EQ(raw::squeeze(counting({1, 2}), 1).sizes(), (Shape{1, 2}));
  EXPECT_EQ(raw::squeeze(zeros({}), 0).dim(), 0);
  EXPECT_THROWS_WITH(raw::unsqueeze(x, 3), IndexError, "unsqueeze: dimension out of range; got 3");
  EXPECT_THROWS_WITH(raw::unsqueeze(zeros(Shape::filled(8, 1)), 0), ShapeError, "at most 8");
}

TEST(Views, expand_stretches_sizes_of_one) {
  const Tensor x = counting({3, 1});
  const Tensor wide = raw::expand(x, {2, -1, 4});
  EXPECT_EQ(wide.sizes(), (Shape{2, 3, 4}));
  EXPECT_EQ(wide.strides(), (Shape{0, 1, 0}));
  EXPECT_EQ(raw::expand(x, {3, 0}).numel(), 0);
  EXPECT_THROWS_WITH(raw::expand(x, {4, 1}), ShapeError,
                     "expand: only sizes of 1 can be stretched; got [4, 1] for [3, 1] i64 cpu "
                     "(dimension 0: 3 to 4)");
  EXPECT_THROWS_WITH(raw::expand(x, {3}), ShapeError, "expand: at least as many sizes");
  EXPECT_THROWS_WITH(raw::expand(counting({1, 1}), {kHuge, kHuge}), ShapeError,
                     "expand: more elements than 64 bits can count");
  EXPECT_THROWS_WITH(raw::expand(x, {-1, 3, 1}), ShapeError,
                     "expand: a new leading size must be given; got [-1, 3, 1]");
}

TEST(Views, select_and_slice_follow_python) {
  const Tensor x = counting({4, 3});
  EXPECT_EQ(values(raw::select(x, 0, -1)), (Values{9, 10, 11}));
  EXPECT_EQ(values(raw::select(x, 1, 1)), (Values{1, 4, 7, 10}));
  EXPECT_EQ(values(raw::slice(x, 0, -3, -1)), (Values{3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(values(raw::slice(counting({7}), 0, 1, 100, 3)), (Values{1, 4}));
  EXPECT_EQ(raw::slice(x, 0, 3, 1).sizes(), (Shape{0, 3}));
  EXPECT_EQ(values(raw::slice(x, 0, 1, 4, kMost)), (Values{3, 4, 5}));
  EXPECT_EQ(raw::slice(x, 0, -100, 2).size(0), 2);
  EXPECT_THROWS_WITH(raw::select(x, 0, 4), IndexError,
                     "select: index 4 is out of range for dimension 0 of size 4");
  EXPECT_THROWS_WITH(raw::select(x, 0, -5), IndexError, "select: index -5 is out of range");
  EXPECT_THROWS_WITH(raw::select(zeros({}), 0, 0), ShapeError,
                     "select: a 0-d tensor has nothing to select from");
  EXPECT_THROWS_WITH(raw::slice(zeros({}), 0, 0, 1), ShapeError,
                     "slice: a 0-d tensor has nothing to slice");
  EXPECT_THROWS_WITH(raw::slice(x, 0, 0, 1, -1), ValueError,
                     "slice: step must be positive; got -1");
}

TEST(Views, narrow_is_strict) {
  const Tensor x = counting({4, 3});
  EXPECT_EQ(values(raw::narrow(x, 0, 2, 1)), (Values{6, 7, 8}));
  EXPECT_EQ(values(raw::narrow(x, 0, -1, 1)), (Values{9, 10, 11}));
  EXPECT_EQ(raw::narrow(x, 0, 4, 0).numel(), 0);
  EXPECT_THROWS_WITH(raw::narrow(x, 0, 3, 2), IndexError,
                     "narrow: the range must lie in dimension 0 of size 4; got start=3, length=2");
  EXPECT_THROWS_WITH(raw::narrow(x, 0, 5, 0), IndexError, "got start=5, length=0");
  EXPECT_THROWS_WITH(raw::narrow(x, 0, 0, -1), IndexError, "got start=0, length=-1");
  EXPECT_THROWS_WITH(raw::narrow(zeros({}), 0, 0, 1), ShapeError,
                     "narrow: a 0-d tensor has nothing to narrow");
}

TEST(Views, unfold_shows_windows) {
  const Tensor w = raw::unfold(counting({7}), 0, 3, 2);
  EXPECT_EQ(w.sizes(), (Shape{3, 3}));
  EXPECT_EQ(values(w), (Values{0, 1, 2, 2, 3, 4, 4, 5, 6}));
  EXPECT_EQ(values(raw::unfold(counting({7}), 0, 3, kMost)), (Values{0, 1, 2}));
  EXPECT_THROWS_WITH(raw::unfold(counting({2}), 0, 3, 1), ShapeError,
                     "unfold: the window must fit into dimension 0; got size=3 for [2] i64 cpu");
  EXPECT_THROWS_WITH(raw::unfold(counting({2}), 0, 1, 0), ValueError,
                     "unfold: step must be positive; got 0");
}

TEST(Views, diagonals_of_any_two_dimensions) {
  const Tensor x = counting({3, 4});
  EXPECT_EQ(values(raw::diagonal(x, 0, 0, 1)), (Values{0, 5, 10}));
  EXPECT_EQ(values(raw::diagonal(x, 1, 0, 1)), (Values{1, 6, 11}));
  EXPECT_EQ(values(raw::diagonal(x, -2, 0, 1)), (Values{8}));
  EXPECT_EQ(raw::diagonal(x, 9, 0, 1).numel(), 0);
  EXPECT_EQ(raw::diagonal(x, -9, 0, 1).numel(), 0);
  EXPECT_EQ(raw::diagonal(x, kMost, 0, 1).numel(), 0);
  EXPECT_EQ(raw::diagonal(x, -kMost - 1, 0, 1).numel(), 0);
  EXPECT_EQ(values(raw::diagonal(counting({2, 2, 2}), 0, 0, 2)), (Values{0, 5, 2, 7}));
  EXPECT_THROWS_WITH(raw::diagonal(x, 0, 1, -1), ShapeError,
                     "diagonal: needs two different dimensions; got 1 and -1 for [3, 4] i64 cpu");
}

TEST(Views, as_strided_stays_inside_the_storage) {
  const Tensor x = counting({6});
  EXPECT_EQ(values(raw::as_strided(x, {2, 2}, {2, 1}, 1)), (Values{1, 2, 3, 4}));
  EXPECT_EQ(raw::as_strided(x, {0}, {1}, 100).numel(), 0);
  EXPECT_THROWS_WITH(raw::as_strided(x, {2, 2}, {4, 1}, 1), ShapeError,
                     "as_strided: must stay inside the storage of 6 elements; got sizes=[2, 2], "
                     "strides=[4, 1], offset=1");
  EXPECT_THROWS_WITH(raw::as_strided(x, {2}, {1}, -1), ShapeError, "offset=-1");
  EXPECT_THROWS_WITH(raw::as_strided(x, {2}, {1, 1}, 0), ShapeError,
                     "as_strided: as many strides as sizes");
  EXPECT_THROWS_WITH(raw::as_strided(x, {2}, {-1}, 3), ShapeError,
                     "as_strided: strides must not be negative; got [-1]");
}

TEST(Views, layout_flags_follow) {
  const Tensor x = zeros({2, 3, 4, 5}, {.format = MemoryFormat::kChannelsLast});
  EXPECT_TRUE(x.is_contiguous(MemoryFormat::kChannelsLast));
  EXPECT_FALSE(x.is_contiguous());
  EXPECT_TRUE(raw::permute(x, {0, 2, 3, 1}).is_contiguous());
  const Tensor plain = zeros({2, 1, 4, 5});  // one channel: both at once
  EXPECT_TRUE(plain.is_contiguous());
  EXPECT_TRUE(plain.is_contiguous(MemoryFormat::kChannelsLast));
  EXPECT_FALSE(raw::slice(x, 1, 0, 2).is_contiguous(MemoryFormat::kChannelsLast));
  EXPECT_TRUE(raw::slice(zeros({4, 3}), 0, 1, 3).is_contiguous());
}

}  // namespace
}  // namespace tarn
