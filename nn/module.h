// module.h - Module: layers and models as plain classes whose members register themselves.
//
//   class Net : public nn::Module {
//    public:
//     using Module::Module;
//     nn::Conv2d conv{this, "conv", {.in = 1, .out = 8, .kernel = 3, .padding = 1}};
//     nn::BatchNorm2d bn{this, "bn", {.features = 8}};
//     nn::Linear fc{this, "fc", {.in = 8 * 28 * 28, .out = 10}};
//     Tensor forward(const Tensor& x) override { return fc(bn.relu(conv(x)).flatten(1)); }
//   };
//
// Declaring a member is registering it: parameters(), state_dict(), to(), train() and the rest
// follow from the declarations, and names are PyTorch's. A module is its own place in memory, so it
// is neither copied nor moved; hold it by value, as a member, or in a unique_ptr.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tarn/autograd/anomaly.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/tensor.h"
#include "tarn/core/tensor_dict.h"

namespace tarn::nn {

class Module;

/// Uninitialised f32 memory for a parameter or buffer: memory reports list it as such.
Tensor parameter_memory(const Shape& sizes);

/// A tensor that training changes: a member of a module, and itself the tensor. Made from an
/// undefined tensor it stands for "none" (a layer without bias) and is passed over everywhere.
class Parameter : public Tensor {
 public:
  Parameter(Module* owner, std::string name, Tensor value);
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;
  /// Shares another module's parameter (tied weights): one tensor under two names, counted once.
  void tie(const Parameter& other) { static_cast<Tensor&>(*this) = other; }
};

enum class BufferKind : uint8_t {
  kSaved,     ///< part of state_dict; loading without it is an error
  kOptional,  ///< part of state_dict; may be missing from what is loaded
  kNotSaved,
};

/// A tensor that belongs to a module's state but is not trained: running statistics, tables.
class Buffer : public Tensor {
 public:
  Buffer(Module* owner, std::string name, Tensor value, BufferKind kind = BufferKind::kSaved);
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

/// What load_state_dict found besides what it loaded.
struct LoadReport {
  std::vector<std::string> missing;     ///< in the module, not in the dict
  std::vector<std::string> unexpected;  ///< in the dict, not in the module
};

/// Base of every layer and model. Not thread-safe.
class Module {
 public:
  /// Evaluation mode for a module and all below it until the end of the scope, also where that is
  /// an exception; then each is in the mode again that it was in.
  class EvalScope {
   public:
    explicit EvalScope(Module& root);
    ~EvalScope();
    EvalScope(const EvalScope&) = delete;
    EvalScope& operator=(const EvalScope&) = delete;

   private:
    std::vector<Module*> trained_;
  };

  /// A module of its own: the root of a model.
  Module() = default;
  /// A member of `parent`, known there by `name`. A null parent makes it a root.
  Module(Module* parent, std::string name);
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// What the module computes. Call modules as functions instead: that runs the hooks as well.
  /// Throws UnsupportedError where a module has no function of one tensor.
  virtual Tensor forward(const Tensor& x);
  Tensor operator()(const Tensor& x);

  // ---- what it consists of. Order: own tensors first, then the members' in order of declaration.
  /// Each parameter once, under the first of its names.
  TensorDict named_parameters() const;
  std::vector<Tensor> parameters() const;
  /// Every buffer, saved or not.
  TensorDict named_buffers() const;
  /// This module, under "", and all below it: "layer1.0.conv1".
  std::vector<std::pair<std::string, Module*>> named_modules();
  const std::vector<std::pair<std::string, Module*>>& children() const { return children_; }
  /// Number of values in parameters().
  int64_t num_parameters() const;

  // ---- its state
  /// Parameters and saved buffers under their names; the tensors share memory with the module.
  TensorDict state_dict() const;
  /// Copies values in, converting dtype and device. Nothing is changed if anything does not fit:
  /// one ShapeError or ValueError lists all that is missing, unexpected, or of another shape.
  /// Without `strict` missing and unexpected names are only reported. A prefix "module." that all
  /// names of the dict share (it comes from DataParallel) is taken off.
  LoadReport load_state_dict(const TensorDict& dict, bool strict = true);

