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
//
// What registers is the owner's `this` in the declaration. So these compile, and are not trained:
//   nn::Linear fc{{.in = 4, .out = 4}};                   // a member without `this`: a root
//   std::vector<std::unique_ptr<nn::Linear>> layers;      // of such roots: take a ModuleList
// print the module or look at named_parameters() where in doubt. A class that is itself used as a
// member, or added to a ModuleList, needs `using Module::Module;` or constructors of its own.
//
// A function of several inputs, beside forward or instead of it, runs its hooks (also those by
// which dist::DistributedDataParallel shares buffers) by way of hooked():
//   Tensor attend(const Tensor& x, const Tensor& memory) {
//     return hooked(x, [&](const Tensor& in) { return fc(in) + memory; });
//   }
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
  /// Throws ValueError on a null owner, or a name that is taken, empty or holds a dot.
  Parameter(Module* owner, std::string name, Tensor value);
  ~Parameter();
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;
  /// Shares another module's parameter (tied weights): one tensor under two names, counted once.
  void tie(const Parameter& other) { static_cast<Tensor&>(*this) = other; }

 private:
  friend class Module;
  Module* owner_;
};

enum class BufferKind : uint8_t {
  kSaved,     ///< part of state_dict; loading without it is an error
  kOptional,  ///< part of state_dict; may be missing from what is loaded
  kNotSaved,
};

/// A tensor that belongs to a module's state but is not trained: running statistics, tables.
class Buffer : public Tensor {
 public:
  /// Throws as Parameter does.
  Buffer(Module* owner, std::string name, Tensor value, BufferKind kind = BufferKind::kSaved);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

 private:
  friend class Module;
  Module* owner_;
};

/// What load_state_dict found besides what it loaded.
struct LoadReport {
  std::vector<std::string> missing;     ///< in the module, not in the dict
  std::vector<std::string> unexpected;  ///< in the dict, not in the module
  std::vector<std::string> skipped;     ///< of other sizes, and left as they were
};

struct LoadOptions {
  bool strict = true;             ///< missing and unexpected names are an error
  bool skip_other_sizes = false;  ///< leave what is of other sizes alone, and report it
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

  /// Other tensors in place of the parameters and buffers of these names until the end of the
  /// scope, also where that is an exception. Gradients flow to them, and a buffer that is changed
  /// (running statistics) is the one given. Parameters that are tied change together. See
  /// functional_call. Throws ValueError on a name that the module does not have, and ShapeError on
  /// other sizes; then nothing is changed. What tarn::checkpoint computes again in backward finds
  /// the module's own tensors, if the scope has ended by then.
  class SwapScope {
   public:
    SwapScope(Module& root, const TensorDict& values);
    ~SwapScope();
    SwapScope(const SwapScope&) = delete;
    SwapScope& operator=(const SwapScope&) = delete;

   private:
    std::vector<std::pair<Tensor*, Tensor>> kept_;  // members, and what they were
  };

  /// A module of its own: the root of a model.
  Module() = default;
  /// A member of `parent`, known there by `name`. A null parent makes it a root.
  Module(Module* parent, std::string name);
  /// Leaves its parent, which may go on without it (and take another of that name).
  virtual ~Module();
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
  /// Parameters and saved buffers under all of their names: the module's own tensors.
  TensorDict named_state() const;
  /// The same, cut off; the tensors share memory with the module.
  TensorDict state_dict() const;
  /// Copies values in, converting dtype and device. Nothing is changed if anything does not fit:
  /// one ShapeError or ValueError lists all that is missing, unexpected, or of another shape.
  /// Without `strict` missing and unexpected names are only reported. A prefix "module." that all
  /// names of the dict share (it comes from DataParallel) is taken off.
  LoadReport load_state_dict(const TensorDict& dict, bool strict = true) {
    return load_state_dict(dict, LoadOptions{.strict = strict});
  }
  /// The same. For finetuning with another number of classes:
  ///   net.load_state_dict(weights, {.skip_other_sizes = true}).skipped;  // fc.weight, fc.bias
  LoadReport load_state_dict(const TensorDict& dict, const LoadOptions& options);

