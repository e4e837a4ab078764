// core_norm_test.cpp - batch, layer and group norm against naive f64 references.
#include "numeric_tools.h"

#include "tarn/core/parallel.h"
#include "tarn/core/raw_norm.h"

namespace tarn {
namespace {

using namespace testing;  // NOLINT
constexpr double kEps = 1e-5;

struct Statistics {
  Doubles mean, var;  // biased
};

Statistics channel_statistics(const Doubles& x, int64_t batch, int64_t channels, int64_t length) {
  Statistics s{Doubles(channels, 0.0), Doubles(channels, 0.0)};
  const double count = static_cast<double>(batch * length);
  for (int pass = 0; pass < 2; ++pass) {
    for (int64_t i = 0; i < batch * channels * length; ++i) {
      const int64_t c = i / length % channels;
      const double d = x[i] - s.mean[c];
      if (pass == 0) {
        s.var[c] += x[i] / count;  // the mean, for now
      } else {
        s.var[c] += d * d / count;
      }
    }
    if (pass == 0) {
      s.mean = s.var;
      s.var.assign(channels, 0.0);
    }
  }
  return s;
}

Doubles normalised(const Doubles& x, const Statistics& s, const Doubles& w, const Doubles& b,
                   const Doubles& residual, bool relu, int64_t length) {
  const int64_t channels = static_cast<int64_t>(w.size());
  Doubles y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const int64_t c = static_cast<int64_t>(i) / length % channels;
    y[i] = (x[i] - s.mean[c]) / std::sqrt(s.var[c] + kEps) * w[c] + b[c];
    if (!residual.empty()) y[i] += residual[i];
    if (relu) y[i] = std::max(0.0, y[i]);
  }
  return y;
}

TEST(BatchNormTest, every_size_layout_and_dtype) {
  for (const Shape& sizes :
       {Shape{2, 3, 5, 7}, Shape{4, 16, 4, 4}, Shape{3, 64, 3, 3}, Shape{2, 130, 2, 9},
        Shape{5, 1, 3, 3}, Shape{7, 5}, Shape{3, 4, 6}, Shape{2, 2, 3, 2, 2}, Shape{9, 8, 1, 1}}) {
    const int64_t batch = sizes[0], channels = sizes[1], length = sizes.numel() / batch / channels;
    for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
      const Tensor x = random_tensor(sizes, 1, dtype), r = random_tensor(sizes, 2, dtype);
      const Tensor w = random_tensor({channels}, 3, DType::kF32);
      const Tensor b = random_tensor({channels}, 4, DType::kF32);
      const Statistics s = channel_statistics(numbers(x), batch, channels, length);
      for (int mode = 0; mode < 4; ++mode) {
        const bool relu = mode & 1, add = mode & 2;
        const Doubles want = normalised(numbers(x), s, numbers(w), numbers(b),
                                        add ? numbers(r) : Doubles(), relu, length);
        for (const NamedTensor& layout : layouts_of(x)) {
          const auto got =
              raw::batch_norm_train(layout.tensor, w, b, add ? r : Tensor(), relu, kEps);
          expect_close(numbers(got.y), want, 2 * rtol_of(dtype), 2 * rtol_of(dtype), layout.name);
          if (HasFatalFailure()) return;
          expect_close(numbers(got.mean), s.mean, 1e-5, 1e-6);
          expect_close(numbers(got.var), s.var, 1e-5, 1e-6);
        }
      }
    }
  }
}

TEST(BatchNormTest, channels_last_stays) {
  const Tensor x = raw::contiguous(random_tensor({2, 3, 4, 5}, 3), MemoryFormat::kChannelsLast);
  EXPECT_TRUE(batch_norm(x, {}, {}, {}, {}, true).is_contiguous(MemoryFormat::kChannelsLast));
}

