// index_tools.h - what the index tests share: short ways to make and read tensors.
#pragma once

#include <functional>

#include <gtest/gtest.h>

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"

namespace tarn {

using Values = std::vector<double>;
using Ints = std::vector<int64_t>;

inline Tensor ints(const Ints& values, const Shape& sizes) {
  return from_vector(values, sizes);
}
inline Tensor ints(const Ints& values) {
  return from_vector(values, {static_cast<int64_t>(values.size())});
}
inline Tensor iota(const Shape& sizes, DType dtype = DType::kF64) {
  return arange(sizes.numel()).to(dtype).reshape(sizes);
}
inline Values values(const Tensor& x) {
  return x.to_vector<double>();
}

template <class E>
inline void expect_error(const std::function<void()>& f, const std::string& text) {
  try {
    f();
    FAIL() << "no error; expected: " << text;
  } catch (const E& e) {
    EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
  }
}

}  // namespace tarn
