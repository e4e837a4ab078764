// core_gemm_test.cpp - the CPU matrix product engines against sums in f64.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tarn/core/cpu/dnnl_matmul.h"
#include "tarn/core/cpu/few_rows.h"
#include "tarn/core/cpu/gemm.h"
#include "tarn/core/cpu/gemm_epilogue.h"
#include "tarn/core/cpu/matmul_dispatch.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {
namespace {

struct Sizes {
  int64_t batch, m, n, k;
  bool a_transposed, b_transposed;
};

std::vector<double> random_values(int64_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<double> out(static_cast<size_t>(count));
  for (double& v : out) v = static_cast<double>(uniform(rng));
  return out;
}

template <typename T>
double wide(T v) {
  return static_cast<double>(static_cast<compute_t<T>>(v));
}

template <typename T>
std::vector<T> as(const std::vector<double>& values) {
  std::vector<T> out;
  for (double v : values) out.push_back(T(static_cast<compute_t<T>>(v)));
  return out;
}

/// A product with padded strides; owns its memory.
template <typename T>
struct Product {
  std::vector<T> a, b, c, bias;
  MatmulCall call;

  explicit Product(const Sizes& s, int64_t pad = 3) {
    call.dtype = dtype_of<T>;
    call.batch = s.batch, call.m = s.m, call.n = s.n, call.k = s.k;
    const int64_t a_ld = (s.a_transposed ? s.m : s.k) + pad;
    const int64_t b_ld = (s.b_transposed ? s.k : s.n) + pad;
    call.a_row = s.a_transposed ? 1 : a_ld, call.a_col = s.a_transposed ? a_ld : 1;
    call.b_row = s.b_transposed ? 1 : b_ld, call.b_col = s.b_transposed ? b_ld : 1;
    call.a_batch = a_ld * (s.a_transposed ? s.k : s.m);
    call.b_batch = b_ld * (s.b_transposed ? s.n : s.k);
    call.c_row = s.n + pad;
    call.c_batch = s.m * call.c_row;
    a = as<T>(random_values(s.batch * call.a_batch, 1));
    b = as<T>(random_values(s.batch * call.b_batch, 2));
    c = as<T>(random_values(s.batch * call.c_batch, 3));
    bias = as<T>(random_values(s.n, 4));
    call.a = a.data(), call.b = b.data(), call.c = c.data();
  }

  /// Expected C, padding included.
  std::vector<double> expected() const {
    std::vector<double> want;
    for (T v : c) want.push_back(wide(v));
    const T* bias_or_null = static_cast<const T*>(call.bias);
    for (int64_t q = 0; q < call.batch; ++q) {
      for (int64_t i = 0; i < call.m; ++i) {
        for (int64_t j = 0; j < call.n; ++j) {
          double sum = 0;
          for (int64_t p = 0; p < call.k; ++p) {
            sum += wide(a[size_t(q * call.a_batch + i * call.a_row + p * call.a_col)]) *
                   wide(b[size_t(q * call.b_batch + p * call.b_row + j * call.b_col)]);
          }
          double& out = want[size_t(q * call.c_batch + i * call.c_row + j)];
          out = call.alpha * sum + (call.beta != 0 ? call.beta * out : 0);
          if (bias_or_null != nullptr) out += wide(bias_or_null[j]);
          out = apply_epilogue(call.epilogue, out);
        }
      }
    }
    return want;
  }
};

template <typename T>
double worst_error(const std::vector<T>& got, const std::vector<double>& want) {
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(wide(got[i]) - want[i]);
    if (!(difference <= worst)) worst = difference;
  }
  return worst;
}

/// Bound of the rounding in a sum of k products below 1, taken in order; about seven deviations.
double bound(int64_t k, double unit) {
  return unit * (double(k) + 16);
}

/// The same for results rounded to halves: sums rarely go beyond six deviations, and C.
double half_bound(int64_t k, int digits) {
  return (std::sqrt(double(k)) * 2 + 4) * std::ldexp(1.0, digits);
}

