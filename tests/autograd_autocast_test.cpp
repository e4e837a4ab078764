// autograd_autocast_test.cpp - which dtypes operations use under autocast, gradients, the cache.
#include <thread>

#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/autograd/autocast.h"
#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"

namespace tarn {
namespace {

constexpr DType kBF16 = DType::kBF16, kF16 = DType::kF16, kF32 = DType::kF32;

class Autocast : public ::testing::Test {
 protected:
  void SetUp() override { manual_seed(1); }
};

double largest_difference(const Tensor& a, const Tensor& b) {
  return amax(abs(sub(to(a, DType::kF64), to(b, DType::kF64))), {}, false).item();
}

TEST_F(Autocast, products_run_in_the_low_dtype) {
  const Tensor x = randn({4, 6}), w = randn({5, 6}), b = randn({5});
  const Tensor image = randn({2, 3, 8, 8}), kernel = randn({4, 3, 3, 3});
  const Tensor heads = randn({2, 2, 4, 8});
  for (const DType low : {kBF16, kF16}) {
    const AutocastGuard autocast(DeviceType::kCPU, low);
    EXPECT_EQ(matmul(x, w.t()).dtype(), low);
    EXPECT_EQ(addmm(b, x, w.t(), 1, 1).dtype(), low);
    EXPECT_EQ(linear(x, w, b).dtype(), low);
    EXPECT_EQ(linear_gelu(x, w, b, true).dtype(), low);
    EXPECT_EQ(conv2d(image, kernel).dtype(), low);
    EXPECT_EQ(conv_transpose2d(image, randn({3, 4, 3, 3})).dtype(), low);
    EXPECT_EQ(scaled_dot_product_attention(heads, heads, heads).dtype(), low);
    EXPECT_EQ(scaled_dot_product_attention_qkv(randn({2, 4, 48}), 2).dtype(), low);
  }
  EXPECT_EQ(matmul(x, w.t()).dtype(), kF32);
}

TEST_F(Autocast, what_needs_range_or_precision_runs_in_f32) {
  const Tensor x = rand({4, 6}).to(kBF16), y = rand({4, 6}).to(kBF16);
  const Tensor labels = randint(0, 6, {4});
  const AutocastGuard autocast(DeviceType::kCPU, kBF16);
  EXPECT_EQ(softmax(x, 1).dtype(), kF32);
  EXPECT_EQ(log_softmax(x, 1).dtype(), kF32);
  EXPECT_EQ(logsumexp(x, {1}).dtype(), kF32);
  EXPECT_EQ(layer_norm(x, {6}).dtype(), kF32);
  EXPECT_EQ(group_norm(x, 2).dtype(), kF32);
  EXPECT_EQ(norm(x).dtype(), kF32);
  EXPECT_EQ(sum(x).dtype(), kF32);
  EXPECT_EQ(prod(x).dtype(), kF32);
  EXPECT_EQ(cumsum(x, 0).dtype(), kF32);
  EXPECT_EQ(exp(x).dtype(), kF32);
  EXPECT_EQ(log(x).dtype(), kF32);
  EXPECT_EQ(rsqrt(x).dtype(), kF32);
  EXPECT_EQ(pow(x, 2).dtype(), kF32);
  EXPECT_EQ(pow(x, y).dtype(), kF32);
  EXPECT_EQ(cross_entropy(x, labels).dtype(), kF32);
  EXPECT_EQ(nll_loss(log_softmax(x, 1), labels).dtype(), kF32);
  EXPECT_EQ(mse_loss(x, y).dtype(), kF32);
  EXPECT_EQ(l1_loss(x, y).dtype(), kF32);
  EXPECT_EQ(huber_loss(x, y).dtype(), kF32);
  EXPECT_EQ(smooth_l1_loss(x, y).dtype(), kF32);
  EXPECT_EQ(kl_div(x, y).dtype(), kF32);
  EXPECT_EQ(binary_cross_entropy(x, y).dtype(), kF32);
  EXPECT_EQ(binary_cross_entropy_with_logits(x, y).dtype(), kF32);
}

TEST_F(Autocast, the_rest_takes_what_comes_and_mixed_operands_the_widest) {
  const Tensor low = randn({4, 6}).to(kBF16), full = randn({4, 6});
  const Tensor rows = arange(4);
  const AutocastGuard autocast(DeviceType::kCPU, kBF16);
  EXPECT_EQ(relu(low).dtype(), kBF16);
  EXPECT_EQ(gelu(low, true).dtype(), kBF16);
  EXPECT_EQ(mean(low).dtype(), kBF16);
  EXPECT_EQ(add(low, low).dtype(), kBF16);
  EXPECT_EQ(add(low, full).dtype(), kF32);
  EXPECT_EQ(cat(std::vector<Tensor>{low, full}, 0).dtype(), kF32);
  EXPECT_EQ(index_add(full, 0, rows, low).dtype(), kF32);
  EXPECT_EQ(index_add(low, 0, rows, low).dtype(), kBF16);
}

TEST_F(Autocast, integers_and_f64_are_left_alone) {
  const AutocastGuard autocast(DeviceType::kCPU, kBF16);
  const Tensor whole = ones({2, 2}, {.dtype = DType::kI64});
  const Tensor wide = randn({2, 2}, {.dtype = DType::kF64});
  EXPECT_EQ(matmul(whole, whole).dtype(), DType::kI64);
  EXPECT_EQ(matmul(wide, wide).dtype(), DType::kF64);
  EXPECT_EQ(sum(whole).dtype(), DType::kI64);
}

TEST_F(Autocast, gradients_come_back_in_the_dtype_of_the_weight) {
  Tensor w = randn({5, 6}), b = randn({5});
  w.set_requires_grad();
  b.set_requires_grad();
  const Tensor x = randn({4, 6}), labels = randint(0, 5, {4});
  Tensor loss;
  {
    const AutocastGuard autocast(DeviceType::kCPU, kBF16);
    loss = cross_entropy(linear(x, w, b), labels);
  }
  loss.backward();
  EXPECT_EQ(w.grad().dtype(), kF32);
  EXPECT_EQ(b.grad().dtype(), kF32);
  const Tensor low = w.grad().clone();
  w.zero_grad();
  cross_entropy(linear(x, w, b), labels).backward();
  // bf16 keeps 8 bits: gradients of at most about 1 differ by some 2^-8.
  EXPECT_LT(largest_difference(low, w.grad()), 0.03);
  EXPECT_GT(largest_difference(low, w.grad()), 0);
}

TEST_F(Autocast, the_gradient_of_a_weight_is_a_sum_in_f32_that_is_not_rounded_to_halves) {
  for (const int64_t n : {3, 70}) {  // own product, oneDNN's
    for (const DType low : {kBF16, kF16}) {
      Tensor x = randn({5, 37, n}), w = randn({n + 1, n}), b = randn({n + 1});
      w.set_requires_grad();
      b.set_requires_grad();
      const Tensor g = randn({5, 37, n + 1}).to(low);
      {
        const AutocastGuard autocast(DeviceType::kCPU, low);
        linear(x, w, b).backward(g);
      }
      const Tensor want = matmul(reshape(g, {-1, n + 1}).t().to(DType::kF64),
                                 reshape(x.to(low), {-1, n}).to(DType::kF64));
      EXPECT_EQ(w.grad().dtype(), kF32);
      EXPECT_LT(largest_difference(w.grad(), want), 1e-4) << low << " " << n;
      EXPECT_GT(largest_difference(want.to(low), want), 1e-3) << "rounding would be seen";
      EXPECT_EQ(b.grad().dtype(), kF32);
      EXPECT_LT(largest_difference(b.grad(), sum(g.to(DType::kF64), {0, 1})), 1e-4);
    }
  }
}

TEST_F(Autocast, a_gradient_that_somebody_looks_at_is_of_the_dtype_of_its_tensor) {
  Tensor x = randn({40, 70}).to(kBF16), w = randn({30, 70});
  w.set_requires_grad();
  const Tensor low = w.to(kBF16), out = linear(x, low);
  EXPECT_EQ(grad({sum(out)}, {low}, {}, {.retain_graph = true})[0].dtype(), kBF16);
  EXPECT_EQ(grad({sum(out)}, {w}, {}, {.retain_graph = true})[0].dtype(), kF32);
  const Tensor twice = grad({sum(out)}, {w}, {}, {.create_graph = true})[0];
  EXPECT_EQ(twice.dtype(), kF32);
  DType seen = kF32;
  const int64_t hook = low.register_hook([&](const Tensor& g) {
    seen = g.dtype();
    return Tensor();
  });
  sum(out).backward({}, true);
  EXPECT_EQ(seen, kBF16);
  EXPECT_EQ(w.grad().dtype(), kF32);
  low.remove_hook(hook);
  // A second use brings a gradient in halves to the sum.
  w.zero_grad();
  sum(out + linear(x, low) + matmul(x, low.t())).backward();
  const Tensor want = matmul(ones({30, 40}, {.dtype = DType::kF64}), x.to(DType::kF64)) * 3;
  EXPECT_LT(largest_difference(w.grad(), want), 0.2);
}

TEST_F(Autocast, backward_gives_the_same_inside_the_guard_as_outside) {
  Tensor w = randn({5, 6});
  w.set_requires_grad();
  const Tensor x = randn({4, 6});
  const auto gradient = [&](bool inside) {
    w.zero_grad();
    Tensor loss;
    {
      const AutocastGuard autocast(DeviceType::kCPU, kBF16);
      loss = sum(softmax(gelu(linear(x, w)), 1) * exp(linear(x, w)));
      if (inside) loss.backward();
    }
    if (!inside) loss.backward();
    return w.grad().clone();
  };
  EXPECT_EQ(largest_difference(gradient(true), gradient(false)), 0);
}

TEST_F(Autocast, a_loss_of_halves_keeps_f32_bits_and_its_gradient_the_dtype_of_the_logits) {
  Tensor x = randn({3, 7}).to(kBF16);
  x.set_requires_grad();
  const Tensor labels = randint(0, 7, {3});
  const AutocastGuard autocast(DeviceType::kCPU, kBF16);
  const Tensor loss = cross_entropy(x, labels);
  EXPECT_EQ(loss.item(), cross_entropy(x.detach().to(kF32), labels).item());
  loss.backward();
  EXPECT_EQ(x.grad().dtype(), kBF16);
}

TEST_F(Autocast, a_weight_used_twice_is_cast_once) {
  Tensor w = randn({6, 6});
  w.set_requires_grad();
  const Tensor x = randn({4, 6});
  const AutocastGuard autocast(DeviceType::kCPU, kBF16);
  const auto first = cast(CastPolicy::kLow, w), second = cast(CastPolicy::kLow, w);
  EXPECT_TRUE(first[0].is_same(second[0]));
  {
    const AutocastGuard inner(DeviceType::kCPU, kBF16);
    EXPECT_TRUE(cast(CastPolicy::kLow, w)[0].is_same(first[0]));
  }
  EXPECT_TRUE(cast(CastPolicy::kLow, w)[0].is_same(first[0])) << "an inner guard ended";
  EXPECT_FALSE(cast(CastPolicy::kLow, x)[0].is_same(cast(CastPolicy::kLow, x)[0]))
      << "inputs are not kept";
}

TEST_F(Autocast, a_weight_that_was_written_to_is_cast_anew) {
  Tensor w = ones({2, 2});
  w.set_requires_grad();
  const Tensor x = ones({1, 2});
  const AutocastGuard autocast(DeviceType::kCPU, kBF16);
  EXPECT_EQ(matmul(x, w).to_vector<double>(), (std::vector<double>{2, 2}));
  {
    const NoGradGuard no_grad;
    w.mul_(Scalar(3));
  }
  EXPECT_EQ(matmul(x, w).to_vector<double>(), (std::vector<double>{6, 6}));
}

// As Module::to leaves it, but with the version of before.
TEST_F(Autocast, a_cast_made_without_recording_does_not_cut_off_the_weight) {
  Tensor w = randn({2, 2});
  w.set_requires_grad();
  const Tensor x = ones({1, 2});
  const AutocastGuard autocast(DeviceType::kCPU, kBF16);
  {
    const NoGradGuard no_grad;
    matmul(x, w);
  }
  sum(matmul(x, w)).backward();
  ASSERT_TRUE(w.grad().defined());
  EXPECT_EQ(w.grad().to_vector<double>(), (std::vector<double>{1, 1, 1, 1}));
}

TEST_F(Autocast, guards_nest_and_can_switch_off) {
  const Tensor x = randn({2, 2});
  EXPECT_FALSE(autocast_enabled(DeviceType::kCPU));
  {
    const AutocastGuard outer(DeviceType::kCPU, kBF16);
    {
      const AutocastGuard inner(DeviceType::kCPU, kF16);
      EXPECT_EQ(matmul(x, x).dtype(), kF16);
    }
    {
      const AutocastGuard off(DeviceType::kCPU, kBF16, false);
      EXPECT_EQ(matmul(x, x).dtype(), kF32);
    }
    {
      const AutocastOffGuard off;
      EXPECT_EQ(matmul(x, x).dtype(), kF32);
      const AutocastGuard again(DeviceType::kCPU, kF16);
      EXPECT_EQ(matmul(x, x).dtype(), kF16);
    }
    EXPECT_EQ(matmul(x, x).dtype(), kBF16);
    {
      const AutocastGuard other(DeviceType::kCUDA, kF16);
      EXPECT_EQ(matmul(x, x).dtype(), kBF16) << "one kind of device does not touch the other";
    }
  }
  EXPECT_EQ(matmul(x, x).dtype(), kF32);
}

TEST_F(Autocast, a_thread_has_its_own) {
  const Tensor x = randn({2, 2});
  const AutocastGuard autocast(DeviceType::kCPU, kBF16);
  DType seen = kBF16;
  std::thread([&] { seen = matmul(x, x).dtype(); }).join();
  EXPECT_EQ(seen, kF32);
}

TEST_F(Autocast, the_low_dtype_must_be_a_half) {
  EXPECT_THROWS_WITH(AutocastGuard(DeviceType::kCPU, kF32), DTypeError,
                     "autocast: the low dtype must be bf16 or f16; got f32");
}

TEST_F(Autocast, a_fused_norm_of_a_sum_has_the_dtypes_of_the_two_steps) {
  const Tensor of_dtype[] = {randn({4, 6}).to(kBF16), randn({4, 6}).to(kF16), randn({4, 6}),
                             randn({4, 6}, {.dtype = DType::kF64})};
  const Tensor w = (rand({6}) + 0.5).to(kBF16), b = randn({6}).to(kBF16);
  const AutocastGuard autocast(DeviceType::kCPU, kBF16);
  const auto expect_same = [](const AddNormResult& fused, const Tensor& sum, const Tensor& y) {
    EXPECT_EQ(fused.sum.dtype(), sum.dtype());
    EXPECT_EQ(fused.y.dtype(), y.dtype());
    EXPECT_LT(largest_difference(fused.sum, sum), 1e-6);
    EXPECT_LT(largest_difference(fused.y, y), is_half(y.dtype()) ? 0.1 : 1e-5);
  };
  for (const Tensor& x : of_dtype) {
    for (const Tensor& residual : of_dtype) {
      SCOPED_TRACE(x.describe() + " + " + residual.describe());
      const Tensor sum = add(x, residual);
      expect_same(add_layer_norm(x, residual, {6}, w, b), sum, layer_norm(sum, {6}, w, b));
      expect_same(add_rms_norm(x, residual, w), sum, rms_norm(sum, w));
    }
  }
  EXPECT_THROWS_WITH(add_layer_norm(of_dtype[0], of_dtype[0].narrow(0, 0, 1), {6}), ShapeError,
                     "add_layer_norm: residual must have x's sizes");
}

TEST_F(Autocast, row_norms_take_weights_of_any_dtype_and_give_their_gradients_back_in_it) {
  const Tensor x = randn({4, 6});
  for (const DType dtype : {kBF16, kF16, kF32}) {
    Tensor w = ones({6}).to(dtype);
    w.set_requires_grad();
    const auto gradient = [&](const Tensor& y) {
      w.zero_grad();
      y.sum().backward();
      return w.grad().dtype();
    };
    const AutocastGuard autocast(DeviceType::kCPU, kBF16);
    EXPECT_EQ(gradient(layer_norm(x, {6}, w)), dtype);
    EXPECT_EQ(gradient(rms_norm(x, w)), dtype);
    EXPECT_EQ(gradient(rms_norm(x.to(kF16), w)), dtype);
    EXPECT_EQ(gradient(add_layer_norm(x, x, {6}, w).y), dtype);
    EXPECT_EQ(gradient(add_rms_norm(x, x, w).y), dtype);
  }
}

TEST_F(Autocast, a_batch_norm_of_halves_takes_an_f32_residual) {
  const Tensor x = randn({2, 3, 4, 4}).to(kBF16), mean = zeros({3}), var = ones({3});
  const Tensor residual = randn({2, 3, 4, 4});
  const AutocastGuard autocast(DeviceType::kCPU, kBF16);
  EXPECT_EQ(batch_norm(x, mean, var, {}, {}, true).dtype(), kBF16);
  EXPECT_EQ(batch_norm_act(x, residual, mean, var, {}, {}, {.training = true}).dtype(), kF32);
}

// PyTorch's list for GPUs has layer and group norm; instance norm is a batch norm there.
TEST_F(Autocast, an_instance_norm_keeps_halves) {
  const Tensor x = randn({2, 3, 4, 4}).to(kBF16), mean = zeros({3}), var = ones({3});
  Tensor w = ones({3}).set_requires_grad();
  const AutocastGuard autocast(DeviceType::kCPU, kBF16);
  EXPECT_EQ(instance_norm(x).dtype(), kBF16);
  EXPECT_EQ(instance_norm(x, mean, var, {}, {}, false).dtype(), kBF16);
  const Tensor y = instance_norm(x, {}, {}, w, zeros({3}));
  EXPECT_EQ(y.dtype(), kBF16);
  EXPECT_LT(largest_difference(y, instance_norm(x.to(kF32))), 0.02);
  EXPECT_EQ(instance_norm(x.to(kF32)).dtype(), kF32);
  y.sum().backward();
  EXPECT_EQ(w.grad().dtype(), kF32);
}

}  // namespace
}  // namespace tarn
