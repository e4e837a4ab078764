// json_object.h - writes one JSON object with its keys in the order they were added.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tarn::apps {

/// Text as a JSON string, quotes included. Bytes that are not UTF-8 become U+FFFD.
std::string json_quote(std::string_view text);

/// A text that may not be UTF-8, as the name of a file need not be, as UTF-8: a byte XX that JSON
/// could not hold becomes the private character U+F7XX. unescape_bytes() gives the text back.
std::string escape_bytes(std::string_view text);
std::string unescape_bytes(std::string_view text);

/// A builder for flat records and small nested ones:
///   JsonObject().add("step", 10).add("loss", 0.5).text()   ->   {"step": 10, "loss": 0.5}
/// NaN and infinity are not JSON: they are written as null.
class JsonObject {
 public:
  JsonObject& add(std::string_view key, std::string_view value);
  JsonObject& add(std::string_view key, const char* value);
  JsonObject& add(std::string_view key, const std::string& value);
  JsonObject& add(std::string_view key, bool value);
  JsonObject& add(std::string_view key, int value);
  JsonObject& add(std::string_view key, int64_t value);
  JsonObject& add(std::string_view key, double value);
  JsonObject& add(std::string_view key, const JsonObject& value);
  /// Adds text that is JSON already.
  JsonObject& add_json(std::string_view key, std::string_view json);

  bool empty() const { return keys_.empty(); }
  /// On one line, or (pretty) one key a line with two spaces per level.
  std::string text() const;
  std::string pretty() const;

 private:
  std::string keys_;    // the members on one line, without braces
  std::string pretty_;  // the members, one a line, indented by two spaces
};

}  // namespace tarn::apps
