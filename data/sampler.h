// sampler.h - the order in which an epoch visits the examples. A function of (seed, epoch) alone,
// so any worker, rank or resumed run agrees on it.
#pragma once

#include <cstdint>
#include <vector>

namespace tarn::data {

class Rng;

/// Thread safety: const methods may be called from any thread.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Examples in every epoch.
  virtual int64_t size() const = 0;
  virtual std::vector<int64_t> order(int64_t epoch) const = 0;
};

/// 0, 1, ..., n - 1.
class SequentialSampler final : public Sampler {
 public:
  explicit SequentialSampler(int64_t n) : n_(n) {}
  int64_t size() const override { return n_; }
  std::vector<int64_t> order(int64_t epoch) const override;

 private:
  int64_t n_;
};

/// A new permutation each epoch.
class RandomSampler final : public Sampler {
 public:
  RandomSampler(int64_t n, uint64_t seed) : n_(n), seed_(seed) {}
  int64_t size() const override { return n_; }
  std::vector<int64_t> order(int64_t epoch) const override;

 private:
  int64_t n_;
  uint64_t seed_;
};

/// Rank r of R gets every R-th example from the r-th on, each example once: ranks may differ by
/// one. For evaluation.
class ShardSampler final : public Sampler {
 public:
  /// Throws ValueError unless 0 <= rank < ranks.
  ShardSampler(int64_t n, int64_t ranks, int64_t rank);
  int64_t size() const override { return (n_ - rank_ + ranks_ - 1) / ranks_; }
  std::vector<int64_t> order(int64_t epoch) const override;

 private:
  int64_t n_, ranks_, rank_;
};

/// How DistributedSampler shares examples that cannot be divided evenly.
struct DistributedOptions {
  int64_t ranks = 1, rank = 0;
  bool shuffle = true;
  bool drop_last = false;  ///< leave the remainder out instead of repeating the first examples
  uint64_t seed = 0;
};

/// Rank r of R gets every R-th example from the r-th on; all ranks get equally many.
class DistributedSampler final : public Sampler {
 public:
  /// Throws ValueError unless 0 <= rank < ranks.
  DistributedSampler(int64_t n, const DistributedOptions& options);
  int64_t size() const override;
  std::vector<int64_t> order(int64_t epoch) const override;

 private:
  int64_t n_;
  DistributedOptions options_;
};

/// Draws num_samples examples an epoch, each with a chance proportional to its weight; the weights
/// need not add up to 1. Without replacement no example comes twice in an epoch. One that does come
/// twice is augmented alike both times.
class WeightedRandomSampler final : public Sampler {
 public:
  /// weights: one per example. Throws ValueError if a weight is negative or not finite, none is
  /// positive, or without replacement fewer are positive than samples are asked for.
  WeightedRandomSampler(std::vector<double> weights, int64_t num_samples, bool replacement = true,
                        uint64_t seed = 0);
  int64_t size() const override { return num_samples_; }
  std::vector<int64_t> order(int64_t epoch) const override;

 private:
  std::vector<int64_t> with_replacement(Rng& rng) const;
  std::vector<int64_t> without_replacement(Rng& rng) const;

  std::vector<double> weights_;
  int64_t num_samples_;
  bool replacement_;
  uint64_t seed_;
};

}  // namespace tarn::data
