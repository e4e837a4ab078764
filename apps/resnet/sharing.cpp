// sharing.cpp - which training images a rank takes of each step.
#include "tarn/apps/resnet/sharing.h"

#include <algorithm>
#include <sstream>

#include "tarn/apps/common/text.h"

namespace tarn::apps {
namespace {

data::LoaderOptions loader_options(const ResnetSettings& s) {
  return {.workers = static_cast<int>(s.workers),
          .seed = static_cast<uint64_t>(s.seed),
          .pin_memory = Device(s.device).is_cuda()};
}

dist::Balancer balancer_of(const ResnetSettings& s, const Ranks& ranks) {
  return dist::Balancer(ranks.size(), s.ranks.rebalance);
}

}  // namespace

int64_t training_images(const ResnetSettings& s, const ImageData& data) {
  return s.limit > 0 ? std::min(s.limit, data.train->size()) : data.train->size();
}

int64_t batch_images(const ResnetSettings& s, const ImageData& data) {
  return std::min(s.batch_size, training_images(s, data));
}

std::shared_ptr<dist::BatchShares> make_shares(const ResnetSettings& s, const ImageData& data,
                                               const Ranks& ranks) {
  if (!ranks.group() || s.ranks.rebalance == 0) return nullptr;
  if (batch_images(s, data) < ranks.size()) {
    throw UsageError("--rebalance: " + std::to_string(batch_images(s, data)) +
                     " images are too few for " + std::to_string(ranks.size()) + " ranks");
  }
  return std::make_shared<dist::BatchShares>(balancer_of(s, ranks), loader_options(s).ahead());
}

data::DataLoader training_loader(const ResnetSettings& s, const ImageData& data, const Ranks& ranks,
                                 const std::shared_ptr<dist::BatchShares>& shares) {
  const int64_t n = training_images(s, data);
  data::LoaderOptions options = loader_options(s);
  options.drop_last = n >= s.batch_size;  // batch norm wants full batches
  data::DistributedOptions share{.drop_last = options.drop_last, .seed = options.seed};
  if (shares) {
    options.batch_size = s.batch_size;
    const int64_t batches = std::max<int64_t>(n / s.batch_size, 1);
    options.part = [shares, batches, rank = ranks.rank()](int64_t epoch, int64_t batch,
                                                          int64_t rows) {
      return dist::rows_of(shares->cut(epoch * batches + batch, rows), rank);
    };
  } else {
    share.ranks = ranks.size();
    share.rank = ranks.rank();
    options.batch_size = ranks.share(s.batch_size, "--batch-size");
  }
  return data::DataLoader(*data.train, std::make_unique<data::DistributedSampler>(n, share),
                          options);
}

std::string shares_text(const std::vector<double>& shares) {
  std::string text;
  for (const double share : shares) text += format(text.empty() ? "%.17g" : " %.17g", share);
  return text;
}

std::vector<double> parse_shares(const std::string& text, int ranks) {
  std::istringstream in(text);
  std::vector<double> shares;
  for (double share = 0; in >> share;) shares.push_back(share);
  if (shares.size() != static_cast<size_t>(ranks)) shares.clear();
  return shares;
}

}  // namespace tarn::apps
