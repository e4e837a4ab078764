// recompute.cpp - the frame of a checkpointed function: what was dropped, and how to get it back.
//
// During the first run a frame is the thread's SavedTensorHandler: it numbers the tensors that the
// operations keep, notes their sizes and gives out a DroppedTensor for each (but for leaves, which
// are numbered only: they may be frozen, or thawed, until the second run). The first of them that
// backward asks for starts the second run, in which a Collector hears of the same tensors in the
// same order and puts them where the DroppedTensors look. The graph of the second run is thrown
// away. A checkpoint within it makes a frame of its own, so its tensors are not counted here; its
// inputs are, which is why the inner frame does not hold on to activations of the outer.
#include "tarn/autograd/recompute.h"

#include <mutex>
#include <optional>

#include "tarn/autograd/autocast.h"
#include "tarn/autograd/meta.h"
#include "tarn/autograd/node.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/random.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {

struct RecomputeFlag {
  RecomputeFlag() { ++detail::recomputing; }
  ~RecomputeFlag() { --detail::recomputing; }
};

/// Thrown through the function once it has kept the last tensor: the rest of it is not needed.
struct AllCollected {};

/// The history of an input in the second run, which nobody walks back.
class InputNode final : public Node {
 public:
  InputNode() : Node("checkpoint_input", 1) {}
  Grads backward(std::span<const Tensor>) override { return {}; }
};

class Frame final : public RefCounted<Frame>, public SavedTensorHandler {
 public:
  Frame(CheckpointFunction fn, const std::vector<Tensor>& inputs, const CheckpointOptions& options)
      : fn_(std::move(fn)), autocast_(autocast_state()), options_(options), inputs_(inputs.size()) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs_[i].pack(inputs[i], nullptr);
      const bool tracked = requires_grad(inputs[i]);
      roles_.push_back(!tracked              ? Role::kConstant
                       : inputs[i].is_leaf() ? Role::kLeaf
                                             : Role::kResult);
    }
  }

  std::vector<Tensor> first_run(const std::vector<Tensor>& inputs) {
    const SavedTensorHandlerGuard guard(this);
    const RandomRecorder recorder(random_);
    std::vector<Tensor> outputs = fn_(inputs);
    complete_ = true;
    return outputs;
  }

  Ref<SavedSource> pack(const Tensor& x) override;
  void kept_leaf(const Tensor& x) override { number(x, false); }
  Tensor get(size_t slot, const char* op);
  void drop(size_t slot);
  /// Takes tensor number `slot` of the second run, which has drawn random numbers `draws` times.
  void collect(size_t slot, const Tensor& x, std::optional<size_t> draws);
  size_t size() const { return slots_.size(); }

 private:
  struct Slot {
    Shape sizes;
    DType dtype = DType::kF32;
    bool wanted = true;
    size_t draws = 0;  // of random numbers, before
    Tensor tensor;
    uint32_t version = 0;
  };

  /// Leaves are kept and results are dropped, so in the second run each must be what it was.
  enum class Role : uint8_t { kConstant, kLeaf, kResult };

  void number(const Tensor& x, bool wanted);
  Tensor input_again(size_t i) const;
  void second_run();

  CheckpointFunction fn_;
  RandomRecord random_;  // what the first run drew
  AutocastState autocast_;
  CheckpointOptions options_;
  std::vector<SavedTensor> inputs_;
  std::vector<Role> roles_;
  std::vector<Slot> slots_;
  bool complete_ = false;
  std::recursive_mutex mutex_;  // several threads may go back through one graph
};

/// What an operation keeps of a tensor that was dropped.
class DroppedTensor final : public SavedSource {
 public:
  DroppedTensor(Frame* frame, size_t slot) : frame_(frame), slot_(slot) {}
  ~DroppedTensor() override { frame_->drop(slot_); }
  Tensor get(const char* op) override { return frame_->get(slot_, op); }

 private:
  Ref<Frame> frame_;
  size_t slot_;
};

