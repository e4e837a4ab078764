// sharing.h - which training images a rank takes of each step.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tarn/apps/common/ranks.h"
#include "tarn/apps/resnet/datasets.h"
#include "tarn/apps/resnet/settings.h"
#include "tarn/data/loader.h"
#include "tarn/dist/balance.h"

namespace tarn::apps {

/// Of all training images, or of the first --limit.
int64_t training_images(const ResnetSettings& s, const ImageData& data);
/// How many images the ranks together have in a batch: --batch-size, or all there are.
int64_t batch_images(const ResnetSettings& s, const ImageData& data);

/// The shares of ranks with --rebalance, equal at first; null without. Throws UsageError where a
/// batch has fewer images than there are ranks.
std::shared_ptr<dist::BatchShares> make_shares(const ResnetSettings& s, const ImageData& data,
                                               const Ranks& ranks);

/// Batch number i of the ranks together is the batch number i that one process would take: without
/// shares, rank r has every R-th image of it from the r-th on; with shares, as many images in a row
/// as it is given, which makes batches of other sizes but loses and repeats none.
data::DataLoader training_loader(const ResnetSettings& s, const ImageData& data, const Ranks& ranks,
                                 const std::shared_ptr<dist::BatchShares>& shares);

/// "0.75 0.25", exactly, and back; none if the text is not of that many shares.
std::string shares_text(const std::vector<double>& shares);
std::vector<double> parse_shares(const std::string& text, int ranks);

}  // namespace tarn::apps
