// npy_format.h - the .npy header and its data, in memory. Internal to npz.cpp and npy_format.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tarn/core/tensor.h"

namespace tarn::detail {

/// Where the bytes of one .npy come from, whether a plain file or a member of an archive.
struct NpySource {
  uint64_t size = 0;                                       ///< bytes in all
  std::function<void(void*, uint64_t, const char*)> read;  ///< next bytes, and what they are
  std::function<void(const std::string& message)> fail;    ///< throws, naming the file
};

Tensor read_npy(const NpySource& source);
/// Magic, version, length and dict, padded as numpy pads it.
std::string npy_header(const Tensor& tensor);

}  // namespace tarn::detail
