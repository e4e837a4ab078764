// autograd_inplace_test.cpp - writes in place: what is recorded, what is noticed, what is refused.
#include <cmath>

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

Tensor leaf(std::initializer_list<double> values) {
  Tensor x = tensor(values, {.dtype = DType::kF64});
  return x.set_requires_grad();
}
Values values(const Tensor& x) {
  return x.to_vector<double>();
}

TEST(Inplace, results_of_embedding_and_norms_may_be_changed) {
  Tensor table = ones({4, 3}).set_requires_grad(), x = randn({2, 3}).set_requires_grad();
  Tensor h = embedding(table, tensor({1, 2}, {.dtype = DType::kI64}));
  h.add_(ones({2, 3}));
  h.mul_(2);
  sum(h).backward();
  EXPECT_EQ(table.grad().to_vector<double>(),
            (std::vector<double>{0, 0, 0, 2, 2, 2, 2, 2, 2, 0, 0, 0}));
  Tensor y = layer_norm(x, {3});
  y.mul_(2);
  sum(square(y)).backward();
  const Tensor once = x.grad();
  x.zero_grad();
  sum(square(layer_norm(x, {3}) * 2)).backward();
  EXPECT_EQ(once.to_vector<double>(), x.grad().to_vector<double>());
}

TEST(InPlace, a_saved_tensor_that_changed_is_noticed) {
  Tensor x = leaf({1, 2});
  Tensor y = x * 1.0;
  const Tensor z = (y * y).sum();
  y.add_(y.detach());
  EXPECT_THROWS_WITH(z.backward(), AutogradError,
                     "mul: a tensor needed for its gradient was changed in place; got [2] f64 cpu "
                     "at version 1, expected version 0; use the out-of-place form, or clone()");
}

TEST(InPlace, a_change_under_no_grad_or_through_a_view_is_noticed_too) {
  for (int way = 0; way < 3; ++way) {
    Tensor x = leaf({1, 2});
    Tensor y = x.exp();  // saves its result
    if (way == 0) {
      const NoGradGuard no_grad;
      y.mul_(2);
    } else if (way == 1) {
      y.detach().select(0, 0).fill_(3);
    } else {
      const NoGradGuard no_grad;
      y.view({2, 1}).zero_();
    }
    EXPECT_THROWS_WITH(y.sum().backward(), AutogradError,
                       "exp: a tensor needed for its gradient was changed in place");
  }
}

TEST(InPlace, what_backward_does_not_need_may_change) {
  Tensor x = leaf({1, 2});
  Tensor y = x * 3;  // needs neither x nor y
  y.add_(ones({2}, {.dtype = DType::kF64}));
  y.mul_(2);
  y.sum().backward();
  EXPECT_EQ(values(y), (Values{8, 14}));
  EXPECT_EQ(values(x.grad()), (Values{6, 6}));
}

TEST(InPlace, a_leaf_cannot_be_written_while_recording) {
  Tensor x = leaf({1, 2});
  EXPECT_THROWS_WITH(x.add_(ones({2})), AutogradError,
                     "add_: a leaf that requires grad cannot be changed in place while recording; "
                     "got [2] f64 cpu; wrap the change in a NoGradGuard");
  EXPECT_THROWS_WITH(x.zero_(), AutogradError, "zero_: a leaf that requires grad");
  EXPECT_THROWS_WITH(copy_(x, ones({2})), AutogradError, "copy_: a leaf that requires grad");
  const NoGradGuard no_grad;
  x.add_(ones({2}));
  EXPECT_EQ(values(x), (Values{2, 3}));
}

TEST(InPlace, a_recorded_write_to_a_view_is_refused) {
  Tensor x = leaf({1, 2});
  const Tensor y = x * 2;
  EXPECT_THROWS_WITH(y.select(0, 0).mul_(3), AutogradError,
                     "mul_: in-place on a view is not recorded, its base would keep a stale "
                     "history; got [] f64 cpu");
  Tensor plain = zeros({2}, {.dtype = DType::kF64});
  EXPECT_THROWS_WITH(plain.view({2}).add_(y), AutogradError, "add_: in-place on a view");
  EXPECT_NO_THROW(plain.view({2}).add_(y.detach()));
}

TEST(InPlace, a_view_taken_before_its_base_changed_is_stale) {
  Tensor x = leaf({1, 2});
  Tensor y = x * 2;
  const Tensor before = y.select(0, 0);
  y.mul_(3);
  EXPECT_THROWS_WITH(before * 2, AutogradError,
                     "select: this view was taken before its base was changed in place, so its "
                     "gradient would be wrong; take the view again after the change");
  y.select(0, 0).backward();
  EXPECT_EQ(values(x.grad()), (Values{6, 0}));
}

