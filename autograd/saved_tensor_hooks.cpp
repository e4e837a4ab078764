// saved_tensor_hooks.cpp - what is kept instead of a tensor, and how it comes back.
#include "tarn/autograd/saved_tensor_hooks.h"

#include <utility>

#include "tarn/autograd/grad_mode.h"
#include "tarn/core/factory.h"
#include "tarn/core/transfer.h"

namespace tarn {
namespace {

class PackedTensor final : public SavedSource {
 public:
  PackedTensor(std::any packed, std::shared_ptr<const SavedTensorHooks::Unpack> unpack,
               const Tensor& like)
      : packed_(std::move(packed)),
        unpack_(std::move(unpack)),
        sizes_(like.sizes()),
        dtype_(like.dtype()),
        device_(like.device()) {}

  Tensor get(const char* op) override {
    const NoGradGuard no_grad;
    const SavedTensorHandlerGuard none(nullptr);
    const Tensor x = (*unpack_)(packed_);
    TARN_CHECK_AS(
        AutogradError,
        x.defined() && x.sizes() == sizes_ && x.dtype() == dtype_ && x.device() == device_, op,
        ": a saved-tensor hook must give back a tensor as it was: ", sizes_, " ", dtype_, " ",
        device_, "; got ", x.describe());
    return x.detach();
  }

 private:
  std::any packed_;
  std::shared_ptr<const SavedTensorHooks::Unpack> unpack_;
  Shape sizes_;
  DType dtype_;
  Device device_;
};

/// The elements from x's first to its last one as a row, whatever lies between them: copied so, x
/// keeps its strides, and backward takes the same path through the kernels.
Tensor extent_of(const Tensor& x) {
  int64_t last = 0;
  for (int d = 0; d < x.dim(); ++d) last += (x.sizes()[d] - 1) * x.strides()[d];
  return Tensor(x.storage(), {x.numel() == 0 ? 0 : last + 1}, {1}, x.storage_offset(), x.dtype());
}

class HostCopy final : public SavedSource {
 public:
  HostCopy(const Tensor& x, bool pinned)
      : sizes_(x.sizes()), strides_(x.strides()), device_(x.device()) {
    const Tensor extent = extent_of(x);
    host_ = pinned ? empty_pinned(extent.sizes(), extent.dtype())
                   : empty(extent.sizes(), {.dtype = extent.dtype()});
    if (extent.numel() > 0) detail::copy_between(host_, extent, !pinned);
  }

  // On the stream that computes, so after the copy to the host, also where that is still queued.
  Tensor get(const char*) override {
    const Tensor back = to_async(host_, device_);
    return Tensor(back.storage(), sizes_, strides_, 0, back.dtype());
  }

 private:
  Tensor host_;
  Shape sizes_, strides_;
  Device device_;
};

}  // namespace

SavedTensorHooks::SavedTensorHooks(Pack pack, Unpack unpack)
    : pack_(std::move(pack)), unpack_(std::make_shared<const Unpack>(std::move(unpack))) {
  TARN_CHECK_AS(ValueError, pack_ && *unpack_, "SavedTensorHooks: two functions are needed");
}

Ref<SavedSource> SavedTensorHooks::pack(const Tensor& x) {
  const NoGradGuard no_grad;
  const SavedTensorHandlerGuard none(nullptr);
  const std::lock_guard lock(mutex_);
  return Ref<SavedSource>(new PackedTensor(pack_(x.detach()), unpack_, x));
}

Ref<SavedSource> SaveOnCpu::pack(const Tensor& x) {
  if (x.device().is_cpu() || x.numel() * item_size(x.dtype()) < options_.min_bytes) return {};
  return Ref<SavedSource>(new HostCopy(x, options_.pin_memory));
}

}  // namespace tarn