const std::vector<Sizes> kSizes = {
    {1, 1, 1, 1, false, false},      {1, 32, 64, 10, false, false},
    {1, 32, 32, 64, false, true},    {1, 13, 17, 5, true, true},
    {1, 64, 10, 100, true, false},   {1, 100, 33, 257, false, true},
    {3, 7, 16, 20, false, false},    {2, 30, 40, 3, true, false},
    {1, 1, 300, 70, false, true},    {1, 300, 1, 70, false, false},
    {1, 400, 150, 300, false, true}, {1, 128, 128, 128, true, true},
    {1, 20, 30, 5000, true, false},  {1, 16, 16, 1100, false, false},
    {5, 90, 65, 70, false, true},    {1, 15, 512, 1024, false, false},
    {1, 60, 530, 400, false, true},  {1, 60, 520, 420, true, false}};  // packed, in slices

template <typename T>
void check_all(double unit) {
  for (const Sizes& s : kSizes) {
    for (int variant = 0; variant < 6; ++variant) {
      Product<T> p(s);
      if (variant == 1) p.call.beta = 1;
      if (variant == 2) p.call.bias = p.bias.data();
      if (variant == 3) p.call.alpha = 0.5, p.call.beta = -2, p.call.bias = p.bias.data();
      if (variant == 4) p.call.bias = p.bias.data(), p.call.epilogue = Epilogue::kRelu;
      if (variant == 5) p.call.epilogue = Epilogue::kGelu;
      const std::vector<double> want = p.expected();
      if (p.call.beta == 0) {  // whatever stood in C is not read
        for (int64_t q = 0; q < s.batch; ++q) {
          for (int64_t i = 0; i < s.m; ++i) {
            for (int64_t j = 0; j < s.n; ++j)
              p.c[size_t(q * p.call.c_batch + i * p.call.c_row + j)] = T(NAN);
          }
        }
      }
      gemm(p.call);
      EXPECT_LT(worst_error(p.c, want), bound(s.k, unit))
          << s.batch << " x " << s.m << " x " << s.n << " x " << s.k << ", variant " << variant;
    }
  }
}

TEST(Gemm, f32_agrees_with_sums_in_f64) {
  check_all<float>(6e-8);
}
TEST(Gemm, f64_agrees_with_plain_sums) {
  check_all<double>(1.1e-16);
}

TEST(Gemm, takes_operands_with_no_unit_stride) {
  Product<float> p({1, 20, 40, 30, false, false});
  std::vector<float> a(2 * p.a.size()), b(2 * p.b.size());
  for (size_t i = 0; i < p.a.size(); ++i) a[2 * i] = p.a[i];
  for (size_t i = 0; i < p.b.size(); ++i) b[2 * i] = p.b[i];
  const std::vector<double> want = p.expected();
  p.call.a = a.data(), p.call.a_row *= 2, p.call.a_col *= 2;
  p.call.b = b.data(), p.call.b_row *= 2, p.call.b_col *= 2;
  gemm(p.call);
  EXPECT_LT(worst_error(p.c, want), bound(30, 6e-8));
}

TEST(Gemm, a_batch_stride_of_zero_reuses_the_operand) {
  Product<float> p({4, 9, 20, 16, false, false});
  p.call.b_batch = 0;
  const std::vector<double> want = p.expected();
  gemm(p.call);
  EXPECT_LT(worst_error(p.c, want), bound(16, 6e-8));
}

TEST(Gemm, an_empty_sum_is_bias_and_old_value) {
  Product<float> p({1, 5, 7, 0, false, false});
  p.call.bias = p.bias.data();
  p.call.beta = 1;
  const std::vector<double> want = p.expected();
  gemm(p.call);
  EXPECT_LT(worst_error(p.c, want), 1e-6);
  Product<float> zero({1, 5, 32, 0, false, false});
  const std::vector<double> zeros = zero.expected();
  gemm(zero.call);
  EXPECT_EQ(worst_error(zero.c, zeros), 0);
}