TEST(InPlace, a_stale_constant_is_refused_as_any_operand) {
  Tensor w = leaf({5, 6}), a = leaf({1, 2});
  for (const bool recorded : {true, false}) {
    Tensor buffer = zeros({2}, {.dtype = DType::kF64});
    Tensor row;
    {
      const GradModeGuard mode(recorded);
      row = buffer.view({2});
    }
    buffer.copy_(w);
    EXPECT_THROWS_WITH(row * a, AutogradError, "this view was taken before");
    EXPECT_THROWS_WITH(a * row, AutogradError, "this view was taken before");
    EXPECT_THROWS_WITH(cat({a, row}), AutogradError, "this view was taken before");
    EXPECT_THROWS_WITH(where(a > 0, a, row), AutogradError, "this view was taken before");
  }
}

TEST(InPlace, views_of_what_was_cut_off_stay_cut_off) {
  Tensor x = leaf({1, 2}), h = x * 2;
  const Tensor cut = h.detach().flatten();
  h.mul_(2);
  EXPECT_EQ(values(cut * 1), (Values{4, 8}));
}

TEST(InPlace, a_write_that_failed_leaves_views_alone) {
  Tensor x = leaf({1, 2}), y = x * 2;
  const Tensor part = y.narrow(0, 0, 1);
  EXPECT_THROW(y.add_(ones({3}, {.dtype = DType::kF64})), ShapeError);
  Tensor counts = zeros({2}, {.dtype = DType::kI64});
  const Tensor first = counts.narrow(0, 0, 1);
  counts.copy_(x);  // not recorded: no gradient comes through integers
  EXPECT_EQ(values(first.to(DType::kF64) * 3), (Values{3}));
  part.sum().backward();
  EXPECT_EQ(values(x.grad()), (Values{2, 0}));
}

// An operation that shows its result as a view keeps nothing else of it.
TEST(InPlace, a_view_that_is_alone_with_its_memory_may_be_written) {
  Tensor x = leaf({1, 2, 3, 4}), w = leaf({1, 1});
  Tensor y = x.view({1, 2, 2}).matmul(w.view({2, 1}));
  y.add_(ones({1, 2, 1}, {.dtype = DType::kF64}));
  y.mul_(2);
  EXPECT_EQ(values(y), (Values{8, 16}));
  y.sum().backward();
  EXPECT_EQ(values(x.grad()), (Values{2, 2, 2, 2}));
  EXPECT_EQ(values(w.grad()), (Values{8, 12}));
  Tensor loss = cross_entropy(x.view({2, 2}), zeros({2}, {.dtype = DType::kI64}));
  Tensor log = loss.detach();
  const double before = loss.item();
  loss.mul_(3);
  EXPECT_EQ(log.item(), 3 * before);
  x.zero_grad();
  loss.backward();
  EXPECT_NEAR(values(x.grad())[1], 1.5 / (1 + std::exp(-1.0)), 1e-12);
}

TEST(InPlace, a_sum_of_nothing_is_the_tensor_as_it_was) {
  Tensor x = leaf({1, 2});
  EXPECT_TRUE(sum_to_size(x, {2}).is_same(x));
  EXPECT_TRUE(x.is_leaf());
}

// What is refused leaves the tensor alone.
TEST(InPlace, a_stale_operand_is_refused_before_the_write) {
  Tensor x = leaf({1, 2}), y = x * 2;
  const Tensor stale = y.narrow(0, 0, 1), at = tensor({1}, {.dtype = DType::kI64});
  y.mul_(3);
  const Tensor sum = zeros({2}, {.dtype = DType::kF64});
  EXPECT_THROWS_WITH(index_add_(sum, 0, at, stale), AutogradError, "this view was taken before");
  EXPECT_THROWS_WITH(index_copy_(sum, 0, at, stale), AutogradError, "this view was taken before");
  EXPECT_THROWS_WITH(scatter_(sum, 0, at, stale), AutogradError, "this view was taken before");
  EXPECT_THROWS_WITH(scatter_add_(sum, 0, at, stale), AutogradError, "this view was taken before");
  EXPECT_THROWS_WITH(sum.add_(stale), AutogradError, "this view was taken before");
  EXPECT_THROWS_WITH(sum.mul_(stale), AutogradError, "this view was taken before");
  EXPECT_THROWS_WITH(sum.copy_(stale), AutogradError, "this view was taken before");
  EXPECT_EQ(values(sum), (Values{0, 0}));
  EXPECT_FALSE(sum.requires_grad());
}

