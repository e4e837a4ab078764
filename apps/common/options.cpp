// options.cpp - reads the command line into the variables of the flag table.
#include "tarn/apps/common/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include <unistd.h>

#include "tarn/apps/common/terminal.h"
#include "tarn/apps/common/text.h"

namespace tarn::apps {
namespace {

template <class T>
std::optional<T> parse_number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<bool> parse_bool(std::string_view text) {
  for (const char* yes : {"true", "yes", "on", "1"}) {
    if (text == yes) return true;
  }
  for (const char* no : {"false", "no", "off", "0"}) {
    if (text == no) return false;
  }
  return std::nullopt;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size() && !text.empty();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

// --batch_size and --batch-size are one flag: nanoGPT's users write the former.
std::string with_dashes(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

}  // namespace

Option& Option::at_least(double low) {
  low_ = low;
  low_open_ = false;
  return *this;
}
Option& Option::above(double low) {
  low_ = low;
  low_open_ = true;
  return *this;
}
Option& Option::at_most(double high) {
  high_ = high;
  high_open_ = false;
  return *this;
}
Option& Option::below(double high) {
  high_ = high;
  high_open_ = true;
  return *this;
}
Option& Option::choices(std::vector<std::string> values) {
  choices_ = std::move(values);
  return *this;
}
Option& Option::not_empty() {
  not_empty_ = true;
  return *this;
}
Option& Option::value_name(std::string name) {
  value_name_ = std::move(name);
  return *this;
}
Option& Option::default_text(std::string text) {
  default_ = std::move(text);
  return *this;
}
Option& Option::required() {
  required_ = true;
  return *this;
}
Option& Option::hidden() {
  hidden_ = true;
  return *this;
}

void Option::fail(std::string_view got) const {
  throw UsageError(name_ + ": expected " + expected() + "; got '" + std::string(got) + "'");
}

void Option::check_range(double value, const std::string& text) const {
  const bool low_ok = !low_ || (low_open_ ? value > *low_ : value >= *low_);
  const bool high_ok = !high_ || (high_open_ ? value < *high_ : value <= *high_);
  if (!std::isfinite(value) || !low_ok || !high_ok) fail(text);
}

namespace {

// Setters by type of variable; each returns false if the text does not fit the type.
template <class T>
constexpr bool kIsNumber =
    std::is_same_v<T, int> || std::is_same_v<T, int64_t> || std::is_same_v<T, double>;

}  // namespace

void Option::set(const std::string& text) {
  if (!choices_.empty() && std::find(choices_.begin(), choices_.end(), text) == choices_.end()) {
    const std::string near = nearest(text, choices_);
    throw UsageError(name_ + ": expected " + expected() + "; got '" + text + "'" +
                     (near.empty() ? "" : "; did you mean '" + near + "'?"));
  }
  if (not_empty_ && text.empty()) fail(text);
  const auto number = [&]<class T>(const std::string& part, T* to) {
    const std::optional<T> value = parse_number<T>(part);
    if (!value) fail(text);
    check_range(static_cast<double>(*value), text);
    *to = *value;
  };
  std::visit(
      [&]<class T>(T* to) {
        if constexpr (std::is_same_v<T, bool>) {
          const std::optional<bool> value = parse_bool(text);
          if (!value) fail(text);
          *to = *value;
        } else if constexpr (kIsNumber<T>) {
          number(text, to);
        } else if constexpr (std::is_same_v<T, std::string>) {
          *to = text;
        } else if constexpr (std::is_same_v<T, std::optional<std::string>>) {
          *to = text;
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          *to = split(text, ',');
        } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
          T values;
          if (text.empty()) fail(text);
          for (const std::string& part : split(text, ',')) number(part, &values.emplace_back());
          *to = std::move(values);
        } else {
          typename T::value_type value{};
          number(text, &value);
          *to = value;
        }
      },
      target_);
  given_ = true;
}

std::string Option::json() const {
  const auto scalar = []<class T>(const T& value) -> std::string {
    JsonObject object;
    if constexpr (std::is_same_v<T, std::string>) {
      object.add("v", escape_bytes(value));
    } else {
      object.add("v", value);
    }
    const std::string text = object.text();  // {"v": VALUE}
    return text.substr(6, text.size() - 7);
  };
  return std::visit(
      [&]<class T>(const T* from) -> std::string {
        if constexpr (std::is_same_v<T, std::vector<int64_t>> ||
                      std::is_same_v<T, std::vector<std::string>>) {
          std::string list;
          for (const auto& value : *from) list += (list.empty() ? "" : ", ") + scalar(value);
          return "[" + list + "]";
        } else if constexpr (requires { from->has_value(); }) {
          return from->has_value() ? scalar(**from) : std::string("null");
        } else {
          return scalar(*from);
        }
      },
      target_);
}

Options::Options(std::string program, std::string about)
    : program_(std::move(program)),
      about_(std::move(about)),
      version_(program_ + " " + TARN_VERSION) {}

Options& Options::group(std::string title) {
  group_ = std::move(title);
  return *this;
}
Options& Options::epilog(std::string text) {
  epilog_ = std::move(text);
  return *this;
}
Options& Options::version(std::string text) {
  version_ = std::move(text);
  return *this;
}

Option& Options::add(std::string_view flags, Option::Target target, std::string help) {
  Option& option = options_.emplace_back();
  // "-b, --batch-size", "--wd, --weight-decay": the last name is the one messages use.
  for (const std::string& part : split(std::string(flags), ',')) {
    const std::string name = part.substr(std::min(part.find_first_not_of(' '), part.size()));
    if (name.size() == 2 && name[0] == '-') {
      option.short_name_ = name[1];
      continue;
    }
    if (!option.name_.empty()) option.aliases_.push_back(option.name_);
    option.name_ = name;
  }
  option.target_ = target;
  option.help_ = std::move(help);
  option.group_ = group_;
  return option;
}

Option& Options::positional(std::string name, Option::Target target, std::string help) {
  Option& option = add(name, target, std::move(help));
  option.positional_ = true;
  return option;
}

Option* Options::find(std::string_view name) {
  for (Option& option : options_) {
    if (option.positional_) continue;
    if (option.name_ == name || std::count(option.aliases_.begin(), option.aliases_.end(), name)) {
      return &option;
    }
  }
  return nullptr;
}

Option* Options::find_short(char name) {
  for (Option& option : options_) {
    if (option.short_name_ == name) return &option;
  }
  return nullptr;
}

bool Options::preset(std::string_view name, const std::string& value) {
  Option* option = find(name);
  if (!option) return false;
  if (option->given_) return true;
  if (option->not_empty_ && value.empty()) return true;  // it was not given then
  option->set(value);
  option->given_ = false;
  return true;
}

bool Options::given(std::string_view name) const {
  return std::any_of(options_.begin(), options_.end(),
                     [&](const Option& option) { return option.name_ == name && option.given_; });
}

void Options::unknown(const std::string& flag) const {
  std::vector<std::string> names = {"--help"};
  for (const Option& option : options_) {
    if (option.positional_ || option.hidden_) continue;
    names.push_back(option.name_);
    names.insert(names.end(), option.aliases_.begin(), option.aliases_.end());
  }
  const std::string near = nearest(flag, names);
  throw UsageError("unknown option " + flag + (near.empty() ? "" : "; did you mean " + near + "?"));
}

// "--amp yes"; where there are positional arguments only what can hardly be one of them.
bool Options::is_bool_value(const std::string& text) const {
  const bool bare = std::none_of(options_.begin(), options_.end(),
                                 [](const Option& option) { return option.positional_; });
  return text == "true" || text == "false" || (bare && parse_bool(text));
}

// "--resume --epochs 3": the value was left out, and a text would take the next flag for it.
void Options::refuse_flag(const Option& option, const std::string& value) {
  if (!value.starts_with("--") || !find(with_dashes(value.substr(0, value.find('='))))) return;
  throw UsageError(option.name_ + ": expected " + option.expected() + "; got the flag " + value +
                   " (" + option.name_ + "=" + value + " if that is the value)");
}

// Reads the flag at arguments[at] and its value; returns the index of the next argument.
size_t Options::parse_long(const std::vector<std::string>& arguments, size_t at) {
  const std::string& argument = arguments[at];
  const size_t equals = argument.find('=');
  const std::string flag = with_dashes(argument.substr(0, equals));
  if (Option* option = find(flag)) {
    if (equals != std::string::npos) {
      option->set(argument.substr(equals + 1));
      return at + 1;
    }
    if (option->is_bool()) {
      const bool has_value = at + 1 < arguments.size() && is_bool_value(arguments[at + 1]);
      option->set(has_value ? arguments[at + 1] : "true");
      return at + (has_value ? 2 : 1);
    }
    if (at + 1 == arguments.size()) {
      throw UsageError(option->name_ + ": expected " + option->expected() + "; got nothing");
    }
    refuse_flag(*option, arguments[at + 1]);
    option->set(arguments[at + 1]);
    return at + 2;
  }
  Option* negated = flag.starts_with("--no-") ? find("--" + flag.substr(5)) : nullptr;
  if (!negated || !negated->is_bool() || equals != std::string::npos) {
    unknown(argument.substr(0, equals));
  }
  negated->set("false");
  return at + 1;
}

size_t Options::parse_short(const std::vector<std::string>& arguments, size_t at) {
  const std::string& argument = arguments[at];
  Option* option = find_short(argument[1]);
  if (!option) unknown(argument);
  if (argument.size() > 2) {
    option->set(argument.substr(argument[2] == '=' ? 3 : 2));
    return at + 1;
  }
  std::vector<std::string> rest(arguments.begin() + static_cast<std::ptrdiff_t>(at),
                                arguments.end());
  rest[0] = option->name_;
  return at + parse_long(rest, 0);
}

void Options::assign_positional(const std::string& text) {
  size_t seen = 0;
  for (Option& option : options_) {
    if (option.positional_ && seen++ == positionals_seen_) {
      if (const auto* rest = std::get_if<std::vector<std::string>*>(&option.target_)) {
        (*rest)->push_back(text);
        option.given_ = true;
      } else {
        option.set(text);
        ++positionals_seen_;
      }
      return;
    }
  }
  throw UsageError("unexpected argument '" + text + "'");
}

bool Options::parse(int argc, const char* const* argv) {
  return parse(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
}

bool Options::parse(const std::vector<std::string>& arguments) {
  arguments_ = arguments;
  bool only_positional = false;
  for (size_t at = 0; at < arguments.size();) {
    const std::string& argument = arguments[at];
    if (!only_positional && (argument == "--help" || (argument == "-h" && !find_short('h')))) {
      std::fputs(help(std::clamp<int64_t>(terminal_width(STDOUT_FILENO), 40, 100),
                      wants_color(STDOUT_FILENO))
                     .c_str(),
                 stdout);
      return false;
    }
    if (!only_positional && argument == "--version" && !version_.empty()) {
      std::puts(version_.c_str());
      return false;
    }
    if (only_positional || argument.size() < 2 || argument[0] != '-') {
      assign_positional(argument);
      ++at;
    } else if (argument == "--") {
      only_positional = true;
      ++at;
    } else {
      at = argument[1] == '-' ? parse_long(arguments, at) : parse_short(arguments, at);
    }
  }
  for (const Option& option : options_) {
    if (option.required_ && !option.given_) {
      throw UsageError(option.name_ + " is required: " + option.help_);
    }
  }
  return true;
}

JsonObject Options::to_json() const {
  JsonObject object;
  for (const Option& option : options_) {
    object.add_json(option.positional_ ? option.name_ : option.name_.substr(2), option.json());
  }
  return object;
}

std::string Options::command_line() const {
  std::string line = program_;
  for (const std::string& argument : arguments_) line += " " + shell_quote(argument);
  return line;
}

}  // namespace tarn::apps
