// core_elementwise_kernels_test.cpp - the CPU's elementwise slots over layouts, dtypes and sizes.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tarn/core/cast.h"
#include "tarn/core/cpu/table.h"
#include "tarn/core/parallel.h"

namespace tarn {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr Scalars kParameters{{0.625, 1.25, 0.75, 0.0}};  // exact in float
constexpr DType kAllTypes[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16,
                               DType::kI64, DType::kI32, DType::kU8,  DType::kBool};

const ElementwiseKernels& slots() {
  static const KernelTable table = [] {
    KernelTable t;
    cpu::add_elementwise_kernels(t);
    return t;
  }();
  return table.elementwise;
}

/// Strided memory: as many elements as sizes and strides reach, one guard element in front.
struct Operand {
  DType dtype;
  std::vector<int64_t> strides;
  std::vector<char> bytes;

  Operand(DType d, const std::vector<int64_t>& sizes, std::vector<int64_t> s)
      : dtype(d), strides(std::move(s)) {
    int64_t reach = 2;
    for (size_t i = 0; i < sizes.size(); ++i)
      reach += std::max<int64_t>(0, sizes[i] - 1) * strides[i];
    bytes.resize(reach * item_size(d));
  }
  int64_t count() const { return static_cast<int64_t>(bytes.size()) / item_size(dtype); }
  char* data() { return bytes.data() + item_size(dtype); }
  void set(int64_t i, double v) {
    visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
      const T typed = cast_value<T>(v);
      std::memcpy(bytes.data() + i * sizeof(T), &typed, sizeof(T));
    });
  }
  double get(int64_t i) const {
    return visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
      T typed;
      std::memcpy(&typed, bytes.data() + i * sizeof(T), sizeof(T));
      return cast_value<double>(typed);
    });
  }
  void randomize(int seed) {
    std::mt19937 random(seed);
    std::uniform_int_distribution<int> value(-12, 12);
    for (int64_t i = 0; i < count(); ++i) {
      set(i, dtype == DType::kU8 ? value(random) + 12 : value(random) * 0.5);
    }
  }
  /// The element at a position of the walk, counted with dimension 0 fastest.
  int64_t at(int64_t position, const std::vector<int64_t>& sizes) const {
    int64_t i = 1;
    for (size_t d = 0; d < sizes.size(); ++d) {
      i += position % sizes[d] * strides[d];
      position /= sizes[d];
    }
    return i;
  }
};

ElementwisePlan plan_of(const std::vector<int64_t>& sizes, std::vector<Operand*> operands) {
  ElementwisePlan p;
  p.ndim = static_cast<int>(sizes.size());
  p.numel = 1;
  p.dense = p.ndim == 1;
  for (int d = 0; d < p.ndim; ++d) {
    p.sizes[d] = sizes[d];
    p.numel *= sizes[d];
  }
  for (Operand* o : operands) {
    for (int d = 0; d < p.ndim; ++d) p.strides[p.operands][d] = o->strides[d];
    p.dense &= o->strides[0] == 1;
    p.data[p.operands] = o->data();
    p.dtype[p.operands++] = o->dtype;
  }
  return p;
}

struct Layout {
  const char* name;
  std::vector<int64_t> sizes;
  std::vector<std::vector<int64_t>> strides;  // of out, a, b
};

std::vector<Layout> layouts() {
  std::vector<Layout> all = {
      {"first is one element", {1000}, {{1}, {0}, {1}}},
      {"second is one element", {1000}, {{1}, {1}, {0}}},
      {"both are one element", {77}, {{1}, {0}, {0}}},
      {"every other element", {333}, {{1}, {2}, {1}}},
      {"output with gaps", {333}, {{3}, {1}, {2}}},
      {"row broadcast", {37, 21}, {{1, 37}, {1, 37}, {1, 0}}},
      {"column broadcast", {37, 21}, {{1, 37}, {0, 1}, {1, 37}}},
      {"outer sum", {300, 50}, {{1, 300}, {1, 0}, {0, 1}}},
      {"transposed input", {150, 30}, {{1, 150}, {1, 150}, {30, 1}}},
      {"large transposed input", {300, 130}, {{1, 300}, {1, 300}, {130, 1}}},
      {"short rows", {3, 11, 5}, {{1, 3, 33}, {1, 4, 50}, {0, 1, 11}}},
      {"large in three dimensions", {65, 31, 40}, {{1, 65, 2015}, {1, 0, 65}, {31, 1, 2015}}},
      {"long rows", {20000, 4}, {{1, 20000}, {1, 20000}, {1, 0}}},
  };
  for (int64_t n : {0, 1, 2, 15, 16, 17, 511, 513, 40001}) {
    all.push_back({"dense", {n}, {{1}, {1}, {1}}});
  }
  return all;
}

