// ema.cpp - one fused pass over all averaged tensors.
#include "tarn/optim/ema.h"

#include <algorithm>

#include "tarn/core/allocator.h"
#include "tarn/core/factory.h"
#include "tarn/core/kernel_call.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/optim/gradients.h"

namespace tarn::optim {
namespace {

constexpr const char* kUpdates = "ema_updates";

/// Halves would lose most updates.
DType average_dtype(const Tensor& value) {
  return is_half(value.dtype()) ? DType::kF32 : value.dtype();
}

/// Can the kernel walk both in memory order?
bool is_direct(const Tensor& value, const Tensor& average) {
  const bool dense = (value.is_contiguous() && average.is_contiguous()) ||
                     (value.is_contiguous(MemoryFormat::kChannelsLast) &&
                      average.is_contiguous(MemoryFormat::kChannelsLast));
  return dense && value.dtype() == average.dtype() && is_floating(value.dtype());
}

}  // namespace

Ema::Ema(const TensorDict& tensors, Options options) : options_(options) {
  TARN_CHECK_AS(ValueError, options.decay >= 0 && options.decay <= 1,
                "Ema: decay must be in [0, 1]; got ", options.decay);
  const MemoryTagGuard tag(MemoryTag::kOptimizer);
  for (const auto& [name, value] : tensors) {
    TARN_CHECK_AS(ValueError, value.defined(), "Ema: tensor '", name, "' is undefined");
    // Of a tensor that has several names (tied weights) there is one average.
    const auto same = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) {
      return e.value.storage() == value.storage() && e.value.dtype() == value.dtype() &&
             e.value.storage_offset() == value.storage_offset() &&
             e.value.sizes() == value.sizes() && e.value.strides() == value.strides();
    });
    if (same != entries_.end()) {
      same->names.push_back(name);
      continue;
    }
    const Tensor average = empty_like(value, average_dtype(value));
    raw::copy_(average, value);
    entries_.push_back({{name}, value, average, {}});
  }
}

/// Takes the average to where its tensor is now.
void Ema::follow(Entry& entry) {
  const MemoryTagGuard tag(MemoryTag::kOptimizer);
  const DType dtype = average_dtype(entry.value);
  for (Tensor* x : {&entry.average, &entry.exact}) {
    if (!x->defined() || (x->dtype() == dtype && x->device() == entry.value.device())) continue;
    const Tensor moved = empty_like(entry.value, dtype);
    raw::copy_(moved, *x);
    *x = moved;
  }
}

void Ema::update() {
  const OpScope scope("ema");
  const auto t = static_cast<double>(updates_ + 1);
  const double decay =
      options_.warmup ? std::min(options_.decay, (1 + t) / (10 + t)) : options_.decay;
  std::vector<Tensor> averages, values;  // of one dtype and layout per pair: what the kernel takes
  for (Entry& e : entries_) {
    follow(e);
    if (!is_floating(e.value.dtype())) continue;
    averages.push_back(e.average);
    values.push_back(is_direct(e.value, e.average) ? e.value : empty_like(e.average));
    if (!values.back().is_same(e.value)) raw::copy_(values.back(), e.value);
  }
  detail::by_device(averages,
                    [&](const std::vector<Tensor>& here, const std::vector<size_t>& places) {
                      std::vector<Tensor> theirs;
                      for (size_t i : places) theirs.push_back(values[i]);
                      TARN_KERNEL(optim, lerp, here[0].device(), here, theirs, 1 - decay);
                    });
  for (const Tensor& a : averages) a.bump_version();
  for (const Entry& e : entries_) {
    if (!is_floating(e.value.dtype())) raw::copy_(e.average, e.value);
  }
  ++updates_;
}

void Ema::swap() {
  const MemoryTagGuard tag(MemoryTag::kOptimizer);
  for (Entry& e : entries_) {
    follow(e);
    const Tensor value = raw::clone(e.value), exact = e.exact;
    e.exact = is_half(value.dtype()) && !exact.defined() ? raw::clone(e.average) : Tensor();
    raw::copy_(e.value, e.average);
    raw::copy_(e.average, value);
    if (!exact.defined()) continue;
    // Where the model still holds the average's rounding, nobody wrote to it meanwhile.
    const Tensor same = raw::eq(raw::to(exact, value.dtype()), value);
    raw::copy_(e.average, raw::where(same, exact, e.average));
  }
}

TensorDict Ema::averages() const {
  TensorDict dict;
  for (const Entry& e : entries_) {
    for (const std::string& name : e.names) dict.add(name, e.average);
  }
  return dict;
}

TensorDict Ema::state_dict() const {
  TensorDict dict = averages();
  dict.add(kUpdates, scalar_tensor(updates_, {.dtype = DType::kI64}));
  return dict;
}

void Ema::load_state_dict(const TensorDict& dict) {
  for (const Entry& e : entries_) {
    for (const std::string& name : e.names) {
      const Tensor* t = dict.find(name);
      TARN_CHECK_AS(ValueError, t && t->defined() && t->sizes() == e.average.sizes(),
                    "Ema: the state must have '", name, "'=", e.average.describe(), "; got ",
                    t ? t->describe() : "none");
    }
  }
  const Tensor* updates = dict.find(kUpdates);
  TARN_CHECK_AS(ValueError, updates && updates->defined() && updates->numel() == 1,
                "Ema: the state must have '", kUpdates, "', one number; got ",
                updates ? updates->describe() : "none");
  updates_ = updates->item<int64_t>();
  for (const Entry& e : entries_) raw::copy_(e.average, dict.at(e.names[0]));
}

}  // namespace tarn::optim
