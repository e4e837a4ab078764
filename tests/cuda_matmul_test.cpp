// cuda_matmul_test.cpp - matrix products on a GPU: tarn's own kernels and cuBLAS against f64 sums.
#include <cmath>
#include <memory>
#include <thread>

#include "gpu_tools.h"
#include "numeric_tools.h"
#include "tests_throws.h"

#include "tarn/core/kernel_call.h"
#include "tarn/core/math_mode.h"
#include "tarn/core/raw_matmul.h"
#include "tarn/core/transfer.h"
#include "tarn/cuda/library.h"
#include "tarn/cuda/matmul.h"
#if defined(TARN_CUDA_EMU)
#include "tarn/cuda/emu/hooks.h"
#endif

namespace tarn {
namespace {

using testing::Doubles;
using testing::numbers;
using testing::random_tensor;

/// Which engine a test runs on: tarn's own kernels, or what the build has (cuBLAS where it is).
enum class Engine { kOwn, kBest };

class EngineGuard {
 public:
  explicit EngineGuard(Engine engine)
      : slot_(mutable_kernels(DeviceType::kCUDA).matmul.matmul), saved_(slot_) {
    if (engine == Engine::kOwn) slot_ = cuda::own_matmul_slot;
  }
  ~EngineGuard() { slot_ = saved_; }
  EngineGuard(const EngineGuard&) = delete;
  EngineGuard& operator=(const EngineGuard&) = delete;

 private:
  using Slot = decltype(MatmulKernels::matmul);
  Slot& slot_;
  Slot saved_;
};

class CudaMatmul : public ::testing::TestWithParam<Engine> {
 protected:
  void SetUp() override {
    TARN_NEEDS_GPU();
    guard_ = std::make_unique<EngineGuard>(GetParam());
  }