/// Runs a binary slot and compares every element with `want`, exactly.
void check_binary(BinaryOp op, DType dtype, const Layout& layout,
                  const std::function<double(double, double)>& want) {
  const bool predicate = binary_info(op).predicate;
  Operand out(predicate ? DType::kBool : dtype, layout.sizes, layout.strides[0]);
  Operand a(dtype, layout.sizes, layout.strides[1]), b(dtype, layout.sizes, layout.strides[2]);
  a.randomize(1);
  b.randomize(2);
  const ElementwisePlan plan = plan_of(layout.sizes, {&out, &a, &b});
  slots().binary(op, plan, {});
  Operand rounded(out.dtype, {1}, {1});
  for (int64_t i = 0; i < plan.numel; ++i) {
    const double x = a.get(a.at(i, layout.sizes)), y = b.get(b.at(i, layout.sizes));
    rounded.set(0, want(x, y));
    ASSERT_EQ(out.get(out.at(i, layout.sizes)), rounded.get(0))
        << binary_info(op).name << " " << dtype << ", " << layout.name << " [" << plan.numel
        << "], element " << i << " of " << x << " and " << y;
  }
  EXPECT_EQ(out.get(0), 0.0) << "wrote before the output, " << layout.name;
}

TEST(ElementwiseKernels, binary_operators_walk_every_layout_in_every_dtype) {
  for (const Layout& layout : layouts()) {
    for (DType d : kAllTypes) {
      if (d != DType::kBool) {
        check_binary(BinaryOp::kSub, d, layout, [](double x, double y) { return x - y; });
      }
      check_binary(BinaryOp::kMul, d, layout, [](double x, double y) { return x * y; });
      check_binary(BinaryOp::kLt, d, layout, [](double x, double y) { return x < y; });
      check_binary(BinaryOp::kMaximum, d, layout,
                   [](double x, double y) { return std::max(x, y); });
    }
  }
}

TEST(ElementwiseKernels, an_output_may_be_its_own_input) {
  for (int64_t n : {5, 1000, 50000}) {
    Operand a(DType::kF32, {n}, {1}), b(DType::kF32, {n}, {1});
    a.randomize(1);
    b.randomize(2);
    const Operand before = a;
    slots().binary(BinaryOp::kAdd, plan_of({n}, {&a, &a, &b}), {});
    for (int64_t i = 1; i <= n; ++i) ASSERT_EQ(a.get(i), before.get(i) + b.get(i));
  }
}

TEST(ElementwiseKernels, halves_are_computed_in_float_and_rounded_once) {
  Operand out(DType::kBF16, {1}, {1}), a(DType::kBF16, {1}, {1}), b(DType::kBF16, {1}, {1});
  a.set(1, 256.0);
  b.set(1, 1.0);
  slots().binary(BinaryOp::kAdd, plan_of({1}, {&out, &a, &b}), {});
  EXPECT_EQ(out.get(1), 256.0);  // 257 lies between 256 and 258: ties to even
  b.set(1, 3.0);
  slots().binary(BinaryOp::kAdd, plan_of({1}, {&out, &a, &b}), {});
  EXPECT_EQ(out.get(1), 260.0);  // 259 lies between 258 and 260, whose mantissa is even
}

/// A net over small and large values with all the special ones, long enough for vector code.
std::vector<double> interesting_values() {
  std::vector<double> v = {0.0, -0.0, kInf, -kInf, std::nan(""), 1e-40, -1e-40, 3e38, -3e38,
                           1.0, -1.0, 0.5,  6.0,   -3.0,         3.0,   88.5,   -88.5};
  for (int i = -1000; i <= 1000; ++i) v.push_back(i * 0.0131);
  for (int i = -60; i <= 60; ++i) v.push_back(std::ldexp(1.37, i) * (i % 2 != 0 ? 1 : -1));
  return v;
}

