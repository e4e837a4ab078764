// apps_gpt_test.cpp - tarn-gpt as a program: learning, being stopped, writing text, errors.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "apps_gpt_tools.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tarn/data/tokens.h"

namespace {

namespace fs = std::filesystem;
using tarn::test::content;
using tarn::test::Ended;
using tarn::test::Process;
using tarn::test::slurp;
using tarn::test::TempFolder;

class TarnGpt : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(program)) GTEST_SKIP() << "the program is not built";
    text = tarn::test::write_words(folder);
  }

  std::vector<std::string> small(const std::string& run,
                                 const std::vector<std::string>& more = {}) const {
    return tarn::test::small_gpt(text, folder / run, more);
  }
  Ended run(const std::vector<std::string>& arguments) {
    return Process(program, arguments, folder).wait();
  }

  // Losses by step, from metrics.jsonl.
  std::vector<std::pair<int64_t, double>> losses(const std::string& run) const {
    std::vector<std::pair<int64_t, double>> found;
    std::ifstream in(folder / (run + "/metrics.jsonl"));
    for (std::string line; std::getline(in, line);) {
      const nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
      if (j.is_discarded()) break;
      found.emplace_back(j.at("step"), j.contains("loss") ? j.at("loss") : j.at("val_loss"));
    }
    return found;
  }

  const std::string program = tarn::test::built("tarn-gpt");
  TempFolder folder;
  std::string text;
};

TEST_F(TarnGpt, learns_shows_text_and_leaves_a_whole_run_folder) {
  const Ended ended = run(small("run"));
  ASSERT_EQ(ended.code, 0) << ended.out << ended.err;
  const auto found = losses("run");
  ASSERT_EQ(found.size(), 64u);  // 60 steps, 4 estimates
  EXPECT_GT(found.front().second, 2.5);
  EXPECT_LT(found.back().second, 1.2);
  EXPECT_NE(ended.out.find("step 60: train loss "), std::string::npos) << ended.out;
  EXPECT_NE(ended.out.find("\nFinal: train loss "), std::string::npos) << ended.out;
  for (const char* file :
       {"config.json", "tokenizer.json", "train.log", "plots/loss.svg", "plots/lr.png",
        "samples/step-000060.txt", "checkpoints/last/model.safetensors",
        "checkpoints/best/manifest.json"}) {
    EXPECT_TRUE(fs::exists(folder / (std::string("run/") + file))) << file;
  }
}

TEST_F(TarnGpt, a_run_killed_in_the_middle_goes_on_with_the_same_losses) {
  ASSERT_EQ(run(small("whole")).code, 0);
  {
    Process killed(program, small("killed"), folder);
    while (killed.running() && losses("killed").size() < 30) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    killed.signal(SIGKILL);
    killed.wait();
  }
  const Ended ended = run({"--resume", folder / "killed"});
  ASSERT_EQ(ended.code, 0) << ended.out << ended.err;
  EXPECT_EQ(losses("killed"), losses("whole"));
  EXPECT_EQ(content(folder / "killed/checkpoints/last/model.safetensors"),
            content(folder / "whole/checkpoints/last/model.safetensors"));
}

TEST_F(TarnGpt, a_signal_saves_and_ends_well) {
  ASSERT_EQ(run(small("whole")).code, 0);
  Process stopped(program, small("stopped"), folder);
  while (stopped.running() && losses("stopped").size() < 26) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  stopped.signal(SIGTERM);
  const Ended first = stopped.wait();
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.out.find("Stopped and saved"), std::string::npos) << first.out;
  const Ended second = run({"--init-from", "resume", "--out-dir", folder / "stopped"});
  ASSERT_EQ(second.code, 0) << second.out << second.err;
  EXPECT_EQ(losses("stopped"), losses("whole"));
}

