// safetensors_header.h - the JSON header of a safetensors file: parsing and checking. Internal.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tarn/core/dtype.h"
#include "tarn/core/file.h"

namespace tarn::detail {

/// One entry as the file states it; nothing is checked but its JSON types.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;  // in the byte buffer
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // sorted by byte range
  std::map<std::string, std::string> metadata;
};

/// Parses `json` and checks every rule of the format against `buffer_bytes`, the bytes that follow
/// the header. Failures are reported through `file`, whose name they carry.
SafetensorsHeader parse_safetensors_header(const InputFile& file, const std::string& json,
                                           uint64_t buffer_bytes);

/// "F32" and the like, for the dtypes tarn has.
const char* safetensors_dtype(DType dtype);
/// False if tarn has no such dtype.
bool dtype_from_safetensors(const std::string& name, DType& dtype);
/// "text" as a JSON string. Throws ValueError if it is not UTF-8.
std::string json_quote(const std::string& text);

}  // namespace tarn::detail