  // ---- its modes; each goes down the whole tree
  /// Training: dropout drops, batch norm uses the batch. Returns *this, as do the others. For a
  /// while: EvalScope.
  Module& train(bool on = true);
  Module& eval() { return train(false); }
  bool training() const { return training_; }
  /// Of this module alone, where train() is for all within it, too.
  void set_training(bool on) { training_ = on; }
  /// Converts floating parameters and buffers in place, so optimizers keep pointing at them.
  Module& to(DType dtype);
  Module& to(Device device);
  Module& requires_grad_(bool on = true);
  /// Drops all gradients.
  void zero_grad();
  /// Calls f with every module below this one, then with this one.
  void apply(const std::function<void(Module&)>& f);

  // ---- hooks; an undefined result leaves the value as it is. They run where a module is called as
  // a function, and in its functions of several inputs or under other names that say what forward
  // does (MultiheadAttention::attend, TransformerEncoderLayer::run, BatchNorm::relu, the blocks of
  // Gpt::generate ...), which tell them of their first tensor. A forward called by its name
  // passes them by, unless it is written as such a function; modules that only hold others
  // (ModuleList) are never called.
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
  /// For functions of several inputs: body(x) as operator() calls forward(x), that is with
  /// pre-hooks on x, hooks on the result, and the module's name. body(const Tensor&) -> Tensor.
  /// Within a call of this very module it is body(x) alone, so forward may be written in terms of
  /// such functions, and they in terms of each other.
  template <class F>
  Tensor hooked(const Tensor& x, F&& body) {
    const CallScope scope(*this);
    if (has_hooks() && BodyScope::innermost() == this) return body(x);
    return between_hooks(x, body);
  }
  /// Takes over a member that lives on the heap (for lists of them). Throws ValueError if it is
  /// null or a member of some module already.
  template <class T>
  T& adopt(std::string name, std::unique_ptr<T> child) {
    TARN_CHECK_AS(ValueError, child, kind(), ": a null pointer is no module; got it as '", name,
                  "'");
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

  /// What runs between a module's pre-hooks and its hooks, the innermost in this thread.
  class BodyScope {
   public:
    explicit BodyScope(const Module& module);
    ~BodyScope();
    static const Module* innermost();

   private:
    const Module* outer_;
  };

  template <class F>
  Tensor between_hooks(const Tensor& x, F&& body) {
    if (!has_hooks()) return body(x);
    const Tensor in = run_pre_hooks(x);
    Tensor out;
    {
      const BodyScope inside(*this);
      out = body(in);
    }
    return run_hooks(in, std::move(out));
  }
  bool has_hooks() const { return !pre_hooks_.empty() || !hooks_.empty(); }
  Tensor run_pre_hooks(Tensor x);
  Tensor run_hooks(const Tensor& x, Tensor y);
  void add_child(std::string name, Module& child);
  void check_new(const std::string& name) const;
  /// f(prefix, module) for this module and all below, parents first.
  template <class F>
  void walk(const std::string& prefix, F&& f) const {
    f(prefix, *this);
    for (const auto& [name, child] : children_) child->walk(prefix + name + ".", f);
  }
  void each_tensor(const std::function<void(Tensor&)>& f);

  std::string name_;  // in its parent; "" for a root
  Module* parent_ = nullptr;
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

/// module(x), hooks and all, with the tensors of `values` in place of the parameters (and buffers)
/// of those names. An inner loop of MAML, differentiable as a whole:
///   TensorDict fast = net.named_parameters();
///   for (int step = 0; step < steps; ++step) {
///     std::vector<Tensor> at;
///     for (const auto& [name, p] : fast) at.push_back(p);
///     const Tensor loss = mse_loss(functional_call(net, fast, x), y);
///     const auto g = grad(std::vector{loss}, at, {}, {.create_graph = true});
///     TensorDict next;
///     for (const auto& [name, p] : fast) next.add(name, p - lr * g[next.size()]);
///     fast = next;
///   }
///   mse_loss(functional_call(net, fast, x2), y2).backward();  // to net's parameters
/// For other functions than forward: Module::SwapScope, which says what it throws.
Tensor functional_call(Module& module, const TensorDict& values, const Tensor& x);

/// The tree of modules with their options, a line each.
std::ostream& operator<<(std::ostream& out, Module& module);

}  // namespace tarn::nn
