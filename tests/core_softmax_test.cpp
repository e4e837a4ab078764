// core_softmax_test.cpp - softmax against its definition: every layout, dtype and special value.
#include <limits>

#include "numeric_tools.h"

#include "tarn/core/parallel.h"
#include "tarn/core/raw_softmax.h"

namespace tarn {
namespace {

using namespace testing;  // NOLINT

Doubles reference(const Doubles& x, const Shape& sizes, int dim, bool log) {
  Doubles y(x.size());
  int64_t inner = 1;
  for (int d = dim + 1; d < sizes.dim(); ++d) inner *= sizes[d];
  const int64_t n = sizes[dim];
  for (int64_t slice = 0; slice < sizes.numel() / n; ++slice) {
    const int64_t base = slice / inner * n * inner + slice % inner;
    double top = -INFINITY, sum = 0;
    for (int64_t k = 0; k < n; ++k) top = std::max(top, x[base + k * inner]);
    for (int64_t k = 0; k < n; ++k) sum += std::exp(x[base + k * inner] - top);
    for (int64_t k = 0; k < n; ++k) {
      const int64_t i = base + k * inner;
      y[i] = log ? x[i] - top - std::log(sum) : std::exp(x[i] - top) / sum;
    }
  }
  return y;
}

TEST(SoftmaxTest, every_dimension_layout_and_dtype) {
  for (const Shape& sizes : {Shape{3, 5, 2, 17}, Shape{2, 40, 3, 3}, Shape{1, 2, 300, 1}}) {
    for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
      const Tensor x = raw::to(raw::mul(random_tensor(sizes, 1), Scalar(5.0)), dtype);
      for (int d = 0; d < 4; ++d) {
        for (bool log : {false, true}) {
          const Doubles want = reference(numbers(x), sizes, d, log);
          for (const NamedTensor& layout : layouts_of(x)) {
            const Tensor y = raw::softmax(layout.tensor, d, log);
            expect_close(numbers(y), want, 2 * rtol_of(dtype), 1e-5, layout.name);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(SoftmaxTest, long_rows) {
  const Tensor x = random_tensor({3, 50257}, 2, DType::kF32);
  expect_close(numbers(softmax(x, 1)), reference(numbers(x), x.sizes(), 1, false), 3e-6, 1e-12);
  expect_close(numbers(log_softmax(x, 1)), reference(numbers(x), x.sizes(), 1, true), 1e-6, 1e-6);
}

TEST(SoftmaxTest, channels_last_stays) {
  const Tensor x = raw::contiguous(random_tensor({2, 3, 4, 5}, 3), MemoryFormat::kChannelsLast);
  EXPECT_TRUE(softmax(x, 1).is_contiguous(MemoryFormat::kChannelsLast));
}

TEST(SoftmaxTest, special_values) {
  const double inf = INFINITY;
  EXPECT_EQ(numbers(softmax(tensor({-inf, 0, -inf}), 0)), (Doubles{0, 1, 0}));
  for (double v : numbers(softmax(tensor({-inf, -inf}), 0))) EXPECT_TRUE(std::isnan(v));
  for (double v : numbers(softmax(tensor({1, NAN, 2}), 0))) EXPECT_TRUE(std::isnan(v));
  EXPECT_EQ(softmax(zeros({0, 3}), 1).sizes(), (Shape{0, 3}));
  EXPECT_EQ(softmax(zeros({3, 0}), 1).sizes(), (Shape{3, 0}));
  EXPECT_EQ(softmax(scalar_tensor(5), 0).item(), 1);
  EXPECT_EQ(numbers(softmax(labels({1, 1}, {2}), 0, DType::kF64)), (Doubles{0.5, 0.5}));
}

TEST(SoftmaxTest, bits_do_not_depend_on_the_thread_count) {
  const int before = num_threads();
  const Tensor x = random_tensor({2000, 100}, 5, DType::kF32);
  const Tensor t = full({2000}, 7, {.dtype = DType::kI64});
  std::vector<Doubles> seen;
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    Doubles all = numbers(softmax(x, 1));
    all.push_back(cross_entropy(x, t).item());
    seen.push_back(all);
  }
  set_num_threads(before);
  for (const Doubles& v : seen) EXPECT_EQ(v, seen[0]);
}

TEST(CrossEntropyTest, an_infinite_weight_of_another_class_leaves_the_gradient_finite) {
  for (const int64_t n : {3, 100}) {  // many rows at a time, and one by one
    Doubles weights(n, 2.0), want(2 * n, 2.0 / n);
    weights[0] = INFINITY;
    // softmax * weight of the target, with 1 / n for softmax, and less that weight at the target.
    want[1] -= 2;
    want[n + 2] -= 2;
    const Tensor x = zeros({2, n}, {.dtype = DType::kF64}), w = from_vector(weights, {n});
    const Tensor t = labels({1, 2}, {2});
    const Tensor stats = raw::cross_entropy(x, t, w, -100, 0).stats;
    const Tensor g = ones({2}, {.dtype = DType::kF64});
    expect_close(numbers(raw::cross_entropy_backward(g, x, t, w, -100, 0, stats)), want, 1e-12,
                 1e-12, std::to_string(n) + " classes");
  }
}

TEST(SoftmaxTest, errors_are_in_the_callers_terms) {
  expect_error<DTypeError>("softmax: x must be floating; got x=[1] i64 cpu; pass a dtype",
                           [] { softmax(labels({1}, {1}), 0); });
  expect_error<IndexError>("log_softmax", [] { log_softmax(zeros({2}), 1); });
}

}  // namespace
}  // namespace tarn
