// pack.cpp - strided tensors to row-major bytes and back.
#include "tarn/dist/pack.h"

#include <cstring>

namespace tarn::dist {
namespace {

// Calls row(address of the first element, number in the row) for every innermost row, in row-major
// order.
template <class Word, class F>
void for_each_row(const Tensor& x, F row) {
  if (x.numel() == 0) return;
  const int ndim = x.dim();
  Word* base = static_cast<Word*>(x.data());
  const int64_t inner = ndim == 0 ? 1 : x.size(-1);
  Shape index = Shape::filled(ndim, 0);
  for (int64_t done = 0; done < x.numel(); done += inner) {
    int64_t offset = 0;
    for (int d = 0; d + 1 < ndim; ++d) offset += index[d] * x.stride(d);
    row(base + offset, inner);
    for (int d = ndim - 2; d >= 0 && ++index[d] == x.size(d); --d) index[d] = 0;
  }
}

template <class Word>
void copy(const Tensor& x, std::byte* bytes, bool to_bytes) {
  const int64_t step = x.dim() == 0 ? 1 : x.stride(-1);
  Word* flat = reinterpret_cast<Word*>(bytes);
  for_each_row<Word>(x, [&](Word* row, int64_t n) {
    if (to_bytes) {
      for (int64_t i = 0; i < n; ++i) flat[i] = row[i * step];
    } else {
      for (int64_t i = 0; i < n; ++i) row[i * step] = flat[i];
    }
    flat += n;
  });
}

size_t size_in_bytes(const Tensor& x) {
  return static_cast<size_t>(x.numel() * item_size(x.dtype()));
}

// Between a tensor and its row-major bytes.
void copy_any(const Tensor& x, std::byte* bytes, bool to_bytes) {
  const size_t size = size_in_bytes(x);
  if (size == 0) return;
  if (x.is_contiguous()) {
    if (to_bytes) {
      std::memcpy(bytes, x.data(), size);
    } else {
      std::memcpy(x.data(), bytes, size);
    }
    return;
  }
  switch (item_size(x.dtype())) {
    case 8:
      return copy<uint64_t>(x, bytes, to_bytes);
    case 4:
      return copy<uint32_t>(x, bytes, to_bytes);
    case 2:
      return copy<uint16_t>(x, bytes, to_bytes);
    default:
      return copy<uint8_t>(x, bytes, to_bytes);
  }
}

constexpr size_t kAlign = 8;

}  // namespace

// Bytes from the start of a tensor to that of the next.
size_t Packed::span(const Tensor& x) const {
  const size_t size = size_in_bytes(x);
  return mixed_ ? (size + kAlign - 1) / kAlign * kAlign : size;
}

Packed::Packed(std::vector<Tensor> tensors, bool fill) : tensors_(std::move(tensors)) {
  for (const Tensor& t : tensors_) mixed_ = mixed_ || t.dtype() != tensors_[0].dtype();
  for (const Tensor& t : tensors_) {
    numel_ += t.numel();
    bytes_ += span(t);
  }
  if (tensors_.size() == 1 && tensors_[0].is_contiguous()) {
    data_ = static_cast<std::byte*>(tensors_[0].data());
    return;
  }
  buffer_.reset(new std::byte[bytes_ + kAlign]);  // not zeroed: a large bucket would be
  data_ = buffer_.get();
  if (mixed_) std::memset(data_, 0, bytes_);  // the gaps travel too
  std::byte* at = data_;
  for (const Tensor& t : tensors_) {
    if (fill) copy_any(t, at, true);
    at += span(t);
  }
}

void Packed::unpack() const {
  if (!buffer_) return;
  std::byte* at = data_;
  for (const Tensor& t : tensors_) {
    copy_any(t, at, false);
    at += span(t);
  }
}

}  // namespace tarn::dist
