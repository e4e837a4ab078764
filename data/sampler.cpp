// sampler.cpp - permutations and their division among ranks.
#include "tarn/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tarn/core/error.h"
#include "tarn/data/rng.h"

namespace tarn::data {
namespace {

std::vector<int64_t> ascending(int64_t n) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  return order;
}

std::vector<int64_t> shuffled(int64_t n, uint64_t seed, int64_t epoch) {
  Rng rng(seed, epoch, kShuffle);
  return permutation(n, rng);
}

}  // namespace

std::vector<int64_t> SequentialSampler::order(int64_t) const {
  return ascending(n_);
}

std::vector<int64_t> RandomSampler::order(int64_t epoch) const {
  return shuffled(n_, seed_, epoch);
}

ShardSampler::ShardSampler(int64_t n, int64_t ranks, int64_t rank)
    : n_(n), ranks_(ranks), rank_(rank) {
  TARN_CHECK_AS(ValueError, rank >= 0 && rank < ranks,
                "ShardSampler: rank must be in [0, ranks); got rank=", rank, ", ranks=", ranks);
}

std::vector<int64_t> ShardSampler::order(int64_t) const {
  std::vector<int64_t> mine;
  for (int64_t i = rank_; i < n_; i += ranks_) mine.push_back(i);
  return mine;
}

DistributedSampler::DistributedSampler(int64_t n, const DistributedOptions& options)
    : n_(n), options_(options) {
  TARN_CHECK_AS(ValueError, options.rank >= 0 && options.rank < options.ranks,
                "DistributedSampler: rank must be in [0, ranks); got rank=", options.rank,
                ", ranks=", options.ranks);
}

int64_t DistributedSampler::size() const {
  return options_.drop_last ? n_ / options_.ranks : (n_ + options_.ranks - 1) / options_.ranks;
}

std::vector<int64_t> DistributedSampler::order(int64_t epoch) const {
  const std::vector<int64_t> all =
      options_.shuffle ? shuffled(n_, options_.seed, epoch) : ascending(n_);
  std::vector<int64_t> mine;
  for (int64_t i = 0; i < size(); ++i) {
    mine.push_back(all[static_cast<size_t>((options_.rank + i * options_.ranks) % n_)]);
  }
  return mine;
}

WeightedRandomSampler::WeightedRandomSampler(std::vector<double> weights, int64_t num_samples,
                                             bool replacement, uint64_t seed)
    : weights_(std::move(weights)),
      num_samples_(num_samples),
      replacement_(replacement),
      seed_(seed) {
  TARN_CHECK_AS(ValueError, num_samples > 0,
                "WeightedRandomSampler: num_samples must be positive; got ", num_samples);
  double sum = 0;
  int64_t possible = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    TARN_CHECK_AS(ValueError, weights_[i] >= 0 && std::isfinite(weights_[i]),
                  "WeightedRandomSampler: weights must be finite and not negative; got ",
                  weights_[i], " for example ", i);
    sum += weights_[i];
    possible += weights_[i] > 0;
  }
  TARN_CHECK_AS(ValueError, possible > 0, "WeightedRandomSampler: none of the ", weights_.size(),
                " weights is positive");
  TARN_CHECK_AS(ValueError, std::isfinite(sum),
                "WeightedRandomSampler: the sum of the weights is not finite");
  TARN_CHECK_AS(ValueError, replacement || num_samples <= possible,
                "WeightedRandomSampler: without replacement there can be no more samples than "
                "positive weights; got num_samples=",
                num_samples, ", ", possible, " positive weights");
}

std::vector<int64_t> WeightedRandomSampler::order(int64_t epoch) const {
  Rng rng(seed_, epoch, kWeighted);
  return replacement_ ? with_replacement(rng) : without_replacement(rng);
}

// Places on a line on which every example has a part as long as its weight.
std::vector<int64_t> WeightedRandomSampler::with_replacement(Rng& rng) const {
  std::vector<double> ends(weights_.size());
  std::partial_sum(weights_.begin(), weights_.end(), ends.begin());
  const auto last = std::lower_bound(ends.begin(), ends.end(), ends.back());
  std::vector<int64_t> order(static_cast<size_t>(num_samples_));
  for (int64_t& example : order) {
    // The first end beyond the place: an example of weight 0 ends where the one before it does. No
    // further than `last`: the smallest of numbers round up to the end of the line.
    const auto end = std::upper_bound(ends.begin(), last, rng.uniform() * ends.back());
    example = end - ends.begin();
  }
  return order;
}

// Every example comes at a random time, at a rate of its weight: those that come first, as they
// come, are what drawing one after the other would give.
// Source: Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir".
std::vector<int64_t> WeightedRandomSampler::without_replacement(Rng& rng) const {
  std::vector<std::pair<double, int64_t>> times;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] == 0) continue;
    times.emplace_back(-std::log1p(-rng.uniform()) / weights_[i], static_cast<int64_t>(i));
  }
  std::partial_sort(times.begin(), times.begin() + num_samples_, times.end());
  std::vector<int64_t> order(static_cast<size_t>(num_samples_));
  for (size_t i = 0; i < order.size(); ++i) order[i] = times[i].second;
  return order;
}

}  // namespace tarn::data
