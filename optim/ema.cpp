// ema.cpp - one fused pass over all averaged tensors.
#include "tarn/optim/ema.h"

#include <algorithm>

#include "tarn/core/allocator.h"
#include "tarn/core/factory.h"
#include "tarn/core/kernel_call.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn::optim {
namespace {

constexpr const char* kUpdates = "ema_updates";

/// Can the kernel walk both in memory order?
bool is_direct(const Tensor& value, const Tensor& average) {
  const bool dense = (value.is_contiguous() && average.is_contiguous()) ||
                     (value.is_contiguous(MemoryFormat::kChannelsLast) &&
                      average.is_contiguous(MemoryFormat::kChannelsLast));
  return dense && value.dtype() == average.dtype() && is_floating(value.dtype());
}

}  // namespace

Ema::Ema(const std::vector<std::pair<std::string, Tensor>>& tensors, Options options)
    : options_(options) {
  TARN_CHECK_AS(ValueError, options.decay >= 0 && options.decay <= 1,
                "Ema: decay must be in [0, 1]; got ", options.decay);
  const MemoryTagGuard tag(MemoryTag::kOptimizer);
  for (const auto& [name, tensor] : tensors) {
    TARN_CHECK_AS(ValueError, tensor.defined(), "Ema: tensor '", name, "' is undefined");
    const Tensor value = raw::alias(tensor);
    const DType dtype = is_half(value.dtype()) ? DType::kF32 : value.dtype();
    const Tensor average = empty_like(value, dtype);
    raw::copy_(average, value);
    entries_.push_back({name, value, average});
  }
}

void Ema::update() {
  const OpScope scope("ema");
  const auto t = static_cast<double>(++updates_);
  const double decay =
      options_.warmup ? std::min(options_.decay, (1 + t) / (10 + t)) : options_.decay;
  averages_.clear();
  values_.clear();
  for (const Entry& e : entries_) {
    if (!is_floating(e.value.dtype())) {
      raw::copy_(e.average, e.value);
      continue;
    }
    averages_.push_back(e.average);
    if (is_direct(e.value, e.average)) {
      values_.push_back(e.value);
    } else {
      values_.push_back(empty_like(e.average));
      raw::copy_(values_.back(), e.value);
    }
    e.average.bump_version();
  }
  if (averages_.empty()) return;
  TARN_KERNEL(optim, lerp, averages_[0].device(), averages_, values_, 1 - decay);
  values_.clear();
}

void Ema::swap() {
  for (const Entry& e : entries_) {
    const Tensor kept = raw::clone(e.value);
    raw::copy_(e.value, e.average);
    raw::copy_(e.average, kept);
  }
}

TensorDict Ema::state_dict() const {
  TensorDict dict;
  for (const Entry& e : entries_) dict.add(e.name, e.average);
  dict.add(kUpdates, scalar_tensor(updates_, {.dtype = DType::kI64}));
  return dict;
}

void Ema::load_state_dict(const TensorDict& dict) {
  for (const Entry& e : entries_) {
    const Tensor* t = dict.find(e.name);
    TARN_CHECK_AS(ValueError, t && t->sizes() == e.average.sizes(), "Ema: the state must have '",
                  e.name, "'=", e.average.describe(), "; got ", t ? t->describe() : "none");
  }
  updates_ = dict.at(kUpdates).item<int64_t>();
  for (const Entry& e : entries_) raw::copy_(e.average, dict.at(e.name));
}

}  // namespace tarn::optim
