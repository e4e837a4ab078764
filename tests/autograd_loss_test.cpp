// autograd_loss_test.cpp - losses: values, gradients, reports of other libraries' users, errors.
#include "numeric_tools.h"

namespace tarn {
namespace {

using namespace testing;  // NOLINT
using In = const std::vector<Tensor>&;
constexpr Reduction kAllReductions[] = {Reduction::kMean, Reduction::kSum, Reduction::kNone};

Tensor f64(std::initializer_list<double> v, const Shape& sizes) {
  return tensor(v, sizes, {.dtype = DType::kF64});
}

/// Cross entropy of one row by its definition.
double row_loss(const Doubles& x, int64_t target, const Doubles& w, double e) {
  double total = 0;
  for (double v : x) total += std::exp(v);
  const auto log_p = [&](size_t c) { return x[c] - std::log(total); };
  const double classes = static_cast<double>(x.size());
  double loss = -(1 - e) * w[target] * log_p(target);
  for (size_t c = 0; c < x.size(); ++c) loss -= e / classes * w[c] * log_p(c);
  return loss;
}

// Values from PyTorch: logits [[1,2,3],[1,2,.5],[0,0,0]], targets 2, ignored, 1.
TEST(CrossEntropyTest, matches_pytorch) {
  const Tensor x = tensor({1, 2, 3, 1, 2, .5, 0, 0, 0}, {3, 3});
  const Tensor t = labels({2, -100, 1}, {3}), w = tensor({1, 2, 3});
  EXPECT_NEAR(cross_entropy(x, t).item(), .75310910, 1e-6);
  EXPECT_NEAR(cross_entropy(x, t, {}, {.label_smoothing = .1}).item(), .80310905, 1e-6);
  EXPECT_NEAR(cross_entropy(x, t, w).item(), .68400848, 1e-6);
  EXPECT_NEAR(cross_entropy(x, t, w, {.label_smoothing = .1}).item(), .70252299, 1e-6);
  EXPECT_NEAR(cross_entropy(x, t, {}, {.reduction = Reduction::kSum}).item(), 1.5062182, 1e-6);
  expect_close(numbers(cross_entropy(x, t, {}, {.reduction = Reduction::kNone})),
               {.40760595, 0, 1.0986123}, 1e-6, 1e-7);
}

TEST(CrossEntropyTest, matches_its_definition_for_few_and_many_classes) {
  for (const int64_t classes : {1, 2, 10, 16, 64, 65, 1000}) {
    const int64_t rows = 37;
    const Tensor x = random_tensor({rows, classes}, 3);
    const Doubles weight = random_numbers(classes, 4), flat = numbers(x);
    Doubles positive, want;
    for (double v : weight) positive.push_back(v + 1.5);
    std::vector<int64_t> at;
    for (int64_t r = 0; r < rows; ++r) {
      at.push_back(r * 7 % classes);
      const Doubles row(flat.begin() + r * classes, flat.begin() + (r + 1) * classes);
      want.push_back(row_loss(row, at.back(), positive, 0.2));
    }
    for (DType d : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
      const Tensor got = cross_entropy(raw::to(x, d), labels(at, {rows}),
                                       raw::to(from_vector(positive, {classes}), DType::kF32),
                                       {.label_smoothing = 0.2, .reduction = Reduction::kNone});
      EXPECT_EQ(got.dtype(), d);
      expect_close(numbers(got), want, d == DType::kF64 ? 1e-6 : 4 * rtol_of(d), 2 * rtol_of(d));
    }
  }
}

TEST(CrossEntropyTest, gradients_of_every_form) {
  const Tensor x = random_tensor({4, 3}, 5), t = labels({2, 0, -100, 1}, {4});
  const Tensor w = f64({1, 0.5, 2}, {3});
  for (Reduction r : kAllReductions) {
    for (double e : {0.0, 0.3}) {
      const CrossEntropyOptions o{.label_smoothing = e, .reduction = r};
      check_gradients("indices", [&](In in) { return cross_entropy(in[0], t, {}, o); }, {x});
      check_gradients("weights", [&](In in) { return cross_entropy(in[0], t, w, o); }, {x});
      check_gradients("probabilities",
                      [&](In in) { return cross_entropy(in[0], softmax(in[1], 1), w, o); },
                      {x, random_tensor({4, 3}, 6)});
    }
    check_gradients("nll", [&](In in) { return nll_loss(log_softmax(in[0], 1), t, w, -100, r); },
                    {x});
  }
  const Tensor image = random_tensor({2, 3, 2, 2}, 7);
  const Tensor pixels = labels({0, 1, 2, 0, 1, 1, -100, 2}, {2, 2, 2});
  check_gradients("image", [&](In in) { return cross_entropy(in[0], pixels, w); }, {image});
  check_gradients("vector", [&](In in) { return cross_entropy(in[0], labels({1}, {})); },
                  {random_tensor({3}, 8)});
  const Tensor wide = random_tensor({3, 70}, 9);
  check_gradients(
      "many classes",
      [&](In in) {
        return cross_entropy(in[0], labels({69, 3, 0}, {3}), {}, {.label_smoothing = 0.1});
      },
      {wide}, 1);
}

// REPORTS C1: the maximum and the logarithm must not be added first.
TEST(CrossEntropyTest, large_equal_logits_keep_their_logarithm) {
  expect_close(numbers(log_softmax(tensor({10000001, 10000000, 9999999}), 0)),
               {-0.407606, -1.407606, -2.407606}, 1e-6, 1e-6);
  Tensor x = tensor({1e8, 1e8}, {1, 2});
  x.set_requires_grad();
  const Tensor loss = cross_entropy(x, labels({1}, {1}));
  EXPECT_NEAR(loss.item(), 0.693147, 1e-6);
  loss.backward();
  expect_close(numbers(x.grad()), {0.5, -0.5}, 1e-6, 0);
}

// REPORTS C2: nothing counts.
TEST(CrossEntropyTest, all_targets_ignored_give_zero_gradients) {
  for (Reduction r : kAllReductions) {
    Tensor x = random_tensor({5, 10}, 1, DType::kF32);
    x.set_requires_grad();
    const Tensor loss =
        cross_entropy(x, full({5}, -100, {.dtype = DType::kI64}), {}, {.reduction = r});
    if (r == Reduction::kMean) {
      EXPECT_TRUE(std::isnan(loss.item()));
    }
    if (r == Reduction::kSum) {
      EXPECT_EQ(loss.item(), 0);
    }
    if (r == Reduction::kNone) {
      EXPECT_EQ(numbers(loss), Doubles(5, 0.0));
    }
    loss.backward(ones(loss.sizes()));
    EXPECT_EQ(numbers(x.grad()), Doubles(50, 0.0));
  }
}

TEST(CrossEntropyTest, an_ignored_id_outside_the_classes_is_not_an_error) {
  const Tensor x = random_tensor({6, 3}, 2);
  const Tensor t = labels({0, 1, 255, 0, 1, 2}, {6});
  const CrossEntropyOptions o{.ignore_index = 255, .reduction = Reduction::kNone};
  const Doubles loss = numbers(cross_entropy(x, t, {}, o));
  EXPECT_EQ(loss[2], 0);
  EXPECT_GT(loss[0], 0);
  expect_close(numbers(nll_loss(log_softmax(x, 1), t, {}, 255, Reduction::kNone)), loss, 1e-12, 0);
  expect_error<IndexError>(
      "targets must be in [0, 3) or equal ignore_index=-1; got -4 at position 1", [&] {
        cross_entropy(x, labels({0, -4, -1, 0, 0, 0}, {6}), {}, {.ignore_index = -1});
      });
}

TEST(CrossEntropyTest, empty_batch_sums_to_zero) {
  Tensor x = zeros({0, 4});
  x.set_requires_grad();
  const Tensor loss =
      cross_entropy(x, zeros({0}, {.dtype = DType::kI64}), {}, {.reduction = Reduction::kSum});
  EXPECT_EQ(loss.item(), 0);
  loss.backward();
  EXPECT_EQ(x.grad().sizes(), (Shape{0, 4}));
  EXPECT_TRUE(std::isnan(cross_entropy(x, zeros({0}, {.dtype = DType::kI64})).item()));
}

TEST(CrossEntropyTest, errors_are_in_the_callers_terms) {
  const Tensor x = zeros({4, 3});
  expect_error<ShapeError>("cross_entropy: target must hold one class index per item, sizes [4]",
                           [&] {
                             cross_entropy(x, labels({0, 1}, {2}));
                           });
  expect_error<DTypeError>("cross_entropy: class indices must be integers",
                           [&] { cross_entropy(x, zeros({4})); });
  expect_error<ShapeError>("cross_entropy: weight must be [C] = [3]; got weight=[2] f32 cpu", [&] {
    cross_entropy(x, labels({0, 1, 2, 0}, {4}), zeros({2}));
  });
  expect_error<DTypeError>("cross_entropy: weight must be floating", [&] {
    cross_entropy(x, labels({0, 1, 2, 0}, {4}), labels({1, 1, 1}, {3}));
  });
  expect_error<ValueError>("cross_entropy: label_smoothing must be in [0, 1]; got 2", [&] {
    cross_entropy(x, labels({0, 1, 2, 0}, {4}), {}, {.label_smoothing = 2});
  });
  expect_error<ShapeError>("cross_entropy: x must be [C], [N, C] or [N, C, d1, ...]",
                           [&] { cross_entropy(zeros({}), labels({0}, {})); });
  expect_error<DTypeError>("cross_entropy: x must be floating",
                           [&] { cross_entropy(labels({0}, {1}), labels({0}, {})); });
  expect_error<ShapeError>("cross_entropy: there must be at least one class", [&] {
    cross_entropy(zeros({2, 0}), labels({0, 0}, {2}));
  });
  expect_error<ValueError>("cross_entropy: target must be a tensor; got an undefined one",
                           [&] { cross_entropy(x, {}); });
}

TEST(LossTest, values_match_their_formulas) {
  const Tensor x = f64({0.5, -1, 3, 0}, {4}), t = f64({1, 1, -1, 0}, {4});  // |d| = .5 2 4 0
  constexpr Reduction none = Reduction::kNone;
  EXPECT_EQ(numbers(mse_loss(x, t, none)), (Doubles{0.25, 4, 16, 0}));
  EXPECT_EQ(numbers(l1_loss(x, t, none)), (Doubles{0.5, 2, 4, 0}));
  EXPECT_EQ(numbers(smooth_l1_loss(x, t, none)), (Doubles{0.125, 1.5, 3.5, 0}));
  EXPECT_EQ(numbers(smooth_l1_loss(x, t, none, 2)), (Doubles{0.0625, 1, 3, 0}));
  EXPECT_EQ(numbers(smooth_l1_loss(x, t, none, 0)), (Doubles{0.5, 2, 4, 0}));
  EXPECT_EQ(numbers(huber_loss(x, t, none, 2)), (Doubles{0.125, 2, 6, 0}));
  EXPECT_EQ(mse_loss(x, t).item(), 20.25 / 4);
  EXPECT_EQ(mse_loss(x, t, Reduction::kSum).item(), 20.25);
  EXPECT_EQ(mse_loss(x, t, Reduction::kBatchMean).item(), 20.25 / 4);
  // ln 2 at p = 1/2, and the logarithm is bounded at -100.
  const Tensor p = f64({0.5, 0.5, 0, 1}, {4}), q = f64({1, 0, 1, 1}, {4});
  expect_close(numbers(binary_cross_entropy(p, q, {}, none)), {0.693147181, 0.693147181, 100, 0},
               1e-8, 0);
  // kl: t (log t - x), 0 at t = 0.
  const Tensor kx = f64({-1, -2}, {2}), kt = f64({0, 0.5}, {2});
  expect_close(numbers(kl_div(kx, kt, none)), {0, 0.5 * (std::log(0.5) + 2)}, 1e-12, 0);
  expect_close(numbers(kl_div(kx, log(f64({0.25, 0.5}, {2})), none, true)),
               {0.25 * (std::log(0.25) + 1), 0.5 * (std::log(0.5) + 2)}, 1e-12, 0);
}

TEST(LossTest, logits_form_is_stable_and_equals_the_plain_one) {
  const Tensor x = random_tensor({6}, 3), t = f64({0, 1, 0.3, 0.9, 1, 0}, {6});
  expect_close(numbers(binary_cross_entropy_with_logits(x, t, {}, {}, Reduction::kNone)),
               numbers(binary_cross_entropy(sigmoid(x), t, {}, Reduction::kNone)), 1e-12, 1e-14);
  Tensor far = tensor({1000, -1000, 1000, -1000});
  far.set_requires_grad();
  const Tensor loss =
      binary_cross_entropy_with_logits(far, tensor({1, 0, 0, 1}), {}, {}, Reduction::kNone);
  EXPECT_EQ(numbers(loss), (Doubles{0, 0, 1000, 1000}));
  loss.backward(ones({4}));
  EXPECT_EQ(numbers(far.grad()), (Doubles{0, 0, 1, -1}));
}

TEST(LossTest, gradients) {
  const Tensor x = random_tensor({3, 2}, 1), t = random_tensor({3, 2}, 2);
  const Tensor p = sigmoid(x), q = sigmoid(t), w = f64({0.5, 2}, {2});
  for (Reduction r : kAllReductions) {
    check_gradients("mse", [r](In in) { return mse_loss(in[0], in[1], r); }, {x, t});
    check_gradients("l1", [r](In in) { return l1_loss(in[0], in[1], r); }, {x, t});
    check_gradients("smooth_l1", [r](In in) { return smooth_l1_loss(in[0], in[1], r, 0.3); },
                    {x, t});
    check_gradients("huber", [r](In in) { return huber_loss(in[0], in[1], r, 0.3); }, {x, t});
    check_gradients("bce", [&](In in) { return binary_cross_entropy(in[0], in[1], w, r); }, {p, q});
    check_gradients("bce logits",
                    [&](In in) { return binary_cross_entropy_with_logits(in[0], in[1], w, w, r); },
                    {x, q});
    check_gradients("kl", [r](In in) { return kl_div(in[0], in[1], r); }, {x, q});
    check_gradients("kl log", [r](In in) { return kl_div(in[0], in[1], r, true); }, {x, t});
  }
}

// REPORTS C7: [3] against [3, 1] must not become a 3 by 3 grid.
TEST(LossTest, different_shapes_are_refused) {
  const Tensor x = tensor({1, 2, 3}), t = tensor({1, 2, 3}, {3, 1});
  expect_error<ShapeError>(
      "mse_loss: x and target must have the same sizes; got x=[3] f32 cpu, target=[3, 1] f32 cpu",
      [&] { mse_loss(x, t); });
  expect_error<ShapeError>("l1_loss: x and target must have", [&] { l1_loss(x, t); });
  expect_error<ShapeError>("smooth_l1_loss: x and target must", [&] { smooth_l1_loss(x, t); });
  expect_error<ShapeError>("huber_loss: x and target must", [&] { huber_loss(x, t); });
  expect_error<ShapeError>("kl_div: x and target must", [&] { kl_div(x, t); });
  expect_error<ShapeError>("binary_cross_entropy: x and target",
                           [&] { binary_cross_entropy(x, t); });
  expect_error<ShapeError>("binary_cross_entropy_with_logits: x and target",
                           [&] { binary_cross_entropy_with_logits(x, t); });
}

TEST(LossTest, bad_arguments_are_refused) {
  const Tensor x = tensor({1, 2, 3});
  expect_error<ValueError>("smooth_l1_loss: beta must not be negative; got -1",
                           [&] { smooth_l1_loss(x, x, Reduction::kMean, -1); });
  expect_error<ValueError>("huber_loss: delta must be positive; got 0",
                           [&] { huber_loss(x, x, Reduction::kMean, 0); });
  expect_error<ValueError>("binary_cross_entropy: every x must be in [0, 1]",
                           [&] { binary_cross_entropy(x, x); });
  expect_error<ShapeError>("binary_cross_entropy_with_logits: weight must broadcast to x",
                           [&] { binary_cross_entropy_with_logits(x, x, zeros({2})); });
  expect_error<DTypeError>("mse_loss: x must be floating",
                           [&] { mse_loss(labels({1}, {1}), labels({1}, {1})); });
  expect_error<ValueError>("cross_entropy: the reduction must be kNone, kMean or kSum", [&] {
    cross_entropy(zeros({2, 3}), labels({0, 1}, {2}), {}, {.reduction = Reduction::kBatchMean});
  });
  expect_error<ValueError>("nll_loss: the reduction must be kNone, kMean or kSum", [&] {
    nll_loss(zeros({2, 3}), labels({0, 1}, {2}), {}, -100, Reduction::kBatchMean);
  });
  expect_error<ShapeError>("kl_div: a batch mean needs a batch",
                           [&] { kl_div(zeros({}), zeros({}), Reduction::kBatchMean); });
}

}  // namespace
}  // namespace tarn
