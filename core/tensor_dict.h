// tensor_dict.h - an ordered map from names to tensors: a state dict, or what a file holds.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tarn/core/tensor.h"

namespace tarn {

/// Tensors by name, in the order in which they were added. Names are unique.
class TensorDict {
 public:
  using Item = std::pair<std::string, Tensor>;
  TensorDict() = default;
  TensorDict(std::initializer_list<Item> items) {
    for (const Item& item : items) add(item.first, item.second);
  }

  /// Appends a tensor. Throws ValueError if the name is taken.
  void add(std::string name, Tensor tensor) {
    TARN_CHECK_AS(ValueError, index_.emplace(name, items_.size()).second,
                  "TensorDict: two tensors are named '", name, "'");
    items_.emplace_back(std::move(name), std::move(tensor));
  }
  /// The tensor of that name, or nullptr.
  const Tensor* find(const std::string& name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &items_[found->second].second;
  }
  bool contains(const std::string& name) const { return index_.count(name) != 0; }
  /// Throws IndexError if there is none.
  const Tensor& at(const std::string& name) const {
    const Tensor* tensor = find(name);
    TARN_CHECK_AS(IndexError, tensor, "TensorDict: no tensor is named '", name, "' among ", size(),
                  empty() ? "" : "; the first is '" + items_[0].first + "'");
    return *tensor;
  }
  const Tensor& operator[](const std::string& name) const { return at(name); }

  size_t size() const { return items_.size(); }
  bool empty() const { return items_.empty(); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

 private:
  std::vector<Item> items_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace tarn
