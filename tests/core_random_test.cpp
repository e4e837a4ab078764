// core_random_test.cpp - Philox's known answers, the kernels' contract, distributions, errors.
#include <algorithm>
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "tarn/core/factory.h"
#include "tarn/core/parallel.h"
#include "tarn/core/random.h"
#include "tarn/core/random_draws.h"
#include "tarn/core/raw_random.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {

void expect_philox(const Philox4& got, std::initializer_list<uint32_t> want) {
  EXPECT_TRUE(std::equal(want.begin(), want.end(), got.v));
}

template <class E, class F>
void expect_error(F f, const std::string& text) {
  try {
    f();
    FAIL() << "no error; expected: " << text;
  } catch (const E& e) {
    EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
  }
}

struct ThreadsGuard {
  int before = num_threads();
  ~ThreadsGuard() { set_num_threads(before); }
};

double mean_of(const std::vector<double>& v) {
  double sum = 0;
  for (double x : v) sum += x;
  return sum / static_cast<double>(v.size());
}
double variance_of(const std::vector<double>& v) {
  const double m = mean_of(v);
  double sum = 0;
  for (double x : v) sum += (x - m) * (x - m);
  return sum / static_cast<double>(v.size());
}

TEST(RandomTest, philox_gives_the_published_answers) {
  // Random123's kat_vectors, philox4x32 10 rounds.
  expect_philox(philox4x32_10(0, 0, 0, 0, 0, 0), {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const uint32_t f = 0xffffffff;
  expect_philox(philox4x32_10(f, f, f, f, f, f), {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect_philox(
      philox4x32_10(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0),
      {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(RandomTest, uniform_element_i_is_lane_i_of_its_counter) {
  Generator g(77);
  g.set_state({77, 5});
  const Tensor x = empty({1027});
  raw::uniform_(x, 0, 1, &g);
  const float* v = x.data<float>();
  for (int64_t i = 0; i < 1027; ++i) {
    const Philox4 r = philox({77, 5}, static_cast<uint64_t>(i / 4));
    ASSERT_EQ(v[i], static_cast<float>(r.v[i % 4] >> 8) * 0x1p-24f) << i;
  }
  EXPECT_EQ(g.state().offset, 5u + 257u);  // ceil(1027 / 4) counters were used
  const Tensor d = empty({11}, {.dtype = DType::kF64});
  g.set_state({77, 5});
  raw::uniform_(d, 0, 1, &g);
  for (int64_t i = 0; i < 11; ++i) {
    const Philox4 r = philox({77, 5}, static_cast<uint64_t>(i / 2));
    const int lane = static_cast<int>(i % 2) * 2;
    ASSERT_EQ(d.data<double>()[i], philox_uniform_double(r.v[lane], r.v[lane + 1]));
  }
}

TEST(RandomTest, numbers_do_not_depend_on_threads_or_strides) {
  const ThreadsGuard guard;
  for (DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    std::vector<double> want[3];
    for (int threads : {1, 2, 3}) {
      set_num_threads(threads);
      Generator g(1);
      const Tensor base = empty({300, 500}, {.dtype = dtype});
      const Tensor x = threads == 3 ? raw::transpose(raw::view(base, {500, 300}), 0, 1) : base;
      std::vector<double> got[3];
      raw::uniform_(x, -2, 3, &g);
      got[0] = x.to_vector<double>();
      raw::normal_(x, 1, 2, &g);
      got[1] = x.to_vector<double>();
      raw::bernoulli_(x, 0.25, &g);
      got[2] = x.to_vector<double>();
      for (int k = 0; k < 3; ++k) {
        if (threads == 1) want[k] = got[k];
        EXPECT_EQ(got[k], want[k]) << dtype << " threads " << threads << " kind " << k;
      }
    }
  }
}

TEST(RandomTest, uniform_stays_in_its_half_open_range) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    Generator g(3);
    const Tensor x = empty({200000}, {.dtype = dtype});
    for (auto [low, high] : {std::pair{0.0, 1.0}, {-1.0, 1.0}, {5.0, 5.0}, {8192.0, 8192.0 + 64}}) {
      raw::uniform_(x, low, high, &g);
      const auto v = x.to_vector<double>();
      EXPECT_GE(*std::min_element(v.begin(), v.end()), low) << dtype;
      if (low < high) {
        EXPECT_LT(*std::max_element(v.begin(), v.end()), high) << dtype;
      }
    }
    raw::uniform_(x, 0, 1, &g);
    const auto v = x.to_vector<double>();
    EXPECT_NEAR(mean_of(v), 0.5, dtype == DType::kBF16 ? 4e-3 : 2e-3) << dtype;
    EXPECT_NEAR(variance_of(v), 1.0 / 12, 1e-3) << dtype;
  }
}

TEST(RandomTest, normal_has_the_moments_and_tails_of_a_normal) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    Generator g(4);
    const int64_t n = 400001;
    const Tensor x = empty({n}, {.dtype = dtype});
    raw::normal_(x, 0, 1, &g);
    const auto v = x.to_vector<double>();
    double m4 = 0, outside = 0, lag = 0;
    for (size_t i = 0; i < v.size(); ++i) {
      ASSERT_TRUE(std::isfinite(v[i]));
      m4 += v[i] * v[i] * v[i] * v[i];
      outside += std::abs(v[i]) > 2;
      if (i > 0) lag += v[i] * v[i - 1];
    }
    EXPECT_NEAR(mean_of(v), 0, 5e-3);
    EXPECT_NEAR(variance_of(v), 1, 1e-2);
    EXPECT_NEAR(m4 / static_cast<double>(n), 3, 0.06);
    EXPECT_NEAR(outside / static_cast<double>(n), 0.0455, 2e-3);  // 2 (1 - Phi(2))
    EXPECT_NEAR(lag / static_cast<double>(n), 0, 6e-3);
  }
}

TEST(RandomTest, fast_normals_agree_with_the_exact_formula) {
  for (uint32_t k = 0; k < 2000; ++k) {
    const Philox4 r = philox({9, 0}, k);
    const auto z = draws::normal_pair(r.v[0], r.v[1]);
    // The draw rounds to f32 before the logarithm.
    const double u1 = static_cast<float>(r.v[0]) * 0x1p-32f + 0x1p-33f;
    const double angle = 2 * M_PI * static_cast<double>(r.v[1] >> 8) * 0x1p-24;
    const double radius = std::sqrt(-2 * std::log(u1));
    ASSERT_NEAR(z.a, radius * std::cos(angle), 2e-6 * (1 + radius));
    ASSERT_NEAR(z.b, radius * std::sin(angle), 2e-6 * (1 + radius));
  }
}

TEST(RandomTest, bernoulli_and_its_limits) {
  Generator g(5);
  for (DType dtype : {DType::kF32, DType::kBool, DType::kU8, DType::kI64, DType::kBF16}) {
    const Tensor x = empty({100000}, {.dtype = dtype});
    raw::bernoulli_(x, 0.3, &g);
    EXPECT_NEAR(mean_of(x.to_vector<double>()), 0.3, 6e-3);
    raw::bernoulli_(x, 0, &g);
    EXPECT_EQ(mean_of(x.to_vector<double>()), 0);
    raw::bernoulli_(x, 1, &g);
    EXPECT_EQ(mean_of(x.to_vector<double>()), 1);
  }
}

TEST(RandomTest, randint_covers_its_range_evenly) {
  Generator g(6);
  const Tensor x = empty({70000}, {.dtype = DType::kI64});
  raw::randint_(x, -3, 4, &g);
  std::vector<int> counts(7);
  for (int64_t v : x.to_vector<int64_t>()) {
    ASSERT_TRUE(v >= -3 && v < 4);
    ++counts[static_cast<size_t>(v + 3)];
  }
  for (int c : counts) EXPECT_NEAR(c, 10000, 500);
  const int64_t huge = int64_t{1} << 62;
  raw::randint_(x, -huge, huge, &g);
  double mean = 0;
  for (int64_t v : x.to_vector<int64_t>()) {
    ASSERT_TRUE(v >= -huge && v < huge);
    mean += static_cast<double>(v) / 70000;
  }
  EXPECT_LT(std::abs(mean / static_cast<double>(huge)), 0.01);
}

TEST(RandomTest, below_is_the_high_half_of_the_product) {
  const uint64_t range = 0x9E3779B97F4A7C15u;
  for (uint32_t k = 0; k < 100; ++k) {
    const Philox4 r = philox({1, 2}, k);
    const uint64_t bits = (static_cast<uint64_t>(r.v[0]) << 32) | r.v[1];
    const auto want = static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * range) >> 64);
    EXPECT_EQ(draws::below(r.v[0], r.v[1], range), want);
  }
}

TEST(RandomTest, randperm_is_a_permutation_and_all_orders_occur) {
  Generator g(7);
  auto p = raw::randperm(1000, DType::kI64, kCPU, &g).to_vector<int64_t>();
  EXPECT_FALSE(std::is_sorted(p.begin(), p.end()));
  std::sort(p.begin(), p.end());
  for (int64_t i = 0; i < 1000; ++i) ASSERT_EQ(p[static_cast<size_t>(i)], i);
  std::map<std::vector<int64_t>, int> seen;
  for (int i = 0; i < 6000; ++i)
    ++seen[raw::randperm(3, DType::kI64, kCPU, &g).to_vector<int64_t>()];
  EXPECT_EQ(seen.size(), 6u);
  for (const auto& [order, count] : seen) EXPECT_NEAR(count, 1000, 150);
  EXPECT_EQ(raw::randperm(0, DType::kI64, kCPU, &g).numel(), 0);
}

TEST(RandomTest, multinomial_follows_the_weights) {
  Generator g(8);
  const Tensor w = tensor({0, 1, 0, 3, 0}, {.dtype = DType::kF32});
  int64_t threes = 0;
  for (int64_t i : raw::multinomial(w, 20000, true, &g).to_vector<int64_t>()) {
    ASSERT_TRUE(i == 1 || i == 3);
    threes += i == 3;
  }
  EXPECT_NEAR(static_cast<double>(threes) / 20000, 0.75, 0.02);
  for (int i = 0; i < 200; ++i) {
    auto pair = raw::multinomial(w, 2, false, &g).to_vector<int64_t>();
    std::sort(pair.begin(), pair.end());
    ASSERT_EQ(pair, (std::vector<int64_t>{1, 3}));
  }
  const Tensor rows = tensor({1, 0, 0, 1}, {2, 2});
  EXPECT_EQ(raw::multinomial(rows, 1, false, &g).to_vector<int64_t>(),
            (std::vector<int64_t>{0, 1}));
}

TEST(RandomTest, dropout_masks_repeat_with_their_state) {
  const Tensor x = ones({1000, 37});
  const PhiloxState state{11, 3};
  const auto a = raw::dropout(x, 0.25, state, MemoryFormat::kContiguous).to_vector<double>();
  EXPECT_EQ(a, raw::dropout(x, 0.25, state, MemoryFormat::kContiguous).to_vector<double>());
  int64_t kept = 0;
  for (double v : a) {
    ASSERT_TRUE(v == 0 || v == static_cast<float>(1 / 0.75));
    kept += v != 0;
  }
  EXPECT_NEAR(static_cast<double>(kept) / 37000, 0.75, 0.01);
  for (double v : raw::dropout(x, 1, state, MemoryFormat::kContiguous).to_vector<double>()) {
    ASSERT_EQ(v, 0);
  }
}

TEST(RandomTest, generators_save_restore_and_reseed) {
  const Tensor a = empty({10}), b = empty({10});
  manual_seed(123);
  raw::uniform_(a);
  const PhiloxState state = default_generator().state();
  raw::uniform_(b);
  const auto second = b.to_vector<float>();
  EXPECT_NE(a.to_vector<float>(), second);
  default_generator().set_state(state);
  raw::uniform_(b);
  EXPECT_EQ(b.to_vector<float>(), second);
  manual_seed(123);
  raw::uniform_(b);
  EXPECT_EQ(a.to_vector<float>(), b.to_vector<float>());
}

TEST(RandomTest, in_place_fills_bump_the_version_and_take_empty_tensors) {
  const Tensor x = empty({4}), none = empty({0, 3});
  const uint32_t v = x.version();
  raw::normal_(x);
  EXPECT_GT(x.version(), v);
  raw::normal_(none);
  EXPECT_EQ(raw::dropout(none, 0.5, {}, MemoryFormat::kContiguous).numel(), 0);
}

TEST(RandomTest, errors_name_what_must_hold) {
  const Tensor x = empty({3}), i = empty({3}, {.dtype = DType::kI64});
  expect_error<DTypeError>([&] { raw::uniform_(i); },
                           "uniform_: dtype must be floating; got x=[3] i64");
  expect_error<DTypeError>([&] { raw::normal_(i); }, "normal_: dtype must be floating");
  expect_error<ValueError>([&] { raw::uniform_(x, 2, 1); }, "uniform_: low must not exceed high");
  expect_error<ValueError>([&] { raw::uniform_(x, -3e38, 3e38); },
                           "uniform_: low, high and their difference must be numbers of f32");
  expect_error<ValueError>([&] { raw::uniform_(empty({1}, {.dtype = DType::kF16}), 0, 1e5); },
                           "must be numbers of f16; got low=0, high=100000");
  expect_error<ValueError>([&] { raw::normal_(x, 0, -1); },
                           "normal_: stddev must not be negative; got -1");
  expect_error<ValueError>([&] { raw::bernoulli_(x, 1.5); },
                           "bernoulli_: p must be in [0, 1]; got 1.5");
  expect_error<ValueError>([&] { raw::dropout(x, -0.1, {}, MemoryFormat::kContiguous); },
                           "dropout: p must be in [0, 1]; got -0.1");
  expect_error<ValueError>([&] { raw::randint_(i, 4, 4); },
                           "randint: low must be below high; got low=4");
  expect_error<ValueError>([&] { raw::randint_(empty({1}, {.dtype = DType::kU8}), 0, 257); },
                           "u8 holds integers from 0 to 255");
  expect_error<DTypeError>([&] { raw::randint_(empty({1}, {.dtype = DType::kBool}), 0, 2); },
                           "bool holds no integers");
  expect_error<ValueError>([&] { raw::randperm(-1); }, "randperm: n must not be negative; got -1");
  expect_error<ValueError>([&] { raw::randperm(300, DType::kU8); }, "randperm: u8 does not hold");
  expect_error<ValueError>(
      [&] {
        raw::multinomial(tensor({1, -1}), 1);
      },
      "weights must be finite and not negative; got -1 at position 1");
  expect_error<ValueError>([&] { raw::multinomial(tensor({0, 0}), 1); }, "positive, finite sum");
  expect_error<ValueError>(
      [&] {
        raw::multinomial(tensor({0, 1}), 2);
      },
      "cannot draw 2 without replacement from 1");
  expect_error<ValueError>([&] { raw::multinomial(tensor({0, 1}), 0); }, "count must be positive");
  expect_error<ShapeError>([&] { raw::multinomial(ones({1, 1, 1}), 1); }, "weights must be [n] or");
  expect_error<ValueError>([&] { raw::uniform_(Tensor()); }, "x must be a tensor");
}

}  // namespace
}  // namespace tarn
