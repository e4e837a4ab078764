// safetensors_header.cpp - a SAX reader for the header, since a DOM would silently drop duplicates
// and turn large integers into floats, and the checks in the order of the reference.
#include "tarn/core/safetensors_header.h"

#include <algorithm>
#include <set>
#include <tuple>

#include <nlohmann/json.hpp>

namespace tarn::detail {
namespace {

using nlohmann::json;

struct DTypeRow {
  const char* name;
  int bits;
};
// Every dtype of the format, so that files with foreign ones are still checked as a whole.
constexpr DTypeRow kDTypes[] = {
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64}};

/// Accepts exactly {name: {dtype, shape, data_offsets}, ..., "__metadata__": {text: text}}.
class Reader : public json::json_sax_t {
 public:
  explicit Reader(const InputFile& file) : file_(file) {}
  SafetensorsHeader header;

  bool start_object(size_t) override {
    if (depth_ == 0) {
      depth_ = 1;
    } else if (depth_ == 1 && !array_) {
      depth_ = 2;
      fields_.clear();
    } else {
      wrong("an object");
    }
    return true;
  }
  bool end_object() override {
    if (depth_ == 2 && !in_metadata_) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!fields_.count(field)) file_.fail("header: tensor '", name_, "' has no ", field);
      }
    }
    --depth_;
    return true;
  }
  bool key(string_t& key) override {
    if (depth_ == 1) {
      if (!names_.insert(key).second) file_.fail("header: '", key, "' appears twice");
      name_ = key;
      in_metadata_ = key == "__metadata__";
      if (!in_metadata_) header.entries.push_back({.name = key, .dtype = {}, .shape = {}});
    } else {
      field_ = key;
      if (!fields_.insert(key).second) {
        file_.fail("header: '", key, "' appears twice in '", name_, "'");
      }
      const bool known = key == "dtype" || key == "shape" || key == "data_offsets";
      if (!in_metadata_ && !known) {
        file_.fail("header: tensor '", name_, "' has an unknown field '", key, "'");
      }
    }
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || array_ || field_ == "dtype") wrong("an array");
    array_ = true;
    numbers_.clear();
    return true;
  }
  bool end_array() override {
    array_ = false;
    SafetensorsEntry& entry = header.entries.back();
    if (field_ == "shape") {
      entry.shape = numbers_;
    } else {
      if (numbers_.size() != 2) {
        file_.fail("header: data_offsets of tensor '", name_, "' must be two numbers; got ",
                   numbers_.size());
      }
      entry.begin = numbers_[0];
      entry.end = numbers_[1];
    }
    return true;
  }
  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata_) {
      header.metadata[field_] = value;
    } else if (depth_ == 2 && !array_ && field_ == "dtype") {
      header.entries.back().dtype = value;
    } else {
      wrong("a string");
    }
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!array_) wrong("a number");
    numbers_.push_back(value);
    return true;
  }
  bool number_integer(number_integer_t) override { return wrong("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return wrong("a number that is no 64-bit integer");
  }
  bool null() override { return wrong("null"); }
  bool boolean(bool) override { return wrong("true or false"); }
  bool binary(binary_t&) override { return wrong("binary data"); }
  bool parse_error(size_t position, const std::string&, const json::exception& e) override {
    const std::string what = e.what();
    const size_t reason = what.find("; ");  // "... parse error at line 1, column 2: ...; reason"
    file_.fail("header is not valid JSON at offset ", 8 + position - (position > 0), ": ",
               reason == std::string::npos ? what : what.substr(reason + 2));
  }

 private:
  bool wrong(const char* what) {
    if (depth_ == 0) file_.fail("header must be a JSON object; got ", what);
    if (depth_ == 1) file_.fail("header: '", name_, "' must be an object; got ", what);
    file_.fail("header: ", field_, " of '", name_, "' must not hold ", what);
  }

  const InputFile& file_;
  int depth_ = 0;
  bool array_ = false, in_metadata_ = false;
  std::string name_, field_;
  std::set<std::string> names_, fields_;
  std::vector<uint64_t> numbers_;
};

void check_size(const InputFile& file, const SafetensorsEntry& e) {
  uint64_t bits = 0;
  for (const DTypeRow& row : kDTypes) {
    if (e.dtype == row.name) bits = static_cast<uint64_t>(row.bits);
  }
  if (bits == 0) file.fail("tensor '", e.name, "' has an unknown dtype '", e.dtype, "'");
  for (uint64_t size : e.shape) {
    if (__builtin_mul_overflow(bits, size, &bits)) {
      file.fail("the shape of tensor '", e.name, "' overflows 64 bits");
    }
  }
  if (bits % 8 != 0) file.fail("tensor '", e.name, "' does not end on a whole byte");
  if (e.end - e.begin != bits / 8) {
    file.fail("tensor '", e.name, "' needs ", bits / 8, " bytes for its shape and dtype ", e.dtype,
              ", but its data_offsets [", e.begin, ", ", e.end, "] span ", e.end - e.begin);
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(const InputFile& file, const std::string& text,
                                           uint64_t buffer_bytes) {
  Reader reader(file);
  json::sax_parse(text, &reader);
  auto& entries = reader.header.entries;
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  uint64_t previous = 0;
  for (const SafetensorsEntry& e : entries) {
    if (e.begin != previous || e.end < e.begin) {
      file.fail("tensor '", e.name, "' has data_offsets [", e.begin, ", ", e.end,
                "]; it must begin at ", previous, ", where the tensor before it ends");
    }
    previous = e.end;
  }
  for (const SafetensorsEntry& e : entries) check_size(file, e);
  if (previous != buffer_bytes) {
    file.fail("the tensors take ", previous, " bytes after the header, but ", buffer_bytes,
              " follow it: the file is ", buffer_bytes < previous ? "truncated" : "too long");
  }
  return std::move(reader.header);
}

const char* safetensors_dtype(DType dtype) {
  constexpr const char* kNames[kNumDTypes] = {"F32", "F64", "F16", "BF16",
                                              "I64", "I32", "U8",  "BOOL"};
  return kNames[static_cast<int>(dtype)];
}

bool dtype_from_safetensors(const std::string& name, DType& dtype) {
  for (int i = 0; i < kNumDTypes; ++i) {
    dtype = static_cast<DType>(i);
    if (name == safetensors_dtype(dtype)) return true;
  }
  return false;
}

std::string json_quote(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    fail<ValueError>("save_safetensors: names and metadata must be UTF-8; got '", text, "'");
  }
}

}  // namespace tarn::detail
