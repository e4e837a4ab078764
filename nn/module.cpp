// module.cpp - registration, traversal, modes, hooks, printing. State dicts: module_state.cpp.
#include "tarn/nn/module.h"

#include <algorithm>
#include <cstdlib>
#include <ostream>
#include <typeinfo>
#include <unordered_set>

#include <cxxabi.h>

#include "tarn/autograd/anomaly.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/allocator.h"
#include "tarn/core/factory.h"
#include "tarn/core/views.h"

namespace tarn::nn {
namespace {

/// Converts x and its gradient by f, in place.
template <class F>
void convert(Tensor& x, F&& f) {
  const NoGradGuard no_grad;
  const MemoryTagGuard tag(MemoryTag::kParameters);
  const Tensor grad = x.grad();
  const Tensor value = f(x.detach());
  if (value.storage() == x.storage() && value.dtype() == x.dtype()) return;  // nothing to convert
  raw::set_data(x, value);
  if (grad.defined()) x.set_grad(f(grad));
}

}  // namespace

Tensor parameter_memory(const Shape& sizes) {
  const MemoryTagGuard tag(MemoryTag::kParameters);
  return empty(sizes);
}

namespace {
/// Takes the entry that points to `member` out; the newest first: members go in reverse order.
template <class List, class Is>
void forget(List& list, Is is) {
  const auto it = std::find_if(list.rbegin(), list.rend(), is);
  if (it != list.rend()) list.erase(std::next(it).base());
}
}  // namespace

Parameter::Parameter(Module* owner, std::string name, Tensor value)
    : Tensor(std::move(value)), owner_(owner) {
  TARN_CHECK_AS(ValueError, owner, "Parameter: '", name,
                "' needs the module it belongs to: `this`");
  if (defined()) set_requires_grad();
  owner->check_new(name);
  owner->parameters_.emplace_back(std::move(name), this);
}

Buffer::Buffer(Module* owner, std::string name, Tensor value, BufferKind kind)
    : Tensor(std::move(value)), owner_(owner) {
  TARN_CHECK_AS(ValueError, owner, "Buffer: '", name, "' needs the module it belongs to: `this`");
  owner->check_new(name);
  owner->buffers_.push_back({std::move(name), this, kind});
}

Parameter::~Parameter() {
  if (owner_) forget(owner_->parameters_, [this](const auto& p) { return p.second == this; });
}

Buffer::~Buffer() {
  if (owner_) forget(owner_->buffers_, [this](const auto& b) { return b.buffer == this; });
}

Module::~Module() {
  if (parent_) forget(parent_->children_, [this](const auto& c) { return c.second == this; });
  // What is left are members on the heap; they may outlive it.
  for (auto& [name, child] : children_) child->parent_ = nullptr;
  for (auto& [name, p] : parameters_) p->owner_ = nullptr;
  for (auto& b : buffers_) b.buffer->owner_ = nullptr;
}

Module::Module(Module* parent, std::string name) {
  if (parent) parent->add_child(std::move(name), *this);
}

void Module::check_new(const std::string& name) const {
  bool taken = false;
  for (const auto& [other, parameter] : parameters_) taken = taken || other == name;
  for (const NamedBuffer& b : buffers_) taken = taken || b.name == name;
  for (const auto& [other, child] : children_) taken = taken || other == name;
  TARN_CHECK_AS(ValueError, !taken, "Module: two members are named '", name, "'");
  TARN_CHECK_AS(ValueError, !name.empty() && name.find('.') == std::string::npos,
                "Module: a member's name must not be empty or hold a dot; got '", name, "'");
}

void Module::add_child(std::string name, Module& child) {
  TARN_CHECK_AS(ValueError, !child.parent_, "Module: a module has one place; ", child.kind(), " '",
                child.path(), "' is a member already and cannot become '", name, "' of ", kind());
  check_new(name);
  child.name_ = name;
  child.parent_ = this;
  children_.emplace_back(std::move(name), &child);
}

Tensor Module::forward(const Tensor&) {
  tarn::detail::fail<UnsupportedError>(kind(), ": has no forward of one tensor");
}

Tensor Module::operator()(const Tensor& x) {
  const CallScope scope(*this);
  return between_hooks(x, [this](const Tensor& in) { return forward(in); });
}

namespace {
thread_local const Module* innermost = nullptr;  // of the calls that run in this thread
}

std::string Module::path() const {
  if (!parent_) return name_;
  const std::string outer = parent_->path();
  return outer.empty() ? name_ : outer + "." + name_;
}

bool Module::computing() {
  return innermost != nullptr;
}

void Module::CallScope::open(const Module& module) {
  if (innermost == &module) return;
  outer_ = std::exchange(innermost, &module);
  path_.emplace(module.path());
  const std::string& path = tarn::detail::current_module_path();
  range_.emplace(path.empty() ? "(model)" : path, OpKind::kModule);
}

void Module::CallScope::close() {
  innermost = outer_;
}

Module::EvalScope::EvalScope(Module& root) {
  root.apply([&](Module& m) {
    if (m.training_) trained_.push_back(&m);
    m.training_ = false;
  });
}

Module::EvalScope::~EvalScope() {
  for (Module* m : trained_) m->training_ = true;
}

bool Module::is_watched() const {
  return has_hooks() || anomaly_enabled();
}

namespace {
thread_local const Module* innermost_body = nullptr;
}

Module::BodyScope::BodyScope(const Module& module)
    : outer_(std::exchange(innermost_body, &module)) {}

Module::BodyScope::~BodyScope() {
  innermost_body = outer_;
}

const Module* Module::BodyScope::innermost() {
  return innermost_body;
}

Tensor Module::run_pre_hooks(Tensor x) {
  const auto hooks = pre_hooks_;  // a copy: a hook may add or remove hooks, itself too
  for (const auto& [id, hook] : hooks) {
    if (Tensor changed = hook(*this, x); changed.defined()) x = changed;
  }
  return x;
}

Tensor Module::run_hooks(const Tensor& x, Tensor y) {
  const auto hooks = hooks_;
  for (const auto& [id, hook] : hooks) {
    if (Tensor changed = hook(*this, x, y); changed.defined()) y = changed;
  }
  return y;
}

TensorDict Module::named_parameters() const {
  TensorDict all;
  std::unordered_set<const TensorImpl*> seen;
  walk("", [&](const std::string& prefix, const Module& m) {
    for (const auto& [name, p] : m.parameters_) {
      if (p->defined() && seen.insert(p->impl().get()).second) all.add(prefix + name, *p);
    }
  });
  return all;
}

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> all;
  for (const auto& [name, tensor] : named_parameters()) all.push_back(tensor);
  return all;
}