 private:
  std::unique_ptr<EngineGuard> guard_;
};
INSTANTIATE_TEST_SUITE_P(Engines, CudaMatmul, ::testing::Values(Engine::kOwn, Engine::kBest),
                         [](const auto& engine) {
                           return engine.param == Engine::kOwn ? "own" : "best";
                         });

/// One product in all its parts; the operands may have any layout the slot allows.
struct Product {
  Tensor a = {}, b = {}, c = {}, bias = {};
  double alpha = 1, beta = 0;
  Epilogue epilogue = Epilogue::kNone;
};

Tensor wide(const Tensor& x) {
  return raw::to(x, DType::kF64);
}

double activated(Epilogue epilogue, double v) {
  switch (epilogue) {
    case Epilogue::kRelu:
      return v < 0 ? 0 : v;
    case Epilogue::kGelu:
      return 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
    case Epilogue::kGeluTanh:
      return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    default:
      return v;
  }
}

/// The slot's contract in f64 on the CPU, from the values as they are in the product's dtype.
Doubles expected(const Product& p) {
  const Doubles product = numbers(raw::matmul(wide(p.a), wide(p.b)));
  const Doubles c = p.c.defined() ? numbers(p.c) : Doubles(product.size(), 0.0);
  const int64_t n = p.b.sizes().back();
  const Doubles bias = p.bias.defined() ? numbers(p.bias) : Doubles(static_cast<size_t>(n), 0.0);
  Doubles out;
  for (size_t i = 0; i < product.size(); ++i) {
    const double v = p.alpha * product[i] + (p.beta != 0 ? p.beta * c[i] : 0.0) +
                     bias[i % static_cast<size_t>(n)];
    out.push_back(activated(p.epilogue, v));
  }
  return out;
}

/// Runs the slot on the GPU, on copies of the operands with the same strides.
Doubles computed(const Product& p) {
  const auto there = [](const Tensor& x) { return x.defined() ? x.to(kCuda) : x; };
  Shape sizes = p.a.sizes();
  sizes[sizes.dim() - 1] = p.b.sizes().back();
  const Tensor out =
      p.c.defined() ? p.c.to(kCuda) : full(sizes, std::nan(""), {.dtype = p.a.dtype()}).to(kCuda);
  TARN_KERNEL(matmul, matmul, kCuda, there(p.a), there(p.b), there(p.bias), p.alpha, p.beta,
              p.epilogue, out);
  return numbers(out);
}

/// The error of a sum of k terms in (-1, 1) grows with sqrt(k). Halves are rounded once more where
/// the activation is a kernel of its own.
void expect_product(const Product& p, const std::string& what) {
  const DType dtype = p.a.dtype();
  const double eps = dtype == DType::kF64    ? 0x1p-52
                     : dtype == DType::kF16  ? 0x1p-10
                     : dtype == DType::kBF16 ? 0x1p-7
                                             : 0x1p-23;
  const double sum_eps = is_half(dtype) ? 0x1p-23 : eps;
  const double k = static_cast<double>(p.a.sizes().back());
  testing::expect_close(computed(p), expected(p), 1.5 * eps,
                        16 * sum_eps * std::sqrt(k + 1) + 0.25 * eps, what);
}

std::string describe(const Shape& a, const Shape& b, DType dtype, const char* layout) {
  return detail::concat(a, " x ", b, " ", dtype, " ", layout);
}

constexpr DType kFloats[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};

/// As a matrix [rows, cols] whose columns are dense.
Tensor by_columns(const Tensor& x) {
  const int n = x.dim();
  return raw::transpose(raw::contiguous(raw::transpose(x, n - 2, n - 1)), n - 2, n - 1);
}

TEST_P(CudaMatmul, every_dtype_and_layout_at_the_edges_of_tiles) {
  const std::pair<Shape, Shape> shapes[] = {{{65, 70}, {70, 131}},   {{64, 16}, {16, 64}},
                                            {{9, 17}, {17, 10}},     {{63, 33}, {33, 65}},
                                            {{2, 20, 1}, {2, 1, 9}}, {{3, 12, 35}, {3, 35, 66}}};
  uint64_t seed = 1;
  for (const auto& [sa, sb] : shapes) {
    for (const DType dtype : kFloats) {
      const Tensor a = random_tensor(sa, ++seed, dtype), b = random_tensor(sb, ++seed, dtype);
      expect_product({a, b}, describe(sa, sb, dtype, "rows"));
      expect_product({by_columns(a), b}, describe(sa, sb, dtype, "a'"));
      expect_product({a, by_columns(b)}, describe(sa, sb, dtype, "b'"));
      expect_product({by_columns(a), by_columns(b)}, describe(sa, sb, dtype, "a' b'"));
    }
  }
}

TEST_P(CudaMatmul, few_rows_or_columns_take_the_skinny_kernels) {
  const std::pair<Shape, Shape> shapes[] = {{{1, 300}, {300, 70}},    {{70, 300}, {300, 1}},
                                            {{8, 129}, {129, 33}},    {{33, 1000}, {1000, 3}},
                                            {{1, 7}, {7, 1}},         {{5, 1}, {1, 100}},
                                            {{2, 3, 64}, {2, 64, 40}}};
  uint64_t seed = 100;
  for (const auto& [sa, sb] : shapes) {
    for (const DType dtype : kFloats) {
      const Tensor a = random_tensor(sa, ++seed, dtype), b = random_tensor(sb, ++seed, dtype);
      expect_product({a, b}, describe(sa, sb, dtype, "rows"));
      expect_product({by_columns(a), by_columns(b)}, describe(sa, sb, dtype, "a' b'"));
    }
  }
}

TEST_P(CudaMatmul, long_sums_are_cut_into_parts) {
  uint64_t seed = 200;
  for (const DType dtype : kFloats) {
    const std::pair<Shape, Shape> shapes[] = {
        {{20, 1031}, {1031, 30}}, {{2, 9, 700}, {2, 700, 66}}, {{3, 5000}, {5000, 40}}};
    for (const auto& [sa, sb] : shapes) {
      const Tensor a = random_tensor(sa, ++seed, dtype), b = random_tensor(sb, ++seed, dtype);
      Shape row{sb.back()};
      expect_product({.a = a, .b = b, .bias = random_tensor(row, ++seed, dtype)},
                     describe(sa, sb, dtype, "rows"));
      expect_product({a, by_columns(b)}, describe(sa, sb, dtype, "b'"));
    }
  }
}

TEST_P(CudaMatmul, factors_bias_and_activations_apply_in_order) {
  uint64_t seed = 300;
  for (const DType dtype : kFloats) {
    for (const int64_t m : {3, 37, 40}) {  // 40: the result consists of whole vectors
      const Tensor a = random_tensor({m, 50}, ++seed, dtype);
      const Tensor b = random_tensor({50, 41}, ++seed, dtype);
      const Tensor c = random_tensor({m, 41}, ++seed, dtype);
      const Tensor bias = random_tensor({41}, ++seed, dtype);
      const std::string what = describe(a.sizes(), b.sizes(), dtype, "");
      expect_product({.a = a, .b = b, .c = c, .alpha = 0.5, .beta = -2}, what + "factors");
      expect_product({.a = a, .b = b, .c = c, .bias = bias, .beta = 1}, what + "beta and bias");
      expect_product({.a = a, .b = b, .bias = bias, .alpha = 2}, what + "bias");
      for (const Epilogue e : {Epilogue::kRelu, Epilogue::kGelu, Epilogue::kGeluTanh}) {
        expect_product({.a = a, .b = b, .epilogue = e}, what + "activation");
        expect_product({.a = a, .b = b, .bias = bias, .epilogue = e}, what + "bias, activation");
      }
    }
  }
}

TEST_P(CudaMatmul, batch_stride_zero_and_offsets_within_a_larger_tensor) {
  const Tensor room = random_tensor({4, 40, 90}, 1, DType::kF32).to(kCuda);
  const Tensor a = raw::slice(raw::slice(room, 1, 1, 21, 1), 2, 3, 36, 1);    // [4, 20, 33]
  const Tensor one = raw::slice(raw::slice(room, 1, 5, 38, 1), 2, 1, 46, 1);  // [4, 33, 45]
  const Tensor b = raw::expand(raw::slice(one, 0, 2, 3, 1), {4, 33, 45});     // stride 0
  EXPECT_EQ(b.strides()[0], 0);
  const Tensor target = full({4, 20, 60}, 7).to(kCuda);
  const Tensor out = raw::slice(target, 2, 5, 50, 1);
  TARN_KERNEL(matmul, matmul, kCuda, a, b, Tensor(), 1.0, 0.0, Epilogue::kGelu, out);
  const Product host{.a = a.to(kCPU), .b = b.to(kCPU), .epilogue = Epilogue::kGelu};
  testing::expect_close(numbers(out.to(kCPU)), expected(host), 1e-6, 1e-5);
  const Doubles all = numbers(target);
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % 60 < 5 || i % 60 >= 50) {
      ASSERT_EQ(all[i], 7) << "written beside the result at " << i;
    }
  }
}

