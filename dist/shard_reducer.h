// shard_reducer.h - ShardReducer: gradients averaged during backward, each rank's shards of them
// kept.
//
// Each parameter's gradient moves to the buffer of its unit as soon as it is there. When a unit has
// all of its gradients, a reduce_scatter gives every rank the average of its piece, always in the
// order of units, so that all ranks call the same collectives whatever order their gradients come
// in. The end of backward waits for what is still under way and adds it to .grad of the shards.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tarn/dist/flat_unit.h"

namespace tarn::dist {

struct ShardReducerOptions {
  bool keep_buffers = false;  ///< of a unit's whole gradients, from one backward to the next
  bool find_unused_parameters = false;
  bool overlap = true;  ///< false: send at the end of backward
};

/// Not thread-safe; backward runs in the thread that owns it.
class ShardReducer {
 public:
  /// Hooks itself to the parameters of the units, which all require a gradient; `units` is the
  /// order in which they are sent. They outlive it.
  ShardReducer(ProcessGroup& group, std::vector<FlatUnit*> units, ShardReducerOptions options);
  ~ShardReducer();
  ShardReducer(const ShardReducer&) = delete;
  ShardReducer& operator=(const ShardReducer&) = delete;

  /// While false, gradients only add up on this rank, whole. Decided when a backward's first
  /// gradient comes.
  void set_sync(bool on) { sync_ = on; }
  bool sync() const { return sync_; }
  /// Called before a backward that synchronises does anything; it may throw.
  void set_before_reduce(std::function<void()> call) { before_reduce_ = std::move(call); }
  /// Called when backward needs a unit's parameters no longer, whether it synchronises or not.
  void set_unit_done(std::function<void(FlatUnit&)> call) { unit_done_ = std::move(call); }
  /// Backwards that synchronised so far.
  int64_t passes() const { return passes_; }

 private:
  struct Param {
    const FlatUnit::Member* member;
    size_t unit;
    int64_t hook = 0;
    bool ready = false;  // in this backward
    bool used = false;   // it has a gradient, from this backward or an earlier one without message
  };
  struct Unit {
    FlatUnit* flat;
    std::vector<size_t> params;
    size_t pending = 0;
    Tensor whole;  // [numel], gradients of this rank
    Tensor piece;  // [chunk], their average over the ranks
    WorkPtr work;
  };

  void begin();
  void reset();
  void arrived(size_t index);
  void take_gradient(Param& p);
  void take_more(Param& p);
  void launch_ready();
  void launch(Unit& unit);
  void finish(Unit& unit);
  void end();
  void handle_missing();
  void set_shards();
  [[noreturn]] void refuse(const std::string& text);

  ProcessGroup& group_;
  ShardReducerOptions options_;
  std::function<void()> before_reduce_;
  std::function<void(FlatUnit&)> unit_done_;
  std::vector<Param> params_;
  std::vector<Unit> units_;
  size_t next_ = 0;            // unit to be sent
  std::deque<size_t> on_way_;  // units that were sent and not waited for
  bool sync_ = true;
  int64_t passes_ = 0;
  enum class Phase { kIdle, kLocal, kReducing } phase_ = Phase::kIdle;
  std::weak_ptr<int> pass_;  // lives as long as the backward under way, which may end by throwing
};

}  // namespace tarn::dist