TensorDict Module::named_buffers() const {
  TensorDict all;
  walk("", [&](const std::string& prefix, const Module& m) {
    for (const NamedBuffer& b : m.buffers_) {
      if (b.buffer->defined()) all.add(prefix + b.name, *b.buffer);
    }
  });
  return all;
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> all;
  walk("", [&](const std::string& prefix, const Module& m) {
    const std::string name = prefix.substr(0, prefix.empty() ? 0 : prefix.size() - 1);
    all.emplace_back(name, const_cast<Module*>(&m));  // the tree below a mutable root is mutable
  });
  return all;
}

int64_t Module::num_parameters() const {
  int64_t n = 0;
  for (const Tensor& p : parameters()) n += p.numel();
  return n;
}

Module& Module::train(bool on) {
  training_ = on;
  for (const auto& [name, child] : children_) child->train(on);
  return *this;
}

void Module::each_tensor(const std::function<void(Tensor&)>& f) {
  std::unordered_set<const TensorImpl*> seen;
  walk("", [&](const std::string&, const Module& m) {
    for (const auto& [name, p] : m.parameters_) {
      if (p->defined() && seen.insert(p->impl().get()).second) f(*p);
    }
    for (const NamedBuffer& b : m.buffers_) {
      if (b.buffer->defined()) f(*b.buffer);
    }
  });
}

Module& Module::to(DType dtype) {
  TARN_CHECK_AS(DTypeError, is_floating(dtype), "Module::to: parameters must be floating; got ",
                dtype);
  each_tensor([&](Tensor& x) {
    if (is_floating(x.dtype())) convert(x, [&](const Tensor& t) { return t.to(dtype); });
  });
  return *this;
}

Module& Module::to(Device device) {
  each_tensor([&](Tensor& x) { convert(x, [&](const Tensor& t) { return t.to(device); }); });
  return *this;
}

Module& Module::requires_grad_(bool on) {
  for (Tensor& p : parameters()) p.set_requires_grad(on);
  return *this;
}

void Module::zero_grad() {
  for (Tensor& p : parameters()) p.zero_grad();
}

void Module::apply(const std::function<void(Module&)>& f) {
  for (const auto& [name, child] : children_) child->apply(f);
  f(*this);
}

int64_t Module::register_forward_pre_hook(std::function<Tensor(Module&, const Tensor&)> hook) {
  TARN_CHECK_AS(ValueError, static_cast<bool>(hook),
                "register_forward_pre_hook: a function is needed");
  pre_hooks_.emplace_back(next_hook_, std::move(hook));
  return next_hook_++;
}

int64_t Module::register_forward_hook(
    std::function<Tensor(Module&, const Tensor&, const Tensor&)> hook) {
  TARN_CHECK_AS(ValueError, static_cast<bool>(hook), "register_forward_hook: a function is needed");
  hooks_.emplace_back(next_hook_, std::move(hook));
  return next_hook_++;
}

void Module::remove_hook(int64_t id) {
  std::erase_if(pre_hooks_, [&](const auto& h) { return h.first == id; });
  std::erase_if(hooks_, [&](const auto& h) { return h.first == id; });
}

std::string Module::kind() const {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(typeid(*this).name(), nullptr, nullptr, &status), std::free);
  std::string full = status == 0 ? name.get() : typeid(*this).name();
  full = full.substr(0, full.find('<'));
  const size_t colon = full.rfind("::");
  return colon == std::string::npos ? full : full.substr(colon + 2);
}

std::ostream& operator<<(std::ostream& out, Module& module) {
  for (const auto& [name, m] : module.named_modules()) {
    size_t depth = name.empty() ? 0 : 1;
    for (char c : name) depth += c == '.';
    const size_t dot = name.rfind('.');
    const std::string last = dot == std::string::npos ? name : name.substr(dot + 1);
    out << std::string(2 * depth, ' ') << last << (last.empty() ? "" : ": ") << m->kind();
    if (!m->details().empty()) out << "(" << m->details() << ")";
    out << "\n";
  }
  return out;
}

}  // namespace tarn::nn
