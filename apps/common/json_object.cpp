// json_object.cpp - writes one JSON object with its keys in the order they were added.
#include "tarn/apps/common/json_object.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "tarn/apps/common/text.h"
#include "tarn/data/unicode.h"

namespace tarn::apps {
namespace {

constexpr uint32_t kEscape = 0xF700;  // and the byte, which is 0x80 or more

bool is_escape(const data::CodePoint& c) {
  return c.valid && c.value >= kEscape + 0x80 && c.value <= kEscape + 0xFF;
}

}  // namespace

std::string json_quote(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// A text that has such a private character itself has its bytes escaped, too.
std::string escape_bytes(std::string_view text) {
  std::string escaped;
  for (size_t at = 0; at < text.size();) {
    const data::CodePoint c = data::code_point_at(text, at);
    const std::string_view bytes = text.substr(at, static_cast<size_t>(c.bytes));
    at += bytes.size();
    if (c.valid && !is_escape(c)) {
      escaped += bytes;
      continue;
    }
    for (const char byte : bytes) data::append_utf8(escaped, kEscape + static_cast<uint8_t>(byte));
  }
  return escaped;
}

std::string unescape_bytes(std::string_view text) {
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const data::CodePoint c = data::code_point_at(text, at);
    if (is_escape(c)) {
      bytes += static_cast<char>(c.value - kEscape);
    } else {
      bytes += text.substr(at, static_cast<size_t>(c.bytes));
    }
    at += static_cast<size_t>(c.bytes);
  }
  return bytes;
}

JsonObject& JsonObject::add_json(std::string_view key, std::string_view json) {
  const std::string name = json_quote(key) + ": ";
  keys_ += (keys_.empty() ? "" : ", ") + name + std::string(json);
  pretty_ += (pretty_.empty() ? "  " : ",\n  ") + name + std::string(json);
  return *this;
}

JsonObject& JsonObject::add(std::string_view key, const JsonObject& value) {
  const std::string name = json_quote(key) + ": ";
  keys_ += (keys_.empty() ? "" : ", ") + name + value.text();
  std::string nested = value.pretty();
  for (size_t at = nested.find('\n'); at != std::string::npos; at = nested.find('\n', at + 1)) {
    nested.insert(at + 1, "  ");
  }
  pretty_ += (pretty_.empty() ? "  " : ",\n  ") + name + nested;
  return *this;
}

JsonObject& JsonObject::add(std::string_view key, std::string_view value) {
  return add_json(key, json_quote(value));
}
JsonObject& JsonObject::add(std::string_view key, const char* value) {
  return add(key, std::string_view(value));
}
JsonObject& JsonObject::add(std::string_view key, const std::string& value) {
  return add(key, std::string_view(value));
}
JsonObject& JsonObject::add(std::string_view key, bool value) {
  return add_json(key, value ? "true" : "false");
}
JsonObject& JsonObject::add(std::string_view key, int value) {
  return add_json(key, std::to_string(value));
}
JsonObject& JsonObject::add(std::string_view key, int64_t value) {
  return add_json(key, std::to_string(value));
}
JsonObject& JsonObject::add(std::string_view key, double value) {
  return add_json(key, std::isfinite(value) ? number_text(value) : "null");
}

std::string JsonObject::text() const {
  return "{" + keys_ + "}";
}

std::string JsonObject::pretty() const {
  return pretty_.empty() ? "{}" : "{\n" + pretty_ + "\n}";
}

}  // namespace tarn::apps
