// sampler.cpp - permutations and their division among ranks.
#include "tarn/data/sampler.h"

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

/// Fisher-Yates.
std::vector<int64_t> shuffled(int64_t n, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order = ascending(n);
  Rng rng(seed, epoch, -1);  // an index no example has: independent of all augmentation
  for (int64_t i = n - 1; i > 0; --i) {
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(rng.below(i + 1))]);
  }
  return order;
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

}  // namespace tarn::data