// Values from PyTorch: x [[1,2],[3,6],[5,4]].
TEST(BatchNormTest, running_statistics_use_the_unbiased_variance) {
  const Tensor x = tensor({1, 2, 3, 6, 5, 4}, {3, 2});
  const Tensor mean = zeros({2}), var = ones({2});
  batch_norm(x, mean, var, {}, {}, true);
  expect_close(numbers(mean), {.3, .4}, 1e-6, 0);
  expect_close(numbers(var), {1.3, 1.3}, 1e-6, 0);
  batch_norm(zeros({0, 2}), mean, var, {}, {}, true);  // an empty batch changes nothing
  expect_close(numbers(var), {1.3, 1.3}, 1e-6, 0);
  const Doubles y = numbers(batch_norm(x, mean, var, {}, {}, false));
  EXPECT_NEAR(y[0], (1 - .3) / std::sqrt(1.3 + kEps), 1e-6);
}

TEST(BatchNormTest, statistics_do_not_cancel) {
  for (const MemoryFormat format : {MemoryFormat::kContiguous, MemoryFormat::kChannelsLast}) {
    // Channel c holds 1000 (c + 1) +- 0.5: the variance is 0.25.
    Doubles values;
    for (int64_t i = 0; i < 8 * 32 * 10 * 10; ++i) {
      values.push_back(1000.0 * static_cast<double>(i / 100 % 32 + 1) + (i % 2 ? .5 : -.5));
    }
    const Tensor x = raw::to(from_vector(values, {8, 32, 10, 10}), DType::kF32);
    const auto r = raw::batch_norm_train(raw::contiguous(x, format), {}, {}, {}, false, kEps);
    expect_close(numbers(r.var), Doubles(32, 0.25), 1e-5, 0);
  }
}

TEST(BatchNormTest, an_outlier_at_the_start_does_not_spoil_the_rest) {
  Tensor x = random_tensor({4, 64, 16, 16}, 5, DType::kF32);
  x = raw::contiguous(x, MemoryFormat::kChannelsLast);
  raw::fill_(raw::select(raw::select(raw::select(x, 0, 0), 1, 0), 1, 0), 3000);
  const Statistics s = channel_statistics(numbers(x), 4, 64, 256);
  expect_close(numbers(raw::batch_norm_train(x, {}, {}, {}, false, kEps).var), s.var, 1e-5, 0);
}

TEST(BatchNormTest, infinity_stays_in_its_element_when_statistics_are_fixed) {
  for (const MemoryFormat format : {MemoryFormat::kContiguous, MemoryFormat::kChannelsLast}) {
    for (bool relu : {false, true}) {
      Tensor x = ones({2, 3, 2, 2}), g = ones({2, 3, 2, 2});
      raw::fill_(raw::select(x, 0, 1), INFINITY);
      raw::fill_(raw::select(raw::select(raw::select(g, 0, 0), 1, 0), 1, 0), INFINITY);
      const Tensor in = raw::contiguous(x, format);
      const auto grads = raw::batch_norm_backward(g, in, {}, {}, {}, zeros({3}), full({3}, 2), relu,
                                                  false, true, true, false);
      Doubles want(24, 2.0);  // g * rstd
      for (size_t c = 0; c < 3; ++c) want[c * 4] = INFINITY;
      expect_close(numbers(grads.x), want, 0, 0);
    }
  }
}

TEST(BatchNormTest, backward_layouts_agree_and_bits_do_not_depend_on_threads) {
  const int before = num_threads();
  for (const Shape& sizes : {Shape{8, 16, 12, 12}, Shape{4, 96, 20, 20}, Shape{6, 7, 5, 5}}) {
    const Tensor x = random_tensor(sizes, 1, DType::kF32), g = random_tensor(sizes, 2, DType::kF32);
    const Tensor r = random_tensor(sizes, 3, DType::kF32);
    const Tensor w = random_tensor({sizes[1]}, 4, DType::kF32);
    std::vector<Doubles> last, plain;
    for (const MemoryFormat format : {MemoryFormat::kContiguous, MemoryFormat::kChannelsLast}) {
      for (int threads : {1, 2, 3}) {
        set_num_threads(threads);
        const Tensor in = raw::contiguous(x, format);
        const auto f = raw::batch_norm_train(in, w, w, r, true, kEps);
        const auto b = raw::batch_norm_backward(g, in, f.y, w, w, f.mean, f.rstd, true, true, true,
                                                true, true);
        Doubles all;
        for (const Tensor& t : {f.y, b.x, b.weight, b.bias, b.residual}) {
          const Doubles v = numbers(t);
          all.insert(all.end(), v.begin(), v.end());
        }
        (format == MemoryFormat::kContiguous ? plain : last).push_back(all);
      }
    }
    set_num_threads(before);
    for (int i = 1; i < 3; ++i) {
      EXPECT_EQ(last[i], last[0]);
      EXPECT_EQ(plain[i], plain[0]);
    }
    expect_close(last[0], plain[0], 1e-4, 2e-5);
  }
}