template <class Op>
void check_unary(UnaryOp op, DType dtype, double tolerance) {
  const std::vector<double> values = interesting_values();
  const int64_t n = static_cast<int64_t>(values.size());
  Operand out(Op::predicate ? DType::kBool : dtype, {n}, {1}), x(dtype, {n}, {1});
  for (int64_t i = 0; i < n; ++i) x.set(i + 1, values[i]);
  slots().unary(op, kParameters, plan_of({n}, {&out, &x}), {});
  for (int64_t i = 1; i <= n; ++i) {
    const double got = out.get(i), exact = Op::template fwd<double>(x.get(i), kParameters);
    const double want = dtype == DType::kF64 ? exact : static_cast<float>(exact);
    if (std::isnan(want) || std::isinf(want)) {
      ASSERT_EQ(std::isnan(got), std::isnan(want)) << unary_info(op).name << "(" << x.get(i) << ")";
      if (std::isinf(want)) {
        ASSERT_EQ(got, want) << unary_info(op).name << "(" << x.get(i) << ")";
      }
      continue;
    }
    ASSERT_NEAR(got, want, tolerance * (std::abs(want) + std::min(1.0, std::abs(x.get(i)))))
        << unary_info(op).name << "(" << x.get(i) << ") " << dtype;
  }
}