TEST_P(CudaMatmul, integers_wrap_round) {
  for (const DType dtype : {DType::kI64, DType::kI32, DType::kU8}) {
    for (const int64_t k : {70, 1031}) {  // 1031: in parts
      std::vector<int64_t> values;
      for (int64_t i = 0; i < 20 * k; ++i) values.push_back(i * 2654435761 % 1000003);
      const Tensor a = raw::to(from_vector(values, {20, k}), dtype);
      const Tensor b = raw::to(from_vector(values, {k, 20}), dtype);
      const auto want = raw::matmul(a, b).to_vector<int64_t>();
      EXPECT_EQ(raw::matmul(a.to(kCuda), b.to(kCuda)).to_vector<int64_t>(), want);
      EXPECT_EQ(raw::matmul(a.to(kCuda), by_columns(b).to(kCuda)).to_vector<int64_t>(), want);
    }
  }
}

TEST_P(CudaMatmul, nothing_to_sum_gives_the_bias_and_nothing_to_write_is_fine) {
  const Tensor bias = random_tensor({5}, 3, DType::kF32);
  const Tensor c = random_tensor({20, 5}, 4, DType::kF32);
  expect_product({.a = zeros({20, 0}), .b = zeros({0, 5}), .c = c, .bias = bias, .beta = 0.5},
                 "k = 0");
  expect_product({.a = zeros({20, 0}), .b = zeros({0, 65})}, "k = 0, tiles");
  EXPECT_EQ(raw::matmul(zeros({0, 4}).to(kCuda), zeros({4, 3}).to(kCuda)).sizes(), Shape({0, 3}));
}

