// cuda_elementwise_test.cpp - elementwise operators on the GPU give the CPU's results.
#include <limits>

#include "gpu_compare.h"

#include "tarn/core/elementwise.h"
#include "tarn/core/plan.h"

namespace tarn {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr Scalars kParameters{{0.625, 1.25, 0.75, 0.0}};  // exact in float

bool defined_for(DType dtype, Domain domain) {
  return visit_dtype(dtype, [&]<class T>(TypeTag<T>) { return in_domain<T>(domain); });
}

/// The special values, a net over small ones, and large ones.
std::vector<double> interesting_values() {
  std::vector<double> v = {0.0, -0.0, kInf, -kInf, std::nan(""), 1e-40, -1e-40, 3e38, -3e38,
                           1.0, -1.0, 0.5,  6.0,   -3.0,         3.0,   88.5,   -88.5};
  for (int i = -300; i <= 300; ++i) v.push_back(i * 0.0431);
  for (int i = -30; i <= 30; ++i) v.push_back(std::ldexp(1.37, i) * (i % 2 != 0 ? 1 : -1));
  return v;
}

TEST(CudaElementwise, every_unary_operator_gives_the_cpus_values_in_every_dtype) {
  TARN_NEEDS_GPU();
  for (int i = 0; i < kNumUnaryOps; ++i) {
    const auto op = static_cast<UnaryOp>(i);
    const UnaryInfo& info = unary_info(op);
    for (DType dtype : kEveryDType) {
      if (!defined_for(dtype, info.domain)) continue;
      const Both x(typed(interesting_values(), dtype));
      // What needs an exponential or its like may differ by a few units of the arithmetic.
      const bool exact = info.predicate || !is_floating(dtype);
      const double floor = is_half(dtype) ? 1e-3 : 1.0;  // what cancels keeps an absolute error
      expect_agree(x.map([&](const Tensor& t) { return raw::unary(op, t, kParameters); }),
                   exact            ? 0
                   : is_half(dtype) ? 1
                                    : 8,
                   info.name, floor);
    }
  }
}

TEST(CudaElementwise, every_derivative_up_to_the_third_is_the_cpus) {
  TARN_NEEDS_GPU();
  std::vector<double> values = {0.0, -0.0, 1.25, -1.25, 0.625, -0.625};
  for (int i = -100; i <= 100; ++i) values.push_back(i * 0.0531);
  const int64_t n = static_cast<int64_t>(values.size());
  for (int i = 0; i < kNumUnaryOps; ++i) {
    const auto op = static_cast<UnaryOp>(i);
    const UnaryInfo& info = unary_info(op);
    if (!info.differentiable) continue;
    for (DType dtype : kEveryDType) {
      if (!is_floating(dtype)) continue;
      const Both x(typed(values, dtype)), grad(typed(halves_of_integers(n, 3), dtype));
      for (int order = 1; order <= 3; ++order) {
        const Both got(raw::unary_backward(op, order, grad.cpu, x.cpu, kParameters),
                       raw::unary_backward(op, order, grad.gpu, x.gpu, kParameters));
        // Orders 2 and 3 cancel digits of f64.
        const double ulps = is_half(dtype) ? 1 : dtype == DType::kF64 && order > 1 ? 4096 : 32;
        expect_agree(got, ulps, std::string(info.name) + " order " + std::to_string(order),
                     is_half(dtype) ? 1e-3 : 4.0);
      }
    }
  }
}

/// Views of a tensor of `n` elements, as the operands of a binary operator see them.
struct Layout {
  const char* name;
  Shape sizes, a, b;  // strides
  int64_t offset_a, offset_b;
};

const Layout kLayouts[] = {
    {"dense", {4099}, {1}, {1}, 0, 0},
    {"dense, moved alike", {4099}, {1}, {1}, 3, 3},
    {"dense, moved apart", {4099}, {1}, {1}, 3, 4},
    {"shorter than a vector", {3}, {1}, {1}, 1, 1},
    {"one element", {1}, {1}, {1}, 0, 0},
    {"first is one element", {1000}, {0}, {1}, 5, 0},
    {"second is one element", {1000}, {1}, {0}, 8, 5},
    {"both are one element", {77}, {0}, {0}, 0, 1},
    {"every other element", {333}, {2}, {1}, 0, 0},
    {"row broadcast", {21, 64}, {64, 1}, {0, 1}, 0, 0},
    {"odd row broadcast", {21, 37}, {37, 1}, {0, 1}, 0, 0},
    {"column broadcast", {21, 64}, {64, 1}, {1, 0}, 0, 0},
    {"outer", {50, 64}, {1, 0}, {0, 1}, 0, 0},
    {"slices of rows", {20, 48}, {64, 1}, {96, 1}, 16, 48},
    {"unaligned slices", {20, 48}, {64, 1}, {96, 1}, 1, 48},
    {"transposed", {30, 130}, {1, 30}, {130, 1}, 0, 0},
    {"four dimensions", {5, 3, 7, 11}, {231, 77, 1, 7}, {0, 11, 33, 1}, 2, 0},
    {"eight dimensions",
     {2, 3, 2, 2, 3, 2, 2, 5},
     {720, 1, 360, 3, 6, 18, 36, 72},
     {0, 1, 0, 3, 0, 6, 12, 24},
     0,
     0},
};

TEST(CudaElementwise, binary_operators_walk_every_layout_in_every_dtype) {
  TARN_NEEDS_GPU();
  for (DType dtype : kEveryDType) {
    const Both x(typed(halves_of_integers(6000, 1), dtype));
    const Both y(typed(halves_of_integers(6000, 2), dtype));
    for (const Layout& l : kLayouts) {
      const Both a = x.view(l.sizes, l.a, l.offset_a), b = y.view(l.sizes, l.b, l.offset_b);
      for (BinaryOp op : {BinaryOp::kAdd, BinaryOp::kMul, BinaryOp::kLt, BinaryOp::kMaximum}) {
        expect_agree({raw::binary(op, a.cpu, b.cpu), raw::binary(op, a.gpu, b.gpu)}, 0,
                     std::string(binary_info(op).name) + ", " + l.name);
      }
    }
  }
}

TEST(CudaElementwise, every_binary_operator_gives_the_cpus_values_in_every_dtype) {
  TARN_NEEDS_GPU();
  const std::vector<double> special = {0.0, -0.0, kInf, -kInf, std::nan(""), 1, -1, 2.5, -7, 3e38};
  const int64_t n = static_cast<int64_t>(special.size());
  for (int i = 0; i < kNumBinaryOps; ++i) {
    const auto op = static_cast<BinaryOp>(i);
    const BinaryInfo& info = binary_info(op);
    const bool exact = op != BinaryOp::kPow && op != BinaryOp::kAtan2;
    for (DType dtype : kEveryDType) {
      if (!defined_for(dtype, info.domain)) continue;
      // Every special value with every other, then ordinary ones.
      const Both all(typed(special, dtype));
      const Both a = all.view({n, n}, {1, 0}), b = all.view({n, n}, {0, 1});
      const Both c(typed(halves_of_integers(1000, 4), dtype));
      const Both d(typed(halves_of_integers(1000, 5), dtype));
      const double ulps = exact || !is_floating(dtype) ? 0 : is_half(dtype) ? 1 : 8;
      expect_agree({raw::binary(op, a.cpu, b.cpu), raw::binary(op, a.gpu, b.gpu)}, ulps, info.name);
      expect_agree({raw::binary(op, c.cpu, d.cpu), raw::binary(op, c.gpu, d.gpu)}, ulps, info.name);
    }
  }
}

TEST(CudaElementwise, operators_write_in_place_through_strides_and_offsets) {
  TARN_NEEDS_GPU();
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kU8}) {
    const Both y(typed(halves_of_integers(6000, 2), dtype));
    for (const Layout& l : kLayouts) {
      if (l.a[0] == 0) continue;  // elements of the output would share memory
      const Both memory(typed(halves_of_integers(6000, 1), dtype));
      if (overlaps_itself(raw::as_strided(memory.cpu, l.sizes, l.a, l.offset_a))) continue;
      const Both a = memory.view(l.sizes, l.a, l.offset_a), b = y.view(l.sizes, l.b, l.offset_b);
      raw::binary_(BinaryOp::kSub, a.cpu, b.cpu);
      raw::binary_(BinaryOp::kSub, a.gpu, b.gpu);
      expect_agree(memory, 0, l.name);  // and nothing else was touched
    }
  }
}

