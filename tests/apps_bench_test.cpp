// apps_bench_test.cpp - tarn-bench: what it refuses, and how ranks meet in one process.
#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "apps_process.h"
#include <gtest/gtest.h>

#include "tarn/apps/bench/generate.h"
#include "tarn/apps/bench/train.h"
#include "tarn/core/error.h"
#include "tarn/dist/local_group.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::bench {
namespace {

const std::string kBench = tarn::test::built("tarn-bench");

class Bench : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kBench)) GTEST_SKIP() << "built without apps";
  }
  // As from a shell: arguments, with "NAME=value" in front of them.
  test::Ended run(std::vector<std::string> variables, std::vector<std::string> arguments) {
    variables.push_back(kBench);
    variables.insert(variables.end(), arguments.begin(), arguments.end());
    return test::Process("/usr/bin/env", variables, folder).wait();
  }
  void refuses(std::vector<std::string> arguments, const std::string& part) {
    const test::Ended end = run({}, std::move(arguments));
    EXPECT_EQ(end.code, 2) << part;
    EXPECT_NE(end.err.find(part), std::string::npos) << end.err << "\nwanted: " << part;
  }
  test::TempFolder folder;
};

TEST_F(Bench, numbers_that_make_no_sense_are_refused) {
  refuses({"train", "--threads", "100000"},
          "--threads: expected an integer from 1 to 1024; got '100000'");
  refuses({"collectives", "--min-bytes", "100", "--max-bytes", "8"},
          "--min-bytes must not be above --max-bytes; got 100 and 8");
  refuses({"dist", "--counts", "1,0"}, "--counts: expected a list of integers 1,2,3 from 1 to 64");
}

TEST_F(Bench, json_is_a_line_for_each_kernel_of_a_roofline_and_no_table) {
  const test::Ended end = run({}, {"roofline", "--model", "mlp", "--batch", "8", "--json"});
  EXPECT_EQ(end.code, 0) << end.err;
  std::istringstream lines(end.out);
  int kernels = 0;
  for (std::string line; std::getline(lines, line); ++kernels) {
    EXPECT_TRUE(line.starts_with("{\"name\": \"mlp-") && line.ends_with("}")) << line;
    EXPECT_NE(line.find("\"kernel\": "), std::string::npos) << line;
  }
  EXPECT_GT(kernels, 3);
  refuses({"train", "--model", "mlp", "--profile", "--json"}, "--profile prints a table");
  refuses({"roofline", "--ptxas", "x", "--json"}, "--ptxas prints a table");
}

TEST_F(Bench, a_filter_that_matches_nothing_is_an_error) {
  refuses({"ops", "--json", "--filter", "nosuch"},
          "--filter nosuch: no operator matches; there are add, add_16, ");
  refuses({"collectives", "--filter", "nosuch"},
          "--filter nosuch: no collective matches; there are all_reduce, ");
}

TEST_F(Bench, a_filter_is_checked_before_anything_else) {
  for (const char* command : {"ops", "collectives"}) {
    // Half an environment of a launcher, and nothing measured yet.
    const test::Ended end = run({"RANK=0"}, {command, "--filter", "nosuch"});
    EXPECT_EQ(end.code, 2) << end.err;
    EXPECT_EQ(end.out, "");
  }
}

TEST_F(Bench, only_what_runs_on_ranks_joins_them) {
  const std::vector<std::string> roofline{"roofline", "--model", "mlp", "--batch", "8"};
  EXPECT_EQ(run({"RANK=0"}, roofline).code, 0) << "half an environment of a launcher";
  const std::vector<std::string> train{"train", "--model", "mlp", "--steps", "1"};
  const test::Ended half = run({"RANK=0"}, train);
  EXPECT_EQ(half.code, 1);
  EXPECT_NE(half.err.find("WORLD_SIZE is not set, but RANK is"), std::string::npos) << half.err;
  const test::Ended empty = run({"RANK="}, train);
  EXPECT_EQ(empty.code, 1);
  EXPECT_NE(empty.err.find("RANK is empty; give it a value, or unset it"), std::string::npos)
      << empty.err;
}