TEST_F(TarnGpt, text_is_the_same_with_and_without_the_cache) {
  ASSERT_EQ(run(small("run")).code, 0);
  const std::vector<std::string> ask{
      "--sample", "--resume", folder / "run", "--start", "the ", "--max-new-tokens", "60"};
  const Ended with = run(ask);
  ASSERT_EQ(with.code, 0) << with.err;
  EXPECT_TRUE(with.out.starts_with("the ")) << with.out;
  auto arguments = ask;
  arguments.push_back("--no-kv-cache");
  EXPECT_EQ(run(arguments).out, with.out);
  arguments = ask;
  arguments.insert(arguments.end(), {"--seed", "5"});
  EXPECT_NE(run(arguments).out, with.out);
  const Ended odd = run({"--sample", "--resume", folder / "run", "--start", "Z"});
  EXPECT_EQ(odd.code, 1);
  EXPECT_NE(odd.err.find("'Z' at offset 0 is not among the"), std::string::npos) << odd.err;
}

TEST_F(TarnGpt, weights_of_a_run_start_another) {
  ASSERT_EQ(run(small("run")).code, 0);
  const std::string weights = folder / "run/checkpoints/last/model.safetensors";
  const Ended scored = run(small("unused", {"--eval-only", "--init-from", weights}));
  ASSERT_EQ(scored.code, 0) << scored.err;
  EXPECT_NE(scored.out.find("\ntrain loss "), std::string::npos) << scored.out;
  const std::string exported = folder / "gpt.bin";
  const Ended written = run({"--resume", folder / "run", "--export", exported});
  EXPECT_EQ(written.out.find("wrote " + exported + " ("), 0u) << written.out << written.err;
  const auto losses_line = [](const std::string& out) { return out.substr(out.rfind("\ntrain")); };
  EXPECT_EQ(losses_line(run(small("unused", {"--eval-only", "--init-from", exported})).out),
            losses_line(scored.out));
  const Ended tuned = run(small("tuned", {"--init-from", weights, "--max-iters", "20"}));
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  EXPECT_LT(losses("tuned").front().second, 1.2);
}

TEST_F(TarnGpt, checkpointed_activations_give_the_same_losses) {
  ASSERT_EQ(run(small("plain", {"--max-iters", "20"})).code, 0);
  const Ended ended = run(small("kept", {"--max-iters", "20", "--grad-checkpoint"}));
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(losses("kept"), losses("plain"));
}

TEST_F(TarnGpt, halves_learn_and_go_on_where_they_were_stopped) {
  for (const char* dtype : {"bfloat16", "float16"}) {
    const std::string whole = std::string(dtype) + "-whole", part = std::string(dtype) + "-part";
    ASSERT_EQ(run(small(whole, {"--dtype", dtype, "--max-iters", "40"})).code, 0);
    EXPECT_LT(losses(whole).back().second, 1.8) << dtype;
    {
      Process killed(program, small(part, {"--dtype", dtype, "--max-iters", "40"}), folder);
      while (killed.running() && losses(part).size() < 28) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      killed.signal(SIGKILL);
      killed.wait();
    }
    ASSERT_EQ(run({"--resume", folder / part}).code, 0);
    EXPECT_EQ(losses(part), losses(whole)) << dtype;
  }
}

TEST_F(TarnGpt, two_ranks_train_as_one_process_would) {
  const std::string launcher = tarn::test::built("tarn-run");
  if (!fs::exists(launcher)) GTEST_SKIP() << "built without apps";
  ASSERT_EQ(run(small("one", {"--dropout", "0"})).code, 0);
  // In equal parts, and in parts by the ranks' speeds as they happen to be.
  for (const std::string every : {"0", "3"}) {
    std::vector<std::string> arguments{"--nproc", "2", "--log-dir", folder / "logs", program};
    for (const std::string& a : small(
             "two" + every, {"--dropout", "0", "--rebalance", every, "--bucket-cap-mb", "0.01"})) {
      arguments.push_back(a);
    }
    const Ended ended = Process(launcher, arguments, folder).wait();
    ASSERT_EQ(ended.code, 0) << ended.out << ended.err;
    const auto one = losses("one"), two = losses("two" + every);
    ASSERT_EQ(one.size(), two.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(one[i].second, two[i].second, 1e-3) << "step " << one[i].first;
    }
  }
}

