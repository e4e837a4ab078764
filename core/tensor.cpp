// tensor.cpp - the layout of a tensor, and reading its values.
#include "tarn/core/tensor.h"

#include "tarn/core/backend.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {

// Dense in the order given: walking `order` from the last dimension, strides multiply up. Sizes of
// 1 may have any stride.
template <size_t N>
bool dense_in_order(const Shape& sizes, const Shape& strides, const int (&order)[N]) {
  int64_t expected = 1;
  for (size_t i = N; i-- > 0;) {
    const int d = order[i];
    if (sizes[d] == 1) continue;
    if (strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

bool row_major(const Shape& sizes, const Shape& strides) {
  int64_t expected = 1;
  for (int d = sizes.dim() - 1; d >= 0; --d) {
    if (sizes[d] == 1) continue;
    if (strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

}  // namespace

void TensorImpl::update_layout() {
  numel = sizes.numel();
  contiguous = numel == 0 || row_major(sizes, strides);
  channels_last = sizes.dim() == 4 && (numel == 0 || dense_in_order(sizes, strides, {0, 2, 3, 1}));
}

void detail::check_has_memory(const TensorImpl& tensor) {
  const Storage::WhyAway* why = tensor.storage->why_away();
  if (!why || tensor.numel == 0) return;
  fail<ValueError>((*why)(tensor.offset), "; got ", tensor.sizes, " ", tensor.dtype, " ",
                   tensor.storage->device());
}

void detail::fail_undefined(const char* member) {
  fail<ValueError>(member,
                   "(): the tensor is undefined: a gradient that is not there, the bias of a layer "
                   "without one, or a tensor that was moved from; ask defined() first");
}

Tensor::Tensor(Ref<Storage> storage, const Shape& sizes, const Shape& strides, int64_t offset,
               DType dtype)
    : impl_(TensorImpl::make()) {
  impl_->storage = std::move(storage);
  impl_->sizes = sizes;
  impl_->strides = strides;
  impl_->offset = offset;
  impl_->dtype = dtype;
  impl_->update_layout();
}

std::string Tensor::describe() const {
  return defined() ? detail::concat(sizes(), " ", dtype(), " ", device()) : "undefined";
}

Scalar Tensor::item_scalar() const {
  TARN_CHECK_AS(ShapeError, defined() && numel() == 1,
                "item: needs a tensor with one element; got ", describe());
  const Tensor host = raw::to(*this, kCPU);
  return visit_dtype(dtype(), [&](auto tag) -> Scalar {
    using T = typename decltype(tag)::type;
    return Scalar(static_cast<compute_t<T>>(*static_cast<const T*>(host.data())));
  });
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  std::vector<T> values(static_cast<size_t>(at("to_vector").numel));
  const Tensor host = raw::contiguous(raw::to(raw::to(*this, kCPU), dtype_of<T>));
  const T* from = static_cast<const T*>(host.data());
  std::copy(from, from + numel(), values.begin());
  return values;
}
template std::vector<float> Tensor::to_vector() const;
template std::vector<double> Tensor::to_vector() const;
template std::vector<half> Tensor::to_vector() const;
template std::vector<bfloat16> Tensor::to_vector() const;
template std::vector<int64_t> Tensor::to_vector() const;
template std::vector<int32_t> Tensor::to_vector() const;
template std::vector<uint8_t> Tensor::to_vector() const;
template std::vector<bool> Tensor::to_vector() const;

}  // namespace tarn
