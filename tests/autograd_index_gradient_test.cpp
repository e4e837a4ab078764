// autograd_index_gradient_test.cpp - index operations: gradients by finite differences, and errors.
#include <cmath>

#include "index_tools.h"

#include "tarn/autograd/engine.h"

namespace tarn {
namespace {

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// The gradient of sum(f(x) * w) with fixed random w against finite differences, and the gradient's
/// own gradient in the same way.
void check_gradient(const std::function<Tensor(const Tensor&)>& f, const Tensor& at) {
  Generator g(17);
  Tensor x = at.clone();
  x.set_requires_grad();
  const Tensor y = f(x);
  const Tensor w = randn(y.sizes(), {.dtype = DType::kF64}, &g);
  y.backward(w);
  ASSERT_TRUE(x.grad().defined());
  const Values got = values(x.grad());
  constexpr double kStep = 1e-5;
  Values base = values(at);
  for (size_t i = 0; i < base.size(); ++i) {
    double sums[2];
    for (int side = 0; side < 2; ++side) {
      Values moved = base;
      moved[i] += side ? -kStep : kStep;
      sums[side] = dot(values(f(from_vector(moved, at.sizes()))), values(w));
    }
    ASSERT_NEAR(got[i], (sums[0] - sums[1]) / (2 * kStep), 1e-6) << "element " << i;
  }
}

TEST(IndexGradientTest, every_operation_has_the_gradient_of_finite_differences) {
  Generator g(1);
  const Tensor x = randn({3, 4}, {.dtype = DType::kF64}, &g);
  const Tensor other = randn({2, 4}, {.dtype = DType::kF64}, &g);
  const Tensor ix = ints({2, 0, 2, 1, 1, 0}, {2, 3});
  const Tensor mask = gt(x, 0);
  const std::function<Tensor(const Tensor&)> cases[] = {
      [&](const Tensor& t) {
        return index_select(t, 1, ints({3, 3, 0}));
      },
      [&](const Tensor& t) { return gather(t, 0, ix); },
      [&](const Tensor& t) {
        return take_along_dim(t, ints({1, 1}, {1, 2}), 1);
      },
      [&](const Tensor& t) {
        return index(t, {ints({0, 2, 0}), ints({1, 1, 1})});
      },
      [&](const Tensor& t) {
        return index(t, {{}, ints({0, -1})});
      },
      [&](const Tensor& t) { return masked_select(t, mask); },
      [&](const Tensor& t) { return embedding(t, ix); },
      [&](const Tensor& t) {
        return index_add(t, 0, ints({0, 0}), other, 3);
      },
      [&](const Tensor& t) {
        return index_add(ones({5, 4}, {.dtype = DType::kF64}), 0, ints({4, 1, 4}), t, -2);
      },
      [&](const Tensor& t) {
        return index_copy(t, 0, ints({2, 0}), other);
      },
      [&](const Tensor& t) {
        return index_copy(ones({5, 4}, {.dtype = DType::kF64}), 0, ints({4, 1, 0}), t);
      },
      [&](const Tensor& t) { return index_fill(t, 1, ints({2}), 5); },
      [&](const Tensor& t) { return scatter(t, 0, ix, Scalar(2)); },
      [&](const Tensor& t) {
        return scatter_add(ones({3, 4}, {.dtype = DType::kF64}), 0, ix, t);
      },
      [&](const Tensor& t) { return scatter_add(t, 0, ix, other); },
      [&](const Tensor& t) {
        return index_put(t, {ints({0, 0})}, other, true);
      },
      [&](const Tensor& t) { return index_put(t, {ints({1})}, other.narrow(0, 0, 1)); },
      [&](const Tensor& t) { return index_put(other, {ints({1})}, t.narrow(0, 0, 1), true); },
      [&](const Tensor& t) { return triu(t, 1); },
      [&](const Tensor& t) { return tril(t); },
      [&](const Tensor& t) {
        return flip(t, {0, 1});
      },
      [&](const Tensor& t) {
        return roll(t, {1, -1}, {0, 1});
      },
      [&](const Tensor& t) {
        return cat({t, other, t}, 0);
      },
      [&](const Tensor& t) {
        return stack({t, t}, 1);
      },
      [&](const Tensor& t) { return mul(split(t, 3, 1)[0], 2); },
      [&](const Tensor& t) { return unbind(t, 0)[2]; },
      [&](const Tensor& t) {
        return pad(t, {1, -1, 2, 0}, PadMode::kConstant, 3);
      },
      [&](const Tensor& t) {
        return pad(t, {2, 3, 1, 0}, PadMode::kReflect);
      },
      [&](const Tensor& t) {
        return pad(t, {2, 1}, PadMode::kReplicate);
      },
      [&](const Tensor& t) {
        return pad(t, {2, 4, 3, 0}, PadMode::kCircular);
      },
      [&](const Tensor& t) {
        return repeat(t, {2, 1, 3});
      },
      [&](const Tensor& t) { return repeat_interleave(t, 2, 1); },
  };
  int number = 0;
  for (const auto& f : cases) {
    SCOPED_TRACE(number++);
    check_gradient(f, x);
    // Squared first, the gradient of the gradient's norm uses the second derivative.
    check_gradient(
        [&](const Tensor& t) {
          Tensor leaf = t;
          if (!leaf.requires_grad()) leaf = t.detach().set_requires_grad();
          const Tensor y = f(mul(leaf, leaf));
          const Tensor outputs[] = {y}, inputs[] = {leaf}, grads[] = {mul(y, 2)};
          return grad(outputs, inputs, grads, {.create_graph = true})[0];
        },
        x);
  }
}

/// A weight [5, 3] that is looked up and, transposed, multiplied with: a tied language model.
Tensor tied_logits(const Tensor& weight) {
  const Tensor x = embedding(weight, ints({4, 0, 4, 1}));
  return matmul(x, transpose(weight, 0, 1));  // the younger use: its gradient comes first
}

TEST(IndexGradientTest, a_tied_weight_gets_the_gradients_of_both_uses) {
  Generator g(3);
  const Tensor at = randn({5, 3}, {.dtype = DType::kF64}, &g);
  check_gradient(tied_logits, at);
  // The same where other uses come before, between and after, and under create_graph.
  check_gradient(
      [](const Tensor& w) {
        return matmul(tied_logits(w), w) + embedding(w, ints({1, 1, 2, 0})) * sum(w);
      },
      at);
  Tensor w = at.clone();
  w.set_requires_grad();
  const Tensor loss = sum(square(tied_logits(w)));
  const Tensor roots[] = {loss}, leaves[] = {w};
  const Values plain = values(grad(roots, leaves, {}, {.retain_graph = true})[0]);
  const Values recorded = values(grad(roots, leaves, {}, {.create_graph = true})[0]);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(plain[i], recorded[i], 1e-12);
}

TEST(IndexGradientTest, adding_to_a_tied_gradient_leaves_what_a_hook_kept) {
  Generator g(4);
  Tensor w = randn({5, 3}, {.dtype = DType::kF64}, &g);
  w.set_requires_grad();
  const Tensor x = embedding(w, ints({4, 0, 4, 1}));
  const Tensor turned = transpose(w, 0, 1);
  Tensor kept;
  turned.register_hook([&](const Tensor& arrived) {
    kept = arrived;
    return Tensor();
  });
  const Tensor y = matmul(x, turned);
  y.backward(ones_like(y));
  // What reached the transpose alone: x^T ones.
  const Values want = values(matmul(transpose(x.detach(), 0, 1), ones_like(y)));
  EXPECT_EQ(values(kept), want);
}

TEST(IndexGradientTest, in_place_forms_are_recorded) {
  Tensor base = ones({3}, {.dtype = DType::kF64});
  base.set_requires_grad();
  Tensor src = tensor({2, 3}, {.dtype = DType::kF64});
  src.set_requires_grad();
  Tensor y = mul(base, 2);
  index_add_(y, 0, ints({1, 1}), src);
  mul(y, y).backward(ones({3}, {.dtype = DType::kF64}));
  // y = [2, 2 + 2 + 3, 2]; dL/dy = 2y.
  EXPECT_EQ(values(base.grad()), (Values{8, 28, 8}));
  EXPECT_EQ(values(src.grad()), (Values{14, 14}));
  expect_error<AutogradError>(
      [&] { index_add_(base, 0, ints({0}), ones({1}, {.dtype = DType::kF64})); }, "index_add_");
}

TEST(IndexGradientTest, out_of_range_indices_name_value_position_and_range) {
  const Tensor x = iota({5, 2});
  expect_error<IndexError>(
      [&] {
        index_select(x, 0, ints({0, 1, 2, 7}));
      },
      "index_select: index 7 at position 3 is out of range for dimension 0 of size 5");
  expect_error<IndexError>([&] { index_select(x, 0, ints({-1})); }, "index -1 at position 0");
  expect_error<IndexError>(
      [&] {
        gather(x, 1, ints({0, 1, 2, 0}, {2, 2}));
      },
      "gather: index 2 at position [1, 0] is out of range for dimension 1 of size 2");
  expect_error<IndexError>(
      [&] {
        scatter(x, 0, ints({5}, {1, 1}), Scalar(1));
      },
      "scatter: index 5 at position [0, 0]");
  expect_error<IndexError>(
      [&] {
        scatter_add(x, 0, ints({9}, {1, 1}), iota({1, 1}));
      },
      "scatter_add: index 9");
  expect_error<IndexError>([&] { index_add(x, 0, ints({5}), iota({1, 2})); }, "index_add: index 5");
  expect_error<IndexError>(
      [&] {
        index_copy(x, 0, ints({5}), iota({1, 2}));
      },
      "index_copy: index 5");
  expect_error<IndexError>(
      [&] { embedding(x, ints({5})); },
      "embedding: index 5 at position 0 is out of range for dimension 0 of size 5");
  expect_error<IndexError>(
      [&] { index(x, {ints({-6})}); },
      "index: index -6 at position 0 is out of range for dimension 0 of size 5");
  expect_error<IndexError>([&] { one_hot(ints({3}), 3); }, "one_hot: index 3");
  expect_error<IndexError>([&] { index_select(zeros({0}), 0, ints({0})); }, "of size 0");
  // Far into a long index, so that the blocked search is used.
  Ints many(5000, 1);
  many[4567] = 99;
  expect_error<IndexError>([&] { index_select(x, 0, ints(many)); }, "index 99 at position 4567");
}

TEST(Parts, gradients_of_some_of_them_used_more_than_once) {
  check_gradient(
      [](const Tensor& x) {
        const std::vector<Tensor> p = split(x, std::vector<int64_t>{1, 0, 2, 2}, 1);
        return cat({mul(p[0], p[0]), mul(p[3], p[3].narrow(1, 0, 1)), p[1]},
                   1);  // p[2]: not at all
      },
      iota({3, 5}));
  check_gradient(
      [](const Tensor& x) {
        const std::vector<Tensor> p = unbind(x, 1);
        return mul(mul(p[4], p[0]), p[4]);
      },
      iota({3, 5}));
}

TEST(Parts, are_views_that_notice_writes) {
  Tensor x = iota({4, 2});
  x.set_requires_grad();
  const Tensor y = mul(x, Scalar(2.0));
  const std::vector<Tensor> rows = unbind(y, 0), halves = chunk(y, 2, 0);
  EXPECT_EQ(rows[3].storage(), y.storage());
  EXPECT_EQ(rows[0].grad_fn_name(), "unbind");
  EXPECT_EQ(halves[1].grad_fn_name(), "split");
  EXPECT_THROW(rows[0].add_(rows[1]), Error);
  const Tensor plain =
      iota({4, 2}).clone();  // nothing recorded yet: a write to the whole makes it so
  const std::vector<Tensor> parts = split(plain, 2, 0);
  plain.mul_(x);
  EXPECT_THROW(mul(parts[0], x.narrow(0, 0, 2)), Error);
}

TEST(IndexGradientTest, other_errors_name_what_must_hold) {
  const Tensor x = iota({5, 2});
  expect_error<DTypeError>([&] { index_select(x, 0, ones({1})); },
                           "index must be i64 or i32; got index=[1] f32");
  expect_error<ShapeError>([&] { index_select(x, 0, ints({0}, {1, 1})); }, "index must be 1-d");
  expect_error<ShapeError>(
      [&] {
        index_select(scalar_tensor(1.0), 0, ints({0, 0}));
      },
      "0-d tensor");
  expect_error<ShapeError>([&] { gather(x, 0, ints({0})); }, "as many dimensions");
  expect_error<ShapeError>(
      [&] {
        gather(x, 0, zeros({1, 3}, {.dtype = DType::kI64}));
      },
      "must not be larger than x outside dimension 0");
  expect_error<ShapeError>(
      [&] {
        index_add(x, 0, ints({0}), iota({1, 3}));
      },
      "src must have x's sizes");
  expect_error<DTypeError>(
      [&] {
        index_add(x, 0, ints({0}), ones({1, 2}));
      },
      "x and src must have one dtype");
  expect_error<ShapeError>(
      [&] {
        index_add(x, 0, ints({0}, {1, 1}), iota({1, 2}));
      },
      "index must be 1-d");
  expect_error<ShapeError>([&] { take_along_dim(x, ints({0}), 0); },
                           "take_along_dim: index must have");
  expect_error<ShapeError>([&] { embedding(iota({3}), ints({0})); }, "weight must be [V, D]");
  expect_error<IndexError>([&] { embedding(x, ints({0}), 5); }, "padding_idx must be a row");
  expect_error<DTypeError>([&] { masked_select(x, x); }, "mask must be bool");
  expect_error<IndexError>(
      [&] {
        index(x, {tensor({1, 0}, {.dtype = DType::kBool})});
      },
      "a mask must have the sizes");
  expect_error<IndexError>(
      [&] {
        index(x, {ints({0}), ints({0}), ints({0})});
      },
      "too many indices (3)");
  expect_error<ValueError>([&] { index(x, {}); }, "at least one index");
  expect_error<ShapeError>([&] { index(x, {scalar_tensor(true, {.dtype = DType::kBool})}); },
                           "at least one dimension");
  expect_error<ShapeError>(
      [&] {
        index_put(x, {ints({0})}, iota({3, 2}));
      },
      "values must broadcast to [1, 2]");
  expect_error<ShapeError>([&] { triu(iota({3})); }, "triu: x must have at least 2 dimensions");
  expect_error<ValueError>([&] { flip(x, {0, -2}); }, "named twice");
  expect_error<ValueError>([&] { one_hot(zeros({0}, {.dtype = DType::kI64})); },
                           "number of classes");
  expect_error<ValueError>([&] { cat(std::vector<Tensor>{}); }, "cat: at least one tensor");
  expect_error<ValueError>([&] { cat({x, Tensor()}); }, "cat: tensor 1 is undefined");
  expect_error<ShapeError>([&] { cat({scalar_tensor(1.0)}); }, "use stack");
  expect_error<ShapeError>(
      [&] {
        cat({x, iota({5, 3})}, 0);
      },
      "cat: sizes must match outside dimension 0; got tensor 0=[5, 2] f64");
  expect_error<ValueError>([&] { stack({}); }, "stack: at least one tensor");
  expect_error<ShapeError>([&] { stack({x, iota({2, 5})}); }, "all tensors must have one shape");
  expect_error<ShapeError>(
      [&] {
        split(x, std::vector<int64_t>{1, 1});
      },
      "sizes must add up to dimension 0");
  expect_error<ValueError>(
      [&] {
        split(x, std::vector<int64_t>{6, -1});
      },
      "must not be negative; got -1");
  expect_error<ValueError>([&] { split(x, 0); }, "split: size must be positive");
  expect_error<ShapeError>([&] { split(scalar_tensor(1.0), std::vector<int64_t>{1}); },
                           "0-d tensor cannot be split");
  expect_error<ValueError>([&] { chunk(x, 0); }, "number of chunks");
  expect_error<ShapeError>([&] { chunk(scalar_tensor(1.0), 2); }, "0-d tensor");
  expect_error<ShapeError>([&] { unbind(scalar_tensor(1.0)); }, "no dimension to unbind");
  expect_error<ValueError>([&] { pad(x, {1}); }, "pads come in pairs");
  expect_error<ShapeError>([&] { pad(x, {-3, 0}); }, "cuts more than there is");
  expect_error<ValueError>(
      [&] {
        pad(x, {2, 0}, PadMode::kReflect);
      },
      "must be at most 1 and leave something at dimension 1");
  expect_error<ValueError>([&] { pad(x, {1}, PadMode::kCircular); }, "pads come in pairs");
  expect_error<ValueError>([&] { roll(x, {1}, {}); }, "one shift per dimension");
  expect_error<ValueError>([&] { repeat(x, {2}); }, "at least one number per dimension");
  expect_error<ValueError>([&] { repeat(x, {2, -1}); }, "must not be negative");
  expect_error<ValueError>([&] { repeat_interleave(x, -1, 0); }, "must not be negative; got -1");
  expect_error<ValueError>([&] { index_select(Tensor(), 0, ints({0})); },
                           "index_select: x must be a tensor");
}

}  // namespace
}  // namespace tarn
