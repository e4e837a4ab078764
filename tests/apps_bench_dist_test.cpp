// apps_bench_dist_test.cpp - tarn-bench dist: one process, DataParallel and DDP side by side.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "apps_process.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tarn/apps/bench/dist.h"

namespace tarn::bench {
namespace {

const std::string kBench = tarn::test::built("tarn-bench");

class BenchDist : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kBench)) GTEST_SKIP() << "built without apps";
  }
  test::Ended run(std::vector<std::string> more) {
    std::vector<std::string> arguments{"dist",    "--model", "mlp",       "--batch", "32",
                                       "--steps", "5",       "--threads", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return test::Process(kBench, arguments, folder).wait();
  }
  test::TempFolder folder;
};

TEST_F(BenchDist, every_row_has_its_figures) {
  const test::Ended end = run({"--counts", "1,2", "--json"});
  ASSERT_EQ(end.code, 0) << end.out << end.err;
  std::istringstream lines(end.out);
  std::string seen;
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    const std::string mode = row.at("mode");
    const int count = row.at("count");
    seen += mode + std::to_string(count) + " ";
    EXPECT_EQ(row.at("threads"), mode == "ddp" ? 2 / count : 2) << line;
    EXPECT_GT(row.at("median_s"), 0.0) << line;
    EXPECT_GT(row.at("first_mib"), 0.0) << line;
    EXPECT_EQ(row.at("comm_s") > 0.0, mode != "one" && count == 2) << line;
    EXPECT_EQ(row.at("other_mib") > 0.0, mode == "ddp" && count == 2) << line;
  }
  EXPECT_EQ(seen, "one1 dp1 dp2 ddp1 ddp2 ");
}

TEST_F(BenchDist, a_row_that_fails_says_why_and_the_others_go_on) {
  const test::Ended end = run({"--counts", "3,2"});
  EXPECT_EQ(end.code, 1);
  EXPECT_NE(end.out.find("--batch 32 is shared by all ranks"), std::string::npos) << end.out;
  EXPECT_NE(end.out.find("\nddp   2 x  1 threads "), std::string::npos) << end.out;
}

TEST_F(BenchDist, is_not_for_a_launcher) {
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "2", 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", "29500", 1);
  const test::Ended end = run({"--counts", "1"});
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) unsetenv(name);
  EXPECT_EQ(end.code, 2);
  EXPECT_NE(end.err.find("dist starts ranks of its own; run it without tarn-run"),
            std::string::npos)
      << end.err;
}

TEST(BenchDistRow, is_read_from_what_a_run_prints) {
  const DistRow row = read_row(
      "a warning\n{\"median_s\": 0.5, \"items_per_s\": 64.0, \"comm_s\": 0.1, \"exposed_s\": 0.05, "
      "\"first_mib\": 3.0, \"other_mib\": 2.0}\n");
  EXPECT_EQ(row.error, "");
  EXPECT_DOUBLE_EQ(row.hidden(), 0.5);
  EXPECT_DOUBLE_EQ(row.computing(), 0.9);
  const DistRow gpu = read_row(
      "{\"median_s\": 0.5, \"items_per_s\": 64.0, \"comm_s\": null, \"exposed_s\": null, "
      "\"first_mib\": 3.0, \"other_mib\": 2.0}\n");
  EXPECT_EQ(gpu.error, "");
  EXPECT_TRUE(std::isnan(gpu.comm_s) && std::isnan(gpu.hidden()) && std::isnan(gpu.computing()));
  EXPECT_EQ(hidden_share(0.1, 0.2), 0.0) << "waits for another rank are no negative share";
  EXPECT_EQ(hidden_share(0, 0), 1.0);
  EXPECT_EQ(read_row("one\ntarn-bench: error: no\ntarn-run: error: rank 0 ended\n").error,
            "tarn-bench: error: no");
  EXPECT_EQ(read_row("").error, "no figures were printed");
}

TEST(BenchDistRow, is_measured_with_the_flags_that_were_given) {
  const auto has = [](const TrainSettings& s, const std::string& word) {
    const std::vector<std::string> command = train_command(s);
    return std::find(command.begin(), command.end(), word) != command.end();
  };
  EXPECT_FALSE(has({}, "--tf32"));
  EXPECT_TRUE(has({.tf32 = true}, "--tf32"));
  EXPECT_TRUE(has({.dtype = "bfloat16"}, "bfloat16"));
}

TEST_F(BenchDist, collectives_of_threads_and_transports_of_processes) {
  const std::vector<std::string> few{"--filter",    "all_reduce", "--min-bytes", "64",
                                     "--max-bytes", "64",         "--ranks",     "3"};
  const auto collectives = [&](std::vector<std::string> more) {
    more.insert(more.begin(), few.begin(), few.end());
    more.insert(more.begin(), "collectives");
    return test::Process(kBench, more, folder).wait();
  };
  const test::Ended end = collectives({});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_TRUE(end.out.starts_with("3 ranks over local, tensors on the cpu, f32")) << end.out;
  const test::Ended host = collectives({"--transport", "host"});
  EXPECT_EQ(host.code, 2);
  EXPECT_NE(host.err.find("--transport host is between processes"), std::string::npos) << host.err;
}

}  // namespace
}  // namespace tarn::bench
