// pack.h - tensors of any strides as one run of bytes, and back.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "tarn/core/tensor.h"

namespace tarn::dist {

/// Tensors one after another, each row-major. A single dense tensor is not copied: data() is its
/// own memory. Runs in the calling thread, without the threads that compute.
class Packed {
 public:
  Packed() = default;
  /// fill: copies the values in; without, the bytes are for receiving.
  Packed(std::vector<Tensor> tensors, bool fill);
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  /// Elements, where all tensors have one dtype.
  int64_t numel() const { return numel_; }
  /// Brings what was received to the tensors.
  void unpack() const;

 private:
  size_t span(const Tensor& x) const;

  std::vector<Tensor> tensors_;
  std::unique_ptr<std::byte[]> buffer_;  // none where the tensor's own memory serves
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  int64_t numel_ = 0;
  bool mixed_ = false;  // several dtypes: each tensor starts at a multiple of 8 bytes
};

}  // namespace tarn::dist
