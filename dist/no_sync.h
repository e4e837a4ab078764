// no_sync.h - NoSync: micro-batches whose gradients only add up on their rank.
#pragma once

#include <utility>

namespace tarn::dist {

/// While it lives, backward only adds up on this rank; the first one after it sends all. Reducer:
/// what decides that at the first gradient of a backward.
template <class Reducer>
class NoSync {
 public:
  explicit NoSync(Reducer& reducer) : reducer_(&reducer), before_(reducer.sync()) {
    reducer.set_sync(false);
  }
  ~NoSync() {
    if (reducer_) reducer_->set_sync(before_);
  }
  NoSync(NoSync&& other) noexcept
      : reducer_(std::exchange(other.reducer_, nullptr)), before_(other.before_) {}
  NoSync& operator=(NoSync&&) = delete;

 private:
  Reducer* reducer_;
  bool before_;
};

}  // namespace tarn::dist