/// Strides of a power of two thrash the L1 cache, so that A is copied; dense ones are read in
/// place.
TEST(Gemm, reads_in_place_or_copies_by_the_strides) {
  for (const Sizes& s : {Sizes{1, 130, 64, 64, false, true}, Sizes{1, 130, 100, 70, false, true},
                         Sizes{1, 128, 64, 512, false, false}, Sizes{1, 512, 64, 40, true, false},
                         Sizes{1, 200, 33, 50, true, true}}) {
    Product<float> p(s, 0);
    const std::vector<double> want = p.expected();
    gemm(p.call);
    EXPECT_LT(worst_error(p.c, want), bound(s.k, 6e-8)) << s.m << " x " << s.n << " x " << s.k;
  }
}

template <typename T>
void check_threads(const Sizes& s) {
  std::vector<uint16_t> first;
  for (int threads : {1, 2, 3, 5}) {
    set_num_threads(threads);
    Product<T> p(s);
    gemm(p.call);
    std::vector<uint16_t> bits(p.c.size() * sizeof(T) / 2);
    std::memcpy(bits.data(), p.c.data(), bits.size() * 2);
    if (first.empty()) first = bits;
    EXPECT_EQ(first, bits) << dtype_of<T> << ", " << s.m << " x " << s.n << " x " << s.k << ", "
                           << threads << " threads";
  }
}

TEST(Gemm, bits_do_not_depend_on_the_number_of_threads) {
  const int threads_before = num_threads();
  for (const Sizes& s : kSizes) {
    check_threads<float>(s);
    check_threads<double>(s);
    check_threads<bfloat16>(s);
    check_threads<half>(s);
  }
  set_num_threads(threads_before);
}

TEST(Gemm, the_library_agrees_where_it_takes_the_product) {
  for (const Sizes& s : kSizes) {
    for (int variant = 0; variant < 5; ++variant) {
      Product<bfloat16> p(s);
      if (variant == 1) p.call.beta = 1;
      if (variant == 2) p.call.bias = p.bias.data(), p.call.epilogue = Epilogue::kRelu;
      if (variant == 3) p.call.alpha = 0.5, p.call.beta = -2;
      if (variant == 4) p.call.bias = p.bias.data(), p.call.beta = 1;
      const std::vector<double> want = p.expected();
      if (!dnnl_matmul(p.call)) continue;
      EXPECT_LT(worst_error(p.c, want), half_bound(s.k, -8))
          << s.batch << " x " << s.m << " x " << s.n << " x " << s.k << ", variant " << variant;
    }
  }
}

/// `product` is gemm, or matmul, which may give bf16 to the library.
void check_halves(void (*product)(const MatmulCall&)) {
  for (const Sizes& s : kSizes) {
    for (int variant = 0; variant < 4; ++variant) {
      Product<bfloat16> p(s);
      Product<half> q(s);
      for (MatmulCall* call : {&p.call, &q.call}) {
        if (variant == 1) call->alpha = 0.5, call->beta = -2;
        if (variant == 2) call->epilogue = Epilogue::kRelu;
      }
      if (variant > 0) p.call.bias = p.bias.data(), q.call.bias = q.bias.data();
      const std::vector<double> want_p = p.expected(), want_q = q.expected();
      product(p.call);
      product(q.call);
      EXPECT_LT(worst_error(p.c, want_p), half_bound(s.k, -8)) << s.m << ", " << variant;
      EXPECT_LT(worst_error(q.c, want_q), half_bound(s.k, -11)) << s.m << ", " << variant;
    }
  }
}

TEST(Gemm, halves_accumulate_in_f32_in_every_variant) {
  check_halves(gemm);
}
TEST(MatmulDispatch, halves_accumulate_in_f32_in_every_variant) {
  check_halves(matmul);
}

/// A product of halves whose C is f32 is not rounded to halves.
template <typename T>
void check_wide(const Sizes& s) {
  Product<T> p(s);
  std::vector<double> want = p.expected();
  std::vector<float> c(p.c.size());
  for (size_t i = 0; i < c.size(); ++i) c[i] = static_cast<float>(wide(p.c[i]));
  p.call.c = c.data();
  p.call.wide_c = true;
  gemm(p.call);
  // The largest of as many other draws: up to 2.2e-5 seen where f32's own shows 1.8e-5.
  EXPECT_LT(worst_error(c, want), bound(s.k, 8e-8)) << s.m << " x " << s.n << " x " << s.k;
}

