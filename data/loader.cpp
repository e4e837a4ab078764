// loader.cpp - a ring of prepared batches between worker threads and one consumer.
#include "tarn/data/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "tarn/core/error.h"
#include "tarn/core/transfer.h"

namespace tarn::data {
namespace {

// A batch under way when an epoch is left may take this long, whatever the limit of one asked for:
// the worker that prepares it uses the dataset.
constexpr std::chrono::duration<double> kLeastPatience{5};

}  // namespace

/// Batch b waits in slot b % slots. Workers take batch numbers in order and stay at most `slots`
/// ahead of the consumer, so a slot is always empty when its next batch is done.
struct Epoch::State {
  struct Slot {
    std::optional<Batch> batch;
    std::exception_ptr error;
    bool ready = false;
  };

  const Dataset& dataset;
  LoaderOptions options;
  EpochKey key;
  std::vector<int64_t> order;
  int64_t batches = 0;

  std::mutex mutex;
  std::condition_variable filled, emptied, left;
  std::vector<Slot> slots;
  int64_t taken = 0;     // next batch number a worker will take
  int64_t consumed = 0;  // next batch number the caller will get
  bool stop = false;
  bool timed_out = false;
  int64_t working = 0;  // threads that have not left work()
  std::vector<std::thread> threads;

  State(const Dataset& d, const LoaderOptions& o, EpochKey k) : dataset(d), options(o), key(k) {}
  std::chrono::duration<double> limit() const {
    constexpr double kMost = 1e9;  // the clock's nanoseconds have 64 bits
    return std::chrono::duration<double>(std::min(options.timeout_s, kMost));
  }

  void finish() {
    {
      std::unique_lock lock(mutex);
      stop = true;
      emptied.notify_all();
      const auto patience = std::max(limit(), kLeastPatience);
      if (!timed_out) timed_out = !left.wait_for(lock, patience, [&] { return working == 0; });
    }
    for (std::thread& t : threads) {
      // A worker may hang in the dataset: better to lose it than to hang as well.
      timed_out ? t.detach() : t.join();
    }
  }

  static void pin(Batch& batch) {
    const auto pin_one = [](Tensor& x) {
      if (x.defined()) x = pin_memory(x);
    };
    pin_one(batch.input);
    pin_one(batch.target);
    for (auto& [name, x] : batch.extra) pin_one(x);
  }

  Batch prepare(int64_t number) const {
    int64_t begin = number * options.batch_size;
    int64_t end = std::min(begin + options.batch_size, static_cast<int64_t>(order.size()));
    if (options.part) {
      const int64_t rows = end - begin;
      const auto [first, last] = options.part(key.epoch, number, rows);
      TARN_CHECK_AS(ValueError, first >= 0 && first <= last && last <= rows,
                    "DataLoader: the part of batch ", number, " must lie in its ", rows,
                    " rows; got [", first, ", ", last, ")");
      end = begin + last;
      begin += first;
    }
    Batch batch = dataset.batch(
        std::span(order).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
        key);
    if (options.pin_memory && batch.size() > 0) pin(batch);
    return batch;
  }

  static void start_workers(const std::shared_ptr<State>& state) {
    const int64_t left = state->batches - state->taken;
    const int64_t workers = std::min<int64_t>(state->options.workers, left);
    if (workers <= 0) return;
    state->slots.resize(static_cast<size_t>(std::min(state->options.ahead(), left)));
    // Each worker keeps the state alive, see finish().
    try {
      for (int64_t i = 0; i < workers; ++i) {
        state->count_worker(1);
        state->threads.emplace_back([state] { state->work(); });
      }
    } catch (...) {  // the system has no more threads: those there are must not wait for ever
      state->count_worker(-1);
      state->finish();
      throw;
    }
  }

  void count_worker(int64_t change) {
    const std::lock_guard lock(mutex);
    working += change;
    if (working == 0) left.notify_all();
  }

  void work() {
    prepare_batches();
    count_worker(-1);
  }

