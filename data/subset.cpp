// subset.cpp - numbers of a subset as numbers of its dataset.
#include "tarn/data/subset.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "tarn/core/error.h"
#include "tarn/data/rng.h"

namespace tarn::data {

Subset::Subset(const Dataset& dataset, std::vector<int64_t> indices)
    : dataset_(&dataset), indices_(std::move(indices)) {
  const int64_t n = dataset.size();
  for (const int64_t i : indices_) {
    TARN_CHECK_AS(IndexError, i >= 0 && i < n, "Subset: example ", i,
                  " does not exist; the dataset has ", n);
  }
}

Batch Subset::batch(std::span<const int64_t> indices, const EpochKey& key) const {
  std::vector<int64_t> mapped;
  mapped.reserve(indices.size());
  for (const int64_t i : indices) {
    TARN_CHECK_AS(IndexError, i >= 0 && i < size(), "Subset: example ", i,
                  " does not exist; there are ", size());
    mapped.push_back(indices_[static_cast<size_t>(i)]);
  }
  return dataset_->batch(mapped, key);
}

std::vector<Subset> random_split(const Dataset& dataset, const std::vector<int64_t>& lengths,
                                 uint64_t seed) {
  const int64_t n = dataset.size();
  int64_t left = n;
  for (const int64_t length : lengths) {
    // Counting down instead of adding up: no sum can overflow.
    TARN_CHECK_AS(
        ValueError, length >= 0 && length <= left,
        "random_split: the lengths must be at least 0 and add up to that of the dataset, ", n,
        "; got a length of ", length, " with ", left, " examples left");
    left -= length;
  }
  TARN_CHECK_AS(ValueError, left == 0,
                "random_split: the lengths must add up to that of the dataset, ", n,
                "; they leave ", left, " examples over");
  Rng rng(seed, 0, kSplit);
  const std::vector<int64_t> order = permutation(n, rng);
  std::vector<Subset> parts;
  auto from = order.begin();
  for (const int64_t length : lengths) {
    parts.emplace_back(dataset, std::vector<int64_t>(from, from + length));
    from += length;
  }
  return parts;
}

std::vector<int64_t> split_lengths(int64_t n, const std::vector<double>& fractions) {
  constexpr double kTolerance = 1e-9;  // 0.1 ten times is not quite 1
  std::vector<int64_t> lengths;
  double sum = 0;
  for (const double f : fractions) {
    TARN_CHECK_AS(ValueError, f >= 0 && f <= 1, "split_lengths: fractions must be in [0, 1]; got ",
                  f);
    sum += f;
    lengths.push_back(static_cast<int64_t>(std::floor(static_cast<double>(n) * f)));
  }
  TARN_CHECK_AS(ValueError, std::abs(sum - 1) <= kTolerance,
                "split_lengths: the fractions must add up to 1; got ", sum);
  const int64_t left = n - std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  for (int64_t i = 0; i < left; ++i) ++lengths[static_cast<size_t>(i) % lengths.size()];
  return lengths;
}

}  // namespace tarn::data