TEST_F(TarnGpt, ranks_drop_other_values) {
  const std::string launcher = tarn::test::built("tarn-run");
  if (!fs::exists(launcher)) GTEST_SKIP() << "built without apps";
  // All windows are equal, so two ranks with one mask would have the loss of one rank alone.
  const std::string same = folder.write("same.txt", std::string(3000, 'a') + "b");
  const std::vector<std::string> more{"--data",      same, "--dropout",   "0.5",
                                      "--max-iters", "1",  "--batch-size"};
  const auto with_batch = [&](const std::string& name, const char* batch) {
    std::vector<std::string> arguments = small(name, more);
    arguments.push_back(batch);
    return arguments;
  };
  ASSERT_EQ(run(with_batch("one", "1")).code, 0);
  std::vector<std::string> arguments = with_batch("two", "2");
  arguments.insert(arguments.begin(), {"--nproc", "2", "--log-dir", folder / "logs", program});
  const Ended ended = Process(launcher, arguments, folder).wait();
  ASSERT_EQ(ended.code, 0) << ended.out << ended.err;
  const auto one = losses("one"), two = losses("two");
  ASSERT_EQ(one.size(), 3u);  // an estimate, a step, an estimate
  ASSERT_EQ(two.size(), 3u);
  EXPECT_GT(one[1].second, 0.01);
  EXPECT_NE(one[1].second, two[1].second);
}

TEST_F(TarnGpt, replicas_in_one_process_train_as_one_would) {
  ASSERT_EQ(run(small("one", {"--dropout", "0"})).code, 0);
  const Ended ended = run(
      small("two", {"--dropout", "0", "--parallel", "dp", "--replicas", "3", "--rebalance", "5"}));
  ASSERT_EQ(ended.code, 0) << ended.out << ended.err;
  EXPECT_NE(ended.out.find("3 replicas on cpu, cpu, cpu\n"), std::string::npos) << ended.out;
  const auto one = losses("one"), two = losses("two");
  ASSERT_EQ(one.size(), two.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(one[i].second, two[i].second, 1e-3) << "step " << one[i].first;
  }
}

TEST_F(TarnGpt, a_run_may_end_within_the_warm_up) {
  const Ended ended = run(small("run", {"--max-iters", "3", "--warmup-iters", "100"}));
  EXPECT_EQ(ended.code, 0) << ended.err;
}

TEST_F(TarnGpt, the_rate_grows_with_the_batch) {
  // 4 windows, 2 micro-batches: 8 a step where 0.005 is meant for 4.
  ASSERT_EQ(run(small("plain", {"--max-iters", "20"})).code, 0);
  const Ended ended = run(small(
      "scaled", {"--max-iters", "20", "--lr", "0.005", "--min-lr", "5e-5", "--lr-base-size", "4"}));
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_NE(ended.out.find("learning rate 0.01\n"), std::string::npos) << ended.out;
  EXPECT_EQ(losses("scaled"), losses("plain"));
}