  void prepare_batches() {
    std::unique_lock lock(mutex);
    while (true) {
      const auto ahead = static_cast<int64_t>(slots.size());
      emptied.wait(lock, [&] { return stop || taken >= batches || taken < consumed + ahead; });
      if (stop || taken >= batches) return;
      const int64_t number = taken++;
      lock.unlock();
      Slot done;
      done.ready = true;
      try {
        done.batch = prepare(number);
      } catch (...) {
        done.error = std::current_exception();
      }
      lock.lock();
      slots[static_cast<size_t>(number % ahead)] = std::move(done);
      filled.notify_one();
    }
  }

  Batch wait_for(int64_t number) {
    Slot result;
    {
      std::unique_lock lock(mutex);
      Slot& slot = slots[static_cast<size_t>(number) % slots.size()];
      const bool ready = filled.wait_for(lock, limit(), [&] { return slot.ready; });
      timed_out = !ready;
      TARN_CHECK(ready, "DataLoader: batch ", number, " of epoch ", key.epoch,
                 " (examples from position ", number * options.batch_size,
                 " of the order) was not ready after ", options.timeout_s, " s");
      result = std::move(slot);
      slot = Slot();
      ++consumed;
    }
    emptied.notify_all();
    if (result.error) std::rethrow_exception(result.error);
    return std::move(*result.batch);
  }

  std::optional<Batch> next() {
    // The caller's thread alone writes `consumed`, so it may read it without the lock.
    if (consumed >= batches) return std::nullopt;
    return threads.empty() ? prepare(consumed++) : wait_for(consumed);
  }
};

Epoch::Epoch(std::shared_ptr<State> state) : state_(std::move(state)) {}
Epoch::Epoch(Epoch&& other) noexcept = default;
Epoch::~Epoch() {
  if (state_) state_->finish();
}

std::optional<Batch> Epoch::next() {
  return state_->next();
}

DataLoader::DataLoader(const Dataset& dataset, std::unique_ptr<Sampler> sampler,
                       const LoaderOptions& options)
    : dataset_(dataset), sampler_(std::move(sampler)), options_(options) {
  TARN_CHECK_AS(ValueError, sampler_ != nullptr,
                "DataLoader: there is no sampler; leave it out for the order of the dataset");
  TARN_CHECK_AS(ValueError, options.batch_size > 0, "DataLoader: batch_size must be positive; got ",
                options.batch_size);
  TARN_CHECK_AS(ValueError, options.workers >= 0 && options.prefetch > 0 && options.timeout_s > 0,
                "DataLoader: needs workers >= 0, prefetch > 0, timeout_s > 0; got ",
                options.workers, ", ", options.prefetch, ", ", options.timeout_s);
}

DataLoader::DataLoader(const Dataset& dataset, const LoaderOptions& options)
    : DataLoader(dataset, std::make_unique<SequentialSampler>(dataset.size()), options) {}

int64_t DataLoader::size() const {
  const int64_t n = sampler_->size(), b = options_.batch_size;
  return n / b + (!options_.drop_last && n % b != 0);
}

int64_t DataLoader::examples() const {
  return options_.drop_last ? size() * options_.batch_size : sampler_->size();
}

Epoch DataLoader::epoch(int64_t epoch, int64_t first_batch) const {
  TARN_CHECK_AS(ValueError, first_batch >= 0 && first_batch <= size(), "DataLoader: first_batch ",
                first_batch, " is outside [0, ", size(), "]");
  auto state = std::make_shared<Epoch::State>(dataset_, options_, EpochKey{options_.seed, epoch});
  state->order = sampler_->order(epoch);
  TARN_CHECK_AS(ValueError, static_cast<int64_t>(state->order.size()) == sampler_->size(),
                "DataLoader: the sampler must order as many examples as its size(); got ",
                state->order.size(), " for ", sampler_->size(), " in epoch ", epoch);
  const int64_t examples = dataset_.size();
  for (size_t i = 0; i < state->order.size(); ++i) {
    TARN_CHECK_AS(IndexError, state->order[i] >= 0 && state->order[i] < examples,
                  "DataLoader: the sampler orders example ", state->order[i], " at position ", i,
                  " of epoch ", epoch, ", but the dataset has ", examples);
  }
  state->batches = size();
  state->taken = state->consumed = first_batch;
  Epoch::State::start_workers(state);
  return Epoch(std::move(state));
}

}  // namespace tarn::data
