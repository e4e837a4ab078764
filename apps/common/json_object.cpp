// json_object.cpp - writes one JSON object with its keys in the order they were added.
#include "tarn/apps/common/json_object.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "tarn/apps/common/text.h"

namespace tarn::apps {

std::string json_quote(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
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
