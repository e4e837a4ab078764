// core_reduce_test.cpp - reductions, scans and selections against naive f64 references: every
// layout, dtype and special value, any number of threads.
#include <algorithm>
#include <limits>
#include <numeric>

#include "numeric_tools.h"

#include "tarn/core/parallel.h"

namespace tarn {
namespace {

using namespace testing;  // NOLINT
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// The slices of x (row-major values of `sizes`) that one output folds, output by output.
std::vector<Doubles> slices(const Doubles& x, const Shape& sizes, const Shape& dims) {
  Shape kept = sizes;
  for (int64_t d : dims) kept[static_cast<int>(d)] = 1;
  const Shape strides = contiguous_strides(kept);
  std::vector<Doubles> out(static_cast<size_t>(kept.numel()));
  for (int64_t i = 0; i < sizes.numel(); ++i) {
    int64_t rest = i, at = 0;
    for (int d = sizes.dim() - 1; d >= 0; --d) {
      const int64_t index = rest % sizes[d];
      rest /= sizes[d];
      if (kept[d] != 1) at += index * strides[d];
    }
    out[at].push_back(x[i]);
  }
  return out;
}

double reference(const std::string& op, const Doubles& v) {
  double sum = 0, product = 1, squares = 0, top = -kInf, least = kInf;
  for (double x : v) {
    sum += x;
    product *= x;
    squares += x * x;
    top = std::max(top, x);
    least = std::min(least, x);
  }
  const double n = static_cast<double>(v.size()), mean = sum / n;
  double deviation = 0;
  for (double x : v) deviation += (x - mean) * (x - mean);
  if (op == "sum") return sum;
  if (op == "mean") return mean;
  if (op == "prod") return product;
  if (op == "amax") return top;
  if (op == "amin") return least;
  if (op == "norm") return std::sqrt(squares);
  return deviation / (n - 1);
}

Tensor apply(const std::string& op, const Tensor& x, const Shape& dims) {
  if (op == "sum") return sum(x, dims);
  if (op == "mean") return mean(x, dims);
  if (op == "prod") return prod(x, dims);
  if (op == "amax") return amax(x, dims);
  if (op == "amin") return amin(x, dims);
  if (op == "norm") return norm(x, 2, dims);
  return var(x, dims);
}

TEST(ReduceTest, every_dimension_layout_and_dtype) {
  const Shape sizes{5, 7, 3, 19};
  for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    const Tensor x = random_tensor(sizes, 1, dtype);
    const Doubles flat = numbers(x);
    for (const Shape& dims : {Shape{0}, Shape{1}, Shape{2}, Shape{3}, Shape{0, 1}, Shape{1, 3},
                              Shape{0, 2, 3}, Shape{1, 2, 3}, Shape{0, 1, 2, 3}}) {
      for (const char* op : {"sum", "mean", "prod", "amax", "amin", "norm", "var"}) {
        Doubles want;
        for (const Doubles& s : slices(flat, sizes, dims)) want.push_back(reference(op, s));
        for (const NamedTensor& layout : layouts_of(x)) {
          expect_close(numbers(apply(op, layout.tensor, dims)), want, rtol_of(dtype),
                       dtype == DType::kF64 ? 1e-12 : 1e-5, std::string(op) + " " + layout.name);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(ReduceTest, long_rows_and_tall_columns) {
  for (const Shape& sizes : {Shape{3, 70001}, Shape{70001, 3}, Shape{5000, 70}, Shape{2, 3000, 65},
                             Shape{1100000}, Shape{9, 4097}}) {
    const Tensor x = random_tensor(sizes, 2, DType::kF32);
    const Doubles flat = numbers(x);
    for (int d = 0; d < sizes.dim(); ++d) {
      for (const char* op : {"sum", "amax", "norm", "var"}) {
        Doubles want;
        for (const Doubles& s : slices(flat, sizes, {d})) want.push_back(reference(op, s));
        expect_close(numbers(apply(op, x, {d})), want, 2e-6, 2e-5, op);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(ReduceTest, sums_of_a_million_are_within_four_ulp) {
  Doubles values = random_numbers(1000000, 3);
  for (double& v : values) v = static_cast<float>(v + 1.5);
  const Tensor x = raw::to(from_vector(values, {1000000}), DType::kF32);
  const double want = std::accumulate(values.begin(), values.end(), 0.0);
  EXPECT_NEAR(sum(x).item(), want, 4 * 6e-8 * want);
  EXPECT_NEAR(sum(raw::view(x, {1000, 1000}), {0}).sum().item(), want, 4 * 6e-8 * want);
}

TEST(ReduceTest, bits_do_not_depend_on_the_thread_count) {
  const int before = num_threads();
  for (const Shape& sizes : {Shape{300001}, Shape{4000, 130}, Shape{130, 4000}}) {
    const Tensor x = random_tensor(sizes, 4, DType::kF32);
    std::vector<Doubles> seen;
    for (int threads : {1, 2, 3, 5}) {
      set_num_threads(threads);
      Doubles all;
      for (const Shape& dims : {Shape{}, Shape{0}, Shape{-1}}) {
        for (const Tensor& y : {sum(x, dims), var(x, dims), norm(x, 2, dims), prod(x, dims)}) {
          const Doubles v = numbers(y);
          all.insert(all.end(), v.begin(), v.end());
        }
      }
      seen.push_back(all);
    }
    set_num_threads(before);
    for (const Doubles& v : seen) EXPECT_EQ(v, seen[0]);
  }
}

TEST(ReduceTest, integers_and_bool) {
  const Tensor i32 = raw::to(tensor({1, -2, 3, 4, 5, 6}, {2, 3}), DType::kI32);
  EXPECT_EQ(sum(i32).dtype(), DType::kI64);
  EXPECT_EQ(sum(i32).item<int64_t>(), 17);
  EXPECT_EQ(prod(i32).item<int64_t>(), -720);
  EXPECT_EQ(amax(i32).dtype(), DType::kI32);
  EXPECT_EQ(numbers(amin(i32, {0})), (Doubles{1, -2, 3}));
  EXPECT_EQ(numbers(sum(raw::transpose(i32, 0, 1), {0})), (Doubles{2, 15}));
  const Tensor bytes = raw::to(full({1000}, 200), DType::kU8);
  EXPECT_EQ(sum(bytes).item<int64_t>(), 200000);
  const Tensor mask = gt(tensor({1, -1, 1}), 0);
  EXPECT_EQ(sum(mask).item<int64_t>(), 2);
  EXPECT_TRUE(any(mask).item<bool>());
  EXPECT_FALSE(all(mask).item<bool>());
  EXPECT_EQ(any(mask).dtype(), DType::kBool);
  const int64_t large = (int64_t{1} << 62) + 1;
  EXPECT_EQ(amax(from_vector<int64_t>({large, 3}, {2})).item<int64_t>(), large);
  EXPECT_EQ(mean(i32, {}, false, DType::kF64).item(), 17.0 / 6);
  EXPECT_EQ(sum(tensor({1.5, 2.5}), {}, false, DType::kI32).item<int64_t>(), 3);
}

// REPORTS C3 c: halves are summed in f32.
TEST(ReduceTest, halves_do_not_overflow) {
  EXPECT_EQ(mean(full({3}, 40000, {.dtype = DType::kF16})).item(), 40000);
  EXPECT_EQ(mean(full({65520}, 1, {.dtype = DType::kF16})).item(), 1);
  const Tensor x =
      raw::to(tensor({32000, 32000, 32000, 32000, -32000, -32000, -32000, -32000}), DType::kF16);
  EXPECT_EQ(sum(x, {0}).item(), 0);
  EXPECT_EQ(sum(full({70000}, 1, {.dtype = DType::kF16}), {}, false, DType::kF32).item(), 70000);
}

// REPORTS C3 a.
TEST(ReduceTest, variance_does_not_cancel) {
  EXPECT_EQ(var(tensor({2281.5, 2281.25})).item(), 0.03125);
  Doubles values;
  for (int i = 0; i < 100000; ++i) values.push_back(10000 + (i % 2 ? 0.5 : -0.5));
  const Tensor x = raw::to(from_vector(values, {100000}), DType::kF32);
  EXPECT_NEAR(var(x, {}, 0).item(), 0.25, 1e-6);
  EXPECT_NEAR(var(raw::view(x, {50000, 2}), {0}, 0).sum().item(), 0, 1e-9);
  EXPECT_NEAR(mean(x).item(), 10000, 1e-3);
  const auto [v, m] = var_mean(raw::view(x, {1000, 100}), {0, 1}, 0);
  EXPECT_NEAR(v.item(), 0.25, 1e-6);
  EXPECT_NEAR(m.item(), 10000, 1e-3);
}

TEST(ReduceTest, nan_and_infinity) {
  for (const int64_t n : {3, 40, 5000}) {
    Doubles values = random_numbers(n, 5);
    values[n / 2] = kNan;
    const Tensor x = raw::to(from_vector(values, {n}), DType::kF32);
    for (const Tensor& y : {sum(x), amax(x), amin(x), norm(x), prod(x), var(x)}) {
      EXPECT_TRUE(std::isnan(y.item())) << n;
    }
    EXPECT_EQ(argmax(x).item<int64_t>(), n / 2);
    EXPECT_EQ(argmin(x).item<int64_t>(), n / 2);
    EXPECT_TRUE(any(x).item<bool>());
  }
  EXPECT_EQ(sum(tensor({kInf, 1})).item(), kInf);
  EXPECT_TRUE(std::isnan(sum(tensor({kInf, -kInf})).item()));
  EXPECT_EQ(amax(tensor({-kInf, -kInf})).item(), -kInf);
  EXPECT_EQ(logsumexp(tensor({-kInf, -kInf}), {0}).item(), -kInf);
  EXPECT_EQ(logsumexp(tensor({kInf, 1}), {0}).item(), kInf);
  EXPECT_NEAR(logsumexp(tensor({1000, 1000}), {0}).item(), 1000 + std::log(2.0), 1e-4);
  EXPECT_TRUE(all(tensor({kNan, 1})).item<bool>());
}

TEST(ReduceTest, norms) {
  const Tensor x = tensor({3, -4, 0});
  EXPECT_EQ(norm(x, 0).item(), 2);
  EXPECT_EQ(norm(x, 1).item(), 7);
  EXPECT_EQ(norm(x).item(), 5);
  EXPECT_EQ(norm(x, kInf).item(), 4);
  EXPECT_EQ(norm(x, -kInf).item(), 0);
  EXPECT_NEAR(norm(x, 3).item(), std::cbrt(27 + 64), 1e-6);
  EXPECT_FLOAT_EQ(norm(full({100}, 1e20)).item<float>(), 1e21f);  // squares overflow f32
}

TEST(ReduceTest, nothing_to_reduce) {
  const Tensor none = zeros({0, 3});
  EXPECT_EQ(numbers(sum(none, {0})), (Doubles{0, 0, 0}));
  EXPECT_EQ(numbers(prod(none, {0})), (Doubles{1, 1, 1}));
  EXPECT_TRUE(std::isnan(mean(none).item()));
  EXPECT_EQ(sum(none, {1}).sizes(), (Shape{0}));
  EXPECT_FALSE(any(none).item<bool>());
  EXPECT_TRUE(all(none).item<bool>());
  EXPECT_EQ(norm(none).item(), 0);
  EXPECT_EQ(logsumexp(none, {0}).to_vector<float>()[0], -INFINITY);
  EXPECT_TRUE(std::isnan(var(tensor({1})).item()));
  EXPECT_TRUE(std::isnan(var(none).item()));
  EXPECT_EQ(amax(none, {1}).sizes(), (Shape{0}));
  EXPECT_EQ(cumsum(none, 0).sizes(), (Shape{0, 3}));
  const Tensor one = scalar_tensor(7);
  for (const Tensor& y : {sum(one), amax(one), mean(one, {0}), sum(one, {-1}, true)}) {
    EXPECT_EQ(y.dim(), 0);
    EXPECT_EQ(y.item(), 7);
  }
  EXPECT_EQ(argmax(one).item<int64_t>(), 0);
  EXPECT_EQ(max(one, 0).first.item(), 7);
  EXPECT_EQ(cumsum(one, 0).item(), 7);
}

TEST(ReduceTest, expanded_input) {
  const Tensor x = raw::expand(tensor({1, 2}, {1, 2}), {1000, 2});
  EXPECT_EQ(numbers(sum(x, {0})), (Doubles{1000, 2000}));
  EXPECT_EQ(numbers(sum(x, {1}))[5], 3);
  EXPECT_EQ(numbers(var(x, {0})), (Doubles{0, 0}));
}

TEST(SelectTest, first_extreme_in_every_layout) {
  const Tensor x = tensor({1, 5, 5, 0, 2, 2, 9, 0, 9, -1, -1, 3}, {3, 4});
  for (const NamedTensor& layout : layouts_of(x)) {
    EXPECT_EQ(numbers(argmax(layout.tensor, 1)), (Doubles{1, 2, 0})) << layout.name;
    EXPECT_EQ(numbers(argmax(layout.tensor, 0)), (Doubles{2, 0, 1, 2})) << layout.name;
    EXPECT_EQ(numbers(argmin(layout.tensor, 0, true)), (Doubles{0, 2, 2, 0})) << layout.name;
    EXPECT_EQ(argmax(layout.tensor).item<int64_t>(), 6) << layout.name;
    const auto [values, index] = max(layout.tensor, 1, true);
    EXPECT_EQ(values.sizes(), (Shape{3, 1}));
    EXPECT_EQ(numbers(values), (Doubles{5, 9, 9}));
  }
  EXPECT_EQ(argmax(raw::to(x, DType::kU8)).item<int64_t>(), 9);  // -1 wraps to 255
}

TEST(SelectTest, sort_is_stable_and_nan_is_largest) {
  const Tensor x = tensor({3, kNan, 1, 3, -kInf});
  const auto [up, up_at] = sort(x);
  EXPECT_EQ(numbers(up_at), (Doubles{4, 2, 0, 3, 1}));
  const auto [down, down_at] = sort(x, 0, true);
  EXPECT_EQ(numbers(down_at), (Doubles{1, 0, 3, 2, 4}));
  EXPECT_TRUE(std::isnan(numbers(down)[0]));
  EXPECT_EQ(numbers(argsort(x)), numbers(up_at));
  const auto [top, top_at] = topk(tensor({1, 4, 2, 3}), 2);
  EXPECT_EQ(numbers(top), (Doubles{4, 3}));
  EXPECT_EQ(numbers(top_at), (Doubles{1, 3}));
  EXPECT_EQ(numbers(topk(tensor({1, 4, 2, 3}), 2, 0, false).first), (Doubles{1, 2}));
  const Tensor grid = tensor({3, 1, 2, 6, 5, 4}, {3, 2});
  EXPECT_EQ(numbers(sort(grid, 0).first), (Doubles{2, 1, 3, 4, 5, 6}));
  EXPECT_EQ(topk(grid, 0).first.sizes(), (Shape{3, 0}));
}

TEST(ScanTest, running_sums_and_products) {
  const Tensor x = tensor({1, 2, 3, 4, 5, 6}, {2, 3});
  for (const NamedTensor& layout : layouts_of(x)) {
    EXPECT_EQ(numbers(cumsum(layout.tensor, 1)), (Doubles{1, 3, 6, 4, 9, 15}));
    EXPECT_EQ(numbers(cumsum(layout.tensor, 0)), (Doubles{1, 2, 3, 5, 7, 9}));
    EXPECT_EQ(numbers(cumprod(layout.tensor, -1)), (Doubles{1, 2, 6, 4, 20, 120}));
  }
  const Tensor bytes = raw::to(full({3}, 200), DType::kU8);
  EXPECT_EQ(numbers(cumsum(bytes, 0)), (Doubles{200, 400, 600}));
  EXPECT_EQ(cumsum(bytes, 0).dtype(), DType::kI64);
  EXPECT_NEAR(numbers(cumsum(full({1000000}, 0.1), 0)).back(), 100000, 0.01);
}

TEST(ReduceTest, a_dtype_that_is_asked_for_is_what_comes) {
  const Tensor x = tensor({.5, 0, 2.5}), bytes = raw::to(tensor({200, 100}), DType::kU8);
  for (const DType d : {DType::kU8, DType::kI32, DType::kI64, DType::kF64, DType::kBF16}) {
    EXPECT_EQ(cumsum(x, 0, d).dtype(), d);
    EXPECT_EQ(cumprod(x, 0, d).dtype(), d);
    EXPECT_EQ(sum(x, {}, false, d).dtype(), d);
    EXPECT_EQ(prod(x, {}, false, d).dtype(), d);
  }
  EXPECT_EQ(numbers(cumsum(bytes, 0, DType::kU8)), (Doubles{200, 44}));
  EXPECT_EQ(numbers(cumsum(x, 0, DType::kI32)), (Doubles{0, 0, 2}));
  // To bool before, not after: .5 is true, and 0 as an integer.
  EXPECT_EQ(sum(tensor({.5, 0}), {}, false, DType::kBool).item(), 1);
  EXPECT_EQ(prod(tensor({.5, .5}), {}, false, DType::kBool).item(), 1);
  EXPECT_EQ(prod(x, {}, false, DType::kBool).item(), 0);
  EXPECT_EQ(numbers(cumprod(x, 0, DType::kBool)), (Doubles{1, 0, 0}));
}

TEST(ReduceTest, errors_are_in_the_callers_terms) {
  const Tensor x = zeros({2, 3}), none = zeros({2, 0});
  expect_error<IndexError>("sum", [&] { sum(x, {2}); });
  expect_error<ValueError>("sum: a dimension may be listed only once; got dims=[1, -1]", [&] {
    sum(x, {1, -1});
  });
  expect_error<IndexError>("amax: there must be something to choose from; got x=[2, 0] f32 cpu",
                           [&] { amax(none, {1}); });
  expect_error<IndexError>("argmax: there must be something to choose from", [&] { argmax(none); });
  expect_error<IndexError>("min: there must be something", [&] { min(none, 1); });
  expect_error<DTypeError>("mean: x must be floating; got x=[2] i64 cpu", [&] {
    mean(labels({1, 2}, {2}));
  });
  expect_error<DTypeError>("var: x must be floating", [&] { var(labels({1, 2}, {2})); });
  expect_error<DTypeError>("norm: x must be floating", [&] { norm(labels({1, 2}, {2})); });
  expect_error<ValueError>("norm: p must be a number", [&] { norm(x, kNan); });
  expect_error<DTypeError>("logsumexp: x must be floating", [&] {
    logsumexp(labels({1, 2}, {2}), {0});
  });
  expect_error<ValueError>("topk: k must be in [0, size of the dimension]; got k=4",
                           [&] { topk(x, 4); });
  expect_error<ValueError>("sum: x must be a tensor", [&] { sum(Tensor()); });
}

}  // namespace
}  // namespace tarn
