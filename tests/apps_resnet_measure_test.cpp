// apps_resnet_measure_test.cpp - tarn-resnet measures itself: profile, memory, batch sizes.
#include <fstream>

#include "apps_resnet_tools.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using tarn::test::Ended;
using tarn::test::Process;
using tarn::test::slurp;
using tarn::test::TempFolder;

class ResnetMeasures : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(program)) GTEST_SKIP() << "built without apps";
    tarn::test::write_mnist(folder, "data", 48, 8);
  }
  Ended run(const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--data-path",  "mnist:" + folder / "data",
                                    "--name",       name,
                                    "--epochs",     "1",
                                    "--lr",         "0.02",
                                    "--threads",    "1",
                                    "--device",     "cpu",
                                    "--output-dir", folder / "runs",
                                    "--print-freq", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return Process(program, all, folder).wait();
  }
  std::string weights(const std::string& name) const {
    return tarn::test::content(folder / ("runs/" + name + "/checkpoints/last/model.safetensors"));
  }

  const std::string program = tarn::test::built("tarn-resnet");
  TempFolder folder;
};

TEST_F(ResnetMeasures, profile_and_memory_report_are_files_of_the_run_and_change_nothing) {
  const Ended ended = run("a", {"-b", "8", "--profile", "--memory-report"});
  ASSERT_EQ(ended.code, 0) << ended.out << ended.err;
  const std::string table = slurp(folder / "runs/a/profile.txt");
  for (const char* word : {"conv2d backward", "sgd", "mean of 3 steps", "layer1"}) {
    EXPECT_NE(table.find(word), std::string::npos) << word << "\n" << table;
  }
  std::ifstream in(folder / "runs/a/trace/rank-0.pt.trace.json");
  EXPECT_GT(json::parse(in).at("traceEvents").size(), 100u);
  const std::string memory = slurp(folder / "runs/a/memory.txt");
  for (const char* word : {"activations", "gradients", "conv1", "bn1", "BatchNorm2d"}) {
    EXPECT_NE(memory.find(word), std::string::npos) << word << "\n" << memory;
  }
  const size_t peak = ended.out.find(" % of the peak of ");
  ASSERT_NE(peak, std::string::npos) << ended.out;
  const double gflops = std::atof(ended.out.c_str() + peak + 18);
  EXPECT_GT(gflops, 1);
  EXPECT_LT(gflops, 2000);  // one core of today does some 200
  EXPECT_NE(slurp(folder / "runs/a/train.log").find("mfu: "), std::string::npos);
  EXPECT_NE(slurp(folder / "runs/a/metrics.jsonl").find("\"mfu\": "), std::string::npos);
  ASSERT_EQ(run("plain", {"-b", "8"}).code, 0);
  EXPECT_TRUE(weights("a") == weights("plain"));
  EXPECT_EQ(run("watched", {"-b", "8", "--detect-anomaly"}).code, 0);
}

TEST_F(ResnetMeasures, training_after_the_search_is_training_without_it) {
  const Ended found = run("found", {"--find-batch", "--memory-limit", "0.02"});
  ASSERT_EQ(found.code, 0) << found.out << found.err;
  EXPECT_NE(found.out.find("does not fit"), std::string::npos) << found.out;
  const json config = json::parse(slurp(folder / "runs/found/config.json"));
  const auto batch = config.at("flags").at("batch-size").get<int64_t>();
  EXPECT_GE(batch, 4);
  EXPECT_LT(batch, 48);
  ASSERT_EQ(run("given", {"-b", std::to_string(batch), "--memory-limit", "0.02"}).code, 0);
  EXPECT_TRUE(weights("found") == weights("given"));
}

TEST_F(ResnetMeasures, a_batch_that_cannot_fit_is_told_what_would) {
  const Ended ended = run("a", {"-b", "48", "--memory-limit", "0.02"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_NE(ended.err.find("--batch-size 48 does not fit into --memory-limit 0.02; --batch-size "),
            std::string::npos)
      << ended.err;
  const size_t at = ended.err.find("; --batch-size ");
  const std::string batch = std::to_string(std::atoll(ended.err.c_str() + at + 15));
  EXPECT_EQ(run("again", {"-b", batch, "--memory-limit", "0.02"}).code, 0) << batch;
}

}  // namespace
