// cuda_reduce_test.cpp - reductions, positions, moments and scans on the GPU give the CPU's
// results.
#include <limits>

#include "gpu_compare.h"

#include "tarn/core/raw_reduce.h"

namespace tarn {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// A view of a flat tensor and the dimensions to reduce (none: all).
struct Layout {
  const char* name;
  Shape sizes, strides;
  int64_t offset;
  Shape dims;
};

const Layout kLayouts[] = {
    {"everything", {4099}, {1}, 0, {}},
    {"everything, unaligned", {4097}, {1}, 3, {}},
    {"few elements", {7}, {1}, 1, {}},
    {"one element", {1}, {1}, 0, {}},
    {"0-d", {}, {}, 2, {}},
    {"rows", {9, 600}, {600, 1}, 0, {1}},
    {"odd rows", {9, 601}, {601, 1}, 1, {1}},
    {"slices of rows", {5, 257}, {300, 1}, 7, {1}},
    {"short rows", {130, 5}, {5, 1}, 0, {1}},
    {"many rows", {1100, 300}, {5, 1}, 0, {1}},
    {"columns", {300, 17}, {17, 1}, 0, {0}},
    {"few columns", {1500, 3}, {3, 1}, 0, {0}},
    {"few rows", {2, 2500}, {2500, 1}, 0, {0}},
    {"the middle", {4, 50, 9}, {450, 9, 1}, 0, {1}},
    {"all but the middle", {4, 50, 9}, {450, 9, 1}, 0, {0, 2}},
    {"channels of channels_last", {3, 8, 5, 6}, {240, 1, 48, 8}, 0, {0, 2, 3}},
    {"channels of NCHW", {3, 4, 10, 13}, {520, 130, 13, 1}, 0, {0, 2, 3}},
    {"transposed rows", {40, 60}, {1, 40}, 0, {1}},
    {"every other element", {10, 200}, {401, 2}, 0, {1}},
    {"broadcast and kept", {20, 30}, {0, 1}, 0, {1}},
    {"broadcast and reduced", {20, 300}, {0, 1}, 5, {0}},
    {"nothing to reduce", {3, 1, 5}, {5, 5, 1}, 0, {1}},
    {"over nothing", {4, 0, 3}, {0, 3, 1}, 0, {1}},
    {"no outputs", {0, 5}, {5, 1}, 0, {1}},
    {"eight dimensions",
     {2, 3, 2, 2, 3, 2, 2, 5},
     {720, 1, 360, 3, 6, 18, 36, 72},
     0,
     {1, 3, 4, 7}},
};
constexpr int64_t kElements = 6100;  // that the layouts reach

Tensor reduced(ReduceOp op, const Tensor& x, const Shape& dims, double p = 0) {
  const bool sums = op == ReduceOp::kSum || op == ReduceOp::kProd;
  const DType out = op == ReduceOp::kAny || op == ReduceOp::kAll ? DType::kBool
                    : sums && !is_floating(x.dtype())            ? DType::kI64
                                                                 : x.dtype();
  return raw::reduce("reduce", op, x, dims, false, out, p);
}

bool chooses(ReduceOp op) {
  return op == ReduceOp::kMax || op == ReduceOp::kMin;
}

TEST(CudaReduce, every_reduction_walks_every_layout_in_every_dtype) {
  TARN_NEEDS_GPU();
  for (DType dtype : kEveryDType) {
    // Sums of small multiples of 1/2 are exact in any order; so are products of powers of 2.
    const Both x(typed(halves_of_integers(kElements, 1), dtype));
    std::vector<double> powers = halves_of_integers(kElements, 2);
    for (double& v : powers) v = v > 11 ? 2 : v < -11 ? 0.5 : v < 0 ? -1 : 1;
    const Both y(typed(powers, dtype));
    for (const Layout& l : kLayouts) {
      const Both a = x.view(l.sizes, l.strides, l.offset);
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax, ReduceOp::kMin,
                          ReduceOp::kAny, ReduceOp::kAll, ReduceOp::kProd}) {
        if (op == ReduceOp::kMean && !is_floating(dtype)) continue;
        if (chooses(op) && a.cpu.numel() == 0) continue;  // refused before any kernel
        const Both in = op == ReduceOp::kProd ? y.view(l.sizes, l.strides, l.offset) : a;
        expect_agree(in.map([&](const Tensor& t) { return reduced(op, t, l.dims); }), 0,
                     std::string(l.name) + ", op " + std::to_string(static_cast<int>(op)));
      }
    }
  }
}

