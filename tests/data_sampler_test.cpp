// data_sampler_test.cpp - WeightedRandomSampler: chances, repeatability, errors.
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "tarn/core/error.h"
#include "tarn/core/factory.h"
#include "tarn/data/loader.h"
#include "tarn/data/sampler.h"
#include "tarn/tests/temp_folder.h"

namespace tarn::data {
namespace {

// How often each example comes, as a share.
std::map<int64_t, double> shares(const std::vector<int64_t>& order) {
  std::map<int64_t, double> all;
  for (int64_t i : order) all[i] += 1.0 / static_cast<double>(order.size());
  return all;
}

TEST(WeightedRandomSampler, draws_in_proportion_to_the_weights) {
  const WeightedRandomSampler sampler({0, 1, 0, 6, 3, 0}, 100000, true, 5);
  EXPECT_EQ(sampler.size(), 100000);
  const auto got = shares(sampler.order(0));
  ASSERT_EQ(got.size(), 3u) << "an example of weight 0 came";
  // The standard deviation of a share p of n = 100000 is sqrt(p (1 - p) / n): at most 0.0016.
  EXPECT_NEAR(got.at(1), 0.1, 0.007);
  EXPECT_NEAR(got.at(3), 0.6, 0.007);
  EXPECT_NEAR(got.at(4), 0.3, 0.007);
}

TEST(WeightedRandomSampler, without_replacement_draws_one_after_the_other) {
  const std::vector<double> weights = {1, 0, 2, 3};
  std::map<std::pair<int64_t, int64_t>, double> pairs;
  constexpr int kEpochs = 60000;
  const WeightedRandomSampler sampler(weights, 2, false, 9);
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const auto order = sampler.order(epoch);
    ASSERT_EQ(order.size(), 2u);
    pairs[{order[0], order[1]}] += 1.0 / kEpochs;
  }
  // First a with chance w_a / 6, then b with chance w_b / (6 - w_a).
  EXPECT_EQ(pairs.size(), 6u);
  for (const int64_t a : {0, 2, 3}) {
    for (const int64_t b : {0, 2, 3}) {
      if (a == b) continue;
      const double wa = weights[static_cast<size_t>(a)], wb = weights[static_cast<size_t>(b)];
      EXPECT_NEAR((pairs[{a, b}]), wa / 6 * wb / (6 - wa), 0.009) << a << " " << b;
    }
  }
  const auto all = WeightedRandomSampler(weights, 3, false).order(0);
  EXPECT_EQ(std::set<int64_t>(all.begin(), all.end()), (std::set<int64_t>{0, 2, 3}));
}

TEST(WeightedRandomSampler, is_a_function_of_seed_and_epoch) {
  const std::vector<double> weights(50, 0.5);
  for (const bool replacement : {true, false}) {
    const WeightedRandomSampler sampler(weights, 50, replacement, 5);
    const auto first = sampler.order(0);
    EXPECT_EQ(first, sampler.order(0));
    EXPECT_EQ(first, WeightedRandomSampler(weights, 50, replacement, 5).order(0));
    EXPECT_NE(first, sampler.order(1));
    EXPECT_NE(first, WeightedRandomSampler(weights, 50, replacement, 6).order(0));
    EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size() == 50, !replacement);
  }
}

TEST(WeightedRandomSampler, takes_weights_of_any_size) {
  const double tiny = std::numeric_limits<double>::denorm_min();
  for (const bool replacement : {true, false}) {
    const auto order = WeightedRandomSampler({0, tiny, 1e300, 0}, 1, replacement, 1).order(3);
    EXPECT_EQ(order, std::vector<int64_t>{2});
  }
  const auto both = WeightedRandomSampler({0, tiny, 1e300, 0}, 2, false, 1).order(3);
  EXPECT_EQ(both, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(WeightedRandomSampler({0, tiny, 0}, 20).order(0), std::vector<int64_t>(20, 1));
}

TEST(WeightedRandomSampler, balances_classes_in_a_loader) {
  // 90 examples of class 0, 10 of class 1: weights of 1 / 90 and 1 / 10.
  std::vector<int64_t> labels(100, 0);
  std::vector<double> weights(100, 1.0 / 90);
  for (size_t i = 90; i < 100; ++i) labels[i] = 1, weights[i] = 1.0 / 10;
  const TensorDataset data(zeros({100, 1}), from_vector(labels, {100}));
  const DataLoader loader(data, std::make_unique<WeightedRandomSampler>(weights, 4000),
                          {.batch_size = 100});
  EXPECT_EQ(loader.size(), 40);
  double ones = 0;
  for (const Batch& batch : loader.epoch(0)) {
    for (const double label : batch.target.to_vector<double>()) ones += label;
  }
  EXPECT_NEAR(ones / 4000, 0.5, 0.04);  // five standard deviations of 0.008
}

TEST(WeightedRandomSampler, says_which_weights_cannot_be) {
  const auto make = [](std::vector<double> weights, int64_t n, bool replacement = true) {
    WeightedRandomSampler(std::move(weights), n, replacement);
  };
  EXPECT_MESSAGE(ValueError, make({1, 1}, 0), "num_samples must be positive; got 0");
  EXPECT_MESSAGE(ValueError, make({1, -0.5}, 1),
                 "weights must be finite and not negative; got -0.5 for example 1");
  EXPECT_MESSAGE(ValueError, make({NAN, 1}, 1), "must be finite and not negative; got nan");
  EXPECT_MESSAGE(ValueError, make({INFINITY}, 1), "must be finite and not negative; got inf");
  EXPECT_MESSAGE(ValueError, make({0, 0, 0}, 1), "none of the 3 weights is positive");
  EXPECT_MESSAGE(ValueError, make({}, 1), "none of the 0 weights is positive");
  EXPECT_MESSAGE(ValueError, make({1e308, 1e308}, 1), "the sum of the weights is not finite");
  EXPECT_MESSAGE(ValueError, make({1, 0, 1}, 3, false),
                 "no more samples than positive weights; got num_samples=3, 2 positive weights");
  make({1, 0, 1}, 3);
}

}  // namespace
}  // namespace tarn::data