TEST_F(TarnGpt, what_cannot_be_done_is_one_clear_error) {
  const auto fails = [&](const std::vector<std::string>& arguments, int code,
                         const std::string& message) {
    const Ended ended = run(arguments);
    EXPECT_EQ(ended.code, code) << message;
    EXPECT_NE(ended.err.find("tarn-gpt: error: "), std::string::npos) << ended.err;
    EXPECT_NE(ended.err.find(message), std::string::npos) << ended.err;
  };
  fails({"--data", folder / "none.txt"}, 1, "no such file or folder; pass king-james");
  fails({"--data", folder.write("short.txt", "abc")}, 1, "a window of 64 needs 65");
  fails(small("c", {"--val-data", folder.write("v.bin", "tokens")}), 2, "v.bin holds tokens, and");
  fails({"--data", folder.write("t.bin", std::string(4000, 1)), "--val-data", folder / "short.txt"},
        1, "short.txt is a text, and --data ");
  fails(small("a", {"--tokenizer", folder.str()}), 1, "must hold vocab.json and merges.txt");
  folder.write("w.safetensors", "nothing");
  fails(small("b", {"--init-from", folder / "w.safetensors"}), 1, "w.safetensors");
  fails({"--resume", folder / "none"}, 1, "no run to go on with");
  folder.write("run/config.json", R"({"flags": {"tokenizer": "auto"}})");
  folder.write("run/tokenizer.json", "{}");
  fails({"--resume", folder / "run", "--tokenizer", "byte"}, 2,
        "--tokenizer byte: the run goes on with its own, " + folder / "run/tokenizer.json (auto)");
  fails({"--resume", folder / "run", "--tokenizer", "char"}, 1, "resume: no checkpoint in ");
  folder.write("of/config.json", R"({"flags": {"model": "char", "parallel": "ddp"}})");
  fails({"--resume", folder / "of", "--model", "gpt2"}, 2,
        "--model gpt2: the model is that of the");
  fails({"--resume", folder / "of"}, 1, "resume: no checkpoint in ");  // alone, though it was ddp
  fails({"--gradient-accumulation-steps", "9223372036854775807"}, 2, "from 1 to 1048576; got ");
  fails({"--resume", ""}, 2, "--resume: expected a text that is not empty; got ''");
  fails({"--sample"}, 2, "--sample needs weights");
  fails({"--sample", "--resume", folder / "run", "--n-layer", "2"}, 2,
        "--n-layer: the model is that of the run " + folder / "run; leave the flag out");
  fails({"--sample", "--init-from", "none"}, 1, "weights: cannot open none: there is no such file");
  fails({"--export", folder / "x.bin"}, 2, "--export needs weights");
  fails({"--export", "x.bin", "--sample", "--init-from", "w.bin"}, 2, "does not go with --sample");
  fails({"--export", "x.bin", "--dtype", "float16", "--init-from", "w.bin"}, 2,
        "checkpoints of llm.c hold float32 or bfloat16");
  fails({"--bogus"}, 2, "unknown option --bogus");
  fails(small("d", {"--parallel", "dp"}), 2, "the cpu is one device; pass --replicas N");
  fails(small("d", {"--replicas", "2"}), 2, "--replicas is of --parallel dp; pass both");
  fails(small("d", {"--rebalance", "2"}), 2, "--rebalance needs parts to share the batch");
  tarn::data::save_nanogpt_tokens(folder / "big.bin", std::vector<int32_t>(500, 60000));
  folder.write("meta.json", R"({"itos": ["a", "b"]})");
  fails(small("c", {"--data", folder / "big.bin"}), 1, "is outside the vocabulary of 2");
}

TEST_F(TarnGpt, a_damaged_checkpoint_is_named_and_the_one_before_taken) {
  ASSERT_EQ(run(small("run", {"--max-iters", "40"})).code, 0);
  const auto whole = losses("run");
  const std::string weights = content(folder / "run/checkpoints/last/model.safetensors");
  fs::resize_file(folder / "run/checkpoints/last/model.safetensors", 1000);
  const Ended text = run({"--sample", "--resume", folder / "run", "--max-new-tokens", "5"});
  EXPECT_EQ(text.code, 0) << text.err;
  const Ended ended = run({"--resume", folder / "run"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  for (const Ended& e : {text, ended}) {
    EXPECT_NE(e.err.find("warning: checkpoint: " + folder / "run/checkpoints/step-000040 is " +
                         "damaged: model.safetensors has 1000 bytes instead of "),
              std::string::npos)
        << e.err;
    EXPECT_NE(e.err.find("; taking that of step 20 instead\n"), std::string::npos) << e.err;
  }
  EXPECT_EQ(losses("run"), whole);
  EXPECT_EQ(slurp(folder / "run/checkpoints/last/model.safetensors"), weights);
}

TEST_F(TarnGpt, ranks_stop_save_and_go_on_together) {
  const std::string launcher = tarn::test::built("tarn-run");
  if (!fs::exists(launcher)) GTEST_SKIP() << "built without apps";
  const std::vector<std::string> launch{"--nproc", "2", "--log-dir", folder / "logs", program};
  const auto ranks = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), launch.begin(), launch.end());
    return arguments;
  };
  ASSERT_EQ(Process(launcher, ranks(small("whole")), folder).wait().code, 0);
  Process stopped(launcher, ranks(small("stopped")), folder);
  while (stopped.running() && losses("stopped").size() < 26) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  stopped.signal(SIGTERM);
  const Ended first = stopped.wait();
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.out.find("Stopped and saved"), std::string::npos) << first.out;
  const auto manifest =
      nlohmann::json::parse(slurp(folder / "stopped/checkpoints/last/manifest.json"));
  const auto& generators = manifest.at("generators");  // each rank's, of dropout
  EXPECT_EQ(generators.at("default").at("seed"), 1337);
  EXPECT_EQ(generators.at("default-rank-1").at("seed"), 1338);
  EXPECT_EQ(generators.at("default-rank-1").at("offset"), generators.at("default").at("offset"));
  fs::remove(folder / "stopped/checkpoints/last/optim.safetensors");
  const Ended second = Process(launcher, ranks({"--resume", folder / "stopped"}), folder).wait();
  ASSERT_EQ(second.code, 0) << second.out << second.err;
  EXPECT_NE(second.err.find(": optim.safetensors is missing; taking that of step "),
            std::string::npos)
      << second.err;
  EXPECT_EQ(losses("stopped"), losses("whole"));
  EXPECT_EQ(content(folder / "stopped/checkpoints/last/model.safetensors"),
            content(folder / "whole/checkpoints/last/model.safetensors"));
}

