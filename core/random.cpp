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

PhiloxState Generator::take(uint64_t draws) {
  const std::lock_guard lock(state_mutex());
  const PhiloxState begin = state_;
  state_.offset += draws;
  return begin;
}

Generator& default_generator() {
  static Generator& generator = *new Generator;
  return generator;
}

void manual_seed(uint64_t seed) {
  default_generator().manual_seed(seed);
}

}  // namespace tarn