TEST(BatchNormTest, relu_keeps_nan) {
  const Tensor x = tensor({1, NAN}, {2, 1});
  const Tensor y = batch_norm_act(x, {}, zeros({1}), ones({1}), {}, {}, {.relu = true});
  EXPECT_TRUE(std::isnan(numbers(y)[1]));
}

TEST(BatchNormTest, empty_batch_has_zero_gradients) {
  Tensor x = zeros({0, 3, 2, 2}), w = ones({3});
  x.set_requires_grad();
  w.set_requires_grad();
  batch_norm(x, {}, {}, w, {}, true).sum().backward();
  EXPECT_EQ(x.grad().sizes(), (Shape{0, 3, 2, 2}));
  EXPECT_EQ(numbers(w.grad()), (Doubles{0, 0, 0}));
}

// REPORTS C3 b, and PyTorch's layer norm of 1, 2, 3, 4.
TEST(LayerNormTest, values) {
  Doubles row;
  for (int i = 0; i < 16; ++i) row.push_back(1024 + i / 1024.0);
  const Doubles y = numbers(layer_norm(raw::to(from_vector(row, {16}), DType::kF32), {16}));
  EXPECT_NEAR(y.front(), -1.331333, 1e-5);
  EXPECT_NEAR(y.back(), 1.331333, 1e-5);
  expect_close(numbers(layer_norm(tensor({1, 2, 3, 4}), {4})),
               {-1.3416355, -.4472119, .4472118, 1.3416355}, 1e-6, 1e-7);
}

