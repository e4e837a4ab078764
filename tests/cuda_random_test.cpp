// cuda_random_test.cpp - the GPU draws the CPU's numbers.
#include "gpu_compare.h"

#include "tarn/core/random.h"
#include "tarn/core/raw_random.h"

namespace tarn {
namespace {

constexpr DType kFloats[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};

/// Draws into a tensor of n elements at an offset of a larger one, on both devices.
template <class Draw>
void check_draws(DType dtype, double ulps, const std::string& what, Draw draw) {
  for (int64_t offset : {0, 1, 8}) {
    for (int64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 31, 1000, 20001}) {
      const Both memory(raw::to(full({n + 12}, 1), dtype));
      const Both x =
          memory.map([&](const Tensor& t) { return raw::slice(t, 0, offset, offset + n); });
      Generator first(7), second(7);
      draw(x.cpu, &first);
      draw(x.gpu, &second);
      expect_agree(memory, ulps, what + ", n " + std::to_string(n), 1.0);
      EXPECT_EQ(first.state().offset, second.state().offset) << what;
    }
  }
}

TEST(CudaRandom, uniform_numbers_are_the_cpus) {
  TARN_NEEDS_GPU();
  for (DType dtype : kFloats) {
    check_draws(dtype, 0, "uniform",
                [](const Tensor& x, Generator* g) { raw::uniform_(x, 0, 1, g); });
    // A product may be fused with the sum: one rounding less.
    check_draws(dtype, 2, "uniform in [-2, 3)",
                [](const Tensor& x, Generator* g) { raw::uniform_(x, -2, 3, g); });
  }
}

TEST(CudaRandom, normal_numbers_are_the_cpus_up_to_the_logarithms_rounding) {
  TARN_NEEDS_GPU();
  for (DType dtype : kFloats) {
    check_draws(dtype, is_half(dtype) ? 1 : 8, "normal",
                [](const Tensor& x, Generator* g) { raw::normal_(x, 0.5, 2, g); });
  }
}

TEST(CudaRandom, bernoulli_numbers_are_the_cpus_in_every_dtype) {
  TARN_NEEDS_GPU();
  for (DType dtype : kEveryDType) {
    for (double p : {0.0, 0.3, 1.0}) {
      check_draws(dtype, 0, "bernoulli",
                  [p](const Tensor& x, Generator* g) { raw::bernoulli_(x, p, g); });
    }
  }
}

TEST(CudaRandom, integers_are_the_cpus_in_every_dtype) {
  TARN_NEEDS_GPU();
  for (DType dtype : kEveryDType) {
    if (dtype == DType::kBool) continue;
    check_draws(dtype, 0, "randint",
                [](const Tensor& x, Generator* g) { raw::randint_(x, 3, 101, g); });
  }
  check_draws(DType::kI64, 0, "wide randint", [](const Tensor& x, Generator* g) {
    raw::randint_(x, -(int64_t{1} << 40), int64_t{1} << 40, g);
  });
}

TEST(CudaRandom, dropout_drops_the_same_elements_and_scales_the_others) {
  TARN_NEEDS_GPU();
  const PhiloxState state{11, 5};
  for (DType dtype : kFloats) {
    for (int64_t n : {1, 6, 1000, 10007}) {
      const Both memory(typed(halves_of_integers(n + 1, 1), dtype));
      for (int64_t offset : {0, 1}) {
        const Both x = memory.map([&](const Tensor& t) { return raw::slice(t, 0, offset, n); });
        for (double p : {0.0, 0.25, 1.0}) {
          expect_agree(x.map([&](const Tensor& t) {
            return raw::dropout(t, p, state, MemoryFormat::kContiguous);
          }),
                       0, "dropout " + std::to_string(p));
          expect_agree(x.map([&](const Tensor& t) {
            return raw::dropout(t, p, state, MemoryFormat::kContiguous, t);
          }),
                       0, "dropout_add " + std::to_string(p));
        }
      }
    }
  }
}

}  // namespace
}  // namespace tarn