/// Hears of the tensors that the second run keeps.
class Collector final : public SavedTensorHandler {
 public:
  /// random: what the second run draws; null if that may differ.
  Collector(Frame& frame, const RandomReplay* random) : frame_(frame), random_(random) {}
  Ref<SavedSource> pack(const Tensor& x) override {
    kept_leaf(x);
    return {};
  }
  void kept_leaf(const Tensor& x) override {
    if (next_ >= frame_.size()) return;
    frame_.collect(next_++, x, random_ ? std::optional(random_->given()) : std::nullopt);
    if (next_ == frame_.size()) throw AllCollected();
  }
  size_t count() const { return next_; }

 private:
  Frame& frame_;
  const RandomReplay* random_;
  size_t next_ = 0;
};

Ref<SavedSource> Frame::pack(const Tensor& x) {
  number(x, true);
  return Ref<SavedSource>(new DroppedTensor(this, slots_.size() - 1));
}

void Frame::number(const Tensor& x, bool wanted) {
  slots_.push_back({.sizes = x.sizes(),
                    .dtype = x.dtype(),
                    .wanted = wanted,
                    .draws = random_.size(),
                    .tensor = {}});
}

void Frame::drop(size_t slot) {
  const std::lock_guard lock(mutex_);
  slots_[slot].wanted = false;
  slots_[slot].tensor = Tensor();
}

Tensor Frame::get(size_t slot, const char* op) {
  const std::lock_guard lock(mutex_);
  TARN_CHECK_AS(AutogradError, complete_, op,
                ": backward ran inside a checkpointed function on what it has not finished; leave "
                "backward to the caller, or do not checkpoint that function");
  if (!slots_[slot].tensor.defined()) second_run();
  check_saved_version(op, slots_[slot].tensor, slots_[slot].version);
  return slots_[slot].tensor;
}

void Frame::collect(size_t slot, const Tensor& x, std::optional<size_t> draws) {
  Slot& s = slots_[slot];
  TARN_CHECK_AS(AutogradError, s.sizes == x.sizes() && s.dtype == x.dtype(),
                "checkpoint: the function must compute the same when it runs again; tensor ", slot,
                " of ", slots_.size(), " kept for backward was ", s.sizes, " ", s.dtype,
                " and is now ", x.describe());
  TARN_CHECK_AS(AutogradError, !draws || *draws == s.draws,
                "checkpoint: the function must compute the same when it runs again; before tensor ",
                slot, " of ", slots_.size(), " kept for backward it drew random numbers ", s.draws,
                " times, and now ", *draws, "; train() and eval() wait until after backward");
  if (!s.wanted) return;
  s.tensor = raw::alias(x);
  s.version = x.version();
}

Tensor Frame::input_again(size_t i) const {
  const Tensor kept = inputs_[i].values("checkpoint");
  if (!kept.defined()) return kept;
  Tensor x = raw::alias(kept);
  if (roles_[i] == Role::kLeaf) x.set_requires_grad();
  if (roles_[i] == Role::kResult) set_history(x, Ref<Node>(new InputNode), 0);
  return x;
}

void Frame::second_run() {
  const OpScope scope("checkpoint");
  const MemoryTagGuard tag(
      MemoryTag::kActivations);  // within a backward, whose memory is gradients
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < inputs_.size(); ++i) inputs.push_back(input_again(i));
  const RecomputeFlag flag;
  std::optional<RandomReplay> random;
  if (options_.preserve_random) random.emplace(random_);
  const AutocastGuard autocast(autocast_);
  const GradModeGuard recording(true);
  Collector collector(*this, random ? &*random : nullptr);
  const SavedTensorHandlerGuard guard(&collector);
  try {
    fn_(inputs);
  } catch (const AllCollected&) {
  }
  TARN_CHECK_AS(AutogradError, collector.count() == slots_.size(),
                "checkpoint: the function must compute the same when it runs again; it kept ",
                slots_.size(), " tensors for backward and now keeps ", collector.count());
}

}  // namespace

std::vector<Tensor> detail::run_checkpoint(CheckpointFunction fn, const std::vector<Tensor>& inputs,
                                           const CheckpointOptions& options) {
  if (!grad_enabled()) return fn(inputs);
  const Ref<Frame> frame(new Frame(std::move(fn), inputs, options));
  return frame->first_run(inputs);
}

}  // namespace tarn
