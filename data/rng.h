// rng.h - random numbers for one sample: a function of (seed, epoch, index) and nothing else, so
// augmentation does not depend on which thread does it or when.
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "tarn/core/random.h"

namespace tarn::data {

/// In place of an example's number, which is never negative: random numbers that are independent of
/// all augmentation and of each other.
inline constexpr int64_t kShuffle = -1, kSplit = -2, kWeighted = -3;

/// Cheap to make; one per sample. Not thread-safe.
class Rng {
 public:
  Rng(uint64_t seed, int64_t epoch, int64_t index)
      : seed_(seed), epoch_(static_cast<uint32_t>(epoch)), index_(static_cast<uint64_t>(index)) {}

  uint32_t next() {
    if (used_ == 4) {
      block_ = philox4x32_10(counter_++, epoch_, static_cast<uint32_t>(index_),
                             static_cast<uint32_t>(index_ >> 32), static_cast<uint32_t>(seed_),
                             static_cast<uint32_t>(seed_ >> 32));
      used_ = 0;
    }
    return block_.v[used_++];
  }
  /// In [0, 1).
  double uniform() {
    const uint32_t hi = next();
    return philox_uniform_double(hi, next());
  }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// In [0, n), n > 0.
  int64_t below(int64_t n) {
    const uint64_t hi = next();
    const unsigned __int128 bits = hi << 32 | next();
    return static_cast<int64_t>(bits * static_cast<uint64_t>(n) >> 64);
  }
  bool chance(double p) { return uniform() < p; }

 private:
  uint64_t seed_;
  uint32_t epoch_, counter_ = 0;
  uint64_t index_;
  Philox4 block_{};
  int used_ = 4;
};

/// 0, 1, ..., n - 1 in random order (Fisher-Yates).
inline std::vector<int64_t> permutation(int64_t n, Rng& rng) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = n - 1; i > 0; --i) {
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(rng.below(i + 1))]);
  }
  return order;
}

}  // namespace tarn::data