TEST(CudaElementwise, heads_and_tails_of_every_length_are_done_once) {
  TARN_NEEDS_GPU();
  for (DType dtype : {DType::kF32, DType::kF16, DType::kF64, DType::kU8}) {
    for (int64_t offset : {0, 1, 2, 3, 5, 7, 8}) {
      for (int64_t n : {0, 1, 2, 7, 8, 9, 15, 16, 17, 2047, 2048, 2049, 2060}) {
        const Both memory(typed(halves_of_integers(2100, 1), dtype));
        const Both x =
            memory.map([&](const Tensor& t) { return raw::slice(t, 0, offset, offset + n); });
        raw::binary_(BinaryOp::kAdd, x.cpu, x.cpu);
        raw::binary_(BinaryOp::kAdd, x.gpu, x.gpu);
        expect_agree(memory, 0, "offset " + std::to_string(offset) + ", n " + std::to_string(n));
      }
    }
  }
}

TEST(CudaElementwise, many_blocks_and_tiles_cover_every_element) {
  TARN_NEEDS_GPU();
  const int64_t n = 300 * 1000 + 7;
  for (int64_t offset : {0, 1}) {
    const Both x(arange(n, {.dtype = DType::kF32}));
    const Both part = x.map([&](const Tensor& t) { return raw::slice(t, 0, offset, n - 2); });
    expect_agree(part.map([](const Tensor& t) { return raw::unary(UnaryOp::kNeg, t); }), 0, "neg");
  }
}

