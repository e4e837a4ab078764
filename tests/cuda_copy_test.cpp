// cuda_copy_test.cpp - copies and casts on the GPU, and how walks too large for 32 bits are cut.
#include <limits>
#include <map>
#include <random>

#include "gpu_compare.h"

#include "tarn/cuda/plan_parts.h"

namespace tarn {
namespace {

TEST(CudaCopy, any_dtype_becomes_any_other_as_on_the_cpu) {
  TARN_NEEDS_GPU();
  const double inf = std::numeric_limits<double>::infinity();
  std::vector<double> values = {0.0,   -0.0,  inf,   -inf,         std::nan(""), 1e-40, 6e-8,
                                65504, 65519, 65520, 3e9,          -3e9,         1e19,  -1e19,
                                300,   -1,    255.5, 2147483647.5, 3e38};
  for (double x : halves_of_integers(500, 1)) values.push_back(x);
  for (int i = -40; i < 40; ++i) values.push_back(std::ldexp(1.0009765, i));
  for (DType from : kEveryDType) {
    const Both x(typed(values, from));
    for (DType to : kEveryDType) {
      const auto cast = [&](const Tensor& t) { return raw::to(t, to); };
      expect_agree(x.map(cast), 0, std::string("dense from ") + dtype_name(from));
      // Columns of a matrix, and one element as many.
      expect_agree(x.view({17, 30}, {1, 17}, 3).map(cast), 0, "transposed");
      expect_agree(x.view({40, 6}, {3, 0}, 0).map(cast), 0, "expanded");
    }
  }
}

TEST(CudaCopy, transposing_copies_of_every_size_are_exact) {
  TARN_NEEDS_GPU();
  const struct {
    Shape sizes, order;
  } kCases[] = {
      {{7, 9}, {1, 0}},
      {{8, 8}, {1, 0}},
      {{33, 65}, {1, 0}},
      {{64, 64}, {1, 0}},
      {{100, 200}, {1, 0}},
      {{1, 50}, {1, 0}},
      {{3, 70, 50}, {0, 2, 1}},
      {{30, 5, 40}, {2, 1, 0}},
      {{2, 19, 9, 11}, {0, 2, 3, 1}},
      {{2, 9, 11, 19}, {0, 3, 1, 2}},
      {{9, 3, 8, 2, 10}, {4, 1, 2, 3, 0}},
  };
  for (DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kF64}) {
    for (const auto& c : kCases) {
      const Both x(raw::to(arange(c.sizes.numel() + 3), dtype));
      for (int64_t offset : {0, 3}) {
        const Both turned = x.map([&](const Tensor& t) {
          const Tensor part = raw::slice(t, 0, offset, offset + c.sizes.numel());
          return raw::contiguous(raw::permute(raw::view(part, c.sizes), c.order));
        });
        expect_agree(turned, 0, "permuted");
      }
    }
  }
}

TEST(CudaCopy, channels_last_and_back_keeps_every_pixel) {
  TARN_NEEDS_GPU();
  for (const Shape& sizes : {Shape{2, 3, 17, 19}, Shape{2, 64, 8, 8}, Shape{3, 40, 5, 7}}) {
    const Both x(raw::view(raw::to(arange(sizes.numel()), DType::kF32), sizes));
    const Both last =
        x.map([](const Tensor& t) { return raw::contiguous(t, MemoryFormat::kChannelsLast); });
    expect_agree(last, 0, "to channels_last");
    expect_agree(last.map([](const Tensor& t) { return raw::contiguous(t); }), 0, "and back");
    const Both halves = last.map([](const Tensor& t) { return raw::to(t, DType::kF16); });
    EXPECT_TRUE(halves.gpu.is_contiguous(MemoryFormat::kChannelsLast));
    expect_agree(halves, 0, "cast");
  }
}

TEST(CudaCopy, copies_into_strided_and_unaligned_tensors_touch_nothing_else) {
  TARN_NEEDS_GPU();
  for (DType dtype : {DType::kU8, DType::kF16, DType::kF32, DType::kF64}) {
    for (const Shape& strides : {Shape{50, 1}, Shape{64, 1}, Shape{1, 30}, Shape{100, 2}}) {
      for (int64_t offset : {0, 1, 16}) {
        const Both memory(typed(halves_of_integers(4000, 1), dtype));
        const Both from(raw::to(raw::view(arange(30 * 50), {30, 50}), DType::kI32));
        const Both target = memory.view({30, 50}, strides, offset);
        raw::copy_(target.cpu, raw::to(from.cpu, dtype));
        raw::copy_(target.gpu, raw::to(from.gpu, dtype));
        expect_agree(memory, 0, "copy_");
      }
    }
  }
}

/// The offsets of all operands at every element of a plan, and how often each occurs. The plan's
/// addresses are not read.
std::map<std::vector<int64_t>, int> places(const ElementwisePlan& plan) {
  std::map<std::vector<int64_t>, int> found;
  for (int64_t i = 0; i < plan.numel; ++i) {
    std::vector<int64_t> at;
    for (int o = 0; o < plan.operands; ++o) {
      int64_t rest = i, offset = 0;
      for (int d = 0; d < plan.ndim; ++d) {
        offset += rest % plan.sizes[d] * plan.strides[o][d];
        rest /= plan.sizes[d];
      }
      at.push_back(reinterpret_cast<int64_t>(plan.data[o]) + offset * item_size(plan.dtype[o]));
    }
    ++found[at];
  }
  return found;
}

ElementwisePlan plan_of(std::vector<int64_t> sizes, std::vector<std::vector<int64_t>> strides,
                        DType dtype) {
  ElementwisePlan p;
  p.numel = 1;
  p.ndim = static_cast<int>(sizes.size());
  for (int d = 0; d < p.ndim; ++d) p.numel *= p.sizes[d] = sizes[d];
  for (const auto& s : strides) {
    for (int d = 0; d < p.ndim; ++d) p.strides[p.operands][d] = s[d];
    p.data[p.operands] = reinterpret_cast<void*>(uintptr_t{4096} * (p.operands + 1));
    p.dtype[p.operands++] = dtype;
  }
  return p;
}

TEST(CudaPlanParts, parts_visit_the_elements_of_the_plan_once_each) {
  const ElementwisePlan plans[] = {
      plan_of({1000}, {{1}, {1}}, DType::kF32),
      plan_of({7, 30}, {{1, 7}, {30, 1}, {0, 1}}, DType::kF64),
      plan_of({5, 6, 7}, {{1, 5, 30}, {1000, 0, 3}}, DType::kU8),
      plan_of({2, 3}, {{1, 2}, {900, 1}}, DType::kF16),
  };
  for (const ElementwisePlan& plan : plans) {
    for (int64_t limit : {1000000, 500, 100, 10, 1}) {
      std::map<std::vector<int64_t>, int> together;
      cuda::for_each_part(
          plan,
          [&](const ElementwisePlan& part) {
            ASSERT_LE(part.numel, limit);
            for (const auto& [at, times] : places(part)) together[at] += times;
          },
          limit);
      EXPECT_EQ(together, places(plan)) << "limit " << limit;
    }
  }
}

TEST(CudaPlanParts, parts_of_huge_plans_fit_32_bit_indices) {
  const int64_t giga = int64_t{1} << 30;
  const struct {
    ElementwisePlan plan;
    int parts;
  } kCases[] = {
      {plan_of({100}, {{1}, {1}}, DType::kF32), 1},
      {plan_of({2 * giga}, {{1}, {1}}, DType::kF32), 1},
      {plan_of({2 * giga + 1}, {{1}, {1}}, DType::kF32), 2},
      {plan_of({6 * giga}, {{1}, {0}}, DType::kBF16), 4},
      // Few elements, far apart: what counts is how far an operand reaches.
      {plan_of({3, 2}, {{1, 3}, {1, 2 * giga}}, DType::kF32), 2},
      {plan_of({8 * giga, 3}, {{1, 8 * giga}, {1, 0}}, DType::kU8), 0},
  };
  for (const auto& c : kCases) {
    int64_t elements = 0;
    int parts = 0;
    cuda::for_each_part(c.plan, [&](const ElementwisePlan& part) {
      ++parts;
      elements += part.numel;
      EXPECT_LE(part.numel, cuda::kIndexLimit);
      for (int o = 0; o < part.operands; ++o) {
        int64_t last = 0;
        for (int d = 0; d < part.ndim; ++d) last += (part.sizes[d] - 1) * part.strides[o][d];
        EXPECT_LT(last, cuda::kIndexLimit);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(part.data[o]) % (c.plan.numel > giga ? 16 : 1), 0u);
      }
    });
    EXPECT_EQ(elements, c.plan.numel);
    if (c.parts > 0) {
      EXPECT_EQ(parts, c.parts);
    }
  }
}

TEST(CudaPlanParts, an_empty_plan_has_no_parts) {
  cuda::for_each_part(plan_of({0}, {{1}}, DType::kF32), [](const ElementwisePlan&) { FAIL(); });
}

}  // namespace
}  // namespace tarn
