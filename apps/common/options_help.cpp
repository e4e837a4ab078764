// options_help.cpp - the words around the flag table: --help and what a flag expects.
#include <algorithm>
#include <cctype>

#include "tarn/apps/common/options.h"
#include "tarn/apps/common/text.h"

namespace tarn::apps {
namespace {

std::string join(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : std::string(between)) + word;
  return text;
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

template <class T>
constexpr bool kIsText =
    std::is_same_v<T, std::string> || std::is_same_v<T, std::optional<std::string>>;
template <class T>
constexpr bool kIsReal = std::is_same_v<T, double> || std::is_same_v<T, std::optional<double>>;

}  // namespace

// "an integer from 1 to 64", "one of sgd, adamw".
std::string Option::expected() const {
  if (!choices_.empty()) return "one of " + join(choices_, ", ");
  std::string what = std::visit(
      [this]<class T>(const T*) -> std::string {
        if constexpr (std::is_same_v<T, bool>) return "true or false";
        if constexpr (kIsText<T>) return not_empty_ ? "a text that is not empty" : "a text";
        if constexpr (kIsReal<T>) return "a number";
        if constexpr (std::is_same_v<T, std::vector<std::string>>) return "a list a,b,c";
        if constexpr (std::is_same_v<T, std::vector<int64_t>>) return "a list of integers 1,2,3";
        return "an integer";
      },
      target_);
  if (low_ && high_ && !low_open_ && !high_open_) {
    return what + " from " + number_text(*low_) + " to " + number_text(*high_);
  }
  if (low_) what += (low_open_ ? " above " : " of at least ") + number_text(*low_);
  if (high_) {
    what += std::string(low_ ? " and" : "") + (high_open_ ? " below " : " of at most ") +
            number_text(*high_);
  }
  return what;
}

// "-b, --batch-size N", "--[no-]amp", "--opt {sgd,adamw}".
std::string Option::signature() const {
  if (positional_) {
    const bool rest = std::holds_alternative<std::vector<std::string>*>(target_);
    return upper(name_) + (rest ? "..." : "");
  }
  std::string text = short_name_ ? std::string("-") + short_name_ + ", " : "";
  for (const std::string& alias : aliases_) text += alias + ", ";
  if (is_bool()) {
    const bool on = *std::get<bool*>(target_);
    return text + (on ? "--[no-]" + name_.substr(2) : name_);
  }
  std::string value = value_name_;
  if (value.empty() && !choices_.empty()) {
    value = join(choices_, "|");
    if (value.size() > 24) value = "NAME";
  }
  if (value.empty()) {
    value = std::visit(
        []<class T>(const T*) -> std::string {
          if constexpr (kIsText<T>) return "TEXT";
          if constexpr (kIsReal<T>) return "X";
          if constexpr (std::is_same_v<T, std::vector<std::string>>) return "A,B,..";
          if constexpr (std::is_same_v<T, std::vector<int64_t>>) return "N,N,..";
          return "N";
        },
        target_);
  }
  return text + name_ + " " + value;
}

std::string Option::description() const {
  std::string text = help_;
  if (!choices_.empty() && (!value_name_.empty() || join(choices_, "|").size() > 24)) {
    text += ": " + join(choices_, ", ");
  }
  std::string value = default_;
  if (value.empty() && !is_bool()) {
    value = json();
    if (value == "null" || value == "\"\"" || value == "[]") value.clear();
    const bool list = value.starts_with('[');
    std::erase_if(value,
                  [&](char c) { return c == '"' || c == '[' || c == ']' || (list && c == ' '); });
  }
  if (value.empty() && is_bool() && *std::get<bool*>(target_)) value = "on";
  if (required_) return text + " (required)";
  return value.empty() ? text : text + " (default: " + value + ")";
}

std::string Options::help(int64_t width, bool color) const {
  const auto heading = [&](const std::string& text) {
    return color ? "\x1b[1m" + text + "\x1b[0m" : text;
  };
  std::string usage = heading("usage:") + " " + program_ + " [options]";
  int64_t column = 0;  // where descriptions start
  for (const Option& option : options_) {
    if (option.hidden_) continue;
    const std::string signature = option.signature();
    if (option.positional_) usage += option.required_ ? " " + signature : " [" + signature + "]";
    column = std::max(column, display_width(signature) + 4);
  }
  column = std::min(column, std::max<int64_t>(width * 2 / 5, 16));

  std::string out = usage + "\n\n";
  for (const std::string& line : wrap(about_, width)) out += line + "\n";
  const auto row = [&](const std::string& left, const std::string& right) {
    out += "  " + left;
    int64_t at = display_width(left) + 2;
    for (const std::string& line : wrap(right, width - column)) {
      if (at > column - 2 && at != 0) {
        out += '\n';
        at = 0;
      }
      out.append(static_cast<size_t>(column - at), ' ').append(line) += '\n';
      at = 0;
    }
  };
  std::string group;
  for (const Option& option : options_) {
    if (option.hidden_) continue;
    if (option.group_ != group) out += "\n" + heading(option.group_ + ":") + "\n";
    group = option.group_;
    row(option.signature(), option.description());
  }
  out += "\n" + heading("Help:") + "\n";
  row("-h, --help", "show this text and leave");
  if (!version_.empty()) row("--version", "show the version and leave");
  return epilog_.empty() ? out : out + "\n" + epilog_ + "\n";
}

}  // namespace tarn::apps
