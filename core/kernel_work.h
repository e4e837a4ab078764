// kernel_work.h - what one call of a kernel moves and computes: for profilers and counters.
#pragma once

#include <span>
#include <vector>

#include "tarn/core/kernels/attention.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/plan.h"
#include "tarn/core/tensor.h"

namespace tarn {

/// Valid during the call of the listener.
struct KernelWork {
  const char* slot;  ///< "matmul.matmul"
  double bytes = 0;  ///< every operand once, as if caches were perfect
  double flops = 0;  ///< of products, convolutions and attention: 2 a multiply-add; else 0
  Device device = kCPU;
  std::vector<Shape> sizes;  ///< of the tensors among its arguments
};

/// Bytes of the operands; one that is broadcast counts its elements once.
double plan_bytes(const ElementwisePlan& plan);
/// Of a convolution with this weight [K, C / groups, R, S] and result (or its gradient) y.
double conv_flops(const Tensor& weight, const Tensor& y);

namespace detail {

/// The tensors among a kernel's arguments, in order.
class KernelOperands {
 public:
  void add(const Tensor& x) { tensors_.push_back(&x); }
  void add(std::span<const Tensor> list);
  void add(const std::vector<Tensor>& list) { add(std::span<const Tensor>(list)); }
  void add(const ElementwisePlan& plan) { plan_ = &plan; }
  void add(const AttentionCall& call);
  template <class T>
  void add(const T&) {}  // options and numbers

  KernelWork work(const char* slot, Device device) const;

 private:
  double flops(std::string_view slot) const;
  std::vector<const Tensor*> tensors_;
  const ElementwisePlan* plan_ = nullptr;
  const AttentionCall* attention_ = nullptr;
};

template <class... A>
[[gnu::cold, gnu::noinline]] void tell_kernel_call(const char* slot, Device device,
                                                   const A&... args) {
  KernelOperands operands;
  (operands.add(args), ...);
  tell_kernel(operands.work(slot, device));
}

}  // namespace detail
}  // namespace tarn
