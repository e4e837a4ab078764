// reader.h - the golden files for tests: tensors, the JSON beside them, and comparison.
//
// What the files hold is said in golden_io.py and the other scripts that write them.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tarn/core/serialize.h"

namespace tarn::golden {

using Json = nlohmann::json;

/// One golden file, by its name in tests/golden without the suffix.
class File {
 public:
  explicit File(const std::string& name)
      : file_(load_safetensors(TARN_SOURCE_DIR "/tests/golden/" + name + ".safetensors")) {}
  const Tensor& at(const std::string& name) const { return file_.tensors.at(name); }
  bool has(const std::string& name) const { return file_.tensors.contains(name); }
  const TensorDict& tensors() const { return file_.tensors; }
  Json json(const std::string& key) const { return Json::parse(file_.metadata.at(key)); }

 private:
  Safetensors file_;
};

/// |got - want| <= atol + rtol * |want|, as numpy's and PyTorch's allclose.
struct Tolerance {
  double rtol = 0;
  double atol = 0;
};

/// Same sizes and dtype, and all elements near; NaN equals NaN. Names the worst element.
inline ::testing::AssertionResult near(const Tensor& got, const Tensor& want, Tolerance limit) {
  if (!got.defined())
    return ::testing::AssertionFailure() << "undefined, wanted " << want.describe();
  if (got.sizes() != want.sizes() || got.dtype() != want.dtype()) {
    return ::testing::AssertionFailure() << got.describe() << ", wanted " << want.describe();
  }
  const std::vector<double> a = got.to_vector<double>(), b = want.to_vector<double>();
  double worst = 0;
  size_t at = 0, wrong = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double excess = std::abs(a[i] - b[i]) / (limit.atol + limit.rtol * std::abs(b[i]));
    if (excess <= 1) continue;
    ++wrong;
    if (!(excess <= worst)) worst = excess, at = i;
  }
  if (wrong == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << wrong << " of " << a.size() << " differ; worst at " << at
                                       << ": " << a[at] << ", wanted " << b[at];
}

/// ||got - want|| / ||want||.
inline double relative_error(const std::vector<double>& got, const std::vector<double>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got.at(i) - want[i]) * (got.at(i) - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error) / std::max(std::sqrt(norm), 1e-30);
}

}  // namespace tarn::golden
