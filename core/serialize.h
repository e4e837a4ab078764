// serialize.h - safetensors files: named tensors with string metadata.
//
// Format: u64 length, a JSON header naming dtype, shape and byte range of every tensor, then the
// bytes. Files written here are canonical: the same tensors give the same bytes, and the same bytes
// as the reference implementation.
// Source: github.com/huggingface/safetensors, format and validation rules.
#pragma once

#include <map>
#include <string>

#include "tarn/core/tensor_dict.h"

namespace tarn {

struct Safetensors {
  TensorDict tensors;  ///< on the CPU, in file order
  std::map<std::string, std::string> metadata;
};

/// Reads a whole file, each byte once. Throws FileError naming path, tensor and offset if anything
/// about the file is not as it must be: holes, overlaps, trailing bytes, duplicates, overflow.
Safetensors load_safetensors(const std::string& path);

/// Writes tensors of any strides and device. The old file stays until the new one is on disk.
/// Throws FileError if it cannot be written, ValueError on an undefined tensor or a bad name.
void save_safetensors(const std::string& path, const TensorDict& tensors,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace tarn
