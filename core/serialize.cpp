// serialize.cpp - safetensors reading and writing.
#include "tarn/core/serialize.h"

#include <algorithm>
#include <bit>

#include "tarn/core/factory.h"
#include "tarn/core/host.h"
#include "tarn/core/safetensors_header.h"

namespace tarn {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");
constexpr uint64_t kMaxHeader = 100'000'000;

/// Where a dtype stands in the file: higher alignment first.
int dtype_rank(DType dtype) {
  constexpr int kRanks[kNumDTypes] = {5, 6, 2, 3, 7, 4, 1, 0};  // f32 f64 f16 bf16 i64 i32 u8 bool
  return kRanks[static_cast<int>(dtype)];
}

Tensor read_tensor(InputFile& file, const detail::SafetensorsEntry& entry) {
  DType dtype;
  if (!detail::dtype_from_safetensors(entry.dtype, dtype)) {
    file.fail("tensor '", entry.name, "' has dtype ", entry.dtype, ", which tarn does not have");
  }
  if (entry.shape.size() > kMaxDims) {
    file.fail("tensor '", entry.name, "' has ", entry.shape.size(), " dimensions; at most ",
              kMaxDims, " are supported");
  }
  Shape sizes;
  uint64_t volume = static_cast<uint64_t>(item_size(dtype));
  for (uint64_t size : entry.shape) {
    // A size of 0 must not hide others that strides cannot count.
    if (__builtin_mul_overflow(volume, std::max<uint64_t>(size, 1), &volume) || volume >> 62) {
      file.fail("the shape of tensor '", entry.name, "' overflows 64 bits");
    }
    sizes.push_back(static_cast<int64_t>(size));
  }
  Tensor tensor = empty(sizes, {.dtype = dtype});
  file.read(tensor.data(), entry.end - entry.begin, "tensor '" + entry.name + "'");
  if (dtype == DType::kBool) {  // any other byte in a bool is undefined behaviour
    uint8_t* bytes = static_cast<uint8_t*>(tensor.data());
    for (int64_t i = 0; i < tensor.numel(); ++i) bytes[i] = bytes[i] != 0;
  }
  return tensor;
}

/// The header, padded with spaces to whole words of 8 bytes.
std::string make_header(const std::vector<const TensorDict::Item*>& items,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      text += detail::json_quote(key) + ":" + detail::json_quote(value) + ",";
    }
    text.back() = '}';
    text += ",";
  }
  int64_t offset = 0;
  for (const TensorDict::Item* item : items) {
    const auto& [name, tensor] = *item;
    text += detail::json_quote(name) + ":{\"dtype\":\"" +
            detail::safetensors_dtype(tensor.dtype()) + "\",\"shape\":[";
    for (int d = 0; d < tensor.dim(); ++d) {
      text += (d ? "," : "") + std::to_string(tensor.size(d));
    }
    text += "],\"data_offsets\":[" + std::to_string(offset) + ",";
    offset += tensor.numel() * item_size(tensor.dtype());
    text += std::to_string(offset) + "]},";
  }
  if (text.size() > 1) text.pop_back();
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

Safetensors load_safetensors(const std::string& path) {
  InputFile file("load_safetensors", path);
  if (file.size() < 8) {
    file.fail("not a safetensors file: it has ", file.size(), " bytes; the header length takes 8");
  }
  uint64_t length = 0;
  file.read(&length, 8, "the header length");
  if (length > kMaxHeader) {
    file.fail("not a safetensors file: a header of ", length, " bytes; at most ", kMaxHeader,
              " are allowed");
  }
  if (length > file.size() - 8) {
    file.fail("truncated: the header takes ", length, " bytes at offset 8; the file has ",
              file.size());
  }
  std::string text(length, '\0');
  file.read(text.data(), length, "the header");
  auto header = detail::parse_safetensors_header(file, text, file.size() - 8 - length);
  Safetensors result;
  result.metadata = std::move(header.metadata);
  for (const auto& entry : header.entries) result.tensors.add(entry.name, read_tensor(file, entry));
  return result;
}

void save_safetensors(const std::string& path, const TensorDict& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<const TensorDict::Item*> items;
  for (const TensorDict::Item& item : tensors) {
    TARN_CHECK_AS(ValueError, item.second.defined(), "save_safetensors: tensor '", item.first,
                  "' is undefined");
    TARN_CHECK_AS(ValueError, item.first != "__metadata__",
                  "save_safetensors: '__metadata__' cannot be the name of a tensor");
    items.push_back(&item);
  }
  std::sort(items.begin(), items.end(), [](const auto* a, const auto* b) {
    const int rank_a = dtype_rank(a->second.dtype()), rank_b = dtype_rank(b->second.dtype());
    return rank_a != rank_b ? rank_a > rank_b : a->first < b->first;
  });
  const std::string header = make_header(items, metadata);
  TARN_CHECK_AS(ValueError, header.size() <= kMaxHeader, "save_safetensors: the header would take ",
                header.size(), " bytes; at most ", kMaxHeader, " are allowed");
  OutputFile file("save_safetensors", path);
  const uint64_t length = header.size();
  file.write(&length, 8);
  file.write(header);
  for (const TensorDict::Item* item : items) {
    const Tensor packed = host_row_major(item->second);
    file.write(packed.data(), static_cast<uint64_t>(packed.numel() * item_size(packed.dtype())));
  }
  file.commit();
}

}  // namespace tarn