TEST(ElementwiseKernels, unary_operators_agree_with_double_on_values_and_special_values) {
#define TARN_CHECK_OP(Name, name)                                 \
  if constexpr (in_domain<float>(ops::Name::domain)) {            \
    check_unary<ops::Name>(UnaryOp::k##Name, DType::kF32, 4e-7);  \
    check_unary<ops::Name>(UnaryOp::k##Name, DType::kF64, 1e-14); \
  }
  TARN_UNARY_OPS(TARN_CHECK_OP)
#undef TARN_CHECK_OP
}

TEST(ElementwiseKernels, integer_unary_operators) {
  Operand out(DType::kI32, {4}, {1}), x(DType::kI32, {4}, {1});
  for (int i = 0; i < 4; ++i) x.set(i + 1, i - 2);
  const auto expect = [&](UnaryOp op, std::vector<double> want, const Scalars& s = {}) {
    slots().unary(op, s, plan_of({4}, {&out, &x}), {});
    for (int i = 0; i < 4; ++i) EXPECT_EQ(out.get(i + 1), want[i]) << unary_info(op).name;
  };
  expect(UnaryOp::kNeg, {2, 1, 0, -1});
  expect(UnaryOp::kAbs, {2, 1, 0, 1});
  expect(UnaryOp::kSign, {-1, -1, 0, 1});
  expect(UnaryOp::kRelu, {0, 0, 0, 1});
  expect(UnaryOp::kBitwiseNot, {1, 0, -1, -2});
  expect(UnaryOp::kAffine, {-5, -2, 1, 4}, {{3.0, 1.0, 0, 0}});
  expect(UnaryOp::kClamp, {-1, -1, 0, 0}, {{-1.0, 0.0, 0, 0}});
}

TEST(ElementwiseKernels, an_operator_outside_its_domain_says_so) {
  Operand out(DType::kF32, {4}, {1}), x(DType::kF32, {4}, {1});
  try {
    slots().unary(UnaryOp::kBitwiseNot, {}, plan_of({4}, {&out, &x}), {});
    FAIL() << "accepted bitwise_not of f32";
  } catch (const UnsupportedError& e) {
    EXPECT_STREQ(e.what(), "bitwise_not: not defined for f32");
  }
}

template <class Op, int N>
void check_backward(UnaryOp op, DType dtype, double tolerance) {
  const int64_t n = 2 * 601;
  const std::vector<int64_t> sizes = {601, 2};
  Operand out(dtype, sizes, {1, 601}), grad(dtype, sizes, {0, 1}), x(dtype, sizes, {1, 601});
  Operand y(dtype, sizes, {1, 601});
  grad.randomize(3);
  for (int64_t i = 1; i <= n; ++i) {
    x.set(i, (i - 600) * 0.0071 + 0.00013);
    y.set(i, Op::template fwd<double>(x.get(i), kParameters));
  }
  slots().unary_backward(op, N, kParameters, plan_of(sizes, {&out, &grad, &x, &y}), {});
  for (int64_t i = 0; i < n; ++i) {
    const double saved = (Op::saves == Saves::kOutput ? y : x).get(i + 1);
    const double g = grad.get(grad.at(i, sizes));
    const double want = backward<Op, N>(g, saved, kParameters);
    if (std::isnan(want) || out.get(i + 1) == want) continue;  // equal infinities, too
    ASSERT_NEAR(out.get(i + 1), want, tolerance * (std::abs(g) + std::abs(want)))
        << unary_info(op).name << " order " << N << " " << dtype << " at " << saved;
  }
}

TEST(ElementwiseKernels, backward_of_every_order_in_float_double_and_half) {
#define TARN_CHECK_OP(Name, name)                                       \
  if constexpr (ops::Name::differentiable) {                            \
    check_backward<ops::Name, 1>(UnaryOp::k##Name, DType::kF32, 3e-5);  \
    check_backward<ops::Name, 1>(UnaryOp::k##Name, DType::kF64, 1e-12); \
    check_backward<ops::Name, 1>(UnaryOp::k##Name, DType::kBF16, 1e-2); \
    check_backward<ops::Name, 2>(UnaryOp::k##Name, DType::kF32, 2e-7);  \
    check_backward<ops::Name, 3>(UnaryOp::k##Name, DType::kF64, 1e-12); \
  }
  TARN_UNARY_OPS(TARN_CHECK_OP)
#undef TARN_CHECK_OP
}

TEST(ElementwiseKernels, results_do_not_depend_on_the_number_of_threads) {
  constexpr int64_t kCount = 150001;
  const int before = num_threads();
  Operand x(DType::kF32, {kCount}, {1});
  for (int64_t i = 0; i <= kCount; ++i) x.set(i, std::sin(static_cast<double>(i)) * 4);
  std::vector<std::vector<char>> results;
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    Operand out(DType::kF32, {kCount}, {1});
    slots().unary(UnaryOp::kGelu, {}, plan_of({kCount}, {&out, &x}), {});
    results.push_back(out.bytes);
  }
  set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(ElementwiseKernels, copy_casts_between_every_pair_of_dtypes_and_layouts) {
  for (const Layout& layout : layouts()) {
    for (DType from : kAllTypes) {
      for (DType to : kAllTypes) {
        Operand out(to, layout.sizes, layout.strides[0]), a(from, layout.sizes, layout.strides[2]);
        a.randomize(5);
        const ElementwisePlan plan = plan_of(layout.sizes, {&out, &a});
        slots().copy(plan, {});
        Operand want(to, {1}, {1});
        for (int64_t i = 0; i < plan.numel; i += 1 + plan.numel / 500) {
          want.set(0, a.get(a.at(i, layout.sizes)));
          ASSERT_EQ(out.get(out.at(i, layout.sizes)), want.get(0))
              << from << " to " << to << ", " << layout.name << ", element " << i;
        }
      }
    }
  }
}

TEST(ElementwiseKernels, casts_are_defined_for_every_value) {
  EXPECT_EQ(cast_value<int32_t>(-2.9f), -2);
  EXPECT_EQ(cast_value<int32_t>(std::nanf("")), 0);
  EXPECT_EQ(cast_value<int32_t>(3e9f), std::numeric_limits<int32_t>::max());
  EXPECT_EQ(cast_value<int32_t>(2147483647.0), 2147483647);
  EXPECT_EQ(cast_value<int64_t>(-kInf), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(cast_value<int64_t>(9.3e18f), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(cast_value<uint8_t>(300.0f), 44);
  EXPECT_EQ(cast_value<uint8_t>(-1.0f), 255);
  EXPECT_EQ(cast_value<uint8_t>(int64_t{513}), 1);
  EXPECT_TRUE(cast_value<bool>(std::nan("")));
  EXPECT_TRUE(cast_value<bool>(0.1f));
  EXPECT_FALSE(cast_value<bool>(half(-0.0f)));
  EXPECT_EQ(static_cast<float>(cast_value<half>(70000)), std::numeric_limits<float>::infinity());
}

TEST(ElementwiseKernels, where_selects_without_touching_the_bits) {
  for (DType d : kAllTypes) {
    const std::vector<int64_t> sizes = {700, 3};
    Operand out(d, sizes, {1, 700}), cond(DType::kBool, sizes, {1, 0}), a(d, sizes, {1, 700});
    Operand b(d, sizes, {0, 0});
    cond.randomize(1);
    a.randomize(2);
    b.set(1, 1.0);
    slots().where(plan_of(sizes, {&out, &cond, &a, &b}), {});
    for (int64_t i = 0; i < 2100; ++i) {
      const double want = cond.get(cond.at(i, sizes)) != 0 ? a.get(a.at(i, sizes)) : 1.0;
      ASSERT_EQ(out.get(out.at(i, sizes)), want) << d << " element " << i;
    }
  }
}

TEST(ElementwiseKernels, ternary_operators) {
  constexpr int64_t kCount = 1003;
  const Scalars half_weight{{0.5, 0, 0, 0}};
  for (DType d : {DType::kF32, DType::kF64, DType::kF16, DType::kI64}) {
    Operand out(d, {kCount}, {1}), a(d, {kCount}, {1}), b(d, {kCount}, {1}), c(d, {kCount}, {1});
    a.randomize(1);
    b.randomize(2);
    for (int64_t i = 0; i <= kCount; ++i) c.set(i, i % 3 + 1);
    const Scalars s{{2.0, 0, 0, 0}};
    const ElementwisePlan plan = plan_of({kCount}, {&out, &a, &b, &c});
    slots().ternary(TernaryOp::kAddcmul, s, plan, {});
    for (int64_t i = 1; i <= kCount; ++i) {
      ASSERT_EQ(out.get(i), a.get(i) + 2 * b.get(i) * c.get(i)) << d;
    }
    slots().ternary(TernaryOp::kAddScaled, s, plan, {});
    for (int64_t i = 1; i <= kCount; ++i) ASSERT_EQ(out.get(i), a.get(i) + 2 * b.get(i)) << d;
    if (!is_floating(d)) continue;
    slots().ternary(TernaryOp::kLerpScalar, half_weight, plan, {});
    for (int64_t i = 1; i <= kCount; ++i) ASSERT_EQ(out.get(i), (a.get(i) + b.get(i)) / 2) << d;
  }
}

TEST(ElementwiseKernels, fill_keeps_every_bit_and_the_gaps) {
  constexpr int64_t kBig = (int64_t{1} << 60) + 1;  // not a double
  for (int64_t n : {0, 1, 100, 50000}) {
    Operand out(DType::kI64, {n}, {1});
    slots().fill(Scalar(kBig), plan_of({n}, {&out}), {});
    for (int64_t i = 0; i < n; ++i) {
      int64_t v = 0;
      std::memcpy(&v, out.data() + i * 8, 8);
      ASSERT_EQ(v, kBig);
    }
  }
  Operand gaps(DType::kF16, {5, 3}, {2, 16});
  slots().fill(Scalar(1.5), plan_of({5, 3}, {&gaps}), {});
  EXPECT_EQ(gaps.get(1), 1.5);
  EXPECT_EQ(gaps.get(2), 0.0);
  EXPECT_EQ(gaps.get(1 + 4 * 2 + 2 * 16), 1.5);
}

TEST(ElementwiseKernels, float_powers_with_a_cheap_form_give_the_same_values) {
  Operand out(DType::kF32, {3}, {1}), x(DType::kF32, {3}, {1});
  for (int i = 0; i < 3; ++i) x.set(i + 1, i - 1);
  for (double exponent : {2.0, 1.0, -1.0}) {
    slots().unary(UnaryOp::kPowScalar, {{exponent, 0, 0, 0}}, plan_of({3}, {&out, &x}), {});
    for (int i = 1; i <= 3; ++i) EXPECT_EQ(out.get(i), std::pow(x.get(i), exponent));
  }
}

}  // namespace
}  // namespace tarn
