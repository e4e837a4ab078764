// meeting.h - the store through which ranks that are threads of one process make their groups.
#pragma once

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <string>

#include "tarn/dist/store.h"

namespace tarn::bench {

/// A MemoryStore that can be called off: when one rank cannot make its group, the others would wait
/// for it until their limit.
///
/// Thread safety: every method may be called from any thread.
class Meeting final : public dist::Store {
 public:
  /// Runs `make`, which waits in this store. What it throws is thrown by the others' waits as well,
  /// from now on.
  template <class F>
  auto attend(F make) {
    try {
      return make();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!reason_) reason_ = std::current_exception();
      throw;
    }
  }

  void set(const std::string& key, const std::string& value) override { store_.set(key, value); }
  std::optional<std::string> try_get(const std::string& key) override {
    check();
    return store_.try_get(key);
  }
  int64_t add(const std::string& key, int64_t delta) override { return store_.add(key, delta); }
  bool erase(const std::string& key) override { return store_.erase(key); }
  std::optional<std::string> wait_for(const std::string& key, dist::Millis limit) override {
    constexpr dist::Millis kSlice{50};
    const auto deadline = dist::Clock::now() + limit;
    for (;;) {
      check();
      const dist::Millis left = dist::time_left(deadline);
      if (auto value = store_.wait_for(key, std::min(kSlice, left))) return value;
      if (left <= kSlice) return {};
    }
  }
  std::string describe() const override { return store_.describe(); }

 private:
  void check() {
    const std::lock_guard lock(mutex_);
    if (reason_) std::rethrow_exception(reason_);
  }

  dist::MemoryStore store_;
  std::mutex mutex_;
  std::exception_ptr reason_;  // of the first who could not come
};

}  // namespace tarn::bench
