// op_case.h - one golden operator case: its arguments decoded, and the run that compares it.
//
// The manifest's form is described in golden_io.py. Arguments are asked for by position and
// keyword, as Python callers may give either: c.integer(1, "dim", -1).
#pragma once

#include <functional>
#include <map>
#include <optional>

#include "reader.h"

#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"

namespace tarn::golden {

class Case {
 public:
  Case(const File& file, const Json& entry) : file_(file), entry_(entry) {}

  std::string id() const { return entry_.at("id"); }
  std::string op() const { return entry_.at("op"); }
  const Json& entry() const { return entry_; }

  Tensor input() const { return decode(entry_.at("input")); }
  /// The input of operators that take a list.
  std::vector<Tensor> inputs() const {
    std::vector<Tensor> list;
    for (const Json& item : entry_.at("input")) list.push_back(decode(item));
    return list;
  }
  /// True if the argument was given and is not None. position -1: only by keyword.
  bool given(int position, const char* keyword) const {
    return !value(position, keyword).is_null();
  }
  bool is_tensor(int position, const char* keyword) const {
    const Json& v = value(position, keyword);
    return v.is_object() && v.contains("t");
  }
  /// Undefined if absent.
  Tensor tensor(int position, const char* keyword) const {
    return given(position, keyword) ? decode(value(position, keyword)) : Tensor();
  }
  double number(int position, const char* keyword, double absent) const {
    const Json& v = value(position, keyword);
    if (v.is_null()) return absent;
    if (v.is_object()) return std::stod(v.at("f").get<std::string>());
    return v.get<double>();
  }
  int64_t integer(int position, const char* keyword, int64_t absent) const {
    return given(position, keyword) ? value(position, keyword).get<int64_t>() : absent;
  }
  bool flag(int position, const char* keyword, bool absent) const {
    return given(position, keyword) ? value(position, keyword).get<bool>() : absent;
  }
  std::string text(int position, const char* keyword, const std::string& absent) const {
    const Json& v = value(position, keyword);
    return v.is_string() ? v.get<std::string>() : absent;
  }
  /// A list of integers; a single integer is repeated `count` times. Absent or empty: empty.
  std::vector<int64_t> integers(int position, const char* keyword, int count = 1) const {
    const Json& v = value(position, keyword);
    if (v.is_null()) return {};
    if (v.is_number()) return std::vector<int64_t>(static_cast<size_t>(count), v.get<int64_t>());
    auto list = v.get<std::vector<int64_t>>();
    if (list.size() == 1) list.assign(static_cast<size_t>(count), list[0]);
    return list;
  }
  std::optional<DType> dtype(int position, const char* keyword) const {
    const Json& v = value(position, keyword);
    if (v.is_null()) return std::nullopt;
    return v.at("dtype") == "f64" ? DType::kF64 : DType::kF32;
  }
  const Json& value(int position, const char* keyword) const {
    static const Json kAbsent;
    const Json& args = entry_.at("args");
    if (position >= 0 && static_cast<size_t>(position) < args.size()) {
      return args[static_cast<size_t>(position)];
    }
    const auto found = entry_.at("kwargs").find(keyword);
    return found == entry_.at("kwargs").end() ? kAbsent : *found;
  }
  /// A copy of the tensor `name` of this case, the same at each call; asks for a gradient if one is
  /// stored for it.
  Tensor leaf(const std::string& name) const {
    const auto found = leaves_.find(name);
    if (found != leaves_.end()) return found->second;
    Tensor x = stored(name).clone();
    for (const Json& with_grad : entry_.at("grads")) {
      if (with_grad == name) x.set_requires_grad();
    }
    return leaves_[name] = x;
  }
  const Tensor& stored(const std::string& name) const { return file_.at(id() + "/" + name); }

 private:
  Tensor decode(const Json& v) const { return leaf(v.at("t").get<std::string>()); }

  const File& file_;
  const Json& entry_;
  mutable std::map<std::string, Tensor> leaves_;
};

/// What an operator of PyTorch is in tarn.
using OpFunction = std::function<std::vector<Tensor>(const Case&)>;

/// f64 tight, f32 as PyTorch's own tests; there a sum that cancels may also be off by the rounding
/// of the largest element.
inline Tolerance tolerance(const Tensor& want) {
  if (want.dtype() == DType::kF64) return {1e-7, 1e-9};
  double largest = 0;
  for (const double v : want.to_vector<double>()) {
    if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
  }
  return {1.3e-6, std::max(1e-5, 1e-6 * largest)};
}

/// Runs the case; fails with the id and the first thing that is not as PyTorch has it.
inline void check_case(const Case& c, const OpFunction& function) {
  const std::vector<Tensor> outs = function(c);
  const Json &wanted = c.entry().at("out"), &cots = c.entry().at("cot");
  ASSERT_LE(outs.size(), wanted.size()) << c.id();
  std::vector<Tensor> roots, seeds;
  for (size_t i = 0; i < outs.size(); ++i) {
    const Tensor& want = c.stored(wanted[i].at("t"));
    EXPECT_TRUE(near(outs[i], want, tolerance(want))) << c.id() << ": output " << i;
    if (!cots[i].is_null() && outs[i].defined() && outs[i].requires_grad()) {
      roots.push_back(outs[i]);
      seeds.push_back(c.stored(cots[i].at("t")));
    }
  }
  std::vector<Tensor> leaves;
  for (const Json& name : c.entry().at("grads")) leaves.push_back(c.leaf(name));
  std::vector<Tensor> grads(leaves.size());
  if (!roots.empty() && !leaves.empty()) {
    grads = grad(roots, leaves, seeds, {.allow_unused = true});
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    const std::string name = c.entry().at("grads")[i];
    const Tensor& want = c.stored("grad." + name);
    const Tensor got = grads[i].defined() ? grads[i] : zeros_like(want);  // no path: 0 everywhere
    Tolerance limit = tolerance(want);
    // Attention's exponential carries the rounding of scores up to 79 into every weight: PyTorch's
    // own f32 gradients are up to 1.4e-5 from f64 in these cases, so two such results may be 3e-5
    // apart. The f64 cases hold the formula to 1e-9.
    if (c.id().starts_with("f32/nn.functional._scaled_dot")) limit.atol *= 3;
    EXPECT_TRUE(near(got, want, limit)) << c.id() << ": gradient of " << name;
  }
  for (const Json& name : c.entry().at("changed")) {
    const Tensor& want = c.stored("after." + name.get<std::string>());
    EXPECT_TRUE(near(c.leaf(name), want, tolerance(want))) << c.id() << ": " << name << " after";
  }
}

}  // namespace tarn::golden
