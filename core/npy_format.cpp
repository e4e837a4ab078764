// npy_format.cpp - parsing and writing of .npy.
#include "tarn/core/npy_format.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <limits>
#include <vector>

#include "tarn/core/factory.h"

namespace tarn::detail {
namespace {

struct NpyHeader {
  char byte_order = '|';
  char kind = 'f';
  int item = 4;
  bool fortran_order = false;
  std::vector<uint64_t> shape;
};

/// Reads the Python dict literal of the header: three fixed keys in any order.
class DictParser {
 public:
  DictParser(std::string_view text, const NpySource& source) : text_(text), source_(source) {}

  NpyHeader parse() {
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr") {
        descr();
      } else if (key == "fortran_order") {
        header_.fortran_order = boolean();
      } else if (key == "shape") {
        shape();
      } else {
        fail("unknown key '" + key + "'");
      }
      if (seen_.find(key + ";") != std::string::npos) fail("key '" + key + "' appears twice");
      seen_ += key + ";";
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) fail("text after the closing brace");
    for (const char* key : {"descr;", "fortran_order;", "shape;"}) {
      if (seen_.find(key) == std::string::npos)
        fail("no key '" + std::string(key, std::strlen(key) - 1) + "'");
    }
    return header_;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    source_.fail("bad .npy header: " + why + " (at character " + std::to_string(at_) + ")");
    __builtin_unreachable();
  }
  void skip_space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool accept(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(std::string("'") + c + "' expected");
  }
  std::string quoted() {
    skip_space();
    const char quote = at_ < text_.size() ? text_[at_] : ' ';
    if (quote != '\'' && quote != '"') fail("a quoted name expected");
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail("the quote is not closed");
    const std::string word(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return word;
  }
  bool boolean() {
    skip_space();
    for (const bool value : {false, true}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        return value;
      }
    }
    fail("True or False expected");
  }
  void descr() {
    skip_space();
    if (at_ < text_.size() && text_[at_] == '[') {
      fail("structured arrays are not supported");
    }
    const std::string d = quoted();
    const bool sized =
        d.size() >= 3 && d.size() <= 4 &&
        std::all_of(d.begin() + 2, d.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!sized || !std::strchr("<>|=", d[0])) fail("dtype '" + d + "' is not supported");
    header_.byte_order = d[0];
    header_.kind = d[1];
    header_.item = std::stoi(d.substr(2));
    const int n = header_.item;
    const bool known = (d[1] == 'f' && (n == 2 || n == 4 || n == 8)) || (d[1] == 'b' && n == 1) ||
                       ((d[1] == 'i' || d[1] == 'u') && (n == 1 || n == 2 || n == 4 || n == 8));
    if (!known) fail("dtype '" + d + "' is not supported");
  }
  void shape() {
    expect('(');
    while (!accept(')')) {
      skip_space();
      uint64_t size = 0;
      const size_t start = at_;
      for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
        if (__builtin_mul_overflow(size, uint64_t{10}, &size) ||
            __builtin_add_overflow(size, static_cast<uint64_t>(text_[at_] - '0'), &size)) {
          fail("a size overflows 64 bits");
        }
      }
      if (at_ == start) fail("a size expected");
      header_.shape.push_back(size);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
  }

  std::string_view text_;
  const NpySource& source_;
  size_t at_ = 0;
  NpyHeader header_;
  std::string seen_;
};

DType tensor_dtype(const NpyHeader& h) {
  if (h.kind == 'b') return DType::kBool;
  if (h.kind == 'f') return h.item == 2 ? DType::kF16 : h.item == 4 ? DType::kF32 : DType::kF64;
  if (h.kind == 'u' && h.item == 1) return DType::kU8;
  if (h.item == 8 || (h.kind == 'u' && h.item == 4)) return DType::kI64;
  return DType::kI32;
}

void swap_bytes(std::vector<char>& bytes, int item) {
  for (size_t i = 0; i + item <= bytes.size(); i += item) {
    std::reverse(bytes.begin() + i, bytes.begin() + i + item);
  }
}

/// Copies `count` values of type From into the tensor's type.
template <class From, class To>
void widen(const std::vector<char>& bytes, To* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, bytes.data() + i * sizeof(From), sizeof(From));
    to[i] = static_cast<To>(value);
  }
}

/// Fills `out`, dense in the file's order, from the file's bytes.
void convert(const NpySource& source, const NpyHeader& h, const std::vector<char>& bytes,
             Tensor& out) {
  const int64_t n = out.numel();
  if (h.kind == 'b') {
    for (int64_t i = 0; i < n; ++i) out.data<bool>()[i] = bytes[i] != 0;
  } else if (h.kind == 'i' && h.item == 1) {
    widen<int8_t>(bytes, out.data<int32_t>(), n);
  } else if (h.kind == 'i' && h.item == 2) {
    widen<int16_t>(bytes, out.data<int32_t>(), n);
  } else if (h.kind == 'u' && h.item == 2) {
    widen<uint16_t>(bytes, out.data<int32_t>(), n);
  } else if (h.kind == 'u' && h.item == 4) {
    widen<uint32_t>(bytes, out.data<int64_t>(), n);
  } else {
    if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    if (h.kind == 'u' && h.item == 8) {
      for (int64_t i = 0; i < n; ++i) {
        if (out.data<int64_t>()[i] < 0) source.fail("a u64 value does not fit into i64");
      }
    }
  }
}

