// cuda_conv_test.cpp - our own convolution kernels on CUDA against sums in f64 on the CPU.
#include "cuda_conv_tools.h"

#include "tarn/cuda/conv_shape.h"

namespace tarn::cuda {
namespace {

using namespace conv_test;

TEST(CudaConv, own_kernels_agree_with_sums_in_f64) {
  TARN_NEEDS_GPU();
  for (const Case& c : kCases) {
    for (const auto& [dtype, tolerance] : kTolerances) {
      const Operands in = operands(c, dtype);
      expect_near(on_device(own_conv_kernels(), c, in), reference(c, in), tolerance, c, dtype);
    }
  }
}

TEST(CudaConv, many_pixels_are_summed_in_chunks) {
  TARN_NEEDS_GPU();
  for (const Case& c : {Case{"one tile", {5, 16, 40, 33}, {17, 16, 1, 1}, {}},
                        Case{"depthwise", {5, 33, 40, 33}, {33, 1, 1, 2}, {.groups = 33}}}) {
    const Operands in = operands(c, DType::kF32);
    expect_near(on_device(own_conv_kernels(), c, in), reference(c, in), 1e-5, c, DType::kF32);
  }
}

TEST(CudaConv, blocks_go_round_where_there_is_more_work_than_blocks) {
  TARN_NEEDS_GPU();  // the emulated GPU runs at most 128 blocks
  for (const Case& c :
       {Case{"132 tiles", {1, 16, 53, 53}, {130, 16, 1, 1}, {}},
        Case{"2 x 65 parts", {1, 2080, 16, 17}, {2080, 1, 1, 1}, {.groups = 2080}}}) {
    const Operands in = operands(c, DType::kF32);
    expect_near(on_device(own_conv_kernels(), c, in), reference(c, in), 1e-5, c, DType::kF32);
  }
}

TEST(CudaConv, the_same_bits_on_every_run) {
  TARN_NEEDS_GPU();
  const Case& c = kCases[1];
  const Operands in = operands(c, DType::kF32);
  const Passes a = on_device(own_conv_kernels(), c, in), b = on_device(own_conv_kernels(), c, in);
  EXPECT_EQ(back(a.y).to_vector<float>(), back(b.y).to_vector<float>());
  EXPECT_EQ(back(a.gx).to_vector<float>(), back(b.gx).to_vector<float>());
  EXPECT_EQ(back(a.gw).to_vector<float>(), back(b.gw).to_vector<float>());
  EXPECT_EQ(back(a.gb).to_vector<float>(), back(b.gb).to_vector<float>());
}

TEST(CudaConv, nothing_in_gives_zero_gradients) {
  TARN_NEEDS_GPU();
  const Case c{"no images", {0, 20, 5, 5}, {17, 20, 3, 3}, {}};
  const Passes p = on_device(own_conv_kernels(), c, operands(c, DType::kF32));
  EXPECT_EQ(back(p.gw).to_vector<float>(), std::vector<float>(17 * 20 * 9, 0.0f));
  EXPECT_EQ(back(p.gb).to_vector<float>(), std::vector<float>(17, 0.0f));
}

TEST(CudaConv, no_output_channels_give_a_zero_input_gradient) {
  TARN_NEEDS_GPU();
  for (int64_t channels : {2, 20}) {
    const Case c{"no filters", {1, channels, 3, 3}, {0, channels, 3, 3}, {}};
    const Passes p = on_device(own_conv_kernels(), c, operands(c, DType::kF32));
    EXPECT_EQ(back(p.gx).to_vector<float>(),
              std::vector<float>(static_cast<size_t>(channels * 9), 0.0f));
  }
}

TEST(CudaConv, operands_may_begin_anywhere) {
  TARN_NEEDS_GPU();
  const Case c = kCases[2];
  const Operands in = operands(c, DType::kF32);
  const auto shifted = [](const Tensor& t) {  // one element into its storage
    Tensor block = empty({t.numel() + 1}, {.device = Device(DeviceType::kCUDA)});
    Tensor out(block.storage(), t.sizes(), t.strides(), 1, t.dtype());
    copy_bytes(t, out);
    return out;
  };
  Passes p{shifted(last(c.y(), DType::kF32)), shifted(in.x), shifted(in.w), shifted(in.bias)};
  const Tensor x = shifted(in.x), w = shifted(in.w), bias = shifted(in.bias), gy = shifted(in.gy);
  const Stream stream = current_stream(x.device());
  own_conv_kernels().forward(x, w, bias, c.o, p.y, stream);
  own_conv_kernels().backward_data(gy, w, c.o, p.gx, stream);
  own_conv_kernels().backward_weight(x, gy, c.o, p.gw, p.gb, stream);
  expect_near(p, reference(c, in), 1e-5, c, DType::kF32);
}

TEST(CudaConv, nan_reaches_exactly_the_outputs_that_read_it) {
  TARN_NEEDS_GPU();
  for (int64_t channels : {1, 20}) {
    const Case c{"3x3", {1, channels, 5, 5}, {channels, channels, 3, 3}, {1, 1, 1, 1}};
    const Operands in = operands(c, DType::kF32);
    in.x.data<float>()[0] = NAN;  // pixel (0, 0), channel 0
    const Tensor y = back(on_device(own_conv_kernels(), c, in).y);
    for (int64_t i = 0; i < 25; ++i) {
      EXPECT_EQ(std::isnan(y.data<float>()[i * channels]), i / 5 < 2 && i % 5 < 2) << i;
    }
  }
}

/// Where a has NaN exactly where b has it.
void expect_same_nan(const Tensor& a, const Tensor& b, const char* what) {
  const auto x = back(a).to_vector<double>(), y = b.to_vector<double>();
  int64_t different = 0;
  for (size_t i = 0; i < x.size(); ++i) different += std::isnan(x[i]) != std::isnan(y[i]);
  EXPECT_EQ(different, 0) << what;
}

TEST(CudaConv, nan_spreads_as_on_the_cpu_in_every_pass) {
  TARN_NEEDS_GPU();
  // 20 channels: the last slice in depth is filled up with taps that do not exist.
  const Case c{"3x3", {1, 20, 8, 8}, {20, 20, 3, 3}, {}};
  const auto poisoned = [&](Tensor Operands::*which, int64_t at) {
    Operands in = operands(c, DType::kF32);
    (in.*which).data<float>()[at] = NAN;
    return std::pair(on_device(own_conv_kernels(), c, in), reference(c, in));
  };
  const auto [x, x_want] = poisoned(&Operands::x, (4 * 8 + 2) * 20);
  expect_same_nan(x.y, x_want.y, "x to y");
  expect_same_nan(x.gw, x_want.gw, "x to gw");
  const auto [gy, gy_want] = poisoned(&Operands::gy, (2 * 6 + 3) * 20);
  expect_same_nan(gy.gx, gy_want.gx, "gy to gx");
  expect_same_nan(gy.gw, gy_want.gw, "gy to gw");
  expect_same_nan(gy.gb, gy_want.gb, "gy to gb");
  const auto [w, w_want] = poisoned(&Operands::w, 5 * 9);  // filter 0, channel 5, tap 0
  expect_same_nan(w.y, w_want.y, "weight to y");
  const Tensor gx = back(w.gx);
  for (int64_t i = 0; i < gx.numel(); ++i) {
    EXPECT_TRUE(i % 20 == 5 || !std::isnan(gx.data<float>()[i])) << i;
  }
}

TEST(CudaConv, images_beyond_32_bit_offsets_are_refused) {
  TARN_NEEDS_GPU();
  try {
    conv_shape({1, 1024, 1024, 1024}, {1, 1024, 1, 1}, {1, 1, 1024, 1024}, {});
    FAIL() << "no error";
  } catch (const ShapeError& e) {
    EXPECT_STREQ(e.what(),
                 "conv2d: on cuda one image and one filter must have fewer than 2^30 elements; got "
                 "x=[1, 1024, 1024, 1024], weight=[1, 1024, 1, 1], result=[1, 1, 1024, 1024]");
  }
}

}  // namespace
}  // namespace tarn::cuda
