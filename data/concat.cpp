// concat.cpp - batches from several datasets, joined.
#include "tarn/data/concat.h"

#include <algorithm>
#include <set>
#include <string>

#include "tarn/core/error.h"
#include "tarn/core/random.h"
#include "tarn/core/raw_index.h"

namespace tarn::data {
namespace {

// The same member of every part, one below the other; undefined where all are.
Tensor join(const std::vector<Batch>& parts, const std::string& what,
            const std::function<Tensor(const Batch&)>& member) {
  std::vector<Tensor> all;
  for (const Batch& part : parts) {
    all.push_back(member(part));
    TARN_CHECK_AS(ValueError, all.back().defined() == all.front().defined(),
                  "ConcatDataset: the datasets must have the same members; some have no ", what);
    if (!all.back().defined()) continue;
    TARN_CHECK_AS(ValueError, all.back().dtype() == all.front().dtype(),
                  "ConcatDataset: the datasets must have one dtype; got ", what, "=",
                  all.front().describe(), " and ", all.back().describe());
    TARN_CHECK_AS(ShapeError,
                  all.back().dim() > 0 && all.back().dim() == all.front().dim() &&
                      std::equal(all.back().sizes().begin() + 1, all.back().sizes().end(),
                                 all.front().sizes().begin() + 1),
                  "ConcatDataset: the rows of the datasets must have one size; got ", what, "=",
                  all.front().describe(), " and ", all.back().describe());
  }
  return all.front().defined() ? raw::cat(all, 0) : Tensor();
}

Batch join(std::vector<Batch> parts) {
  Batch out;
  for (const Batch& part : parts) {
    out.skipped.insert(out.skipped.end(), part.skipped.begin(), part.skipped.end());
  }
  // Where nothing could be read there is no input, and nothing to join.
  const auto is_empty = [](const Batch& part) { return part.size() == 0; };
  if (std::all_of(parts.begin(), parts.end(), is_empty)) {
    out.input = parts.front().input;
    out.target = parts.front().target;
    out.extra = parts.front().extra;
    return out;
  }
  std::erase_if(parts, is_empty);
  out.input = join(parts, "input", [](const Batch& part) { return part.input; });
  out.target = join(parts, "target", [](const Batch& part) { return part.target; });
  std::set<std::string> names;
  for (const Batch& part : parts) {
    for (const auto& [name, x] : part.extra) names.insert(name);
  }
  for (const std::string& name : names) {
    out.extra[name] = join(parts, "extra " + name, [&name](const Batch& part) {
      const auto found = part.extra.find(name);
      return found == part.extra.end() ? Tensor() : found->second;
    });
  }
  return out;
}

// Example 7 of one dataset is not augmented as example 7 of another, of whichever of nested
// datasets. By the number of the first: that of a dataset's position would be 1 twice in
// ((a, b), c). The first dataset keeps the seed.
uint64_t seed_from(uint64_t seed, int64_t begin) {
  if (begin == 0) return seed;
  const uint64_t n = static_cast<uint64_t>(begin);
  const Philox4 bits =
      philox4x32_10(static_cast<uint32_t>(n), static_cast<uint32_t>(n >> 32), 0, 0,
                    static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return uint64_t{bits.v[0]} << 32 | bits.v[1];
}

}  // namespace

ConcatDataset::ConcatDataset(std::vector<std::reference_wrapper<const Dataset>> datasets)
    : datasets_(std::move(datasets)) {
  TARN_CHECK_AS(ValueError, !datasets_.empty(), "ConcatDataset: at least one dataset is needed");
  int64_t end = 0;
  for (const Dataset& dataset : datasets_) ends_.push_back(end += dataset.size());
}

size_t ConcatDataset::dataset_of(int64_t index) const {
  TARN_CHECK_AS(IndexError, index >= 0 && index < size(), "ConcatDataset: example ", index,
                " does not exist; there are ", size());
  return static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
}

// A part for each run of examples of one dataset, so that the rows, of which some may be skipped,
// stay in the order asked for.
Batch ConcatDataset::batch(std::span<const int64_t> indices, const EpochKey& key) const {
  if (indices.empty()) return datasets_.front().get().batch(indices, key);
  std::vector<Batch> parts;
  for (size_t i = 0; i < indices.size();) {
    const size_t d = dataset_of(indices[i]);
    const int64_t begin = d == 0 ? 0 : ends_[d - 1];
    std::vector<int64_t> own;
    for (; i < indices.size() && dataset_of(indices[i]) == d; ++i) {
      own.push_back(indices[i] - begin);
    }
    const EpochKey own_key{.seed = seed_from(key.seed, begin), .epoch = key.epoch};
    parts.push_back(datasets_[d].get().batch(own, own_key));
  }
  return parts.size() == 1 ? std::move(parts.front()) : join(std::move(parts));
}

}  // namespace tarn::data
