// reducer.h - Reducer: gradients gathered into buckets and averaged while backward goes on.
//
// Each parameter's gradient is a view into a flat bucket. When a bucket's last gradient has arrived
// it is sent, always in the order of buckets, so that all ranks call the same collectives whatever
// order their gradients come in. The end of backward waits for what is still under way.
//
// Buckets start in the reverse order of registration, which is about the order of arrival; after
// the first backward they are rebuilt in the order that rank 0 saw. The first bucket is small, so
// that communication starts early. Which bucket a gradient is in changes no bit of it (Note [Rank
// order]).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tarn/core/backend.h"
#include "tarn/core/tensor_dict.h"
#include "tarn/dist/buckets.h"
#include "tarn/dist/claim.h"
#include "tarn/dist/group.h"

namespace tarn::dist {

/// A bucket that is about to be sent.
struct GradBucket {
  Tensor flat;  ///< [n], of this rank; the hook's work leaves the average of all ranks here
  int index = 0;
  bool last = false;           ///< of this backward
  std::vector<Tensor> params;  ///< whose gradients it holds, one after another
};

/// Starts what averages a bucket over the ranks, e.g. group.all_reduce(bucket.flat, kAvg).
using CommHook = std::function<WorkPtr(ProcessGroup& group, GradBucket& bucket)>;

struct ReducerOptions {
  double bucket_cap_mb = 25, first_bucket_mb = 1, last_bucket_mb = 1;
  bool find_unused_parameters = false;
  bool static_graph = false;  ///< DdpOptions::static_graph
  bool overlap = true;        ///< false: send at the end of backward (for measuring; same bits)
};

/// One bucket's way, in seconds. Times of day count from the backward's first gradient.
struct BucketStats {
  int64_t bytes = 0;
  int parameters = 0;
  double sent_at = 0;  ///< its last gradient was there, and those of the buckets before it
  double comm = 0;     ///< in the transport
  double wait = 0;     ///< of that, after backward had nothing left to compute; of the host
};

/// What the last backward that synchronised did. On a GPU, whose work goes on by itself,
/// comm_seconds and wait_seconds are known when that is done, and wait_seconds is the stream's.
struct ReducerStats {
  int buckets = 0;
  std::vector<BucketStats> each = {};  ///< in the order in which they were sent
  double compute_seconds = 0;          ///< from the first gradient to the last
  int64_t bytes = 0;
  double comm_seconds = 0;  ///< in the transport, all buckets together
  double wait_seconds = 0;  ///< of that, after backward had nothing left to compute
  /// Share of the communication that was hidden behind backward.
  double hidden() const { return comm_seconds > 0 ? 1 - wait_seconds / comm_seconds : 1; }
  /// A line per bucket, for people.
  std::string table() const;
};

/// Not thread-safe; backward runs in the thread that owns it.
class Reducer {
 public:
  /// Hooks itself to the parameters that require a gradient. They outlive it. Throws DeviceError
  /// unless they are on one device.
  Reducer(ProcessGroup& group, const TensorDict& parameters, ReducerOptions options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// While false, gradients only add up on this rank. Decided when a backward's first gradient
  /// comes.
  void set_sync(bool on) { sync_ = on; }
  bool sync() const { return sync_; }
  void set_comm_hook(CommHook hook) { comm_hook_ = std::move(hook); }
  ReducerStats stats() const;
  /// Called before a backward that synchronises sends anything; averages are multiplied by what it
  /// returns. For Join.
  void set_before_reduce(std::function<double()> call) { before_reduce_ = std::move(call); }
  /// The rank whose order of arrival the buckets take.
  void set_root(int rank) { root_ = rank; }
  /// Whether all ranks have a backward of their own. While some only shadow, static_graph learns
  /// nothing: they cannot say what they use.
  void set_complete(bool complete) { complete_ = complete; }
  /// Takes part in a backward of the other ranks, to which this one adds zeros. Drops this rank's
  /// gradients.
  void shadow();
  int buckets() const { return static_cast<int>(buckets_.size()); }

 private:
  struct Param {
    std::string name;
    Tensor tensor;
    int64_t hook = 0;
    size_t bucket = 0;
    Tensor view;           // its part of the bucket
    bool ready = false;    // in this backward
    bool expected = true;  // false: static_graph, and the first backward did not use it here
    bool used = true;      // false: nor on any other rank
  };
  struct Bucket {
    Tensor flat;
    std::vector<size_t> params;
    size_t pending = 0;
    WorkPtr work;
    double sent_at = 0;
  };

  BucketCaps caps() const {
    return {options_.bucket_cap_mb, options_.first_bucket_mb, options_.last_bucket_mb};
  }
  void build(const std::vector<size_t>& order);
  void rebuild();
  void reset();
  void begin();
  void arrived(size_t index);
  void take_gradient(Param& p);
  void launch_ready();
  void launch(Bucket& bucket, bool last);
  void end();
  void finish();
  void handle_missing();
  void fill_absent(Param& p);
  void agree_on_use();
  [[noreturn]] void refuse(const std::string& text);
  bool may_miss() const { return options_.find_unused_parameters || options_.static_graph; }
  bool knows_graph() const { return options_.static_graph && graph_known_; }

  ProcessGroup& group_;
  ReducerOptions options_;
  CommHook comm_hook_;
  std::function<double()> before_reduce_;
  std::vector<Param> params_;
  std::optional<ParameterClaim> claim_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> arrival_;  // order of the first backward
  size_t next_ = 0;              // bucket to be launched
  bool sync_ = true, rebuilt_ = false, graph_known_ = false, complete_ = true;
  int root_ = 0;
  double factor_ = 1;  // of the averages of this backward
  Clock::time_point start_;
  enum class Phase { kIdle, kLocal, kReducing } phase_ = Phase::kIdle;
  std::weak_ptr<int> pass_;  // lives as long as the backward under way, which may end by throwing
  ReducerStats stats_;
  std::vector<WorkPtr> done_;  // of the last backward, for their times
  // On a GPU: where its stream has nothing left to compute, and where it goes on.
  struct StreamWait {
    Event begin, end;
  };
  std::optional<StreamWait> stream_wait_;
};

}  // namespace tarn::dist
