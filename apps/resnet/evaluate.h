// evaluate.h - scores a network on a data set.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "tarn/apps/common/interrupt.h"
#include "tarn/apps/common/ranks.h"
#include "tarn/apps/resnet/settings.h"
#include "tarn/core/error.h"
#include "tarn/data/dataset.h"
#include "tarn/data/loader.h"
#include "tarn/nn/module.h"

namespace tarn::apps {

/// An image that cannot be read. Unlike other files it can be left out (--skip-unreadable).
class UnreadableImage : public FileError {
 public:
  using FileError::FileError;
};
/// The next batch; none at the end. Throws UnreadableImage.
std::optional<data::Batch> next_batch(data::Epoch& epoch);
/// The names that any rank has, on every rank: all of them must ask.
std::set<std::string> of_all_ranks(const std::set<std::string>& names, const Ranks& ranks);

struct Score {
  double loss = 0;  ///< mean cross entropy
  int64_t right = 0, count = 0;
  /// In percent.
  double accuracy() const { return count ? 100.0 * double(right) / double(count) : 0; }
};

/// How many rows of logits [N, classes] have their largest value at target [N].
int64_t count_right(const Tensor& logits, const Tensor& target);

/// Runs all of `data` through the network in eval mode, without recording. Paths of images left
/// out, by any rank, are added to `skipped`. Ranks take shares of the images and agree on the
/// score. Returns none if a signal came before the end. Throws UnreadableImage if one, or with
/// --skip-unreadable all, cannot be read.
std::optional<Score> evaluate(nn::Module& net, const data::ImageDataset& data,
                              const ResnetSettings& s, std::set<std::string>& skipped,
                              const Interrupt* interrupt = nullptr, const Ranks& ranks = {});

}  // namespace tarn::apps
