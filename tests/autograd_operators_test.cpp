// autograd_operators_test.cpp - operators and short forms, writes through const handles, and the
// names that errors speak of.
#include <cmath>
#include <map>

#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/autograd/gradcheck.h"
#include "tarn/core/factory.h"

namespace tarn {
namespace {

using Values = std::vector<double>;
using List = std::vector<Tensor>;

Tensor leaf(std::initializer_list<double> values) {
  return tensor(values, {.dtype = DType::kF64}).set_requires_grad();
}
Values values(const Tensor& x) {
  return x.to_vector<double>();
}

// ---- plain numbers and integers
TEST(Clamp, a_floating_bound_takes_integers_to_f32) {
  const Tensor both = clamp(arange(5), 0.5, 2.75);
  EXPECT_EQ(both.dtype(), DType::kF32);
  EXPECT_EQ(values(both), (Values{0.5, 1, 2, 2.75, 2.75}));
  EXPECT_EQ(values(clamp_min(arange(3), 0.5)), (Values{0.5, 1, 2}));
  EXPECT_EQ(values(clamp_max(arange(3), 1.5)), (Values{0, 1, 1.5}));
  EXPECT_EQ(clamp(arange(3), 0, 2.5).dtype(), DType::kF32);
  EXPECT_EQ(clamp_min(arange(3), 1.0).dtype(), DType::kF32);  // torch: the kind counts
}

TEST(Clamp, whole_and_infinite_bounds_keep_the_integers) {
  EXPECT_EQ(clamp(arange(5), 1, 3).dtype(), DType::kI64);
  EXPECT_EQ(values(clamp(arange(5), 1, 3)), (Values{1, 1, 2, 3, 3}));
  EXPECT_EQ(clamp_min(arange(5), 1).dtype(), DType::kI64);
  EXPECT_EQ(clamp_max(arange(5, {.dtype = DType::kU8}), 1).dtype(), DType::kU8);
  EXPECT_EQ(clamp(arange(5), 1, INFINITY).dtype(), DType::kI64);
  EXPECT_EQ(clamp(ones({2}, {.dtype = DType::kF64}), 0.5, 2).dtype(), DType::kF64);
}

TEST(FractionalNumbers, take_integers_to_f32_or_are_refused_in_place) {
  EXPECT_EQ(values(arange(3) * 0.5), (Values{0, 0.5, 1}));
  EXPECT_EQ(values(pow(arange(3), 2.0)), (Values{0, 1, 4}));
  EXPECT_EQ(pow(arange(3), 2.0).dtype(), DType::kF32);
  EXPECT_EQ(pow(arange(3), 0.5).dtype(), DType::kF32);
  EXPECT_EQ(values(gt(arange(3), 0.5)), (Values{0, 1, 1}));
  const Tensor i = arange(3);
  EXPECT_THROWS_WITH(i.mul_(1.5), DTypeError,
                     "mul_: the result is f32 and cannot be stored in place");
  EXPECT_THROWS_WITH(i.add_(0.5), DTypeError, "add_: the result is f32");
  EXPECT_THROWS_WITH(i /= 2, DTypeError, "div_: the result is f32");
  EXPECT_EQ(values(i), (Values{0, 1, 2}));
}

TEST(Bernoulli, probabilities_outside_0_and_1_are_refused) {
  for (double p : {-0.5, 1.5, std::nan("")}) {
    EXPECT_THROWS_WITH(bernoulli(full({4}, p)), ValueError, "bernoulli: p must be in [0, 1]; got");
  }
  EXPECT_EQ(values(bernoulli(tensor({0, 1}))), (Values{0, 1}));
}

TEST(WhereWithANumber, promotes_as_arithmetic_does) {
  const Tensor cond = tensor({1, 0}, {.dtype = DType::kBool});
  EXPECT_EQ(values(where(cond, arange(2), 7)), (Values{0, 7}));
  EXPECT_EQ(where(cond, arange(2), 7).dtype(), DType::kI64);
  EXPECT_EQ(values(where(cond, 0.5, arange(2))), (Values{0.5, 1}));
  EXPECT_EQ(where(cond, 0.5, arange(2)).dtype(), DType::kF32);
  EXPECT_EQ(where(cond, 1, ones({2}, {.dtype = DType::kF16})).dtype(), DType::kF16);
  Tensor x = leaf({1, 2});
  where(cond, x, 3).sum().backward();
  EXPECT_EQ(values(x.grad()), (Values{1, 0}));
  where(cond, 3, x).sum().backward();
  EXPECT_EQ(values(x.grad()), (Values{1, 1}));
  EXPECT_THROWS_WITH(where(cond, 1, Tensor()), ValueError, "must be a tensor; got an undefined");
}

// ---- operators
TEST(CompoundOperators, write_in_place_through_every_handle) {
  Tensor x = tensor({2, 4});
  const Tensor same = x;
  x += tensor({1, 1});
  EXPECT_EQ(values(same), (Values{3, 5}));
  x -= 1;
  x *= 3;
  x /= 2;
  EXPECT_EQ(values(same), (Values{3, 6}));
  x *= tensor({2, 1});
  x /= tensor({3, 3});
  x -= tensor({1, 1});
  x[1] += 0.5;  // a view's write is its base's
  EXPECT_EQ(values(same), (Values{1, 1.5}));
  EXPECT_TRUE(x.is_same(same));
}

TEST(CompoundOperators, are_recorded) {
  const auto f = [](const List& in) {
    Tensor y = in[0] * 1.0;
    y += in[1];
    y *= in[1];
    y -= in[0];
    y /= in[1];
    y += 2;
    y -= 0.5;
    y *= 3;
    y /= 4;
    return y;
  };
  const List in = {leaf({0.5, -1.25}), leaf({1.5, 2})};
  EXPECT_TRUE(gradcheck(f, in));
  EXPECT_TRUE(gradgradcheck(f, in));
  EXPECT_THROWS_WITH(in[0].add_(1), AutogradError, "add_: a leaf that requires grad");
}

TEST(ComparisonOperators, give_bool_tensors) {
  const Tensor a = tensor({1, 2, 3}), b = tensor({3, 2, 1});
  EXPECT_EQ((a > b).dtype(), DType::kBool);
  EXPECT_EQ(values(a > b), (Values{0, 0, 1}));
  EXPECT_EQ(values(a >= b), (Values{0, 1, 1}));
  EXPECT_EQ(values(a < b), (Values{1, 0, 0}));
  EXPECT_EQ(values(a <= b), (Values{1, 1, 0}));
  EXPECT_EQ(values(a > 2), (Values{0, 0, 1}));
  EXPECT_EQ(values(a <= 2.5), (Values{1, 1, 0}));
  EXPECT_EQ(values(2 > a), (Values{1, 0, 0}));
  EXPECT_EQ(values(2 <= a), (Values{0, 1, 1}));
}

TEST(Members, reduce_as_the_functions_do) {
  const Tensor x = tensor({{1, 5}, {3, 2}});
  EXPECT_EQ(x.max().item(), 5);
  EXPECT_EQ(x.min().item(), 1);
  EXPECT_EQ(values(x.sum(0)), (Values{4, 7}));
  EXPECT_EQ(x.sum(-1, true).sizes(), (Shape{2, 1}));
  EXPECT_EQ(values(x.mean(1)), (Values{3, 2.5}));
  EXPECT_EQ(x.sum({}).sizes(), Shape{});  // still all of them
  EXPECT_EQ(values(x.sum({0})), (Values{4, 7}));
  EXPECT_TRUE(equal(x.softmax(1), softmax(x, 1)));
  EXPECT_TRUE(equal(x.log_softmax(0), log_softmax(x, 0)));
}

// ---- const handles
TEST(ConstHandles, change_the_tensor_but_not_where_they_point) {
  const std::map<std::string, Tensor> parameters = {{"w", leaf({1, 2})}, {"b", leaf({3})}};
  for (const auto& [name, p] : parameters) {
    p.set_grad(ones_like(p.detach()));
    EXPECT_TRUE(p.grad().defined());
    p.zero_grad();
    EXPECT_FALSE(p.grad().defined());
    p.set_requires_grad(false);
    p.fill_(2).mul_(3).sub_(1);
    p.copy_(p + 1);
    EXPECT_EQ(p.max().item(), 6);
  }
  const Tensor x = leaf({1}), y = x * 2;
  y.retain_grad();
  y.backward();
  EXPECT_EQ(y.grad().item(), 1);
}

// ---- grad
TEST(Grad, takes_tensors_in_braces_lists_and_alone) {
  const Tensor x = leaf({3}), w = leaf({2}), y = (x * x * w).sum();
  const List params = {x, w};
  const GradOptions keep = {.retain_graph = true};
  EXPECT_EQ(grad({y}, {x}, {}, keep)[0].item(), 12);  // 2xw
  EXPECT_EQ(grad({y}, {x, w}, {}, keep)[1].item(), 9);
  EXPECT_EQ(grad({y}, {w}, {tensor(2, {.dtype = DType::kF64})}, keep)[0].item(), 18);
  EXPECT_EQ(grad({y}, params, {}, keep)[1].item(), 9);
  EXPECT_EQ(grad(y, params, {}, keep)[0].item(), 12);
  const Tensor slope = grad(y, x, {}, {.create_graph = true});
  EXPECT_EQ(grad(slope, x).item(), 4);
}

TEST(Grad, errors_are_in_its_own_words) {
  const Tensor x = leaf({1, 2}), y = x * x;
  EXPECT_THROWS_WITH(grad({y}, {x}), ShapeError,
                     "grad: grad_outputs must be given unless the tensor has one element; got [2]");
  EXPECT_THROWS_WITH(grad(y, x, ones({3}, {.dtype = DType::kF64})), ShapeError,
                     "grad: grad_outputs must have the tensor's sizes");
  EXPECT_THROWS_WITH(grad(ones({1}), x), AutogradError,
                     "grad: the tensor does not require grad and has no history");
  const Tensor loss = y.sum();
  grad(loss, x);
  EXPECT_THROWS_WITH(grad(loss, x), AutogradError,
                     "grad: the tensors saved for mul were already freed; call grad(..., "
                     "{.retain_graph = true}) the first time");
  EXPECT_THROWS_WITH(loss.backward(), AutogradError,
                     "backward: the tensors saved for mul were already freed; call backward(..., "
                     "retain_graph=true) the first time to go through the graph twice, or detach() "
                     "what is carried over from the step before");
}

TEST(Names, are_those_that_were_called) {
  const Tensor stretched = zeros({1}).expand({3}), mask = ones({2}, {.dtype = DType::kBool});
  EXPECT_THROWS_WITH(stretched.zero_(), ShapeError, "zero_: cannot write in place");
  EXPECT_THROWS_WITH(stretched.fill_(1), ShapeError, "fill_: cannot write in place");
  EXPECT_THROWS_WITH(stretched.mul_(2), ShapeError, "mul_: cannot write in place");
  EXPECT_THROWS_WITH(index_add_(stretched, 0, arange(1), ones({1})), ShapeError,
                     "index_add_: cannot write in place");
  EXPECT_THROWS_WITH(stretched.add_(ones({3})), ShapeError, "add_: cannot write in place");
  EXPECT_THROWS_WITH(1 - mask, DTypeError,
                     "sub: a bool tensor cannot be subtracted; got [2] bool cpu; use logical_not");
  EXPECT_THROWS_WITH(mask - true, DTypeError, "sub: the dtype must be");
}

}  // namespace
}  // namespace tarn
