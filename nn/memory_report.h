// memory_report.h - ModuleMemory: which module's forward holds the memory.
//
//   nn::ModuleMemory memory(net);
//   loss = cross_entropy(net(x), y);
//   loss.backward();
//   std::cout << memory.table();
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tarn/nn/module.h"

namespace tarn::nn {

struct ModuleMemoryRow {
  std::string path, kind;  ///< "" and the class: the model itself
  int64_t parameters = 0;  ///< bytes of its own parameters
  // Of the memory handed out on the model's device while a call of the module ran, apart from calls
  // of modules inside it:
  int64_t allocated = 0;  ///< all of it, one after the other
  int64_t kept = 0;       ///< not given back yet
  int64_t at_peak = 0;    ///< in use when the model held most
};

/// Listens while it lives: give it one step (forward, or forward and backward). Memory that was
/// handed out before is not seen. What backward allocates belongs to no module, unless it computes
/// a checkpointed one again. Thread safety: any thread may compute meanwhile.
class ModuleMemory final : public OpListener {
 public:
  explicit ModuleMemory(Module& net);
  ~ModuleMemory() override;
  ModuleMemory(const ModuleMemory&) = delete;
  ModuleMemory& operator=(const ModuleMemory&) = delete;

  void memory(const void* ptr, int64_t bytes, Device device) override;

  /// Every module in the order of named_modules(), without those inside it; last, as
  /// "(no module)", what was allocated outside.
  std::vector<ModuleMemoryRow> rows() const;
  /// For people: modules down to `depth` names, with all that is inside them. Modules without
  /// memory of their own are left out.
  std::string table(int depth = 3) const;

 private:
  struct Held {
    size_t row;
    int64_t bytes;
  };

  Device device_;
  std::vector<ModuleMemoryRow> rows_;
  std::unordered_map<std::string, size_t> row_of_;
  mutable std::mutex mutex_;  // what follows, and the figures of rows_
  std::unordered_map<const void*, Held> held_;
  int64_t total_ = 0, peak_ = 0;
};

}  // namespace tarn::nn
