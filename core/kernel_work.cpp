// kernel_work.cpp - bytes and operations from a kernel's arguments.
#include "tarn/core/kernel_work.h"

#include <string_view>

namespace tarn {

double plan_bytes(const ElementwisePlan& plan) {
  double total = 0;
  for (int i = 0; i < plan.operands; ++i) {
    bool repeated = false;  // an absent operand repeats another one's memory
    for (int j = 1; j < i; ++j) repeated |= plan.data[j] == plan.data[i];
    if (repeated) continue;
    double n = 1;
    for (int d = 0; d < plan.ndim; ++d) {
      if (plan.strides[i][d] != 0) n *= static_cast<double>(plan.sizes[d]);
    }
    total += n * static_cast<double>(item_size(plan.dtype[i]));
  }
  return total;
}

double conv_flops(const Tensor& weight, const Tensor& y) {
  return 2 * static_cast<double>(y.numel()) * static_cast<double>(weight.numel()) /
         static_cast<double>(weight.size(0));
}

namespace detail {

void KernelOperands::add(std::span<const Tensor> list) {
  for (const Tensor& x : list) add(x);
}

void KernelOperands::add(const AttentionCall& call) {
  attention_ = &call;
  for (const Tensor* x : {&call.q, &call.k, &call.v, &call.mask}) add(*x);
}

// The arguments stand in the order of the slots (core/kernels/*.h).
double KernelOperands::flops(std::string_view slot) const {
  const auto count = [](const Tensor& x) { return static_cast<double>(x.numel()); };
  if (attention_) {
    const AttentionCall& c = *attention_;
    const double pairs = count(c.q) / static_cast<double>(c.q.size(3)) *
                         static_cast<double>(c.k.size(2));  // B H T S
    const auto d = static_cast<double>(c.q.size(3)), e = static_cast<double>(c.v.size(3));
    // Backward: the scores again, and one product each for the gradients of q, k, v and of the
    // probabilities.
    return slot.ends_with("backward") ? 2 * pairs * (3 * d + 2 * e) : 2 * pairs * (d + e);
  }
  if (slot == "matmul.matmul" || slot == "matmul.matmul_wide") {
    return 2 * count(*tensors_.back()) * static_cast<double>(tensors_[0]->size(-1));
  }
  if (slot == "conv.forward") return conv_flops(*tensors_[1], *tensors_[3]);
  if (slot == "conv.backward_data") return conv_flops(*tensors_[1], *tensors_[0]);
  if (slot == "conv.backward_weight") return conv_flops(*tensors_[2], *tensors_[1]);
  return 0;
}

KernelWork KernelOperands::work(const char* slot, Device device) const {
  KernelWork w{.slot = slot, .device = device, .sizes = {}};
  for (const Tensor* x : tensors_) {
    if (!x->defined()) continue;
    w.bytes += static_cast<double>(x->numel() * item_size(x->dtype()));
    w.sizes.push_back(x->sizes());
  }
  if (plan_) {
    w.bytes += plan_bytes(*plan_);
    Shape sizes;
    for (int d = plan_->ndim - 1; d >= 0; --d) sizes.push_back(plan_->sizes[d]);
    w.sizes.push_back(sizes);
  }
  w.flops = flops(slot);
  return w;
}

}  // namespace detail
}  // namespace tarn
