// multi_tensor.h - one parallel loop over the elements of many tensors, without a work list.
#pragma once

#include <algorithm>
#include <span>

#include "tarn/core/parallel.h"
#include "tarn/core/tensor.h"

namespace tarn::cpu {

/// Calls f(i, begin, end) for parts of tensors[i] that together cover every element of every tensor
/// once. The cuts depend on the number of threads, so elements must not depend on each other.
template <class F>
void for_parts(std::span<const Tensor> tensors, F f) {
  constexpr int64_t kGrain = 32768;
  int64_t total = 0;
  for (const Tensor& t : tensors) total += t.numel();
  parallel_for(total, kGrain, [&](int64_t begin, int64_t end) {
    int64_t at = 0;  // of tensor i in the concatenation of all
    for (size_t i = 0; i < tensors.size() && at < end; ++i) {
      const int64_t n = tensors[i].numel();
      const int64_t b = std::max(begin - at, int64_t{0}), e = std::min(end - at, n);
      if (b < e) f(i, b, e);
      at += n;
    }
  });
}

template <class T>
T* typed(const Tensor& x) {
  return static_cast<T*>(x.data());
}
/// The i-th tensor's data, or nullptr where the list is empty.
template <class T>
T* typed(std::span<const Tensor> list, size_t i) {
  return list.empty() ? nullptr : typed<T>(list[i]);
}

/// Calls f(P{}, G{}) with the types of parameters and gradients.
template <class F>
void visit_param_grad(DType param, DType grad, F f) {
  if (param == DType::kF64) return f(double{}, double{});
  if (grad == DType::kF16) return f(float{}, half{});
  if (grad == DType::kBF16) return f(float{}, bfloat16{});
  return f(float{}, float{});
}

}  // namespace tarn::cpu
