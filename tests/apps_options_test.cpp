// apps_options_test.cpp - the flag table: forms, types, ranges, messages, help.
#include <gtest/gtest.h>

#include "tarn/apps/common/options.h"
#include "tarn/apps/common/text.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::apps {
namespace {

// A table with one flag of every type.
struct Table {
  int64_t batch_size = 32;
  int workers = 2;
  double lr = 0.1;
  bool amp = false, bias = true;
  std::string model = "resnet18", opt = "sgd";
  std::optional<int64_t> seed;
  std::optional<double> clip;
  std::vector<int64_t> milestones = {30, 60};
  std::string input;
  Options options{"tarn-test", "A program for tests."};

  Table() {
    options.positional("input", &input, "what to read");
    options.group("Training");
    options.add("-b, --batch-size", &batch_size, "images per step").range(1, 4096);
    options.add("-j, --workers", &workers, "loader threads").at_least(0);
    options.add("--lr", &lr, "learning rate").above(0);
    options.add("--amp", &amp, "mixed precision");
    options.add("--bias", &bias, "bias terms");
    options.group("Model");
    options.add("--model", &model, "architecture");
    options.add("--opt", &opt, "optimizer").choices({"sgd", "adamw"});
    options.add("--seed", &seed, "random seed");
    options.add("--clip-grad-norm", &clip, "largest gradient norm").above(0);
    options.add("--milestones", &milestones, "epochs at which the rate falls");
    options.version("tarn-test 0.1.0");
  }
  std::string error(const std::vector<std::string>& arguments) {
    try {
      options.parse(arguments);
    } catch (const UsageError& e) {
      return e.what();
    }
    return "";
  }
};

TEST(Options, defaults_are_the_values_of_the_variables) {
  Table t;
  EXPECT_TRUE(t.options.parse(std::vector<std::string>{}));
  EXPECT_EQ(t.batch_size, 32);
  EXPECT_FALSE(t.seed);
  EXPECT_FALSE(t.options.given("--lr"));
}

TEST(Options, every_way_to_write_a_value_is_read) {
  for (const std::vector<std::string>& form :
       std::vector<std::vector<std::string>>{{"--batch-size", "64"},
                                             {"--batch-size=64"},
                                             {"-b", "64"},
                                             {"-b64"},
                                             {"-b=64"},
                                             {"--batch_size", "64"},
                                             {"-b", "1", "--batch-size=64"}}) {
    Table t;
    EXPECT_TRUE(t.options.parse(form));
    EXPECT_EQ(t.batch_size, 64) << form[0];
    EXPECT_TRUE(t.options.given("--batch-size"));
  }
}

TEST(Options, every_type_is_read) {
  Table t;
  EXPECT_TRUE(
      t.options.parse({"-j4", "--lr", "3e-4", "--model", "resnet50", "--opt=adamw", "--seed", "-7",
                       "--clip-grad-norm", ".5", "--milestones", "1,2,3", "data"}));
  EXPECT_EQ(t.workers, 4);
  EXPECT_EQ(t.lr, 3e-4);
  EXPECT_EQ(t.model, "resnet50");
  EXPECT_EQ(t.opt, "adamw");
  EXPECT_EQ(t.seed, -7);
  EXPECT_EQ(t.clip, 0.5);
  EXPECT_EQ(t.milestones, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(t.input, "data");
}

TEST(Options, bools_have_a_negative_form_and_take_a_value) {
  Table t;
  EXPECT_TRUE(t.options.parse({"--amp", "--no-bias"}));
  EXPECT_TRUE(t.amp);
  EXPECT_FALSE(t.bias);
  EXPECT_TRUE(t.options.parse({"--amp", "false", "--bias=on"}));
  EXPECT_FALSE(t.amp);
  EXPECT_TRUE(t.bias);
  EXPECT_TRUE(t.options.parse({"--amp", "data"}));  // not a truth value: the next argument
  EXPECT_TRUE(t.amp);
  EXPECT_EQ(t.input, "data");
}

TEST(Options, a_flag_may_have_several_names) {
  double decay = 0;
  Options options("p", "");
  options.add("-w, --wd, --weight-decay", &decay, "weight decay").at_least(0);
  for (const char* name : {"--wd", "--weight-decay", "--weight_decay", "-w"}) {
    decay = 0;
    EXPECT_TRUE(options.parse({name, "0.5"}));
    EXPECT_EQ(decay, 0.5) << name;
  }
  EXPECT_TRUE(options.given("--weight-decay"));
  EXPECT_NE(options.help(80).find("  -w, --wd, --weight-decay X  weight decay"), std::string::npos);
  EXPECT_EQ(options.to_json().text(), "{\"weight-decay\": 0.5}");
}

TEST(Options, after_two_dashes_all_is_positional) {
  Table t;
  EXPECT_TRUE(t.options.parse({"--", "--amp"}));
  EXPECT_EQ(t.input, "--amp");
}

TEST(Options, a_last_positional_takes_all_that_are_left) {
  std::string first;
  std::vector<std::string> rest;
  bool amp = false;
  Options options("tarn-test", "A program for tests.");
  options.positional("file", &first, "what to read").required();
  options.positional("text", &rest, "texts");
  options.add("--amp", &amp, "mixed precision");
  EXPECT_TRUE(options.parse({"a", "one, two", "--amp", "b", "--", "--c"}));
  EXPECT_EQ(first, "a");
  EXPECT_EQ(rest, (std::vector<std::string>{"one, two", "b", "--c"}));
  EXPECT_TRUE(amp);
  EXPECT_TRUE(options.help(80).starts_with("usage: tarn-test [options] FILE [TEXT...]\n"));
}

TEST(Options, unknown_flags_name_the_nearest_one) {
  Table t;
  EXPECT_EQ(t.error({"--bacth-size", "3"}),
            "unknown option --bacth-size; did you mean --batch-size?");
  EXPECT_EQ(t.error({"--quux-frobnicate=1"}), "unknown option --quux-frobnicate");
  EXPECT_EQ(t.error({"--no-lr"}), "unknown option --no-lr");
  EXPECT_EQ(t.error({"-x"}), "unknown option -x");
  EXPECT_EQ(t.error({"a", "b"}), "unexpected argument 'b'");
}

TEST(Options, bad_values_name_the_flag_what_came_and_what_is_expected) {
  Table t;
  EXPECT_EQ(t.error({"--batch-size", "many"}),
            "--batch-size: expected an integer from 1 to 4096; got 'many'");
  EXPECT_EQ(t.error({"-b", "0"}), "--batch-size: expected an integer from 1 to 4096; got '0'");
  EXPECT_EQ(t.error({"-b", "3.5"}), "--batch-size: expected an integer from 1 to 4096; got '3.5'");
  EXPECT_EQ(t.error({"--lr", "-1"}), "--lr: expected a number above 0; got '-1'");
  EXPECT_EQ(t.error({"--lr", "nan"}), "--lr: expected a number above 0; got 'nan'");
  EXPECT_EQ(t.error({"--lr"}), "--lr: expected a number above 0; got nothing");
  EXPECT_EQ(t.error({"--workers=-1"}), "--workers: expected an integer of at least 0; got '-1'");
  EXPECT_EQ(t.error({"--amp=maybe"}), "--amp: expected true or false; got 'maybe'");
  EXPECT_EQ(t.error({"--opt", "adam"}),
            "--opt: expected one of sgd, adamw; got 'adam'; did you mean 'adamw'?");
  EXPECT_EQ(t.error({"--milestones", "1,x"}),
            "--milestones: expected a list of integers 1,2,3; got '1,x'");
  EXPECT_EQ(t.error({"--milestones="}), "--milestones: expected a list of integers 1,2,3; got ''");
}

TEST(Options, a_flag_is_not_taken_for_the_value_of_the_one_before) {
  Table t;
  EXPECT_EQ(t.error({"--model", "--lr", "0.1"}),
            "--model: expected a text; got the flag --lr (--model=--lr if that is the value)");
  EXPECT_EQ(t.error({"--batch-size", "--lr=0.1"}),
            "--batch-size: expected an integer from 1 to 4096; got the flag --lr=0.1 "
            "(--batch-size=--lr=0.1 if that is the value)");
  EXPECT_EQ(t.error({"--model=--lr"}), "");
  EXPECT_EQ(t.model, "--lr");
  EXPECT_EQ(t.error({"--model", "--of-no-flag"}), "");
  EXPECT_EQ(t.error({"--model", "-b"}), "");
  EXPECT_EQ(t.model, "-b");
}

TEST(Options, a_path_must_not_be_empty) {
  std::optional<std::string> run;
  Options options("p", "");
  options.add("--resume", &run, "folder of a run").not_empty();
  for (const std::vector<std::string>& form :
       std::vector<std::vector<std::string>>{{"--resume", ""}, {"--resume="}}) {
    EXPECT_THROWS_WITH(options.parse(form), UsageError,
                       "--resume: expected a text that is not empty; got ''");
  }
  EXPECT_FALSE(run);
  EXPECT_TRUE(options.preset("--resume", "")) << "as an earlier run was started";
  EXPECT_FALSE(run);
}

TEST(Options, what_shares_no_letter_is_not_the_nearest) {
  std::string shortcut;
  Options options("p", "");
  options.add("--shortcut", &shortcut, "A or B").choices({"A", "B"});
  for (const char* wrong : {"C", "AB", ""}) {
    try {
      options.parse({"--shortcut", wrong});
      ADD_FAILURE() << wrong;
    } catch (const UsageError& e) {
      const std::string got = std::string("--shortcut: expected one of A, B; got '") + wrong + "'";
      EXPECT_EQ(e.what(), *wrong == 'A' ? got + "; did you mean 'A'?" : got);
    }
  }
}

TEST(Options, a_required_flag_must_come) {
  std::string path;
  Options options("p", "");
  options.add("--data-path", &path, "folder with images").required();
  try {
    options.parse(std::vector<std::string>{});
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_STREQ(e.what(), "--data-path is required: folder with images");
  }
}

TEST(Options, help_is_grouped_aligned_and_fits_the_width) {
  const Table t;
  const std::string help = t.options.help(60);
  EXPECT_NE(help.find("usage: tarn-test [options] [INPUT]\n\nA program for tests.\n"),
            std::string::npos)
      << help;
  EXPECT_NE(help.find("\nTraining:\n  -b, --batch-size N   images per step (default: 32)\n"),
            std::string::npos)
      << help;
  EXPECT_NE(help.find("--[no-]bias"), std::string::npos);
  EXPECT_NE(help.find("--opt sgd|adamw"), std::string::npos);
  EXPECT_NE(help.find("\nModel:\n"), std::string::npos);
  EXPECT_NE(help.find("(default: 30,60)"), std::string::npos);
  for (size_t at = 0, end; (end = help.find('\n', at)) != std::string::npos; at = end + 1) {
    EXPECT_LE(end - at, 60u) << help.substr(at, end - at);
  }
}

TEST(Options, help_and_version_end_the_program_well) {
  Table t;
  testing::internal::CaptureStdout();
  EXPECT_FALSE(t.options.parse({"--version"}));
  EXPECT_FALSE(t.options.parse({"-h"}));
  const std::string out = testing::internal::GetCapturedStdout();
  EXPECT_TRUE(out.starts_with("tarn-test 0.1.0\nusage: tarn-test")) << out;
}

TEST(Options, every_program_has_a_version_and_a_bool_takes_words) {
  bool amp = false;
  Options options("tarn-x", "");
  options.add("--amp", &amp, "");
  testing::internal::CaptureStdout();
  EXPECT_FALSE(options.parse({"--version"}));
  EXPECT_TRUE(testing::internal::GetCapturedStdout().starts_with("tarn-x "));
  EXPECT_TRUE(options.parse({"--amp", "yes"}));
  EXPECT_TRUE(amp);
  EXPECT_TRUE(options.parse({"--amp", "off"}));
  EXPECT_FALSE(amp);
  Table t;  // where the word may be an argument, it is one
  EXPECT_TRUE(t.options.parse({"--amp", "yes"}));
  EXPECT_EQ(t.input, "yes");
}

TEST(Options, values_and_command_line_can_be_recorded) {
  Table t;
  t.options.parse({"--seed", "3", "my file"});
  EXPECT_EQ(t.options.command_line(), "tarn-test --seed 3 'my file'");
  EXPECT_EQ(t.options.to_json().text(),
            "{\"input\": \"my file\", \"batch-size\": 32, \"workers\": 2, \"lr\": 0.1, \"amp\": "
            "false, \"bias\": true, \"model\": \"resnet18\", \"opt\": \"sgd\", \"seed\": 3, "
            "\"clip-grad-norm\": null, \"milestones\": [30, 60]}");
}

TEST(Text, numbers_are_as_short_as_they_can_be) {
  EXPECT_EQ(number_text(0.1), "0.1");
  EXPECT_EQ(number_text(60000), "60000");
  EXPECT_EQ(number_text(1e-5), "1e-05");
  EXPECT_EQ(number_text(1.0 / 3), "0.3333333333333333");
  EXPECT_EQ(number_text(-1.0 / 0.0), "-inf");
}

TEST(Text, wrap_breaks_at_spaces_only) {
  EXPECT_EQ(wrap("aa bb cc", 5), (std::vector<std::string>{"aa bb", "cc"}));
  EXPECT_EQ(wrap("aaaaaaaa b", 5), (std::vector<std::string>{"aaaaaaaa", "b"}));
}

TEST(Text, shell_quote_survives_quotes) {
  EXPECT_EQ(shell_quote("a'b c"), "'a'\\''b c'");
  EXPECT_EQ(shell_quote("--lr=0.1"), "--lr=0.1");
  EXPECT_EQ(shell_quote(""), "''");
}

}  // namespace
}  // namespace tarn::apps
