// apps_gpt_measure_test.cpp - tarn-gpt measures itself: profile, memory, batch sizes, NaN.
#include <filesystem>
#include <fstream>
#include <set>

#include "apps_gpt_tools.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using tarn::test::content;
using tarn::test::Ended;
using tarn::test::Process;
using tarn::test::slurp;
using tarn::test::TempFolder;

class TarnGptMeasures : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(program)) GTEST_SKIP() << "the program is not built";
    text = tarn::test::write_words(folder);
  }
  Ended run(const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> arguments =
        tarn::test::small_gpt(text, folder / name,
                              {"--max-iters", "8", "--eval-interval", "8", "--eval-iters", "1",
                               "--warmup-iters", "2", "--lr", "0.001", "--batch-size", "12",
                               "--gradient-accumulation-steps", "1", "--sample-tokens", "0"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Process(program, arguments, folder).wait();
  }
  std::vector<double> losses(const std::string& name) const {
    std::vector<double> found;
    std::ifstream in(folder / (name + "/metrics.jsonl"));
    for (std::string line; std::getline(in, line);) {
      const json j = json::parse(line);
      if (j.contains("loss")) found.push_back(j.at("loss"));
    }
    return found;
  }

  const std::string program = tarn::test::built("tarn-gpt");
  TempFolder folder;
  std::string text;
};

TEST_F(TarnGptMeasures, profile_and_memory_report_are_files_of_the_run) {
  const Ended ended = run("run", {"--profile", "--memory-report", "--peak-tflops", "0.5"});
  ASSERT_EQ(ended.code, 0) << ended.out << ended.err;
  const std::string table = slurp(folder / "run/profile.txt");
  EXPECT_NE(table.find("linear backward"), std::string::npos) << table;
  EXPECT_NE(table.find("mean of 3 steps"), std::string::npos) << table;
  EXPECT_NE(table.find("transformer.h.0"), std::string::npos) << table;
  EXPECT_NE(ended.out.find("linear backward"), std::string::npos);
  std::ifstream in(folder / "run/trace/rank-0.pt.trace.json");
  const json trace = json::parse(in);
  int steps = 0;
  for (const json& e : trace.at("traceEvents")) {
    steps += e.at("name").get<std::string>().starts_with("ProfilerStep#");
  }
  EXPECT_EQ(steps, 3);
  const std::string memory = slurp(folder / "run/memory.txt");
  for (const char* word : {"parameters", "gradients", "optimizer", "activations", "transformer.h.0",
                           "memory by module"}) {
    EXPECT_NE(memory.find(word), std::string::npos) << word << "\n" << memory;
  }
  EXPECT_NE(ended.out.find("of the peak of 500.0"), std::string::npos) << ended.out;
  EXPECT_NE(slurp(folder / "run/train.log").find("mfu "), std::string::npos);
  // Measuring changes nothing.
  ASSERT_EQ(run("plain", {}).code, 0);
  EXPECT_EQ(losses("run").size(), 8u);
  EXPECT_EQ(losses("run"), losses("plain"));
}

TEST_F(TarnGptMeasures, operations_are_counted_from_the_sizes) {
  ASSERT_EQ(run("run", {"--batch-size", "4", "--peak-tflops", "0.001", "--max-iters", "1"}).code,
            0);
  std::ifstream in(folder / "run/metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const json j = json::parse(line);
    if (!j.contains("mfu")) continue;
    // Two blocks of 12 d^2 weights and an output layer, 2 a multiply-add; attention twice 2 T d.
    const double d = 16, tokens = 4 * 16;
    const std::string letters = slurp(text);
    const auto distinct =
        static_cast<double>(std::set<char>(letters.begin(), letters.end()).size());
    const double forward = tokens * (2 * (2 * 12 * d * d + 4 * 16 * d) + 2 * d * distinct);
    const double seconds = j.at("ms").get<double>() * 1e-3;
    EXPECT_NEAR(j.at("mfu").get<double>() * seconds * 1e9, 3 * forward, 3 * forward * 1e-6);
    return;
  }
  FAIL() << "no mfu";
}

TEST_F(TarnGptMeasures, training_after_the_search_is_training_without_it) {
  const Ended found = run("found", {"--find-batch", "--memory-limit", "0.01"});
  ASSERT_EQ(found.code, 0) << found.out << found.err;
  EXPECT_NE(found.out.find("does not fit"), std::string::npos) << found.out;
  const json config = json::parse(slurp(folder / "found/config.json"));
  const std::string batch = std::to_string(config.at("flags").at("batch-size").get<int64_t>());
  EXPECT_GE(std::stoll(batch), 4);
  ASSERT_EQ(run("given", {"--batch-size", batch, "--memory-limit", "0.01"}).code, 0);
  EXPECT_EQ(losses("found").size(), 8u);
  EXPECT_EQ(losses("found"), losses("given"));
  for (const std::string file : {"model.safetensors", "optim.safetensors"}) {
    EXPECT_TRUE(content(folder / ("found/checkpoints/last/" + file)) ==
                content(folder / ("given/checkpoints/last/" + file)))
        << file;
  }
}

TEST_F(TarnGptMeasures, a_batch_that_cannot_fit_is_told_what_would) {
  const Ended ended = run("run", {"--batch-size", "5000", "--memory-limit", "0.01"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_NE(
      ended.err.find("--batch-size 5000 does not fit into --memory-limit 0.01; --batch-size "),
      std::string::npos)
      << ended.err;
  const size_t at = ended.err.find("; --batch-size ");
  const std::string batch = std::to_string(std::atoll(ended.err.c_str() + at + 15));
  EXPECT_EQ(run("again", {"--batch-size", batch, "--memory-limit", "0.01"}).code, 0) << batch;
}

TEST_F(TarnGptMeasures, the_first_nan_is_named_by_operation_and_module) {
  const Ended ended = run("run", {"--detect-anomaly", "--lr", "1e30", "--grad-clip", "0"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_NE(ended.err.find("anomaly: "), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find(" in transformer."), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("first at index ["), std::string::npos) << ended.err;
  EXPECT_EQ(run("fine", {"--detect-anomaly"}).code, 0);
}

}  // namespace