TEST(LayerNormTest, every_width_layout_and_dtype) {
  for (const int64_t width : {1, 7, 16, 100, 5000}) {
    for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
      const Tensor x = random_tensor({3, 70, width}, 1, dtype);
      const Tensor w = random_tensor({width}, 2, DType::kF32);
      const Doubles flat = numbers(x), weight = numbers(w);
      Doubles want(flat.size());
      for (int64_t r = 0; r < 210; ++r) {
        const Doubles part(flat.begin() + r * width, flat.begin() + (r + 1) * width);
        const Statistics s = channel_statistics(part, 1, 1, width);
        for (int64_t i = 0; i < width; ++i) {
          want[r * width + i] =
              (part[i] - s.mean[0]) / std::sqrt(s.var[0] + kEps) * weight[i] + weight[i];
        }
      }
      for (const NamedTensor& layout : layouts_of(x)) {
        expect_close(numbers(layer_norm(layout.tensor, {width}, w, w)), want, 2 * rtol_of(dtype),
                     2 * rtol_of(dtype), layout.name);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(GroupNormTest, one_group_is_layer_norm_and_one_per_channel_is_instance_norm) {
  const Tensor x = random_tensor({2, 6, 3, 4}, 1);
  expect_close(numbers(group_norm(x, 1)), numbers(layer_norm(x, {6, 3, 4})), 1e-12, 1e-12);
  expect_close(numbers(group_norm(x, 6)), numbers(instance_norm(x)), 1e-12, 1e-12);
  EXPECT_EQ(group_norm(zeros({0, 6}), 2).sizes(), (Shape{0, 6}));
}

/// Statistics and weights of halves are f32: one rounding of the result is all that f64 differs by.
TEST(GroupNormTest, halves_keep_f32_statistics_and_weight_gradients) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    const Tensor x = random_tensor({4, 6, 5, 5}, 1, dtype),
                 g = random_tensor({4, 6, 5, 5}, 2, dtype);
    const Tensor w = random_tensor({6}, 3, DType::kF32), b = random_tensor({6}, 4, DType::kF32);
    for (bool instance : {true, false}) {
      std::vector<Doubles> y, gw, gb, mean, var;
      for (DType d : {dtype, DType::kF64}) {
        const DType affine = d == dtype ? DType::kF32 : d;
        const Tensor weight = raw::clone(raw::to(w, affine)), bias = raw::clone(raw::to(b, affine));
        weight.set_requires_grad(), bias.set_requires_grad();
        const Tensor m = zeros({6}, {.dtype = affine}), v = ones({6}, {.dtype = affine});
        const Tensor in = raw::to(x, d);
        const Tensor out = instance ? instance_norm(in, m, v, weight, bias, true, 0.3, kEps)
                                    : group_norm(in, 2, weight, bias, kEps);
        EXPECT_EQ(out.dtype(), d);
        out.backward(raw::to(g, d));
        EXPECT_EQ(weight.grad().dtype(), affine);
        y.push_back(numbers(out)), gw.push_back(numbers(weight.grad()));
        gb.push_back(numbers(bias.grad())), mean.push_back(numbers(m)), var.push_back(numbers(v));
      }
      const double ulp = dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
      expect_close(y[0], y[1], ulp, 1e-6, "y");
      expect_close(gw[0], gw[1], 1e-5, 1e-5, "gradient of the weight");
      expect_close(gb[0], gb[1], 1e-5, 1e-5, "gradient of the bias");
      expect_close(mean[0], mean[1], 1e-6, 1e-7, "running mean");
      expect_close(var[0], var[1], 1e-6, 1e-7, "running variance");
    }
  }
}

TEST(NormTest, errors_are_in_the_callers_terms) {
  const Tensor x = zeros({2, 3, 4, 4}), s = zeros({3});
  expect_error<ValueError>(
      "batch_norm: training needs more than one value per channel; got x=[1, 3]", [] {
        batch_norm(zeros({1, 3}), {}, {}, {}, {}, true);
      });
  expect_error<ValueError>("batch_norm: evaluation needs running_mean and running_var",
                           [&] { batch_norm(x, {}, {}); });
  expect_error<ShapeError>("batch_norm: weight must be [C] = [3]; got weight=[4] f32 cpu",
                           [&] { batch_norm(x, s, s, zeros({4})); });
  expect_error<DTypeError>("batch_norm: bias must be f32 or of x's dtype",
                           [&] { batch_norm(x, s, s, {}, zeros({3}, {.dtype = DType::kF64})); });
  expect_error<ShapeError>("batch_norm: x must be [N, C, ...]", [&] { batch_norm(s, s, s); });
  expect_error<DTypeError>("batch_norm: x must be floating", [&] {
    batch_norm(labels({1, 2}, {1, 2}), s, s);
  });
  expect_error<ShapeError>("batch_norm: residual must have x's sizes", [&] {
    batch_norm_act(x, zeros({2, 3, 4, 5}), s, s, {}, {}, {});
  });
  expect_error<DTypeError>("batch_norm: residual must have x's dtype",
                           [&] { batch_norm_act(x, raw::to(x, DType::kF64), s, s, {}, {}, {}); });
  expect_error<ValueError>("add_norm: residual must be a tensor; got an undefined one",
                           [&] { raw::check_residual("add_norm", x, {}); });
  expect_error<ShapeError>("layer_norm: x must end in the normalized sizes; got x=[2, 3, 4, 4]",
                           [&] { layer_norm(x, {5}); });
  expect_error<ShapeError>("layer_norm: weight must have the normalized sizes [4]",
                           [&] { layer_norm(x, {4}, s); });
  expect_error<DTypeError>("layer_norm: bias must be f32 or of x's dtype",
                           [&] { layer_norm(x, {4}, {}, zeros({4}, {.dtype = DType::kF64})); });
  expect_error<DTypeError>("layer_norm: x must be floating", [&] {
    layer_norm(labels({1, 2}, {2}), {2});
  });
  expect_error<ShapeError>("group_norm: groups must divide the channels; got groups=2",
                           [&] { group_norm(x, 2); });
  expect_error<ValueError>("instance_norm: needs more than one value per channel", [] {
    instance_norm(zeros({2, 3, 1}));
  });
}

}  // namespace
}  // namespace tarn