TEST(Gemm, halves_give_sums_in_f32_where_asked) {
  for (const Sizes& s : kSizes) {
    check_wide<bfloat16>(s);
    check_wide<half>(s);
  }
}

TEST(Gemm, infinities_and_nans_stay_in_their_rows_and_columns) {
  Product<float> p({1, 50, 70, 40, false, true});
  p.a[size_t(7 * p.call.a_row + 3)] = INFINITY;
  p.b[size_t(5 * p.call.b_col + 2)] = NAN;
  gemm(p.call);
  for (int64_t i = 0; i < 50; ++i) {
    for (int64_t j = 0; j < 70; ++j) {
      const float v = p.c[size_t(i * p.call.c_row + j)];
      EXPECT_EQ(std::isfinite(v), i != 7 && j != 5) << i << ", " << j << ": " << v;
    }
  }
}

TEST(MatmulDispatch, f32_agrees_at_small_sizes) {
  for (int64_t size : {1, 8, 31, 32, 57, 58, 64, 100}) {
    for (const bool transposed : {false, true}) {
      Product<float> p({1, size, size, size, transposed, transposed});
      const std::vector<double> want = p.expected();
      matmul(p.call);
      EXPECT_LT(worst_error(p.c, want), bound(size, 6e-8)) << size;
    }
  }
}

template <typename T>
void check_few_rows(double unit) {
  for (int64_t m = 1; m <= 4; ++m) {
    for (const int64_t k : {300, 512}) {
      for (int variant = 0; variant < 4; ++variant) {
        Product<T> p({1, m, 333, k, false, true});
        if (variant > 0) p.call.bias = p.bias.data();
        if (variant == 1) p.call.alpha = 0.5, p.call.beta = -2;
        if (variant == 2) p.call.epilogue = Epilogue::kGeluTanh;
        if (variant == 3) p.call.beta = 1;
        const std::vector<double> want = p.expected();
        ASSERT_TRUE(few_rows_matmul(p.call));
        EXPECT_LT(worst_error(p.c, want), bound(k, unit)) << m << " x " << k << ", " << variant;
      }
    }
  }
}

TEST(FewRows, agree_with_sums_in_f64_in_every_variant) {
  check_few_rows<float>(6e-8);
  // The rounding of results up to some 50 is all there is.
  check_few_rows<bfloat16>(std::ldexp(50.0, -9) / 300);
  check_few_rows<half>(std::ldexp(50.0, -12) / 300);
}

TEST(FewRows, leave_other_products_to_others) {
  Product<float> many({1, 5, 333, 300, false, true}), plain({1, 1, 333, 300, false, false});
  Product<float> small({1, 1, 30, 300, false, true}), batched({2, 1, 333, 300, false, true});
  for (Product<float>* p : {&many, &plain, &small, &batched})
    EXPECT_FALSE(few_rows_matmul(p->call));
}

TEST(MatmulDispatch, integers_are_exact_and_wrap_round) {
  const std::vector<int64_t> a = {1, 2, 3, 4}, b = {5, 6, 7, int64_t{1} << 62};
  std::vector<int64_t> c = {1, 1, 1, 1};
  MatmulCall call;
  call.dtype = DType::kI64;
  call.m = call.n = call.k = 2;
  call.a = a.data(), call.a_row = 2;
  call.b = b.data(), call.b_row = 2;
  call.c = c.data(), call.c_row = 2;
  call.beta = 1;
  matmul(call);
  // 1*5 + 2*7 + 1, 1*6 + 2*2^62 + 1 (wraps to negative), 3*5 + 4*7 + 1, 3*6 + 4*2^62 + 1 = 19
  EXPECT_EQ(c, (std::vector<int64_t>{20, INT64_MIN + 7, 44, 19}));
}

}  // namespace
}  // namespace tarn::cpu