TEST_F(Bench, a_variable_for_faults_that_is_empty_asks_for_none) {
  const std::vector<std::string> short_one{"collectives", "--filter", "broadcast",
                                           "--max-bytes", "8",        "--json"};
  EXPECT_EQ(run({"TARN_FAULT="}, short_one).code, 0);
  EXPECT_EQ(run({"TARN_FAULT=nonsense"}, short_one).code, 1);
}

TEST(BenchTrain, an_input_is_three_sizes_and_nothing_else) {
  const auto work = [](const std::string& input) {
    return make_work({.model = "resnet18", .input = input, .batch = 1});
  };
  EXPECT_EQ(work("3x16x8").x.sizes(), (Shape{1, 3, 16, 8}));
  for (const char* wrong : {"", "3", "3x32", "3x32x32abc", "3x32x32x1", "3x-2x32", "3x0x32",
                            " 3x32x32", "3x32x", "3,32,32", "3x32x99999999999999999999"}) {
    EXPECT_THROWS_WITH(work(wrong), Error,
                       "--input must be CxHxW, as 3x32x32; got '" + std::string(wrong) + "'");
  }
}

TEST(BenchGenerate, weights_in_the_caches_are_not_compared_with_memory) {
  EXPECT_EQ(generate_text({.model = "gpt2"},
                          {.tokens_per_s = 30, .limit = 40, .read_gbps = 20, .weights_mib = 477}),
            "gpt2, float32: 30.0 tokens/s, batch 1; 75 % of the 40.0 that reading the weights at "
            "20.0 GB/s "
            "allows");
  EXPECT_EQ(
      generate_text({.model = "gpt", .dtype = "bfloat16"},
                    {.tokens_per_s = 900, .limit = 250, .read_gbps = 11, .weights_mib = 40.7}),
      "gpt, bfloat16: 900.0 tokens/s, batch 1; the 40.7 MiB of weights stay in the caches: from "
      "memory, "
      "at 11.0 GB/s, it would be 250.0 at most");
}

TEST_F(Bench, generates_with_weights_of_the_dtype_that_is_asked_for) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    const test::Ended done =
        run({}, {"generate", "--model", "gpt", "--tokens", "4", "--dtype", dtype});
    EXPECT_EQ(done.code, 0) << done.err;
    EXPECT_NE(done.out.find("gpt, " + dtype + ": "), std::string::npos) << done.out;
    const std::string mib = dtype == "float32" ? "40.7 MiB" : "20.4 MiB";
    if (done.out.find("stay in the caches") != std::string::npos) {
      EXPECT_NE(done.out.find(mib), std::string::npos) << done.out;
    }
  }
}

TEST(BenchMeeting, ends_for_all_when_one_rank_cannot_come) {
  const auto groups = dist::make_local_groups(3);
  std::atomic<int> told{0};
  const auto make = [&](const std::shared_ptr<dist::Store>& store, int rank) {
    if (rank == 1) throw DeviceError("no GPU for rank 1");
    try {
      store->get("nothing", std::chrono::minutes(10));
    } catch (const DeviceError&) {
      ++told;
      throw;
    }
    return groups[static_cast<size_t>(rank)];
  };
  EXPECT_THROWS_WITH(dist::run_threads(3, make, [](dist::ProcessGroup&) { FAIL(); }), DeviceError,
                     "no GPU for rank 1");
  EXPECT_EQ(told, 2);
}

TEST(BenchMeeting, that_was_called_off_still_has_what_came) {
  dist::MemoryStore store;
  store.set("a", "1");
  EXPECT_FALSE(store.wait_for("b", dist::Millis(20)));
  for (const char* text : {"first", "second"}) {
    store.abort(std::make_exception_ptr(DeviceError(text)));
  }
  EXPECT_EQ(store.get("a"), "1");
  EXPECT_THROWS_WITH(store.try_get("b"), DeviceError, "first");
  EXPECT_THROWS_WITH(store.wait_for("b", std::chrono::minutes(10)), DeviceError, "first");
}

}  // namespace
}  // namespace tarn::bench