TEST_F(TarnGpt, a_restart_of_all_ranks_goes_on_from_the_last_checkpoint) {
  const std::string launcher = tarn::test::built("tarn-run");
  if (!fs::exists(launcher)) GTEST_SKIP() << "built without apps";
  std::vector<std::string> arguments{"--nproc",       "2",    "--max-restarts", "9", "--log-dir",
                                     folder / "logs", program};
  for (const std::string& a : small("run")) arguments.push_back(a);
  // Each start gets past one checkpoint more, then loses a rank.
  setenv("TARN_FAULT", "rank=1 at=100 do=kill", 1);
  const Ended ended = Process(launcher, arguments, folder).wait();
  unsetenv("TARN_FAULT");
  ASSERT_EQ(ended.code, 0) << ended.out << ended.err;
  EXPECT_NE(ended.err.find("starting all ranks anew"), std::string::npos) << ended.err;
  EXPECT_NE(ended.out.find("resumed after step "), std::string::npos) << ended.out;
  EXPECT_EQ(losses("run").size(), 64u);
}

TEST_F(TarnGpt, a_checkpoint_of_another_model_is_refused) {
  ASSERT_EQ(run(small("run", {"--max-iters", "20"})).code, 0);
  const Ended ended = run({"--resume", folder / "run", "--n-layer", "3", "--max-iters", "40"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_NE(ended.err.find("trains a model of 2 layers"), std::string::npos) << ended.err;
  const Ended gelu = run({"--resume", folder / "run", "--gelu", "exact", "--max-iters", "40"});
  EXPECT_EQ(gelu.code, 1);
  EXPECT_NE(gelu.err.find("make one of 2 layers"), std::string::npos) << gelu.err;
  EXPECT_TRUE(gelu.err.ends_with(", exact GELU\n")) << gelu.err;
}

TEST_F(TarnGpt, the_exact_gelu_is_that_of_the_run_and_of_what_it_exports) {
  ASSERT_EQ(run(small("tanh", {"--max-iters", "20"})).code, 0);
  ASSERT_EQ(run(small("exact", {"--max-iters", "20", "--gelu", "exact"})).code, 0);
  EXPECT_NE(losses("exact"), losses("tanh"));
  const Ended on = run({"--resume", folder / "exact", "--max-iters", "40"});
  EXPECT_EQ(on.code, 0) << on.err;
  const Ended written = run({"--resume", folder / "exact", "--export", folder / "hf"});
  EXPECT_NE(written.out.find(", exact GELU)"), std::string::npos) << written.out << written.err;
  EXPECT_NE(slurp(folder / "hf/config.json").find("\"gelu\""), std::string::npos);
  const Ended refused = run({"--resume", folder / "exact", "--export", folder / "x.bin"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("llm.c computes GELU by tanh"), std::string::npos) << refused.err;
}

}  // namespace