TEST(CudaReduce, every_norm_walks_every_layout_in_every_floating_dtype) {
  TARN_NEEDS_GPU();
  for (DType dtype : kEveryDType) {
    if (!is_floating(dtype)) continue;
    const Both x(typed(halves_of_integers(kElements, 3), dtype));
    for (const Layout& l : kLayouts) {
      const Both a = x.view(l.sizes, l.strides, l.offset);
      for (ReduceOp op : {ReduceOp::kNorm0, ReduceOp::kNorm1, ReduceOp::kNorm2, ReduceOp::kNormInf,
                          ReduceOp::kNormNegInf, ReduceOp::kNormP, ReduceOp::kSumSquares}) {
        const double ulps = op != ReduceOp::kNormP ? 0 : dtype == DType::kF64 ? 64 : 1;
        expect_agree(a.map([&](const Tensor& t) { return reduced(op, t, l.dims, 2.5); }), ulps,
                     std::string(l.name) + ", op " + std::to_string(static_cast<int>(op)));
      }
    }
  }
}

TEST(CudaReduce, long_reductions_are_cut_into_parts_and_joined) {
  TARN_NEEDS_GPU();
  const Layout layouts[] = {
      {"everything", {140003}, {1}, 1, {}},
      {"two rows", {2, 70000}, {70001, 1}, 0, {1}},
      {"columns", {9000, 15}, {15, 1}, 0, {0}},
      {"every other", {3, 20000}, {40001, 2}, 1, {1}},
  };
  // One element, which each layout has in some of its outputs, decides over any and all.
  std::vector<double> zeros_but_one(140100, 0.0), ones_but_one(140100, 1.0);
  zeros_but_one[110001] = 1, ones_but_one[110001] = 0;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI64}) {
    const Both x(typed(halves_of_integers(140100, 4), dtype));
    const Both any(typed(zeros_but_one, dtype)), all(typed(ones_but_one, dtype));
    for (const Layout& l : layouts) {
      for (int i = 0; i <= static_cast<int>(ReduceOp::kSumSquares); ++i) {
        const auto op = static_cast<ReduceOp>(i);
        if (op == ReduceOp::kProd) continue;  // overflows
        if (!is_floating(dtype) && (op == ReduceOp::kMean || op >= ReduceOp::kNorm0)) continue;
        const Both& in = op == ReduceOp::kAny ? any : op == ReduceOp::kAll ? all : x;
        const auto out = in.view(l.sizes, l.strides, l.offset).map([&](const Tensor& t) {
          return reduced(op, t, l.dims, 2.5);
        });
        expect_agree(out, op == ReduceOp::kNormP ? 1 : 0,
                     std::string(l.name) + ", op " + std::to_string(i));
      }
      if (!is_floating(dtype)) continue;
      const Both a = x.view(l.sizes, l.strides, l.offset);
      const auto cpu = raw::var_mean("var", a.cpu, l.dims, 1, false, true, true);
      const auto gpu = raw::var_mean("var", a.gpu, l.dims, 1, false, true, true);
      expect_agree(gpu.first, cpu.first, is_half(dtype) ? 1 : 64,
                   std::string("variance, ") + l.name);
      expect_agree(gpu.second, cpu.second, 1, std::string("mean, ") + l.name, 1);
    }
  }
}

TEST(CudaReduce, halves_sum_into_f32_and_f32_sums_keep_their_digits) {
  TARN_NEEDS_GPU();
  const Both h(raw::to(full({100000}, 0.1), DType::kF16));
  expect_agree(h.map([](const Tensor& t) {
    return raw::reduce("sum", ReduceOp::kSum, t, {}, false, DType::kF32);
  }),
               0, "f16 into f32");
  std::vector<double> values;
  for (int i = 0; i < 100000; ++i) values.push_back(1.0 + 1e-3 * (i % 997));
  const Both x(typed(values, DType::kF32));
  expect_agree(x.map([](const Tensor& t) { return reduced(ReduceOp::kSum, t, {}); }), 2, "f32");
}

TEST(CudaReduce, equal_inputs_give_equal_bits) {
  TARN_NEEDS_GPU();
  std::vector<double> values = halves_of_integers(90000, 5);
  for (size_t i = 0; i < values.size(); ++i) values[i] = values[i] * 0.1 + 1e-7 * double(i);
  const Tensor x = raw::to(typed(values, DType::kF32), kCuda);
  const Tensor wide = raw::as_strided(x, {300, 300}, {300, 1}, 0);
  for (const Shape& dims : {Shape{}, Shape{0}, Shape{1}}) {
    expect_agree(reduced(ReduceOp::kSum, wide, dims), reduced(ReduceOp::kSum, wide, dims), 0, "");
  }
}

TEST(CudaReduce, nan_and_infinity_come_through_as_on_the_cpu) {
  TARN_NEEDS_GPU();
  for (DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    for (double special : {kNan, kInf, -kInf, -0.0, 0.0}) {
      std::vector<double> values(900, 0.0);
      for (size_t i = 0; i < values.size(); ++i) values[i] = -1.0 - static_cast<double>(i % 7);
      values[421] = special;
      const Both x = Both(typed(values, dtype)).view({3, 300}, {300, 1});
      for (int op = 0; op <= static_cast<int>(ReduceOp::kSumSquares); ++op) {
        for (const Shape& dims : {Shape{}, Shape{0}, Shape{1}}) {
          const auto kind = static_cast<ReduceOp>(op);
          if (kind == ReduceOp::kProd) continue;  // overflows in an order of its own
          expect_agree(x.map([&](const Tensor& t) { return reduced(kind, t, dims, 3); }),
                       kind == ReduceOp::kNormP ? 64 : 1, "op " + std::to_string(op));
        }
      }
    }
  }
}