/// Dense column-major data as a row-major tensor.
Tensor from_fortran(const Tensor& dense, const Shape& sizes) {
  Tensor out = empty(sizes, {.dtype = dense.dtype()});
  const int64_t item = item_size(dense.dtype());
  Shape strides = sizes;  // of the column-major source
  int64_t step = 1;
  for (int d = 0; d < sizes.dim(); ++d) {
    strides[d] = step;
    step *= sizes[d];
  }
  const char* from = static_cast<const char*>(dense.data());
  char* to = static_cast<char*>(out.data());
  for (int64_t i = 0; i < out.numel(); ++i) {
    int64_t rest = i, offset = 0;
    for (int d = sizes.dim() - 1; d >= 0; --d) {
      offset += rest % sizes[d] * strides[d];
      rest /= sizes[d];
    }
    std::memcpy(to + i * item, from + offset * item, static_cast<size_t>(item));
  }
  return out;
}

std::string read_header_text(const NpySource& source, uint64_t& prefix) {
  unsigned char start[8];
  source.read(start, 8, "the .npy magic");
  if (std::memcmp(start, "\x93NUMPY", 6) != 0) source.fail("not a .npy file: wrong magic");
  const int major = start[6];
  if (major < 1 || major > 3) {
    source.fail("unknown .npy version " + std::to_string(major) + "." + std::to_string(start[7]));
  }
  unsigned char raw[4] = {};
  source.read(raw, major == 1 ? 2 : 4, "the .npy header length");
  const uint32_t length = raw[0] | raw[1] << 8 | raw[2] << 16 | static_cast<uint32_t>(raw[3]) << 24;
  constexpr uint32_t kMaxHeader = 65536;
  if (length > kMaxHeader) source.fail("a .npy header of " + std::to_string(length) + " bytes");
  std::string text(length, '\0');
  source.read(text.data(), length, "the .npy header");
  prefix = 8 + (major == 1 ? 2 : 4) + length;
  return text;
}

}  // namespace

Tensor read_npy(const NpySource& source) {
  uint64_t prefix = 0;
  const std::string text = read_header_text(source, prefix);
  const NpyHeader header = DictParser(text, source).parse();
  if (header.shape.size() > kMaxDims) {
    source.fail("an array of " + std::to_string(header.shape.size()) + " dimensions; at most " +
                std::to_string(kMaxDims) + " are supported");
  }
  Shape sizes;
  uint64_t volume = 8, bytes = static_cast<uint64_t>(header.item);
  for (uint64_t size : header.shape) {
    if (__builtin_mul_overflow(volume, std::max<uint64_t>(size, 1), &volume) || volume >> 62) {
      source.fail("the shape of the array overflows 64 bits");
    }
    bytes *= size;
    sizes.push_back(static_cast<int64_t>(size));
  }
  // Before memory is taken for what the header merely claims.
  if (bytes > source.size - std::min(source.size, prefix)) {
    source.fail("truncated: the array needs " + std::to_string(bytes) +
                " bytes after a header of " + std::to_string(prefix) + "; there are " +
                std::to_string(source.size) + " in all");
  }
  std::vector<char> raw(bytes);
  source.read(raw.data(), bytes, "the array");
  if (header.byte_order == '>' && header.item > 1) swap_bytes(raw, header.item);
  Tensor dense = empty(sizes, {.dtype = tensor_dtype(header)});
  convert(source, header, raw, dense);
  return header.fortran_order && sizes.dim() > 1 ? from_fortran(dense, sizes) : dense;
}

std::string npy_header(const Tensor& tensor) {
  const char* descr = nullptr;
  switch (tensor.dtype()) {
    case DType::kF32:
      descr = "<f4";
      break;
    case DType::kF64:
      descr = "<f8";
      break;
    case DType::kF16:
      descr = "<f2";
      break;
    case DType::kI64:
      descr = "<i8";
      break;
    case DType::kI32:
      descr = "<i4";
      break;
    case DType::kU8:
      descr = "|u1";
      break;
    case DType::kBool:
      descr = "|b1";
      break;
    case DType::kBF16:
      fail<DTypeError>("save_npy: numpy has no bf16; convert to f32 or save as safetensors");
  }
  std::string shape;
  for (int d = 0; d < tensor.dim(); ++d) {
    shape += std::to_string(tensor.size(d)) + (d + 1 < tensor.dim() ? ", " : "");
  }
  if (tensor.dim() == 1) shape += ",";
  std::string text =
      std::string("{'descr': '") + descr + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  // numpy leaves room for the first axis to grow to 21 digits.
  if (tensor.dim() > 0) text.append(21 - std::to_string(tensor.size(0)).size(), ' ');
  constexpr size_t kPrefix = 10, kAlign = 64;
  text.append(kAlign - (kPrefix + text.size() + 1) % kAlign, ' ');
  text += '\n';
  std::string out("\x93NUMPY\x01\x00", 8);
  out += static_cast<char>(text.size() & 0xFF);
  out += static_cast<char>(text.size() >> 8);
  return out + text;
}

}  // namespace tarn::detail
