// autograd_edge_test.cpp - gradients and promotion where numbers end: NaN, infinities, overflow,
// zeros, integers beside floats. Expected values are PyTorch's.
#include "numeric_tools.h"
#include "tests_throws.h"

namespace tarn {
namespace {

using namespace testing;  // NOLINT
using In = const std::vector<Tensor>&;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor of(std::initializer_list<double> values, DType dtype = DType::kF32) {
  return tensor(values, {.dtype = dtype});
}
Tensor leaf(std::initializer_list<double> values, DType dtype = DType::kF32) {
  Tensor x = of(values, dtype);
  x.set_requires_grad();
  return x;
}
void expect_values(const Tensor& got, const Doubles& want, const std::string& what = "") {
  expect_close(numbers(got), want, 1e-5, 0, what);
}
/// The first `order` derivatives of sum(f(x)), each with respect to x.
std::vector<Tensor> derivatives(const Tensor& x, const std::function<Tensor(const Tensor&)>& f,
                                int order) {
  std::vector<Tensor> all;
  Tensor y = f(x);
  for (int i = 0; i < order; ++i) {
    y = grad(y.sum(), x, {}, {.create_graph = true});
    all.push_back(y);
  }
  return all;
}

TEST(Atan2, the_gradient_takes_integers_and_bools_beside_floats) {
  for (DType dtype : {DType::kI64, DType::kI32, DType::kU8}) {
    const Tensor y = leaf({1, 2});
    atan2(y, of({3, 1}, dtype)).sum().backward();
    expect_values(y.grad(), {0.3, 0.2});  // x / (x^2 + y^2)
  }
  const Tensor y = leaf({1, 2}), x = leaf({1, 2});
  atan2(y, of({1, 1}, DType::kBool)).sum().backward();
  expect_values(y.grad(), {0.5, 0.2});
  atan2(of({200, 0}, DType::kU8), x).sum().backward();
  expect_values(x.grad(), {-200.0 / 40001, 0});
}

TEST(Atan2, the_gradient_neither_overflows_nor_underflows) {
  const Tensor y = leaf({1e30, 1e-30, 0, 1}), x = leaf({1e30, 1e-30, 1, 1e-20});
  atan2(y, x).sum().backward();
  expect_values(y.grad(), {5e-31, 5e29, 1, 1e-20});
  expect_values(x.grad(), {-5e-31, -5e29, 0, -1});
  check_gradients("atan2", [](In t) { return atan2(t[0], t[1]); },
                  {random_tensor({3, 4}, 1), random_tensor({4}, 2)});
}

TEST(Alpha, multiplies_in_the_dtype_of_the_result) {
  const DType u8 = DType::kU8, i64 = DType::kI64, f64 = DType::kF64, b = DType::kBool;
  expect_values(add(of({0}), of({200}, u8), 2), {400});
  expect_values(add(of({0}, i64), of({1}, u8), -3), {-3});
  expect_values(sub(of({5}, i64), of({1}, u8), 2), {3});
  expect_values(add(of({0}, u8), of({1}, u8), -3), {253});
  EXPECT_EQ(numbers(add(of({0}, f64), of({1}), 0.1)), (Doubles{0.1}));  // not 0.1f
  expect_values(of({1}).add_(of({200}, u8), 2), {401});
  expect_values(of({1}, u8).add_(of({200}, i64), 2), {145});  // 401 - 256
  expect_values(of({5}, i64).sub_(of({1}, u8), 2), {3});
  EXPECT_EQ(add(of({1, 0}, b), of({1, 1}, b), 2).dtype(), b);
  expect_values(add(of({1, 0}, b), of({1, 1}, b), 2), {1, 1});
  expect_values(add(of({1, 0}, b), of({1, 1}, b), 0), {1, 0});
  // A 0-d tensor does not widen: 1e5 is infinite in f16.
  expect_values(add(of({0}, DType::kF16), full({}, 1e5), 0.5), {kInf});
  EXPECT_THROWS_WITH(add(of({0}, i64), of({1}, i64), 0.5), ValueError,
                     "add: alpha must be a whole number for integer tensors; got 0.5");
  EXPECT_THROWS_WITH(of({0}, i64).sub_(of({1}, i64), 0.5), ValueError,
                     "sub_: alpha must be a whole number");
  const Tensor x = leaf({1, 2});
  add(of({1, 1}, f64), x, 3).sum().backward();
  EXPECT_EQ(x.grad().dtype(), DType::kF32);
  expect_values(x.grad(), {3, 3});
}

TEST(Promotion, a_0d_tensor_widens_none_of_three_operands) {
  const Tensor x = of({1, 2}), wide = tensor(3, {.dtype = DType::kF64});
  for (const auto& [a, b, c] : {std::tuple(x, x, wide), {x, wide, x}, {wide, x, x}}) {
    EXPECT_EQ(addcmul(a, b, c).dtype(), DType::kF32);
    EXPECT_EQ(addcdiv(a, b, c).dtype(), DType::kF32);
  }
  EXPECT_EQ(lerp(wide, x, .5).dtype(), DType::kF32);
  const Tensor whole = of({1, 2}, DType::kI64);
  EXPECT_EQ(addcmul(whole, whole, of({1}).view({})).dtype(), DType::kF32);  // of a higher kind
  EXPECT_EQ(addcmul(wide, wide, wide).dtype(), DType::kF64);
  Tensor scale = tensor(3, {.dtype = DType::kF64}).set_requires_grad();
  addcmul(x, x, scale).sum().backward();
  EXPECT_EQ(scale.grad().dtype(), DType::kF64);
  expect_values(scale.grad(), {3});
}

TEST(PlainNumbers, minus_a_small_integer_promotes_first) {
  expect_values(2.0 - of({3}, DType::kU8), {-1});
  expect_values(2 - of({3}, DType::kU8), {255});
  expect_values(2.5 - of({3}, DType::kI64), {-0.5});
}

TEST(PlainNumbers, bools_meet_bools) {
  const Tensor x = of({1, 0}, DType::kBool);
  for (const Tensor& y : {mul(x, true), add(x, true), mul(x, false), add(x, false)}) {
    EXPECT_EQ(y.dtype(), DType::kBool);
  }
  expect_values(mul(x, true), {1, 0});
  expect_values(add(x, true), {1, 1});
  expect_values(mul(x, false), {0, 0});
  expect_values(add(x, false), {1, 0});
  expect_values(mul(x, 3), {3, 0});
}

TEST(LinearGradient, no_output_features_or_no_input_features) {
  for (const Shape& sizes : {Shape{3}, Shape{2, 3}, Shape{2, 2, 3}}) {
    for (bool gelu : {false, true}) {
      const Tensor x = ones(sizes), w = zeros({0, 3}), b = zeros({0});
      for (const Tensor& t : {x, w, b}) t.set_requires_grad();
      (gelu ? linear_gelu(x, w, b) : linear(x, w, b)).sum().backward();
      EXPECT_EQ(numbers(x.grad()), Doubles(static_cast<size_t>(x.numel()), 0.0));
      EXPECT_EQ(w.grad().sizes(), (Shape{0, 3}));
      EXPECT_EQ(b.grad().sizes(), (Shape{0}));
    }
  }
  const Tensor x = ones({2, 2, 0}), w = zeros({3, 0}), b = zeros({3});
  for (const Tensor& t : {x, w, b}) t.set_requires_grad();
  linear(x, w, b).sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  EXPECT_EQ(w.grad().sizes(), w.sizes());
  expect_values(b.grad(), {4, 4, 4});
}

TEST(Huber, is_a_parabola_at_the_target_and_a_line_at_infinity) {
  const Tensor x = leaf({0, 0.5, 2, -3, kInf, -1e30}), target = zeros({6});
  for (double scale : {1.0, 0.5}) {  // huber's slope is delta times smooth_l1's
    const auto huber = derivatives(
        x, [&](const Tensor& t) { return huber_loss(t, target, Reduction::kNone, scale); }, 2);
    const auto smooth = derivatives(
        x, [&](const Tensor& t) { return smooth_l1_loss(t, target, Reduction::kNone, scale); }, 2);
    const double inner = scale > 0.5 ? 1 : 0;  // |0.5| < beta
    expect_values(huber[0], {0, 0.5, scale, -scale, scale, -scale});
    expect_values(huber[1], {1, 1, 0, 0, 0, 0});  // 0.5 <= delta
    expect_values(smooth[0], {0, inner > 0 ? 0.5 : 1, 1, -1, 1, -1});
    expect_values(smooth[1], {1 / scale, inner, 0, 0, 0, 0});
  }
  const Tensor nan = leaf({kNan});
  huber_loss(nan, zeros({1})).backward();
  expect_values(nan.grad(), {kNan});
}

TEST(Copy, into_integers_records_nothing) {
  for (DType dtype : {DType::kI64, DType::kBool}) {
    const Tensor to = zeros({2}, {.dtype = dtype}), from = leaf({1, 2});
    to.copy_(from);
    EXPECT_FALSE(to.requires_grad());
    EXPECT_TRUE(to.is_leaf());
    expect_values(to, {1, dtype == DType::kBool ? 1.0 : 2.0});
  }
}

TEST(Extrema, nan_gives_both_sides_the_gradient) {
  for (const auto f : {static_cast<Tensor (*)(const Tensor&, const Tensor&)>(maximum),
                       static_cast<Tensor (*)(const Tensor&, const Tensor&)>(minimum)}) {
    const Tensor a = leaf({kNan, 1, kNan, 2}), b = leaf({1, kNan, kNan, 2});
    f(a, b).sum().backward();
    expect_values(a.grad(), {1, 1, 1, 0.5});
    expect_values(b.grad(), {1, 1, 1, 0.5});
  }
}

TEST(Clamp, a_bound_of_nan_makes_all_nan_without_gradient) {
  for (bool low : {true, false}) {
    const Tensor x = leaf({3, 1, kNan});
    const Tensor y = low ? clamp(x, kNan, 1) : clamp(x, -1, kNan);
    y.sum().backward();
    expect_values(y, {kNan, kNan, kNan});
    expect_values(x.grad(), {0, 0, 0});
  }
  expect_values(clamp_min(of({1}, DType::kI64), kNan), {kNan});
}

TEST(Powers, derivatives_at_a_pole_are_infinite) {
  const auto power = [](double n) { return [n](const Tensor& x) { return pow(x, n); }; };
  auto d = derivatives(leaf({0, 2}), power(-2), 3);
  expect_values(d[0], {-kInf, -0.25});
  expect_values(d[1], {kInf, 0.375});
  expect_values(d[2], {-kInf, -0.75});
  d = derivatives(leaf({0, 1}), power(1.5), 3);
  expect_values(d[0], {0, 1.5});
  expect_values(d[1], {kInf, 0.75});
  expect_values(d[2], {-kInf, -0.375});
  d = derivatives(leaf({0, 2}), power(3), 3);
  expect_values(d[1], {0, 12});
  expect_values(d[2], {6, 6});
  for (const Tensor& x : derivatives(leaf({0, 2}), power(0), 3)) expect_values(x, {0, 0});
}

TEST(Powers, of_zero_have_no_slope_from_zero_on) {
  const Tensor x = leaf({0, 1, -1, 0.5, kNan});
  pow(Scalar(0.0), x).sum().backward();
  expect_values(x.grad(), {0, 0, -kInf, 0, kNan});
}

TEST(Division, the_quotient_may_be_written_to) {
  const Tensor a = leaf({6, 7}), b = leaf({2, 4});
  const Tensor y = a / b;
  y.add_(1);
  y.sum().backward();
  expect_values(a.grad(), {0.5, 0.25});
  expect_values(b.grad(), {-1.5, -7.0 / 16});
}

TEST(Division, rounded_is_recorded_with_a_gradient_of_zeros) {
  const Tensor a = leaf({5, 7}), b = leaf({2, 3});
  floor_divide(a, b).sum().backward();
  expect_values(a.grad(), {0, 0});
  expect_values(b.grad(), {0, 0});
  const Tensor c = leaf({5, 7});
  trunc_divide(c, of({2}, DType::kI64)).sum().backward();
  expect_values(c.grad(), {0, 0});
}

TEST(Cumprod, second_derivatives_beside_zeros_need_no_square_of_the_length) {
  const Tensor x = ones({4100});
  x.select(0, 7).fill_(0);
  const Tensor in = x.detach();
  in.set_requires_grad();
  const auto d = derivatives(
      in, [](const Tensor& t) { return cumprod(t, 0); }, 2);
  // y_j holds x_7 for j >= 7: its slope is the 4093 of them. x_4099 is in one, beside x_7 alone.
  EXPECT_EQ(d[0].select(0, 7).item<float>(), 4093);
  EXPECT_EQ(d[0].select(0, 8).item<float>(), 0);
  EXPECT_EQ(d[1].select(0, 4099).item<float>(), 1);
  const Tensor two = of({2, 0, 3, 0, 4, 5, 1, 1}, DType::kF64).view({2, 4});
  for (int64_t dim : {0, 1}) {
    check_gradients("cumprod", [dim](In t) { return cumprod(t[0], dim); }, {two});
  }
  const Tensor one = leaf({0});
  cumprod(one, 0).sum().backward();
  expect_values(one.grad(), {1});
}

TEST(Variance, overflow_gives_infinity_in_every_dtype) {
  for (const Device device : available_devices()) {
    const auto on = [&](const Tensor& x) { return x.to(device); };
    expect_values(var(on(of({1e200, -1e200}, DType::kF64))), {kInf});
    expect_values(stddev(on(of({1e200, 3e200, 0}, DType::kF64))), {kInf});
    expect_values(var(on(of({1e30, -1e30}))), {kInf});
    expect_values(var(on(of({kInf, 1}, DType::kF64))), {kNan});
    const Tensor columns = of({1e200, 1, 3e200, 3}, DType::kF64).view({2, 2});
    expect_values(var(on(columns), {0}), {kInf, 2});
  }
}

TEST(StandardDeviation, is_finite_where_its_square_is_not) {
  for (const Device device : available_devices()) {
    const auto on = [&](const Tensor& x) { return x.to(device); };
    expect_values(stddev(on(of({300, -300}, DType::kF16))), {424.25});
    expect_close(numbers(stddev(on(of({1e30, -1e30}, DType::kBF16)))), {1.4142e30}, 4e-3, 0,
                 "bf16");
    expect_close(numbers(stddev(on(of({1e25, -1e25})))), {1.41421356e25}, 1e-6, 0, "f32");
    expect_values(stddev(on(of({1, 2, 4, 7})), {0}, 1, true), {2.64575131});
  }
  const Tensor x = leaf({300, -300}, DType::kF16);
  stddev(x).backward();
  expect_close(numbers(x.grad()), {.70710678, -.70710678}, 1e-3, 0, "gradient");
}

TEST(ConvTranspose, a_bias_of_another_size_is_not_broadcast) {
  const Tensor x = ones({1, 2, 3, 3}), one = ones({2, 1, 1, 1}), three = ones({2, 3, 1, 1});
  EXPECT_THROWS_WITH(conv_transpose2d(x, one, ones({3})), ShapeError,
                     "conv_transpose2d: bias must be [1] f32; got [3] f32 cpu");
  EXPECT_THROWS_WITH(conv_transpose2d(x, three, ones({1})), ShapeError, "bias must be [3]");
  EXPECT_THROWS_WITH(conv_transpose2d(x, three, ones({3, 1})), ShapeError, "bias must be [3]");
  EXPECT_THROWS_WITH(conv_transpose2d(x, three, {}, {.groups = 3}), ShapeError,
                     "conv_transpose2d: input channels must be divisible by groups");
  EXPECT_THROWS_WITH(conv2d(x, ones({1, 2, 1, 1}), {}, {.stride_w = int64_t{1} << 62}), ValueError,
                     "conv2d: stride, dilation, padding and groups must be below 2^31");
}

TEST(ConvTranspose, a_result_without_pixels_is_refused) {
  EXPECT_THROWS_WITH(
      conv_transpose2d(ones({1, 1, 1, 1}), ones({1, 1, 1, 1}), {}, {.pad_h = 2, .pad_w = 2}),
      ShapeError,
      "conv_transpose2d: the result must have pixels; got [-3, -3] from "
      "x=[1, 1, 1, 1] f32 cpu");
  EXPECT_THROWS_WITH(conv_transpose2d(ones({1, 1, 2, 2}), ones({1, 1, 1, 1}), {}, {.stride_w = 0}),
                     ValueError,
                     "conv_transpose2d: stride and dilation must be positive; got stride=[1, 0]");
  EXPECT_THROWS_WITH(
      conv_transpose2d(ones({1, 1, 2, 2}), ones({1, 1, 1, 1}), {}, {.dilation_h = 0}), ValueError,
      "stride=[1, 1], dilation=[0, 1]");
  EXPECT_THROWS_WITH(conv_transpose2d(ones({1, 1, 2, 2}), ones({1, 1, 1, 1}), {}, {.pad_w = -1}),
                     ValueError, "conv_transpose2d: padding must not be negative; got [0, -1]");
}

}  // namespace
}  // namespace tarn
