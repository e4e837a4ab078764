// random.cpp - generators.
#include "tarn/core/random.h"

#include <mutex>

namespace tarn {
namespace {
// One lock for all generators: it is held for two words, and generators stay copyable.
std::mutex& state_mutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

thread_local RandomRecorder* recorder = nullptr;  // the innermost

}  // namespace

void Generator::manual_seed(uint64_t seed) {
  set_state({seed, 0});
}

PhiloxState Generator::state() const {
  const std::lock_guard lock(state_mutex());
  return state_;
}

void Generator::set_state(PhiloxState state) {
  const std::lock_guard lock(state_mutex());
  state_ = state;
}

PhiloxState Generator::take_fresh(uint64_t draws) {
  const std::lock_guard lock(state_mutex());
  const PhiloxState begin = state_;
  state_.offset += draws;
  return begin;
}

PhiloxState Generator::take(uint64_t draws) {
  RandomRecorder* const innermost = this == &default_generator() ? recorder : nullptr;
  RandomRecorder* source = innermost;  // the innermost that has one to give again
  while (source && !(source->replayed_ && source->next_ < source->replayed_->size())) {
    source = source->outer_;
  }
  const PhiloxState begin = source ? (*source->replayed_)[source->next_++] : take_fresh(draws);
  // Those within hear of it: a function that is run again may hold one that is recorded.
  for (RandomRecorder* r = innermost; r != source; r = r->outer_) {
    if (r->record_) r->record_->push_back(begin);
  }
  return begin;
}

RandomRecorder::RandomRecorder(RandomRecord* record, const RandomRecord* replayed)
    : record_(record), replayed_(replayed), outer_(recorder) {
  recorder = this;
}
RandomRecorder::RandomRecorder(RandomRecord& record) : RandomRecorder(&record, nullptr) {}
RandomRecorder::~RandomRecorder() {
  recorder = outer_;
}

Generator& default_generator() {
  static Generator& generator = *new Generator;
  return generator;
}

void manual_seed(uint64_t seed) {
  default_generator().manual_seed(seed);
}

}  // namespace tarn
