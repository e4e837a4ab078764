// sequential.h - Sequential and ModuleList: modules in a row.
//
//   nn::Sequential net;
//   net.add<nn::Linear>({.in = 784, .out = 128});
//   net.add<nn::ReLU>();
//   net.add<nn::Linear>({.in = 128, .out = 10});
#pragma once

#include "tarn/autograd/recompute.h"
#include "tarn/nn/module.h"

namespace tarn::nn {

/// Modules of one base class, owned and numbered: their names are "0", "1", ... Its users say how
/// they are called.
template <class Base = Module>
class ModuleList : public Module {
 public:
  using Module::Module;

  /// Makes a T from its options and returns it.
  template <class T>
  T& add(const typename T::Options& options) {
    return add(std::make_unique<T>(options));
  }
  template <class T>
  T& add() {
    return add(std::make_unique<T>());
  }
  template <class T>
  T& add(std::unique_ptr<T> module) {
    T& added = adopt(std::to_string(size()), std::move(module));
    items_.push_back(&added);
    return added;
  }

  size_t size() const { return items_.size(); }
  /// Throws IndexError.
  Base& operator[](size_t i) const {
    TARN_CHECK_AS(IndexError, i < size(), kind(), ": no module ", i, "; there are ", size());
    return *items_[i];
  }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

 private:
  std::vector<Base*> items_;
};

/// A list that calls its modules one after the other.
class Sequential final : public ModuleList<Module> {
 public:
  using ModuleList<Module>::ModuleList;
  Tensor forward(const Tensor& x) override {
    Tensor y = x;
    for (Module* module : *this) {
      y = checkpoints_ ? checkpoint([module](const Tensor& in) { return (*module)(in); }, y)
                       : (*module)(y);
    }
    return y;
  }
  /// Keeps only what goes from module to module for backward, which computes the rest again
  /// (tarn::checkpoint). The list must live until backward is done.
  void set_checkpoint(bool on) { checkpoints_ = on; }

 private:
  bool checkpoints_ = false;
};

}  // namespace tarn::nn
