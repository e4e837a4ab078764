// cuda_softmax_test.cpp - softmax and cross entropy on the GPU give the CPU's results.
#include <limits>

#include "gpu_compare.h"

#include "tarn/core/raw_softmax.h"

namespace tarn {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr DType kFloating[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};

// Exponentials may differ by a few units; an absolute part covers log-probabilities near 0.
double ulps_for(DType dtype) {
  return is_half(dtype) ? 1 : 32;
}
double floor_for(DType dtype) {
  return is_half(dtype) ? 1e-3 : 1;
}

void expect_softmax(const Both& x, int64_t dim) {
  for (bool log : {false, true}) {
    const Both y = x.map([&](const Tensor& t) { return raw::softmax(t, dim, log); });
    const std::string what = (log ? "log_softmax of " : "softmax of ") + x.cpu.describe() +
                             " along " + std::to_string(dim);
    const DType dtype = x.cpu.dtype();
    expect_agree(y, ulps_for(dtype), what, floor_for(dtype));
    // From the same y on both, so that only the gradient's own rounding counts.
    const Both same(y.cpu);
    const Both g(raw::to(typed(halves_of_integers(x.cpu.numel(), 9), dtype), kCPU));
    const Both gy = g.view(x.cpu.sizes(), contiguous_strides(x.cpu.sizes()));
    expect_agree({raw::softmax_backward(gy.cpu, same.cpu, dim, log),
                  raw::softmax_backward(gy.gpu, same.gpu, dim, log)},
                 is_half(dtype) ? 2 : 64, what + ", gradient", is_half(dtype) ? 0.5 : 16);
  }
}

TEST(CudaSoftmax, rows_and_columns_of_every_length) {
  TARN_NEEDS_GPU();
  const Shape shapes[] = {{},         {1},         {7},       {5, 32},  {3, 33},
                          {4, 1024},  {2, 1025},   {2, 9001}, {300, 4}, {4, 50, 9},
                          {3, 20, 1}, {2, 600, 3}, {40, 1, 9}};
  for (DType dtype : kFloating) {
    for (const Shape& sizes : shapes) {
      const Both flat(typed(halves_of_integers(sizes.numel() + 1, 1), dtype));
      for (int64_t offset : {0, 1}) {  // 1: not on the 16 bytes of the result
        const Both x = flat.view(sizes, contiguous_strides(sizes), offset);
        for (int64_t dim = 0; dim < std::max(1, sizes.dim()); ++dim) expect_softmax(x, dim);
      }
    }
  }
}

TEST(CudaSoftmax, channels_last_stays) {
  TARN_NEEDS_GPU();
  const Both flat(typed(halves_of_integers(240, 2), DType::kF32));
  const Both x = flat.view({2, 5, 4, 6}, channels_last_strides({2, 5, 4, 6}));
  expect_softmax(x, 1);
  expect_softmax(x, 3);
  EXPECT_TRUE(raw::softmax(x.gpu, 1, false).is_contiguous(MemoryFormat::kChannelsLast));
}

TEST(CudaSoftmax, special_values_do_as_on_the_cpu) {
  TARN_NEEDS_GPU();
  for (DType dtype : kFloating) {
    for (const std::vector<double>& row : std::vector<std::vector<double>>{{1, kNan, 2},
                                                                           {-kInf, 0, 1},
                                                                           {-kInf, -kInf, -kInf},
                                                                           {kInf, 0, 1},
                                                                           {kInf, kInf, 0},
                                                                           {6e4, -6e4, 5e4},
                                                                           {-0.0, 0.0, 0.0}}) {
      // Alone, and in the far end of a row that a block or several vectors share.
      for (int64_t n : {3, 100, 3000}) {
        std::vector<double> values(static_cast<size_t>(n), -1.0);
        for (int i = 0; i < 3; ++i) values[values.size() - 3 + i] = row[i];
        const Both flat(typed(values, dtype));
        for (bool log : {false, true}) {
          const auto f = [&](const Tensor& t) { return raw::softmax(t, 0, log); };
          expect_agree(flat.map(f), ulps_for(dtype), "row", floor_for(dtype));
          expect_agree(flat.view({n, 1}, {1, 1}).map(f), ulps_for(dtype), "column",
                       floor_for(dtype));
        }
      }
    }
  }
  const Both x = Both(tensor({-kInf, 1, 2, -kInf, -kInf, 3})).view({3, 2}, {2, 1});
  expect_softmax(x, 0);
}

struct LossCase {
  int64_t rows, classes;
  bool weighted;
  double smoothing;
};

void check_cross_entropy(const LossCase& c, DType dtype, DType weight_dtype) {
  constexpr int64_t kIgnored = -100;
  const Both flat(typed(halves_of_integers(c.rows * c.classes, 3), dtype));
  const Both x = flat.view({c.rows, c.classes}, {c.classes, 1});
  std::vector<int64_t> labels;
  for (int64_t r = 0; r < c.rows; ++r) {
    labels.push_back(r % 4 == 3 ? kIgnored : (r * 7 + 2) % c.classes);
  }
  const Both target(from_vector(labels, {c.rows}));
  std::vector<double> weights = halves_of_integers(c.classes, 4);
  for (double& w : weights) w = std::abs(w) + 0.5;
  const Both weight = c.weighted ? Both(typed(weights, weight_dtype)) : Both(Tensor(), Tensor());
  const auto cpu = raw::cross_entropy(x.cpu, target.cpu, weight.cpu, kIgnored, c.smoothing);
  const auto gpu = raw::cross_entropy(x.gpu, target.gpu, weight.gpu, kIgnored, c.smoothing);
  const std::string what = x.cpu.describe();
  expect_agree(gpu.loss, cpu.loss, 64, "loss of " + what, 4);
  expect_agree(gpu.stats, cpu.stats, 32, "stats of " + what, 1);
  expect_agree(gpu.totals, cpu.totals, 64, "totals of " + what, 4);
  // One gradient for all rows (stride 0), and one each.
  const DType wide = cpu.loss.dtype();
  const Both g(typed(halves_of_integers(c.rows + 1, 5), wide));
  for (int64_t stride : {0, 1}) {
    const Both gloss = g.view({c.rows}, {stride}, 1);
    const Tensor stats = raw::to(cpu.stats, kCuda);
    expect_agree({raw::cross_entropy_backward(gloss.cpu, x.cpu, target.cpu, weight.cpu, kIgnored,
                                              c.smoothing, cpu.stats),
                  raw::cross_entropy_backward(gloss.gpu, x.gpu, target.gpu, weight.gpu, kIgnored,
                                              c.smoothing, stats)},
                 is_half(dtype) ? 1 : 32, "gradient of " + what, is_half(dtype) ? 1e-2 : 4);
  }
}

TEST(CudaCrossEntropy, losses_statistics_and_gradients_of_every_kind) {
  TARN_NEEDS_GPU();
  const LossCase cases[] = {{5, 3, false, 0},     {40, 10, true, 0},    {7, 65, false, 0.1},
                            {600, 17, true, 0.2}, {3, 1025, true, 0.1}, {2, 9001, false, 0},
                            {1, 1, false, 0.1},   {0, 4, false, 0}};
  for (DType dtype : kFloating) {
    for (const LossCase& c : cases) check_cross_entropy(c, dtype, dtype);
    for (DType of_weights : kFloating) check_cross_entropy({7, 13, true, 0.1}, dtype, of_weights);
  }
}

TEST(CudaCrossEntropy, totals_of_many_rows_are_added_in_parts) {
  TARN_NEEDS_GPU();
  for (int64_t rows : {16384, 16385, 20481}) {
    check_cross_entropy({rows, 3, true, 0}, DType::kF32, DType::kF32);
  }
}

TEST(CudaCrossEntropy, without_smoothing_an_infinite_weight_counts_only_where_it_is_the_target) {
  TARN_NEEDS_GPU();
  const Both x = Both(tensor({1, 2, 3, 0, 1, 2})).view({2, 3}, {3, 1});
  const Both target(from_vector(std::vector<int64_t>{0, 1}, {2}));
  const Both weight(tensor({1, 2, kInf})), finite(tensor({1, 2, 5})), gloss(tensor({1, -0.5}));
  const auto gradient = [&](const Tensor& w, double smoothing) {
    const auto y = raw::cross_entropy(x.gpu, target.gpu, w, -100, smoothing);
    return raw::cross_entropy_backward(gloss.gpu, x.gpu, target.gpu, w, -100, smoothing, y.stats)
        .to_vector<float>();
  };
  EXPECT_EQ(gradient(weight.gpu, 0), gradient(finite.gpu, 0));
  for (float g : gradient(weight.gpu, 0.1)) EXPECT_FALSE(std::isfinite(g));  // here it counts
}

TEST(CudaCrossEntropy, a_row_without_a_finite_logit_gives_nan_there_alone) {
  TARN_NEEDS_GPU();
  const Both x = Both(tensor({-kInf, -kInf, 1, 2, kNan, 0, kInf, 1})).view({4, 2}, {2, 1});
  const Both target(from_vector(std::vector<int64_t>{0, 1, 1, 0}, {4}));
  const auto cpu = raw::cross_entropy(x.cpu, target.cpu, {}, -100, 0);
  const auto gpu = raw::cross_entropy(x.gpu, target.gpu, {}, -100, 0);
  expect_agree(gpu.loss, cpu.loss, 8, "loss", 1);
}

}  // namespace
}  // namespace tarn
