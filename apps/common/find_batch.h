// find_batch.h - the largest batch that fits into memory, found by trying.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tarn/apps/common/options.h"
#include "tarn/apps/common/ranks.h"
#include "tarn/core/device.h"
#include "tarn/core/random.h"

namespace tarn::apps {

struct MemorySettings {
  double limit_gib = 0;  ///< --memory-limit; 0: what the device has
  bool find_batch = false, offload = false;
};
void declare_memory_flags(Options& options, MemorySettings& settings);
/// Throws UsageError for --find-batch on several ranks.
void check_find_batch(const MemorySettings& settings, const Ranks& ranks);
/// Puts --memory-limit into force.
void apply_memory_limit(const MemorySettings& settings, Device device);

/// The largest n in [1, most] with fits(n), where what fits grows no further: powers of two up to
/// the first that does not fit, then bisection until the answer is known to 1/32. 0: not even 1.
int64_t find_largest(int64_t most, const std::function<bool(int64_t)>& fits);

/// Puts the default generator back where it stood, at the end of the scope.
class KeepRandom {
 public:
  KeepRandom() : state_(default_generator().state()) {}
  ~KeepRandom() { default_generator().set_state(state_); }
  KeepRandom(const KeepRandom&) = delete;
  KeepRandom& operator=(const KeepRandom&) = delete;

 private:
  PhiloxState state_;
};

/// The largest batch that `try_batch`, which does a whole step or more with n examples, gets
/// through within --memory-limit (else within what the GPU has, or 90 % of the memory this host can
/// spare). Prints each attempt unless `quiet`. Throws OutOfMemoryError if not even one example
/// fits. The limit is as before afterwards, and the cache empty.
int64_t find_batch(const MemorySettings& settings, Device device, int64_t most, bool quiet,
                   const std::function<void(int64_t)>& try_batch);

/// Runs `train`; if it runs out of memory, looks for the batch that would have fit and throws
/// OutOfMemoryError that names it. find: find_batch on something of the same kind.
int run_or_advise(const MemorySettings& settings, Device device, int64_t batch,
                  const std::function<int()>& train,
                  const std::function<int64_t(int64_t most)>& find);

}  // namespace tarn::apps
