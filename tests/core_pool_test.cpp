// core_pool_test.cpp - pooling against naive f64 references: sizes, layouts, dtypes, special
// values.
#include <limits>

#include "numeric_tools.h"

#include "tarn/core/parallel.h"

namespace tarn {
namespace {

using namespace testing;  // NOLINT

struct Case {
  Size2 kernel, stride, pad, dilation;
  bool ceil_mode;
};

int64_t out_size(int64_t in, int64_t k, int64_t s, int64_t p, int64_t d, bool ceil_mode) {
  const double steps = static_cast<double>(in + 2 * p - d * (k - 1) - 1) / static_cast<double>(s);
  int64_t out = static_cast<int64_t>(ceil_mode ? std::ceil(steps) : std::floor(steps)) + 1;
  if (ceil_mode && (out - 1) * s >= in + p) --out;
  return out;
}

/// Calls f(plane of x, output index, h taps, w taps) for each output in row-major order.
struct Window {
  const double* plane;
  int64_t width;
  std::vector<int64_t> h, w;  // positions inside the image
};

template <class F>
Doubles pooled(const Doubles& x, const Shape& sizes, const Case& c, F&& f) {
  const int64_t oh = out_size(sizes[2], c.kernel.h, c.stride.h, c.pad.h, c.dilation.h, c.ceil_mode);
  const int64_t ow = out_size(sizes[3], c.kernel.w, c.stride.w, c.pad.w, c.dilation.w, c.ceil_mode);
  Doubles y;
  for (int64_t plane = 0; plane < sizes[0] * sizes[1]; ++plane) {
    for (int64_t i = 0; i < oh * ow; ++i) {
      Window win{&x[plane * sizes[2] * sizes[3]], sizes[3], {}, {}};
      for (int64_t k = 0; k < c.kernel.h; ++k) {
        const int64_t h = i / ow * c.stride.h - c.pad.h + k * c.dilation.h;
        if (h >= 0 && h < sizes[2]) win.h.push_back(h);
      }
      for (int64_t k = 0; k < c.kernel.w; ++k) {
        const int64_t w = i % ow * c.stride.w - c.pad.w + k * c.dilation.w;
        if (w >= 0 && w < sizes[3]) win.w.push_back(w);
      }
      y.push_back(f(win));
    }
  }
  return y;
}

double window_max(const Window& w) {
  double best = -INFINITY;
  for (int64_t h : w.h) {
    for (int64_t c : w.w) {
      const double v = w.plane[h * w.width + c];
      if (v > best || std::isnan(v)) best = v;
    }
  }
  return best;
}

double window_mean(const Window& w) {
  double sum = 0;
  for (int64_t h : w.h) {
    for (int64_t c : w.w) sum += w.plane[h * w.width + c];
  }
  return sum / static_cast<double>(w.h.size() * w.w.size());
}

const Case kCases[] = {
    {2, 2, 0, 1, false},      {3, 2, 1, 1, false},
    {3, 1, 1, 1, false},      {{3, 2}, {1, 2}, {1, 0}, 1, false},
    {2, 3, 0, 1, true},       {3, 2, 1, 1, true},
    {2, 1, 0, {2, 3}, false}, {{1, 4}, {1, 3}, 0, 1, true},
    {5, 4, 2, 1, true},
};

TEST(PoolTest, maxima_match_the_definition) {
  for (const Shape& sizes : {Shape{2, 3, 7, 9}, Shape{1, 20, 8, 8}, Shape{2, 1, 6, 5}}) {
    for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
      const Tensor x = random_tensor(sizes, 1, dtype);
      for (const Case& c : kCases) {
        const Doubles want = pooled(numbers(x), sizes, c, window_max);
        for (const NamedTensor& layout : layouts_of(x)) {
          const auto [y, index] = max_pool2d_with_indices(layout.tensor, c.kernel, c.stride, c.pad,
                                                          c.dilation, c.ceil_mode);
          ASSERT_EQ(numbers(y), want) << layout.name;
          const Tensor fast =
              max_pool2d(layout.tensor, c.kernel, c.stride, c.pad, c.dilation, c.ceil_mode);
          ASSERT_EQ(numbers(fast), want);
          // Each index leads to its value.
          const Tensor flat = raw::reshape(x, {sizes[0], sizes[1], sizes[2] * sizes[3]});
          const Tensor at = raw::reshape(index, {sizes[0], sizes[1], y.size(2) * y.size(3)});
          ASSERT_EQ(numbers(gather(flat, 2, at)), want);
        }
      }
    }
  }
}

TEST(PoolTest, means_match_the_definition) {
  const Shape sizes{2, 5, 7, 9};
  for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    const Tensor x = random_tensor(sizes, 2, dtype);
    for (const Case& c : kCases) {
      if (!(c.dilation == Size2(1))) continue;
      const Doubles want = pooled(numbers(x), sizes, c, window_mean);
      for (const NamedTensor& layout : layouts_of(x)) {
        const Tensor y = avg_pool2d(layout.tensor, c.kernel, c.stride, c.pad, c.ceil_mode, false);
        expect_close(numbers(y), want, rtol_of(dtype), 1e-6, layout.name);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Values from PyTorch.
TEST(PoolTest, padding_counts_unless_told_otherwise) {
  const Tensor x = ones({1, 1, 2, 2});
  EXPECT_EQ(numbers(avg_pool2d(x, 2, 2, 1)), Doubles(4, .25));
  EXPECT_EQ(numbers(avg_pool2d(x, 2, 2, 1, false, false)), Doubles(4, 1.0));
  EXPECT_EQ(avg_pool2d(x, 2, 2, 0, false, true, 3).item<float>(), 4.0f / 3);
  const Tensor line = tensor({0, 1, 2, 3, 4}, {1, 1, 5});
  EXPECT_EQ(numbers(adaptive_avg_pool1d(line, 3)), (Doubles{.5, 2, 3.5}));
  EXPECT_EQ(numbers(adaptive_max_pool1d(line, 3)), (Doubles{1, 3, 4}));
  EXPECT_EQ(numbers(max_pool1d(line, 2)), (Doubles{1, 3}));
  EXPECT_EQ(numbers(avg_pool1d(line, 2, 1)), (Doubles{.5, 1.5, 2.5, 3.5}));
}

TEST(PoolTest, global_average_in_both_layouts) {
  const Tensor x = random_tensor({3, 40, 7, 7}, 4, DType::kF32);
  const Doubles want = numbers(mean(x, {2, 3}));
  for (const NamedTensor& layout : layouts_of(x)) {
    expect_close(numbers(adaptive_avg_pool2d(layout.tensor, 1)), want, 2e-6, 1e-7, layout.name);
  }
}

TEST(PoolTest, layout_and_rank_are_kept) {
  const Tensor last = raw::contiguous(zeros({2, 3, 6, 6}), MemoryFormat::kChannelsLast);
  EXPECT_TRUE(max_pool2d(last, 2).is_contiguous(MemoryFormat::kChannelsLast));
  EXPECT_TRUE(avg_pool2d(last, 2).is_contiguous(MemoryFormat::kChannelsLast));
  EXPECT_EQ(max_pool2d(zeros({3, 6, 6}), 2).sizes(), (Shape{3, 3, 3}));
  EXPECT_EQ(max_pool2d_with_indices(zeros({3, 6, 6}), 2).second.sizes(), (Shape{3, 3, 3}));
  EXPECT_EQ(max_pool2d(zeros({0, 3, 6, 6}), 2).sizes(), (Shape{0, 3, 3, 3}));
  EXPECT_EQ(adaptive_avg_pool2d(zeros({2, 3, 6, 6}), {0, 2}).sizes(), (Shape{2, 3, 0, 2}));
}

TEST(PoolTest, nan_wins_and_all_minus_infinity_has_an_index) {
  for (const MemoryFormat format : {MemoryFormat::kContiguous, MemoryFormat::kChannelsLast}) {
    Tensor x = full({1, 2, 4, 4}, -INFINITY);
    raw::fill_(raw::select(raw::select(raw::select(x, 1, 1), 1, 1), 1, 0), NAN);
    x = raw::contiguous(x, format);
    const auto [y, index] = max_pool2d_with_indices(x, 2);
    EXPECT_EQ(numbers(y)[0], -INFINITY);
    EXPECT_EQ(numbers(index)[0], 0);
    EXPECT_EQ(numbers(index)[3], 10);
    EXPECT_TRUE(std::isnan(numbers(y)[4]));
    EXPECT_EQ(numbers(index)[4], 4);
  }
}

TEST(PoolTest, ties_give_their_gradient_to_the_first) {
  for (const MemoryFormat format : {MemoryFormat::kContiguous, MemoryFormat::kChannelsLast}) {
    Tensor x = raw::contiguous(ones({1, 2, 2, 2}), format);
    x.set_requires_grad();
    max_pool2d(x, 2).sum().backward();
    EXPECT_EQ(numbers(x.grad()), (Doubles{1, 0, 0, 0, 1, 0, 0, 0}));
  }
}

TEST(PoolTest, bits_do_not_depend_on_the_thread_count) {
  const int before = num_threads();
  for (const MemoryFormat format : {MemoryFormat::kContiguous, MemoryFormat::kChannelsLast}) {
    std::vector<Doubles> seen;
    for (int threads : {1, 2, 3}) {
      set_num_threads(threads);
      Tensor x = raw::contiguous(random_tensor({2, 32, 33, 31}, 1, DType::kF32), format);
      x.set_requires_grad();
      add(square(max_pool2d(x, 3, 2, 1)).sum(), square(avg_pool2d(x, 3, 1, 1)).sum()).backward();
      seen.push_back(numbers(x.grad()));
    }
    set_num_threads(before);
    for (const Doubles& v : seen) EXPECT_EQ(v, seen[0]);
  }
}

TEST(PoolTest, ceil_mode_takes_images_smaller_than_the_window) {
  const Tensor x = tensor({1, 2, 3, 4}, {1, 1, 2, 2});
  for (const Tensor& layout : {x, x.contiguous(MemoryFormat::kChannelsLast)}) {
    EXPECT_EQ(numbers(max_pool2d(layout, 3, 2, 0, 1, true)), (Doubles{4}));
    EXPECT_EQ(numbers(avg_pool2d(layout, 3, 2, 0, true)), (Doubles{2.5}));
    EXPECT_EQ(numbers(max_pool2d(layout, {3, 1}, {2, 1}, 0, 1, true)), (Doubles{3, 4}));
  }
  const Tensor one = full({1, 2, 1}, 5).set_requires_grad();
  avg_pool1d(one, 3, 0, 0, true).sum().backward();
  EXPECT_EQ(numbers(one.grad()), (Doubles{1, 1}));
  // A stride of 1 leaves no window that begins inside.
  expect_error<ShapeError>("max_pool2d: the window must fit",
                           [&] { max_pool2d(x, 4, 1, 0, 1, true); });
}

TEST(PoolTest, errors_are_in_the_callers_terms) {
  const Tensor x = zeros({1, 1, 4, 4});
  expect_error<ValueError>(
      "max_pool2d: padding must be between 0 and half the kernel; got padding=2",
      [&] { max_pool2d(x, 3, 1, 2); });
  expect_error<ValueError>("max_pool2d: kernel, stride and dilation must be positive; got kernel=0",
                           [&] { max_pool2d(x, 0, 1); });
  const int64_t huge = std::numeric_limits<int64_t>::max();
  expect_error<ValueError>("max_pool2d: kernel must be below 2^31; got 9223372036854775807",
                           [&] { max_pool2d(x, huge, 1, huge / 2); });
  expect_error<ShapeError>(
      "avg_pool2d: the window must fit into the padded image; got x=[1, 1, 4, 4]",
      [&] { avg_pool2d(x, 5); });
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  expect_error<ShapeError>("max_pool2d: the window must fit",
                           [&] { max_pool2d(x, kHuge, 1, 1, kHuge); });
  expect_error<ShapeError>("avg_pool2d: the window must fit",
                           [&] { avg_pool2d(x, kHuge, kHuge, kHuge / 4); });
  expect_error<ShapeError>("max_pool2d: every window must cover an element; got x=[1, 1, 3, 3]",
                           [] {
                             max_pool2d(zeros({1, 1, 3, 3}), 2, 1, 1, 4);
                           });
  expect_error<ShapeError>("max_pool2d: x must be [N, C, H, W] or [C, H, W]", [&] {
    max_pool2d(zeros({4, 4}), 2);
  });
  expect_error<DTypeError>("avg_pool2d: x must be floating",
                           [&] { avg_pool2d(raw::to(x, DType::kI64), 2); });
  expect_error<ValueError>("avg_pool2d: divisor_override must be positive, or 0 for none; got -1",
                           [&] { avg_pool2d(x, 2, 2, 0, false, true, -1); });
  expect_error<ValueError>("adaptive_avg_pool2d: the output size must not be negative",
                           [&] { adaptive_avg_pool2d(x, -1); });
  expect_error<ShapeError>("adaptive_max_pool2d: the image must not be empty", [&] {
    adaptive_max_pool2d(zeros({1, 1, 0, 4}), 2);
  });
  expect_error<ShapeError>("max_pool1d: x must be [N, C, L] or [C, L]",
                           [&] { max_pool1d(zeros({4}), 2); });
}

}  // namespace
}  // namespace tarn