TEST(CudaElementwise, where_takes_every_size_of_element_and_layout) {
  TARN_NEEDS_GPU();
  for (DType dtype : kEveryDType) {
    const Both x(typed(halves_of_integers(6000, 1), dtype));
    const Both y(typed(halves_of_integers(6000, 2), dtype));
    const Both mask(typed(halves_of_integers(6000, 6), DType::kU8));
    const Both cond = mask.map([](const Tensor& t) { return raw::binary(BinaryOp::kGt, t, 12); });
    for (const Layout& l : kLayouts) {
      const Both a = x.view(l.sizes, l.a, l.offset_a), b = y.view(l.sizes, l.b, l.offset_b);
      const Both c = cond.view(l.sizes, l.b, l.offset_b);
      expect_agree({raw::where(c.cpu, a.cpu, b.cpu), raw::where(c.gpu, a.gpu, b.gpu)}, 0, l.name);
    }
  }
}

TEST(CudaElementwise, ternary_operators_give_the_cpus_values) {
  TARN_NEEDS_GPU();
  for (int i = 0; i < kNumTernaryOps; ++i) {
    const auto op = static_cast<TernaryOp>(i);
    for (DType dtype : kEveryDType) {
      if (!defined_for(dtype, ternary_info(op).domain)) continue;
      const Scalars s{{is_floating(dtype) ? 0.625 : 3.0}};
      const Both x(typed(halves_of_integers(6000, 1), dtype));
      const Both y(typed(halves_of_integers(6000, 2), dtype));
      const Both z(typed(halves_of_integers(6000, 3), dtype));
      for (const Layout& l : kLayouts) {
        const Both a = x.view(l.sizes, l.a, l.offset_a), b = y.view(l.sizes, l.b, l.offset_b);
        const Both c = z.view(l.sizes, l.a, l.offset_a);
        // Products may be fused with sums: one rounding less.
        expect_agree(
            {raw::ternary(op, a.cpu, b.cpu, c.cpu, s), raw::ternary(op, a.gpu, b.gpu, c.gpu, s)}, 2,
            std::string(ternary_info(op).name) + ", " + l.name, 32);
      }
    }
  }
}

TEST(CudaElementwise, fill_and_arange_write_every_dtype) {
  TARN_NEEDS_GPU();
  for (DType dtype : kEveryDType) {
    for (const Layout& l : kLayouts) {
      const Both memory(typed(halves_of_integers(6000, 1), dtype));
      if (overlaps_itself(raw::as_strided(memory.cpu, l.sizes, l.a, l.offset_a))) continue;
      const Both x = memory.view(l.sizes, l.a, l.offset_a);
      raw::fill_(x.cpu, 1.5);
      raw::fill_(x.gpu, 1.5);
      expect_agree(memory, 0, l.name);
    }
    expect_agree(arange(-4, 251, 2, {.dtype = dtype, .device = kCuda}),
                 arange(-4, 251, 2, {.dtype = dtype}), 0, "arange");
  }
}

}  // namespace
}  // namespace tarn