  // ---- its modes; each goes down the whole tree
  /// Training: dropout drops, batch norm uses the batch. Returns *this, as do the others. For a
  /// while: EvalScope.
  Module& train(bool on = true);
  Module& eval() { return train(false); }
  bool training() const { return training_; }
  /// Converts floating parameters and buffers in place, so optimizers keep pointing at them.
  Module& to(DType dtype);
  Module& to(Device device);
  Module& requires_grad_(bool on = true);
  /// Drops all gradients.
  void zero_grad();
  /// Calls f with every module below this one, then with this one.
  void apply(const std::function<void(Module&)>& f);

  // ---- hooks; an undefined result leaves the value as it is
  /// Runs before forward with its input. Returns an id for remove_hook.
  int64_t register_forward_pre_hook(std::function<Tensor(Module&, const Tensor& x)> hook);
  /// Runs after forward with its input and output.
  int64_t register_forward_hook(
      std::function<Tensor(Module&, const Tensor& x, const Tensor& y)> hook);
  void remove_hook(int64_t id);

  /// True while a module computes in this thread and somebody listens (op_scope.h) or anomaly mode
  /// is on; current_module_path() then says which one.
  static bool computing();

  /// Its name in the model it is part of: "layer1.0.conv1"; "" for a root.
  std::string path() const;
  /// The class, without namespaces: "Conv2d".
  std::string kind() const;
  /// The options worth printing: "3, 64, kernel=3".
  virtual std::string details() const { return ""; }

 protected:
  /// Names this module to anomaly mode, profiles and memory reports while it computes. operator()
  /// does that; other functions that compute begin with one. Within the module's own it does
  /// nothing.
  class CallScope {
   public:
    explicit CallScope(const Module& module) {
      if (anomaly_enabled() || tarn::detail::listening()) open(module);
    }
    ~CallScope() {
      if (path_) close();
    }
    CallScope(const CallScope&) = delete;
    CallScope& operator=(const CallScope&) = delete;

   private:
    void open(const Module& module);
    void close();
    const Module* outer_ = nullptr;
    std::optional<tarn::detail::ModulePathScope> path_;
    std::optional<ProfileRange> range_;
  };

  /// Whether somebody wants to see what goes through this module alone: hooks, or the names of
  /// modules in anomaly mode. A function of several inputs that is fused goes through forward then.
  bool is_watched() const;
  /// Takes over a member that lives on the heap (for lists of them).
  template <class T>
  T& adopt(std::string name, std::unique_ptr<T> child) {
    T& module = *child;
    add_child(std::move(name), module);
    owned_.push_back(std::move(child));
    return module;
  }

 private:
  friend class Parameter;
  friend class Buffer;
  struct NamedBuffer {
    std::string name;
    Buffer* buffer;
    BufferKind kind;
  };

  Tensor call(const Tensor& x);
  void add_child(std::string name, Module& child);
  void check_new(const std::string& name) const;
  /// f(prefix, module) for this module and all below, parents first.
  template <class F>
  void walk(const std::string& prefix, F&& f) const;
  void each_tensor(const std::function<void(Tensor&)>& f);

  std::string name_;  // in its parent; "" for a root
  const Module* parent_ = nullptr;
  std::vector<std::pair<std::string, Parameter*>> parameters_;
  std::vector<NamedBuffer> buffers_;
  std::vector<std::pair<std::string, Module*>> children_;
  std::vector<std::unique_ptr<Module>> owned_;
  bool training_ = true;
  int64_t next_hook_ = 0;
  std::vector<std::pair<int64_t, std::function<Tensor(Module&, const Tensor&)>>> pre_hooks_;
  std::vector<std::pair<int64_t, std::function<Tensor(Module&, const Tensor&, const Tensor&)>>>
      hooks_;
};

/// The tree of modules with their options, a line each.
std::ostream& operator<<(std::ostream& out, Module& module);

}  // namespace tarn::nn