TEST(CudaReduce, variance_and_mean_walk_every_layout) {
  TARN_NEEDS_GPU();
  for (DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    std::vector<double> values = halves_of_integers(kElements, 6);
    const bool wide = !is_half(dtype);
    for (double& v : values) v = wide ? v * 0.37 + 1000 : v;
    const Both x(typed(values, dtype));
    for (const Layout& l : kLayouts) {
      const Both a = x.view(l.sizes, l.strides, l.offset);
      for (double correction : {0.0, 1.0}) {
        const auto cpu = raw::var_mean("var", a.cpu, l.dims, correction, false, true, true);
        const auto gpu = raw::var_mean("var", a.gpu, l.dims, correction, false, true, true);
        // The CPU's f32 differences round: the two differ by what it loses.
        expect_agree(gpu.first, cpu.first, wide ? 4096 : 1, std::string("variance, ") + l.name);
        expect_agree(gpu.second, cpu.second, wide ? 4 : 1, std::string("mean, ") + l.name, 1);
      }
    }
  }
}

TEST(CudaReduce, variance_of_a_long_column_far_from_zero_is_exact_to_f32) {
  TARN_NEEDS_GPU();
  std::vector<double> values;
  for (int i = 0; i < 40000; ++i) values.push_back(4096.0 + (i % 2));  // variance 1/4
  const Tensor x = raw::to(typed(values, DType::kF32), kCuda);
  const auto [var, mean] = raw::var_mean("var", x, {}, 0, false, true, true);
  EXPECT_NEAR(var.item(), 0.25, 1e-7);
  EXPECT_EQ(mean.item(), 4096.5);
}

TEST(CudaReduce, positions_are_the_first_extremes_with_nan_ahead) {
  TARN_NEEDS_GPU();
  const Shape shapes[] = {{1}, {5}, {300}, {40000}, {3, 700}, {600, 5}, {5, 40, 7}, {2, 5000}};
  for (DType dtype : kEveryDType) {
    for (const Shape& sizes : shapes) {
      std::vector<double> values = halves_of_integers(sizes.numel(), 7);  // many ties
      for (int with_nan = 0; with_nan < (is_floating(dtype) ? 2 : 1); ++with_nan) {
        if (with_nan) values[values.size() / 2] = values[values.size() / 3] = kNan;
        const Both flat(typed(values, dtype));
        const Both x = flat.view(sizes, contiguous_strides(sizes));
        for (int64_t dim = 0; dim < sizes.dim(); ++dim) {
          for (bool largest : {true, false}) {
            const auto cpu = raw::arg_reduce("arg", largest, x.cpu, dim, false, true);
            const auto gpu = raw::arg_reduce("arg", largest, x.gpu, dim, false, true);
            expect_agree(gpu.second, cpu.second, 0, "position");
            expect_agree(gpu.first, cpu.first, 0, "value");
          }
        }
        if (with_nan == 0) {
          const auto position = [](const Tensor& t) {
            return raw::arg_reduce("arg", true, t, {}, false, false).second;
          };
          expect_agree(x.map(position), 0, "of everything");
        }
      }
    }
  }
}

TEST(CudaReduce, running_sums_and_products_along_every_dimension) {
  TARN_NEEDS_GPU();
  const Shape shapes[] = {{},       {1},       {5},         {1025},    {20000},     {2, 17000},
                          {700, 3}, {2000, 2}, {4, 300, 5}, {3, 0, 2}, {30, 40, 1}, {5, 1, 7}};
  for (DType dtype : kEveryDType) {
    for (const Shape& sizes : shapes) {
      std::vector<double> values = halves_of_integers(std::max<int64_t>(1, sizes.numel()), 8);
      const Both sums = Both(typed(values, dtype)).view(sizes, contiguous_strides(sizes));
      for (double& v : values) v = v < -11.5 ? 0 : v < 0 ? -1 : 1;
      const Both products = Both(typed(values, dtype)).view(sizes, contiguous_strides(sizes));
      for (int64_t dim = 0; dim < std::max(1, sizes.dim()); ++dim) {
        expect_agree(
            sums.map([&](const Tensor& t) { return raw::cumulative("cumsum", false, t, dim); }), 0,
            "cumsum");
        // A zero has the sign of its factors, whatever their order.
        expect_agree(
            products.map([&](const Tensor& t) { return raw::cumulative("cumprod", true, t, dim); }),
            0, "cumprod");
      }
    }
  }
}

}  // namespace
}  // namespace tarn
