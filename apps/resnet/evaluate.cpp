// evaluate.cpp - scores a network on a data set.
#include "tarn/apps/resnet/evaluate.h"

#include "tarn/apps/common/progress.h"
#include "tarn/apps/common/text.h"
#include "tarn/apps/resnet/setup.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/transfer.h"

namespace tarn::apps {
namespace {

constexpr int64_t kBatchesToMeeting = 16;

}  // namespace

std::optional<data::Batch> next_batch(data::Epoch& epoch) {
  try {
    return epoch.next();
  } catch (const FileError& e) {
    throw UnreadableImage(e.what());
  }
}

std::set<std::string> of_all_ranks(const std::set<std::string>& names, const Ranks& ranks) {
  std::string text;
  for (const std::string& name : names) text += name + '\0';  // the one byte that no path has
  std::set<std::string> all;
  for (const std::string& from_one : ranks.from_all(text)) {
    for (size_t at = 0; at < from_one.size();) {
      const size_t end = from_one.find('\0', at);
      all.insert(from_one.substr(at, end - at));
      at = end + 1;
    }
  }
  return all;
}

int64_t count_right(const Tensor& logits, const Tensor& target) {
  return sum(eq(argmax(logits, 1), target)).item<int64_t>();
}

std::optional<Score> evaluate(nn::Module& net, const data::ImageDataset& data,
                              const ResnetSettings& s, std::set<std::string>& skipped,
                              const Interrupt* interrupt, const Ranks& ranks) {
  const InferenceModeGuard inference;
  const nn::Module::EvalScope evaluation(net);
  const int64_t rows = ranks.share(s.batch_size, "--batch-size");
  const data::DataLoader loader(
      data, std::make_unique<data::ShardSampler>(data.size(), ranks.size(), ranks.rank()),
      {.batch_size = rows,
       .workers = static_cast<int>(s.workers),
       .pin_memory = Device(s.device).is_cuda()});
  Progress bar(
      loader.examples(),
      {.label = "   test", .unit = "img", .enabled = s.progress && ranks.main(), .leave = false});
  Score score;
  std::set<std::string> own_skipped;
  const Device device(s.device);
  const AutocastGuard autocast = autocast_for(s);
  data::Epoch epoch = loader.epoch(0);
  const auto wants_end = [&] { return interrupt && interrupt->requested() ? 1.0 : 0.0; };
  // Ranks give up on one that does not answer: the quick meet the slow on the way.
  const int64_t shared = (data.size() + ranks.size() - 1) / ranks.size();
  const int64_t most = (shared + rows - 1) / rows;
  for (int64_t i = 0; i < most; ++i) {
    const bool meets = !ranks.group() || i % kBatchesToMeeting == kBatchesToMeeting - 1;
    if (meets && ranks.sum({wants_end()})[0] > 0) break;
    const std::optional<data::Batch> batch = next_batch(epoch);
    if (!batch) continue;
    own_skipped.insert(batch->skipped.begin(), batch->skipped.end());
    if (batch->size() == 0) continue;
    const Tensor target = to_async(batch->target, device);
    const Tensor logits = net(to_async(batch->input, device));
    score.loss += cross_entropy(logits, target).item() * static_cast<double>(batch->size());
    score.right += count_right(logits, target);
    score.count += batch->size();
    bar.advance(batch->size());
  }
  bar.close();
  const auto sums = ranks.sum({score.loss, static_cast<double>(score.right),
                               static_cast<double>(score.count), wants_end()});
  if (s.skip_unreadable) skipped.merge(of_all_ranks(own_skipped, ranks));
  if (sums[3] > 0) return std::nullopt;
  score = {sums[0], static_cast<int64_t>(sums[1]), static_cast<int64_t>(sums[2])};
  TARN_CHECK_AS(UnreadableImage, score.count > 0, "evaluate: none of the ", data.size(),
                " test images can be read");
  score.loss = unsigned_nan(score.loss / static_cast<double>(score.count));
  return score;
}

}  // namespace tarn::apps
