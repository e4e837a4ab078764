// options.h - typed command-line flags, declared in one table that also writes --help.
//
//   struct Args { int64_t batch_size = 32; double lr = 0.1; bool amp = false; } args;
//   Options options("tarn-resnet", "Trains a ResNet on images.");
//   options.group("Training");
//   options.add("-b, --batch-size", &args.batch_size, "images per step").at_least(1);
//   options.add("--lr", &args.lr, "learning rate").above(0);
//   options.add("--amp", &args.amp, "mixed precision");      // --amp, --no-amp, --amp false
//   if (!options.parse(argc, argv)) return 0;                // --help or --version was printed
//
// The value a variable has when it is added is the flag's default. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tarn/apps/common/json_object.h"

namespace tarn::apps {

/// A command line that cannot be run as it stands; main_guard turns it into exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One flag. The methods narrow what it takes and return *this, so that they chain.
class Option {
 public:
  /// Where the value goes. An optional is unset until given; a vector takes "a,b,c".
  using Target = std::variant<bool*, int*, int64_t*, double*, std::string*, std::optional<int64_t>*,
                              std::optional<double>*, std::optional<std::string>*,
                              std::vector<int64_t>*, std::vector<std::string>*>;

  Option& at_least(double low);
  Option& above(double low);
  Option& at_most(double high);
  Option& below(double high);
  Option& range(double low, double high) { return at_least(low).at_most(high); }
  Option& choices(std::vector<std::string> values);
  /// A text that must say something: a path, say, that a script's unset variable leaves empty.
  Option& not_empty();
  /// The word that stands for the value in --help, e.g. "DIR".
  Option& value_name(std::string name);
  /// What --help says about the default, where the value itself says too little.
  Option& default_text(std::string text);
  Option& required();
  /// Accepted and recorded, but not listed in --help.
  Option& hidden();

  const std::string& name() const { return name_; }
  /// The value as JSON, texts as escape_bytes() gives them; null for an optional that is unset.
  std::string json() const;

 private:
  friend class Options;
  bool is_bool() const { return std::holds_alternative<bool*>(target_); }
  void set(const std::string& text);
  std::string expected() const;
  std::string signature() const;
  std::string description() const;
  [[noreturn]] void fail(std::string_view got) const;
  void check_range(double value, const std::string& text) const;

  std::string name_;                  // "--batch-size"; without dashes for a positional argument
  std::vector<std::string> aliases_;  // further long names
  char short_name_ = '\0';            // 'b', or none
  Target target_;
  std::string help_, group_, value_name_, default_;
  std::vector<std::string> choices_;
  std::optional<double> low_, high_;
  bool low_open_ = false, high_open_ = false;
  bool required_ = false, hidden_ = false, positional_ = false, given_ = false, not_empty_ = false;
};

/// The table of flags of one program.
class Options {
 public:
  Options(std::string program, std::string about);

  /// Starts a group: flags added from here on stand under this title in --help.
  Options& group(std::string title);
  /// Text after the list of flags in --help, e.g. examples; printed as it is.
  Options& epilog(std::string text);
  /// Makes --version print this text, not the program's name and tarn's version.
  Options& version(std::string text);

  /// Adds "--name", "-n, --name" or "--alias, --name". Flags may be written --name 3, --name=3, -n
  /// 3, -n3, --name_x; a bool also as --no-name and --name false (yes, off, ...). The last of
  /// several wins. A value that is spelt like a flag needs the form with "=".
  Option& add(std::string_view flags, Option::Target target, std::string help);
  /// Adds an argument without a dash, in this order; a vector of strings takes all that are left.
  Option& positional(std::string name, Option::Target target, std::string help);

  /// Reads the command line into the variables. Returns false if --help or --version was asked for
  /// and printed. Throws UsageError for an unknown flag (naming the nearest one), a missing or bad
  /// value (naming the flag, what came and what is expected) or a missing required flag.
  bool parse(int argc, const char* const* argv);
  /// The same for arguments without the program's name.
  bool parse(const std::vector<std::string>& arguments);

  /// Gives "--name" a value where the command line gave none, e.g. from an earlier run's
  /// config.json. Returns false if there is no such flag. Throws UsageError as parse() does.
  bool preset(std::string_view name, const std::string& value);
  /// True if the flag "--name" was on the command line.
  bool given(std::string_view name) const;
  /// The text of --help for a terminal of this width.
  std::string help(int64_t width, bool color = false) const;
  /// All flags with their values, keys without dashes in front.
  JsonObject to_json() const;
  /// The command line as it was given, quoted for a shell.
  std::string command_line() const;
  const std::string& program() const { return program_; }

 private:
  Option* find(std::string_view name);
  Option* find_short(char name);
  [[noreturn]] void unknown(const std::string& flag) const;
  bool is_bool_value(const std::string& text) const;
  void refuse_flag(const Option& option, const std::string& value);
  size_t parse_long(const std::vector<std::string>& arguments, size_t at);
  size_t parse_short(const std::vector<std::string>& arguments, size_t at);
  void assign_positional(const std::string& text);

  std::string program_, about_, version_, group_ = "Options", epilog_;
  std::deque<Option> options_;  // a deque: add() hands out references
  std::vector<std::string> arguments_;
  size_t positionals_seen_ = 0;
};

}  // namespace tarn::apps
