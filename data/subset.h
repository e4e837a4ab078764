// subset.h - some examples of a dataset, and a random division of one.
//
//   const auto parts = random_split(dataset, split_lengths(dataset.size(), {0.9, 0.1}), seed);
//   DataLoader train(parts[0], ...), validation(parts[1], ...);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tarn/data/dataset.h"

namespace tarn::data {

/// The examples of these numbers, in this order; a number may come twice. Their augmentation and
/// their names are those that they have in the dataset.
class Subset final : public Dataset {
 public:
  /// The dataset must outlive the subset. Throws IndexError on a number that it does not have.
  Subset(const Dataset& dataset, std::vector<int64_t> indices);
  Subset(const Dataset&&, std::vector<int64_t>) = delete;

  int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  Batch batch(std::span<const int64_t> indices, const EpochKey& key) const override;

  const Dataset& dataset() const { return *dataset_; }
  /// Numbers in dataset().
  const std::vector<int64_t>& indices() const { return indices_; }

 private:
  const Dataset* dataset_;
  std::vector<int64_t> indices_;
};

/// Divides a dataset, which must outlive the parts, at random: every example is in one of them. The
/// same seed gives the same parts. Throws ValueError if a length is negative or they do not add up
/// to the dataset's.
std::vector<Subset> random_split(const Dataset& dataset, const std::vector<int64_t>& lengths,
                                 uint64_t seed);
std::vector<Subset> random_split(const Dataset&&, const std::vector<int64_t>&, uint64_t) = delete;

/// The lengths for random_split that fractions of n examples give: each rounded down, and what is
/// left goes one by one to the first ones. Throws ValueError unless they are in [0, 1] and add up
/// to 1.
std::vector<int64_t> split_lengths(int64_t n, const std::vector<double>& fractions);

}  // namespace tarn::data
