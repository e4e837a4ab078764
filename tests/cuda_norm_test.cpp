// cuda_norm_test.cpp - batch norm and layer norm on the GPU agree with the CPU.
#include "gpu_compare.h"
#include "numeric_tools.h"
#include "tests_throws.h"

#include "tarn/core/kernels.h"
#include "tarn/core/raw_norm.h"

namespace tarn {
namespace {

using testing::random_tensor;

constexpr DType kFloats[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};
constexpr double kEps = 1e-5;

/// Spacings by which results may differ: sums of some thousand terms in another order, and for
/// halves the other rounding that comes of it.
double tolerance(DType dtype) {
  return is_half(dtype) ? 1 : 32;
}

struct Layout {
  Shape sizes;
  bool channels_last;
  int64_t offset;  // of the storage, in elements: unaligned
};

// One tile and many, channels that fill vectors and that do not, planes shorter and longer than a
// block's share, 2-d input, unaligned storage.
const std::vector<Layout> kLayouts = {
    {{5, 3}, false, 0},           {{300, 40}, false, 0},      {{2, 8, 3, 5}, true, 0},
    {{3, 24, 7, 9}, true, 1},     {{2, 5, 40, 31}, true, 0},  {{1, 300, 3, 3}, true, 0},
    {{4, 16, 40, 30}, true, 0},   {{3, 2, 7, 7}, false, 0},   {{2, 3, 16, 16}, false, 0},
    {{37, 2, 5}, false, 0},       {{2, 2, 60, 80}, false, 1}, {{1, 1, 130, 136}, false, 0},
    {{130, 2, 16, 20}, false, 0}, {{4, 40, 24, 23}, true, 0},
};

Tensor placed(const Tensor& values, const Layout& l) {
  const MemoryFormat format =
      l.channels_last ? MemoryFormat::kChannelsLast : MemoryFormat::kContiguous;
  const Tensor memory = full({values.numel() + l.offset}, 7, {.dtype = values.dtype()});
  const Tensor like = empty(values.sizes(), {.dtype = values.dtype(), .format = format});
  const Tensor x = raw::as_strided(memory, values.sizes(), like.strides(), l.offset);
  raw::copy_(x, values);
  return x;
}

/// The same view of the same storage on the GPU.
Both on_both(const Tensor& values, const Layout& l) {
  const Tensor x = placed(values, l);
  const Tensor flat = raw::as_strided(x, {values.numel() + l.offset}, {1}, 0);
  return {x, raw::as_strided(raw::to(flat, kCuda), x.sizes(), x.strides(), l.offset)};
}

std::string name_of(const Layout& l, DType dtype) {
  return tarn::detail::concat(l.sizes, " ", dtype, l.channels_last ? " channels_last" : "",
                              " offset ", l.offset);
}

struct Channels {
  Both weight, bias;
  Channels(int64_t n, DType dtype)
      : weight(random_tensor({n}, 5, dtype)), bias(random_tensor({n}, 6, dtype)) {}
};

/// Forward, then backward with what the CPU found, so that no difference is counted twice.
void check_batch_norm(const Layout& l, DType dtype, bool relu, bool residual, bool affine) {
  const std::string what =
      name_of(l, dtype) + (relu ? " relu" : "") + (residual ? " residual" : "");
  const double ulps = tolerance(dtype);
  // Far from zero, so that careless sums of squares would show.
  const Tensor values =
      raw::to(raw::add(random_tensor(l.sizes, 1), full({}, 3, {.dtype = DType::kF64})), dtype);
  const Both x = on_both(values, l);
  const Both add = on_both(random_tensor(l.sizes, 2, dtype), l);
  const Both gy = on_both(random_tensor(l.sizes, 3, dtype), l);
  const int64_t c = l.sizes[1];
  const Channels p(c, is_half(dtype) ? DType::kF32 : dtype);
  const Tensor none;
  const auto forward = [&](const Tensor& in, const Tensor& r, const Tensor& w, const Tensor& b) {
    return raw::batch_norm_train(in, w, b, r, relu, kEps);
  };
  const auto cpu = forward(x.cpu, residual ? add.cpu : none, affine ? p.weight.cpu : none,
                           affine ? p.bias.cpu : none);
  const auto gpu = forward(x.gpu, residual ? add.gpu : none, affine ? p.weight.gpu : none,
                           affine ? p.bias.gpu : none);
  expect_agree(gpu.mean, cpu.mean, 4, what + ", mean");
  expect_agree(gpu.var, cpu.var, 16, what + ", var");
  expect_agree(gpu.rstd, cpu.rstd, 16, what + ", rstd");
  expect_agree(gpu.y, cpu.y, ulps, what + ", y", 1.0);
  EXPECT_EQ(gpu.y.strides(), cpu.y.strides()) << what;

  const Tensor mean = raw::to(cpu.mean, kCuda), rstd = raw::to(cpu.rstd, kCuda);
  expect_agree(raw::batch_norm_eval(x.gpu, affine ? p.weight.gpu : none, affine ? p.bias.gpu : none,
                                    residual ? add.gpu : none, relu, mean, rstd),
               cpu.y, 0, what + ", eval");
  for (bool training : {true, false}) {
    const bool keep_y = relu && residual;
    const auto cpu_grads = raw::batch_norm_backward(
        gy.cpu, x.cpu, keep_y ? cpu.y : none, affine ? p.weight.cpu : none,
        affine ? p.bias.cpu : none, cpu.mean, cpu.rstd, relu, training, true, true, residual);
    const auto gpu_grads = raw::batch_norm_backward(
        gy.gpu, x.gpu, keep_y ? raw::to(cpu.y, kCuda) : none, affine ? p.weight.gpu : none,
        affine ? p.bias.gpu : none, mean, rstd, relu, training, true, true, residual);
    // Sums of n terms of either sign: their error is that of n^(1/2) of them.
    const double sums = std::sqrt(static_cast<double>(x.cpu.numel() / c));
    expect_agree(gpu_grads.weight, cpu_grads.weight, 32, what + ", gweight", sums);
    expect_agree(gpu_grads.bias, cpu_grads.bias, 32, what + ", gbias", sums);
    expect_agree(gpu_grads.x, cpu_grads.x, ulps, what + ", gx", 2.0);
    if (residual) expect_agree(gpu_grads.residual, cpu_grads.residual, 0, what + ", gresidual");
  }
}

TEST(CudaBatchNorm, agrees_with_the_cpu_in_both_layouts) {
  TARN_NEEDS_GPU();
  for (const Layout& l : kLayouts) {
    check_batch_norm(l, DType::kF32, false, false, true);
    check_batch_norm(l, DType::kF32, true, true, true);
  }
}

TEST(CudaBatchNorm, agrees_in_every_dtype_with_and_without_relu_residual_and_affine) {
  TARN_NEEDS_GPU();
  for (DType dtype : kFloats) {
    for (size_t i : {2u, 3u, 9u, 8u}) {
      for (int flags = 0; flags < 8; ++flags) {
        check_batch_norm(kLayouts[i], dtype, flags & 1, flags & 2, flags & 4);
      }
    }
    // Vectors of channels that leave threads without any, and more rows than one tile has.
    for (size_t i : {1u, 13u}) check_batch_norm(kLayouts[i], dtype, true, true, true);
  }
}

TEST(CudaBatchNorm, statistics_survive_a_large_mean) {
  TARN_NEEDS_GPU();
  const Tensor noise = random_tensor({8, 16, 12, 12}, 9);
  const Both x(raw::to(raw::add(noise, full({}, 4000, {.dtype = DType::kF64})), DType::kF32));
  for (bool last : {false, true}) {
    const auto format = last ? MemoryFormat::kChannelsLast : MemoryFormat::kContiguous;
    const auto cpu = raw::batch_norm_train(raw::contiguous(x.cpu, format), {}, {}, {}, false, kEps);
    const auto gpu = raw::batch_norm_train(raw::contiguous(x.gpu, format), {}, {}, {}, false, kEps);
    expect_agree(gpu.mean, cpu.mean, 1, "mean");
    expect_agree(gpu.var, cpu.var, 32, "var");
  }
}

TEST(CudaBatchNorm, nan_and_infinity_stay_in_their_channel) {
  TARN_NEEDS_GPU();
  const Tensor x = random_tensor({4, 8, 5, 5}, 3, DType::kF32);
  x.data<float>()[0] = NAN;                // channel 0
  x.data<float>()[3 * 25 + 7] = INFINITY;  // channel 3
  for (bool last : {false, true}) {
    const Tensor in =
        raw::contiguous(x, last ? MemoryFormat::kChannelsLast : MemoryFormat::kContiguous);
    const auto cpu = raw::batch_norm_train(in, {}, {}, {}, true, kEps);
    const auto gpu = raw::batch_norm_train(raw::to(in, kCuda), {}, {}, {}, true, kEps);
    expect_agree(gpu.y, cpu.y, 8, "y", 1.0);
    expect_agree(gpu.var, cpu.var, 8, "var");
  }
}

TEST(CudaBatchNorm, infinity_stays_in_its_element_when_statistics_are_fixed) {
  TARN_NEEDS_GPU();
  const Tensor x = random_tensor({3, 4, 5, 5}, 2, DType::kF32), g = ones(x.sizes());
  const Tensor zero = zeros({4}), two = full({4}, 2);
  x.data<float>()[7] = INFINITY;
  g.data<float>()[125] = INFINITY;
  for (bool last : {false, true}) {
    const auto on_gpu = [&](const Tensor& t) {
      return raw::to(
          raw::contiguous(t, last ? MemoryFormat::kChannelsLast : MemoryFormat::kContiguous),
          kCuda);
    };
    const auto grads =
        raw::batch_norm_backward(on_gpu(g), on_gpu(x), {}, {}, {}, raw::to(zero, kCuda),
                                 raw::to(two, kCuda), false, false, true, true, false);
    expect_agree(grads.x, raw::mul(g, Scalar(2)), 0, "gx");  // g * rstd
  }
}

struct Rows {
  int64_t m, d;
};

void check_layer_norm(Rows r, DType dtype, DType affine, bool with_affine, int64_t offset = 0) {
  const std::string what = tarn::detail::concat("[", r.m, ", ", r.d, "] ", dtype, " ", affine);
  const double ulps = tolerance(dtype);
  const Layout l{{r.m, r.d}, false, offset};
  const Both x = on_both(
      raw::to(raw::add(random_tensor({r.m, r.d}, 1), full({}, 3, {.dtype = DType::kF64})), dtype),
      l);
  const Both gy = on_both(random_tensor({r.m, r.d}, 2, dtype), l);
  const Channels p(r.d, affine);
  const Tensor none;
  const auto cpu = raw::layer_norm(x.cpu, with_affine ? p.weight.cpu : none,
                                   with_affine ? p.bias.cpu : none, kEps);
  const auto gpu = raw::layer_norm(x.gpu, with_affine ? p.weight.gpu : none,
                                   with_affine ? p.bias.gpu : none, kEps);
  expect_agree(gpu.mean, cpu.mean, 4, what + ", mean");
  expect_agree(gpu.rstd, cpu.rstd, 16, what + ", rstd");
  expect_agree(gpu.y, cpu.y, ulps, what + ", y", 1.0);
  for (int want = 1; want < 8; ++want) {
    const bool wx = want & 1, ww = want & 2, wb = want & 4;
    const auto c = raw::layer_norm_backward(gy.cpu, x.cpu, with_affine ? p.weight.cpu : none,
                                            cpu.mean, cpu.rstd, wx, ww, wb);
    const auto g =
        raw::layer_norm_backward(gy.gpu, x.gpu, with_affine ? p.weight.gpu : none,
                                 raw::to(cpu.mean, kCuda), raw::to(cpu.rstd, kCuda), wx, ww, wb);
    const double sums = std::sqrt(static_cast<double>(r.m));
    if (wx) expect_agree(g.x, c.x, ulps, what + ", gx", 2.0);
    if (ww) expect_agree(g.weight, c.weight, tolerance(g.weight.dtype()), what + ", gweight", sums);
    if (wb) expect_agree(g.bias, c.bias, tolerance(g.bias.dtype()), what + ", gbias", sums);
    if (r.m * r.d > 20000) break;  // once is enough
  }
}

TEST(CudaLayerNorm, agrees_with_the_cpu_for_rows_of_any_length) {
  TARN_NEEDS_GPU();
  for (const Rows r : {Rows{1, 1},
                       {3, 2},
                       {5, 7},
                       {2, 8},
                       {70, 24},
                       {9, 128},
                       {4, 768},
                       {3, 1024},
                       {3, 1028},
                       {2, 1333},
                       {100, 33},
                       {2, 3000},
                       {20, 4096},
                       {9, 4100},
                       {2, 9000}}) {
    check_layer_norm(r, DType::kF32, DType::kF32, true);
  }
  check_layer_norm({9, 64}, DType::kF32, DType::kF32, true, 1);
}

TEST(CudaLayerNorm, agrees_in_every_dtype_with_and_without_affine) {
  TARN_NEEDS_GPU();
  for (DType dtype : kFloats) {
    for (const Rows r : {Rows{40, 40}, {5, 17}, {2, 2048}}) {
      check_layer_norm(r, dtype, DType::kF32, true);
      check_layer_norm(r, dtype, dtype, true);
      check_layer_norm(r, dtype, dtype, false);
    }
  }
}

TEST(CudaLayerNorm, statistics_survive_a_large_mean) {
  TARN_NEEDS_GPU();
  for (int64_t d : {33, 64, 1333}) {
    const Tensor noise = random_tensor({5, d}, 9);
    const Both x(raw::to(raw::add(noise, full({}, 4000, {.dtype = DType::kF64})), DType::kF32));
    const auto cpu = raw::layer_norm(x.cpu, {}, {}, kEps);
    const auto gpu = raw::layer_norm(x.gpu, {}, {}, kEps);
    expect_agree(gpu.mean, cpu.mean, 1, "mean");
    expect_agree(gpu.rstd, cpu.rstd, 32, "rstd");
  }
}

TEST(CudaLayerNorm, norms_of_sums_agree_with_the_cpu) {
  TARN_NEEDS_GPU();
  for (const Rows r : {Rows{5, 7}, {4, 768}, {3, 1028}, {2, 3000}}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      for (const raw::RowNorm kind : {raw::RowNorm::kLayer, raw::RowNorm::kRms}) {
        const std::string what = tarn::detail::concat("[", r.m, ", ", r.d, "] ", dtype);
        const double ulps = tolerance(dtype);
        const Layout l{{r.m, r.d}, false, 0};
        const Both x = on_both(random_tensor({r.m, r.d}, 1, dtype), l);
        const Both residual = on_both(random_tensor({r.m, r.d}, 2, dtype), l);
        const Both gy = on_both(random_tensor({r.m, r.d}, 3, dtype), l);
        const Both gsum = on_both(random_tensor({r.m, r.d}, 4, dtype), l);
        const Channels p(r.d, DType::kF32);
        const auto cpu = raw::layer_norm(x.cpu, p.weight.cpu, {}, kEps, kind, residual.cpu);
        const auto gpu = raw::layer_norm(x.gpu, p.weight.gpu, {}, kEps, kind, residual.gpu);
        expect_agree(gpu.sum, cpu.sum, 0, what + ", sum");
        expect_agree(gpu.y, cpu.y, ulps, what + ", y", 1.0);
        expect_agree(gpu.rstd, cpu.rstd, 16, what + ", rstd");
        const auto on_gpu = [](const Tensor& t) { return t.defined() ? raw::to(t, kCuda) : t; };
        const auto c = raw::layer_norm_backward(gy.cpu, cpu.sum, p.weight.cpu, cpu.mean, cpu.rstd,
                                                true, true, false, gsum.cpu);
        const auto g =
            raw::layer_norm_backward(gy.gpu, on_gpu(cpu.sum), p.weight.gpu, on_gpu(cpu.mean),
                                     on_gpu(cpu.rstd), true, true, false, gsum.gpu);
        expect_agree(g.x, c.x, ulps, what + ", gx", 2.0);
        expect_agree(g.weight, c.weight, tolerance(DType::kF32), what + ", gweight",
                     std::sqrt(static_cast<double>(r.m)));
      }
    }
  }
}

TEST(CudaLayerNorm, rows_beyond_32_bit_counts_are_refused) {
  TARN_NEEDS_GPU();
  const Tensor one = zeros({1}, {.device = kCuda}), none{};
  const Tensor x = raw::as_strided(one, {1, int64_t{1} << 30}, {0, 0}, 0);  // never read
  const NormKernels& norm = kernels(kCuda).norm;
  const Stream stream = current_stream(kCuda);
  EXPECT_THROWS_WITH(norm.layer_norm(x, none, none, none, kEps, none, x, one, one, stream),
                     UnsupportedError,
                     "layer_norm: on cuda a row must have fewer than 2^30 numbers; got x=[1, "
                     "1073741824] f32 cuda:0");
  EXPECT_THROWS_WITH(norm.layer_norm_backward(x, none, x, none, none, one, x, none, none, stream),
                     UnsupportedError,
                     "rms_norm_backward: on cuda a row must have fewer than 2^30 numbers");
}

TEST(CudaLayerNorm, rms_norm_divides_by_infinity) {
  TARN_NEEDS_GPU();
  for (int64_t d : {64, 65, 5000}) {
    const Tensor x = random_tensor({3, d}, 3, DType::kF32);
    x.data<float>()[d + 2] = INFINITY;  // NaN itself; its row is 0 else
    const auto cpu = raw::layer_norm(x, {}, {}, kEps, raw::RowNorm::kRms);
    const auto gpu = raw::layer_norm(raw::to(x, kCuda), {}, {}, kEps, raw::RowNorm::kRms);
    EXPECT_EQ(cpu.y.data<float>()[d + 1], 0);
    expect_agree(gpu.y, cpu.y, 8, "y", 1.0);
    expect_agree(gpu.rstd, cpu.rstd, 8, "rstd");
  }
}

TEST(CudaLayerNorm, nan_stays_in_its_row) {
  TARN_NEEDS_GPU();
  for (int64_t d : {64, 65}) {
    const Tensor x = random_tensor({3, d}, 3, DType::kF32);
    x.data<float>()[d + 2] = NAN;
    const auto cpu = raw::layer_norm(x, {}, {}, kEps);
    const auto gpu = raw::layer_norm(raw::to(x, kCuda), {}, {}, kEps);
    expect_agree(gpu.y, cpu.y, 8, "y", 1.0);
  }
}

}  // namespace
}  // namespace tarn