TEST(InPlace, a_part_of_a_tensor_is_written_into_it) {
  Tensor x = leaf({1, 2, 3}), y = x * 2;
  const Tensor at = tensor({2}, {.dtype = DType::kI64});
  index_add_(y, 0, at, y.narrow(0, 0, 1));    // y2 += y0
  scatter_add_(y, 0, at, y.narrow(0, 1, 1));  // y2 += y1
  EXPECT_EQ(values(y), (Values{2, 4, 12}));
  index_copy_(y, 0, at, y.narrow(0, 0, 1));  // y2 = y0
  EXPECT_EQ(values(y), (Values{2, 4, 2}));
  scatter_(y, 0, at, y.narrow(0, 1, 1));  // y2 = y1
  sum(y * tensor({1, 10, 100}, {.dtype = DType::kF64})).backward();
  EXPECT_EQ(values(x.grad()), (Values{2, 220, 0}));
}

TEST(InPlace, a_view_of_a_constant_that_joined_the_graph_is_stale) {
  Tensor w = leaf({5, 6});
  Tensor buffer = zeros({2}, {.dtype = DType::kF64});
  const Tensor before = buffer.select(0, 0), cut = buffer.detach();
  buffer.copy_(w);
  EXPECT_THROWS_WITH(before * 2, AutogradError,
                     "view: this view was taken before its base was changed in place");
  EXPECT_FALSE((cut * 2).requires_grad());  // what was cut off on purpose stays so
  buffer.select(0, 0).backward();
  EXPECT_EQ(values(w.grad()), (Values{1, 0}));
}

TEST(InPlace, the_whole_history_of_an_overwritten_tensor_goes) {
  Tensor x = leaf({1, 2}), w = leaf({5, 6});
  Tensor y = x * 2;
  y.copy_(ones({2}, {.dtype = DType::kF64}));
  y.sum().backward();
  EXPECT_EQ(values(x.grad()), (Values{0, 0}));
  Tensor z = x * 2;
  z.copy_(w);
  z.sum().backward();
  EXPECT_EQ(values(w.grad()), (Values{1, 1}));
  EXPECT_EQ(values(x.grad()), (Values{0, 0}));
  Tensor f = x * 2;
  f.fill_(7);
  f.sum().backward();
  EXPECT_EQ(values(x.grad()), (Values{0, 0}));
}

TEST(InPlace, a_constant_buffer_joins_the_graph) {
  Tensor w = leaf({2, 3});
  Tensor sum = zeros({2}, {.dtype = DType::kF64});
  for (int i = 1; i <= 3; ++i) sum.add_(w * static_cast<double>(i));
  EXPECT_TRUE(sum.requires_grad());
  sum.sum().backward();
  EXPECT_EQ(values(w.grad()), (Values{6, 6}));
}

TEST(InPlace, a_tensor_may_be_its_own_operand) {
  const auto squared = [](const std::vector<Tensor>& in) {
    Tensor y = in[0] * 1.0;
    y.mul_(y);
    return y;
  };
  const auto ratio = [](const std::vector<Tensor>& in) {
    Tensor y = in[0].exp() * 1.0;
    y.div_(y.select(0, 0));
    return y;
  };
  const auto doubled = [](const std::vector<Tensor>& in) {
    Tensor y = in[0] * in[0];
    y.add_(y);
    y.sub_(y, 3);
    return y;
  };
  const std::vector<Tensor> in = {leaf({0.5, -1.25, 2})};
  for (const auto& f :
       std::vector<std::function<Tensor(const std::vector<Tensor>&)>>{squared, ratio, doubled}) {
    EXPECT_TRUE(gradcheck(f, in));
    EXPECT_TRUE(gradgradcheck(f, in));
  }
}

TEST(InPlace, gradients_keep_the_dtype_of_the_tensor_written_to) {
  Tensor x = tensor({1, 2});
  x.set_requires_grad();
  Tensor w = leaf({3, 4});  // f64
  Tensor y = x * 1.0;
  y.mul_(w);
  EXPECT_EQ(y.dtype(), DType::kF32);
  y.sum().backward();
  EXPECT_EQ(x.grad().dtype(), DType::kF32);
  EXPECT_EQ(values(x.grad()), (Values{3, 4}));
  EXPECT_EQ(w.grad().dtype(), DType::kF64);
  EXPECT_EQ(values(w.grad()), (Values{1, 2}));
}

}  // namespace
}  // namespace tarn
