// module_state.cpp - state dicts, and calls with other tensors in place of a module's own.
#include <unordered_map>
#include <unordered_set>

#include "tarn/autograd/grad_mode.h"
#include "tarn/nn/module.h"

namespace tarn::nn {

TensorDict Module::named_state() const {
  TensorDict dict;
  walk("", [&](const std::string& prefix, const Module& m) {
    for (const auto& [name, p] : m.parameters_) {
      if (p->defined()) dict.add(prefix + name, *p);
    }
    for (const NamedBuffer& b : m.buffers_) {
      if (b.buffer->defined() && b.kind != BufferKind::kNotSaved) {
        dict.add(prefix + b.name, *b.buffer);
      }
    }
  });
  return dict;
}

TensorDict Module::state_dict() const {
  TensorDict dict;
  for (const auto& [name, tensor] : named_state()) dict.add(name, tensor.detach());
  return dict;
}

LoadReport Module::load_state_dict(const TensorDict& dict, const LoadOptions& options) {
  std::unordered_set<std::string> optional;
  walk("", [&](const std::string& prefix, const Module& m) {
    for (const NamedBuffer& b : m.buffers_) {
      if (b.kind == BufferKind::kOptional) optional.insert(prefix + b.name);
    }
  });
  const std::string wrapper = "module.";
  bool wrapped = !dict.empty();
  for (const auto& [name, tensor] : dict) {
    TARN_CHECK_AS(ValueError, tensor.defined(), "load_state_dict: ", kind(), ": '", name,
                  "' is undefined");
    wrapped = wrapped && name.rfind(wrapper, 0) == 0;
  }
  for (const auto& [name, child] : children_) wrapped = wrapped && name + "." != wrapper;
  const std::string prefix = wrapped ? wrapper : "";

  LoadReport report;
  std::string shapes;
  const TensorDict mine = state_dict();
  for (const auto& [name, tensor] : mine) {
    const Tensor* given = dict.find(prefix + name);
    if (!given) {
      if (!optional.count(name)) report.missing.push_back(name);
    } else if (given->sizes() != tensor.sizes() && options.skip_other_sizes) {
      report.skipped.push_back(name);
    } else if (given->sizes() != tensor.sizes()) {
      shapes += tarn::detail::concat(shapes.empty() ? "" : ", ", name, " is ", tensor.sizes(),
                                     ", given ", given->sizes());
    }
  }
  for (const auto& [name, tensor] : dict) {
    const std::string bare = name.substr(prefix.size());
    if (!mine.contains(bare)) report.unexpected.push_back(bare);
  }
  const auto joined = [](const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& n : names) text += (text.empty() ? "" : ", ") + n;
    return text;
  };
  std::string wrong;
  const auto complain = [&](const char* what, const std::string& list) {
    if (!list.empty()) wrong += (wrong.empty() ? "" : "; ") + std::string(what) + list;
  };
  complain("other shapes: ", shapes);
  if (options.strict) complain("missing: ", joined(report.missing));
  if (options.strict) complain("unexpected: ", joined(report.unexpected));
  TARN_CHECK_AS(ShapeError, shapes.empty(), "load_state_dict: ", kind(), ": ", wrong);
  TARN_CHECK_AS(ValueError, wrong.empty(), "load_state_dict: ", kind(), ": ", wrong);

  const NoGradGuard no_grad;
  for (auto [name, tensor] : mine) {
    const Tensor* given = dict.find(prefix + name);
    if (given && given->sizes() == tensor.sizes()) tensor.copy_(*given);
  }
  return report;
}

Module::SwapScope::SwapScope(Module& root, const TensorDict& values) {
  std::unordered_map<std::string, Tensor*> members;
  root.walk("", [&](const std::string& prefix, const Module& m) {
    for (const auto& [name, p] : m.parameters_) {
      if (p->defined()) members.emplace(prefix + name, p);
    }
    for (const NamedBuffer& b : m.buffers_) {
      if (b.buffer->defined()) members.emplace(prefix + b.name, b.buffer);
    }
  });
  std::unordered_map<const TensorImpl*, Tensor> by_member;
  for (const auto& [name, value] : values) {
    const auto member = members.find(name);
    TARN_CHECK_AS(ValueError, member != members.end(), "functional_call: ", root.kind(),
                  " has no parameter or buffer '", name, "'");
    TARN_CHECK_AS(ValueError, value.defined(), "functional_call: ", root.kind(), ": '", name,
                  "' is undefined");
    const Tensor& own = *member->second;
    TARN_CHECK_AS(ShapeError, value.sizes() == own.sizes(), "functional_call: ", root.kind(), ": '",
                  name, "' is ", own.sizes(), ", given ", value.sizes());
    const auto [found, is_new] = by_member.emplace(own.impl().get(), value);
    TARN_CHECK_AS(ValueError, is_new || found->second.is_same(value),
                  "functional_call: ", root.kind(), ": '", name,
                  "' is tied to another name, which was given another ", "tensor");
  }
  kept_.reserve(members.size());  // from here on nothing may throw
  for (const auto& [name, member] : members) {
    const auto found = by_member.find(member->impl().get());
    if (found == by_member.end()) continue;
    kept_.emplace_back(member, *member);
    *member = found->second;
  }
}

Module::SwapScope::~SwapScope() {
  for (auto& [member, own] : kept_) *member = own;
}

Tensor functional_call(Module& module, const TensorDict& values, const Tensor& x) {
  const Module::SwapScope swapped(module, values);
  return module(x);
}

}  // namespace tarn::nn
