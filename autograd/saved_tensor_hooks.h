// saved_tensor_hooks.h - deciding what becomes of the tensors that are kept for backward.
//
//   const SaveOnCpu offload;              // activations wait in the host's memory
//   Tensor loss = cross_entropy(net(x), y);
//
// Both guards act on what is recorded while they live in this thread, and in those that compute for
// it (thread_modes.h); backward may come later.
// Leaves that require grad are always kept as they are.
#pragma once

#include <any>
#include <functional>
#include <memory>
#include <mutex>

#include "tarn/autograd/node.h"

namespace tarn {

/// As torch.autograd.graph.saved_tensors_hooks: keeps pack(x) instead of x; unpack turns it back
/// into x's values, with x's sizes and dtype, whenever backward needs them (AutogradError if not).
/// pack runs in one thread at a time.
class SavedTensorHooks final : public SavedTensorHandler {
 public:
  using Pack = std::function<std::any(const Tensor&)>;
  using Unpack = std::function<Tensor(const std::any&)>;
  SavedTensorHooks(Pack pack, Unpack unpack);

  Ref<SavedSource> pack(const Tensor& x) override;
  bool serves_other_threads() const override { return true; }

 private:
  Pack pack_;
  std::shared_ptr<const Unpack> unpack_;
  std::mutex mutex_;  // around pack_
  SavedTensorHandlerGuard guard_{this};
};

struct SaveOnCpuOptions {
  bool pin_memory = false;  ///< the copies overlap with computing; page-locked memory is needed
  int64_t min_bytes = 0;    ///< smaller tensors stay where they are
};

/// As torch.autograd.graph.save_on_cpu: keeps copies in the host's memory, and copies back in
/// backward, bit for bit and in the same layout. Tensors of the CPU are kept as they are.
class SaveOnCpu final : public SavedTensorHandler {
 public:
  explicit SaveOnCpu(const SaveOnCpuOptions& options = {}) : options_(options) {}

  Ref<SavedSource> pack(const Tensor& x) override;
  bool serves_other_threads() const override { return true; }

 private:
  SaveOnCpuOptions options_;
  SavedTensorHandlerGuard guard_{this};
};

}  // namespace tarn
