// loader.h - DataLoader: batches in order, prepared ahead by threads.
//
//   DataLoader loader(dataset, std::make_unique<RandomSampler>(dataset.size(), seed),
//                     {.batch_size = 128, .workers = 2, .seed = seed});
//   for (const Batch& batch : loader.epoch(0)) ...
//
// The batches of an epoch are a function of (seed, epoch): neither the number of workers nor their
// timing changes them. There are always size() of them, so that a place in the epoch can be kept
// and ranks stay in step: one of which nothing could be read comes empty.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "tarn/data/dataset.h"
#include "tarn/data/sampler.h"

namespace tarn::data {

/// The rows [first, second) of the `rows` that a batch has.
using BatchPart =
    std::function<std::pair<int64_t, int64_t>(int64_t epoch, int64_t batch, int64_t rows)>;

struct LoaderOptions {
  int64_t batch_size = 1;
  bool drop_last = false;   ///< leave out a last batch that is not full
  int workers = 0;          ///< threads; 0 prepares each batch when it is asked for
  int64_t prefetch = 2;     ///< batches that each worker prepares ahead
  uint64_t seed = 0;        ///< of the augmentation
  bool pin_memory = false;  ///< batches in page-locked memory, for copies that do not wait
  double timeout_s = 300;   ///< longest wait for one batch before an error says which
  /// Which rows of each batch are prepared; null: all. Asked once for a batch, by the thread that
  /// prepares it. Loaders of several ranks that share batches by it lose and repeat nothing,
  /// whatever the parts are, as long as the ranks cut alike.
  BatchPart part = nullptr;

  /// How many batches after the one that the caller has taken last may be under way.
  int64_t ahead() const { return workers * prefetch; }
};

/// One pass over the data. Leaving it early stops its threads; so does an error, which reaches the
/// caller from next(). A thread that hangs in the dataset, for timeout_s and at least 5 s, is left
/// behind. Not thread-safe.
class Epoch {
 public:
  Epoch(Epoch&& other) noexcept;
  ~Epoch();

  /// The next batch; none at the end. Its size() is 0 where the dataset left out all its examples
  /// (Batch::skipped), or where it has no rows by LoaderOptions::part. Rethrows what the dataset
  /// threw for that batch, in order: the batches before it still arrive.
  std::optional<Batch> next();

  class Iterator {
   public:
    explicit Iterator(Epoch* epoch) : epoch_(epoch) { ++*this; }
    const Batch& operator*() const { return *batch_; }
    const Batch* operator->() const { return &*batch_; }
    Iterator& operator++() {
      batch_ = epoch_->next();
      return *this;
    }
    bool operator!=(std::nullptr_t) const { return batch_.has_value(); }

   private:
    Epoch* epoch_;
    std::optional<Batch> batch_;
  };
  Iterator begin() { return Iterator(this); }
  std::nullptr_t end() const { return nullptr; }

 private:
  friend class DataLoader;
  struct State;
  explicit Epoch(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

class DataLoader {
 public:
  /// The dataset must outlive the loader and its epochs. Throws ValueError on bad options, and
  /// where there is no sampler.
  DataLoader(const Dataset& dataset, std::unique_ptr<Sampler> sampler,
             const LoaderOptions& options);
  /// In the order of the dataset.
  DataLoader(const Dataset& dataset, const LoaderOptions& options);
  /// A dataset made for the call would be gone before the first batch.
  DataLoader(const Dataset&&, std::unique_ptr<Sampler>, const LoaderOptions&) = delete;
  DataLoader(const Dataset&&, const LoaderOptions&) = delete;

  /// Batches in an epoch.
  int64_t size() const;
  /// Examples in an epoch.
  int64_t examples() const;
  /// That of its options.
  int64_t ahead() const { return options_.ahead(); }
  /// Starts a pass. first_batch > 0 resumes in the middle, without preparing what came before.
  /// Throws ValueError where the sampler's order is not as long as its size(), IndexError where it
  /// names an example that the dataset does not have.
  Epoch epoch(int64_t epoch, int64_t first_batch = 0) const;

 private:
  const Dataset& dataset_;
  std::unique_ptr<Sampler> sampler_;
  LoaderOptions options_;
};

}  // namespace tarn::data