TEST_P(CudaMatmul, nan_and_infinity_pass_and_stay_in_their_rows) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (const int64_t m : {2, 20}) {
    Doubles values = numbers(random_tensor({m, 18}, 5));
    values[0] = nan;       // row 0
    values[18 + 3] = inf;  // row 1
    const Tensor a = raw::to(from_vector(values, {m, 18}), DType::kF32);
    const Tensor b = raw::to(full({18, 70}, 0.5), DType::kF32);
    for (const Epilogue e : {Epilogue::kNone, Epilogue::kRelu, Epilogue::kGelu}) {
      const Doubles got = computed({.a = a, .b = b, .bias = zeros({70}), .epilogue = e});
      for (size_t i = 0; i < got.size(); ++i) {
        if (i < 70) {
          ASSERT_TRUE(std::isnan(got[i])) << i;
        } else if (i < 140) {
          ASSERT_EQ(got[i], inf) << i;
        } else {
          ASSERT_TRUE(std::isfinite(got[i])) << i;
        }
      }
    }
  }
}

TEST_P(CudaMatmul, the_same_product_has_the_same_bits) {
  const Product p{.a = random_tensor({30, 1500}, 8, DType::kF32),
                  .b = random_tensor({1500, 40}, 9, DType::kF32)};
  EXPECT_EQ(computed(p), computed(p));
}

TEST(CudaBlas, tf32_rounds_only_when_it_is_allowed) {
  TARN_NEEDS_GPU();
  EXPECT_FALSE(allow_tf32());
  // 1 + 2^-12 needs 13 bits; TF32 keeps 11. Sums of 16 such are exact in f32.
  const Tensor a = full({32, 16}, 1 + 0x1p-12).to(kCuda), b = full({16, 32}, 1.0).to(kCuda);
  EXPECT_EQ(numbers(raw::matmul(a, b))[0], 16 + 0x1p-8);
  set_allow_tf32(true);
  const double rounded = numbers(raw::matmul(a, b))[0];
  set_allow_tf32(false);
  EXPECT_TRUE(rounded == 16 || rounded == 16 + 0x1p-8) << rounded;  // the latter: own kernels
  EXPECT_EQ(numbers(raw::matmul(a, b))[0], 16 + 0x1p-8);
}

