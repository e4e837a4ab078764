// concat.h - ConcatDataset: several datasets, one after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "tarn/data/dataset.h"

namespace tarn::data {

/// The examples of the first dataset, then those of the second, and so on; their rows must have the
/// same sizes and dtypes. A batch may hold examples of several. ConcatDataset({a, b}).
class ConcatDataset final : public Dataset {
 public:
  /// The datasets must outlive this one, and keep their sizes. Throws ValueError if there are none.
  explicit ConcatDataset(std::vector<std::reference_wrapper<const Dataset>> datasets);

  int64_t size() const override { return ends_.back(); }
  /// Throws ShapeError or ValueError where the rows of two datasets do not fit together.
  Batch batch(std::span<const int64_t> indices, const EpochKey& key) const override;

 private:
  size_t dataset_of(int64_t index) const;

  std::vector<std::reference_wrapper<const Dataset>> datasets_;
  std::vector<int64_t> ends_;  // of each dataset, the number after its last example
};

}  // namespace tarn::data