TEST(CudaBlas, threads_and_streams_share_a_device) {
  TARN_NEEDS_GPU();
  const Tensor a = random_tensor({40, 60}, 1, DType::kF32).to(kCuda);
  const Tensor b = random_tensor({60, 50}, 2, DType::kF32).to(kCuda);
  const Doubles want = numbers(raw::matmul(a, b));
  std::vector<std::thread> threads;
  std::vector<Doubles> got(4);
  for (Doubles& mine : got) {
    threads.emplace_back([&] {
      Backend& cuda = backend(DeviceType::kCUDA);
      const Stream stream = cuda.create_stream(0, 0);
      {
        const StreamGuard guard(stream);
        Tensor out;
        for (int i = 0; i < 5; ++i) out = raw::matmul(a, b);
        mine = numbers(out);
      }
      cuda.synchronize(stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Doubles& mine : got) EXPECT_EQ(mine, want);
}

#if defined(TARN_CUDA_EMU)

/// Ends a test where the environment takes the libraries away.
#define TARN_NEEDS_BLAS()                                             \
  if (cuda::library_use("TARN_CUBLAS") == cuda::LibraryUse::kOff ||   \
      cuda::library_use("TARN_CUBLASLT") == cuda::LibraryUse::kOff) { \
    GTEST_SKIP() << "switched off by the environment";                \
  }

TEST(CudaBlas, products_go_to_the_call_that_fits_them) {
  TARN_NEEDS_BLAS();
  const auto calls_of = [](const char* name, const Product& p) {
    const uint64_t before = emu::call_count(name);
    computed(p);
    return emu::call_count(name) - before;
  };
  const Tensor a = random_tensor({20, 30}, 1, DType::kF32);
  const Tensor b = random_tensor({30, 40}, 2, DType::kF32), bias = zeros({40});
  EXPECT_EQ(calls_of("cublasGemmEx", {a, b}), 1u);
  EXPECT_EQ(calls_of("cublasGemmStridedBatchedEx", {random_tensor({2, 20, 30}, 1, DType::kF32),
                                                    random_tensor({2, 30, 40}, 2, DType::kF32)}),
            1u);
  EXPECT_EQ(calls_of("cublasLtMatmul", {.a = a, .b = b, .bias = bias}), 1u);
  const Product fused{.a = a, .b = b, .bias = bias, .epilogue = Epilogue::kGeluTanh};
  EXPECT_EQ(calls_of("cudaLaunchKernelEx", fused), 0u);
  EXPECT_EQ(calls_of("cublasLtMatmulAlgoGetHeuristic", fused), 0u) << "the plan is cached";
  EXPECT_EQ(calls_of("cublasGemmEx", {zeros({20, 0}), zeros({0, 40})}), 0u);
}

TEST(CudaBlas, without_a_fused_algorithm_bias_and_activation_are_kernels) {
  TARN_NEEDS_BLAS();
  for (const DType dtype : kFloats) {
    const Product p{.a = random_tensor({21, 30}, 1, dtype),
                    .b = random_tensor({30, 43}, 2, dtype),
                    .bias = random_tensor({43}, 3, dtype),
                    .epilogue = Epilogue::kGeluTanh};
    emu::fail_call("cublasLtMatmulAlgoGetHeuristic", 1, 15);  // CUBLAS_STATUS_NOT_SUPPORTED
    const uint64_t products = emu::call_count("cublasGemmEx");
    expect_product(p, describe(p.a.sizes(), p.b.sizes(), dtype, "fallback"));
    EXPECT_EQ(emu::call_count("cublasGemmEx") - products, 1u);
    expect_product(p, "the second time from the cached plan");
  }
  emu::clear_failures();
}

TEST(CudaBlas, a_failing_call_names_itself_its_code_and_the_shapes) {
  TARN_NEEDS_BLAS();
  const Tensor a = zeros({20, 30}).to(kCuda), b = zeros({30, 40}).to(kCuda);
  raw::matmul(a, b);
  emu::fail_call("cublasGemmEx", 1, 13);  // CUBLAS_STATUS_EXECUTION_FAILED
  EXPECT_THROWS_WITH(raw::matmul(a, b), DeviceError,
                     "cuda: cublasGemmEx failed on cuda:0: the function failed to launch on the "
                     "GPU (CUBLAS_STATUS_EXECUTION_FAILED, 13) in matmul of [20, 30] x [30, 40] "
                     "f32");
  const Tensor c = zeros({3, 30, 40}).to(kCuda), d = zeros({3, 40, 50}).to(kCuda);
  emu::fail_call("cublasGemmStridedBatchedEx", 1, 3);  // CUBLAS_STATUS_ALLOC_FAILED
  EXPECT_THROWS_WITH(raw::matmul(c, d), OutOfMemoryError,
                     "(CUBLAS_STATUS_ALLOC_FAILED, 3) in matmul of [30, 40] x [40, 50] f32, batch "
                     "of 3");
  emu::fail_call("cublasLtMatmul", 1, 14);  // CUBLAS_STATUS_INTERNAL_ERROR
  EXPECT_THROWS_WITH(computed({.a = zeros({20, 31}), .b = zeros({31, 40}), .bias = zeros({40})}),
                     DeviceError, "cuda: cublasLtMatmul failed on cuda:0: ");
  emu::fail_call("cublasLtMatmulDescSetAttribute", 2, 7);  // CUBLAS_STATUS_INVALID_VALUE
  EXPECT_THROWS_WITH(computed({.a = zeros({20, 33}), .b = zeros({33, 40}), .bias = zeros({40})}),
                     DeviceError, "cuda: cublasLtMatmulDescSetAttribute failed on cuda:0: ");
  emu::clear_failures();
  EXPECT_EQ(numbers(raw::matmul(a, b))[0], 0) << "products work again afterwards";
}

TEST(CudaBlas, a_second_device_has_its_own_handle) {
  if (available_devices().size() < 3) GTEST_SKIP() << "one device";
  const Device second(DeviceType::kCUDA, 1);
  const Tensor a = random_tensor({20, 30}, 1, DType::kF32);
  const Tensor b = random_tensor({30, 40}, 2, DType::kF32);
  const Tensor there = raw::matmul(a.to(second), b.to(second));
  EXPECT_EQ(there.device(), second);
  EXPECT_EQ(numbers(there), numbers(raw::matmul(a.to(kCuda), b.to(kCuda))));
}

#endif

}  // namespace
}  // namespace tarn
