// main.cpp - tarn-resnet: trains and tests ResNets on images.
//
// Read on: settings (the flags), datasets, setup (network, optimizer, schedule), trainer (the
// loop), evaluate, report (curves), checkpoint.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>

#include <unistd.h>

#include "tarn/apps/common/device_choice.h"
#include "tarn/apps/common/main_guard.h"
#include "tarn/apps/common/terminal.h"
#include "tarn/apps/common/text.h"
#include "tarn/apps/resnet/setup.h"
#include "tarn/apps/resnet/sharing.h"
#include "tarn/apps/resnet/trainer.h"
#include "tarn/core/file.h"
#include "tarn/core/math_mode.h"
#include "tarn/core/parallel.h"
#include "tarn/core/random.h"

namespace {

using namespace tarn;
using namespace tarn::apps;

void report_skipped(const std::set<std::string>& skipped) {
  if (skipped.empty()) return;
  std::printf("Left out %zu image%s that cannot be read, the first: %s\n", skipped.size(),
              skipped.size() == 1 ? "" : "s", skipped.begin()->c_str());
}

// The line other programs read: keep its form, and keep it last.
void print_score(const Score& score) {
  std::printf("Test: Acc@1 %.3f (%lld/%lld)\n", score.accuracy(),
              static_cast<long long>(score.right), static_cast<long long>(score.count));
}

// The weights the best checkpoint of a run was scored with: the running mean where there is one.
void load_scored_weights(nn::Module& net, const ResnetSettings& s) {
  const Checkpoint c = load_best_checkpoint(*s.resume, {"model", "ema"});
  load_weights(net, c.dict("model"), *s.resume, s);
  if (c.dict("ema").empty()) return;
  optim::Ema ema(net.state_dict());
  ema.load_state_dict(c.dict("ema"));
  ema.swap();
}

int test_only(const ResnetSettings& s, const Ranks& ranks) {
  const ImageData data = open_data(s, false);
  const auto net = make_model(s, data);
  if (s.resume) load_scored_weights(*net, s);
  std::set<std::string> skipped;
  const Score score = *evaluate(*net, *data.test, s, skipped, nullptr, ranks);
  if (!ranks.main()) return 0;
  report_skipped(skipped);
  std::printf("Test: loss %.4f\n", score.loss);
  print_score(score);
  return 0;
}

// "6000 of 60000" where --limit says so.
std::string training_images_text(const ResnetSettings& s, const ImageData& data) {
  const int64_t n = training_images(s, data), all = data.train->size();
  return (n < all ? std::to_string(n) + " of " : "") + std::to_string(all);
}

void print_start(const ResnetSettings& s, const ImageData& data, const nn::Module& net,
                 const RunDir& run, const Ranks& ranks) {
  if (!ranks.main()) return;
  std::printf("%s (%lld parameters) on %s: %s training and %lld test images, %d thread%s, %s\n",
              s.model.c_str(), static_cast<long long>(net.num_parameters()), data.name.c_str(),
              training_images_text(s, data).c_str(), static_cast<long long>(data.test->size()),
              num_threads(), num_threads() == 1 ? "" : "s",
              Device(s.device).is_cuda() ? device_title(Device(s.device)).c_str() : "cpu");
  if (!data.note.empty()) std::printf("note: %s\n", data.note.c_str());
  if (s.amp) {
    const bool slow = s.amp_dtype == "float16" && Device(s.device).is_cpu();
    std::printf("mixed precision: products in %s%s\n", s.amp_dtype.c_str(),
                slow ? "; right, but slow on a cpu: bfloat16 is fast" : "");
  }
  if (ranks.size() > 1) {
    const std::string stage = std::to_string(s.ranks.zero_stage);
    const std::string part = "its part of the training state (ZeRO stage " + stage + ")";
    std::printf("%d ranks over %s, each with %s and %lld of %lld images a step%s\n", ranks.size(),
                ranks.group()->transport(), s.ranks.zero_stage > 0 ? part.c_str() : "a replica",
                static_cast<long long>(s.batch_size / ranks.size()),
                static_cast<long long>(s.batch_size),
                s.ranks.rebalance > 0 ? " at first, then by speed" : "");
  }
  const std::vector<Device> devices = replica_devices(s.ranks, Device(s.device));
  if (!devices.empty()) std::printf("%s\n", replicas_title(devices).c_str());
  if (s.lr_base_size > 0) std::printf("learning rate %s\n", number_text(s.rate()).c_str());
  std::printf("run folder %s\n", run.path().c_str());
  std::fflush(stdout);
}

// Rank 0 writes; the others read what a run that goes on has saved.
RunDir open_run(const ResnetSettings& s, const std::string& data, const Ranks& ranks) {
  if (!ranks.main()) return RunDir::nowhere();
  const std::string name = s.name.empty() ? default_run_name(s.model, data) : s.name;
  return s.resume ? RunDir::open(*s.resume) : RunDir::create(s.output_dir, name);
}

void print_summary(const ResnetSettings& s, const Trainer& trainer, const RunDir& run,
                   double seconds, bool complete) {
  const History& history = trainer.history();
  if (history.steps.size() > 1) {
    std::cout << "\n"
              << terminal_chart(history, wants_color(STDOUT_FILENO), terminal_width(STDOUT_FILENO));
  }
  report_skipped(trainer.skipped());
  std::printf("\n%s after %s", complete ? "Done" : "Stopped and saved",
              clock_text(seconds).c_str());
  if (trainer.last_score() && trainer.images_per_second() > 0) {
    std::printf(", %.0f images/s", trainer.images_per_second());
  }
  const std::string rate = trainer.rate_text();
  if (!rate.empty()) std::printf(", %s", rate.c_str());
  const std::string quoted = shell_quote(run.path().string());
  const char* path = quoted.c_str();
  std::printf("\n  run folder  %s (plots/, metrics.jsonl, train.log, checkpoints/)\n", path);
  if (!history.epochs.empty()) {
    std::printf("  best        %.2f %% of the test images\n", trainer.state().best_accuracy);
  }
  if (!complete) {
    std::printf("  go on       tarn-resnet --resume %s\n", path);
  } else {
    const bool own = s.data != ResnetSettings().data;
    std::printf(
        "  try next    tarn-resnet --model resnet20 --epochs 15%s\n"
        "              tarn-resnet --test-only --resume %s\n"
        "              tarn-resnet --help\n",
        own ? (" --data-path " + shell_quote(s.data)).c_str() : "", path);
  }
  if (trainer.last_score()) print_score(*trainer.last_score());
}

// Tries batches of up to `most` images on a network that is thrown away.
int64_t search_batch(ResnetSettings s, int64_t most, bool quiet) {
  const KeepRandom keep;
  const ImageData data = open_data(s, true);
  s.lr = 1e-12;  // a trial must not diverge
  s.measure = {};
  const auto net = make_model(s, data);
  RunDir nowhere = RunDir::nowhere();
  Trainer trainer(s, data, *net, nowhere);
  most = std::min(most, training_images(s, data));
  return find_batch(s.memory, Device(s.device), most, quiet,
                    [&](int64_t n) { trainer.try_steps(n); });
}

// A run that was done has its rate near 0: with more epochs, its curve is spread anew over all.
void note_longer_cycle(const ResnetSettings& s, const Trainer& trainer) {
  const std::string was = flag_of_run(*s.resume, "epochs");
  const bool cycle = s.scheduler == "onecycle", cosine = s.scheduler == "cosineannealinglr";
  if (!cycle && !cosine) return;
  if (was.empty() || was == std::to_string(s.epochs)) return;
  if (std::to_string(trainer.state().epoch) != was) return;
  std::printf(
      "note: the %s of %s epochs was over; it is spread over %lld now, and the learning\n"
      "      rate rises again (--lr-scheduler constant --lr X goes on evenly)\n",
      cycle ? "one cycle" : "cosine", was.c_str(), static_cast<long long>(s.epochs));
}

int train_once(const ResnetSettings& s, const Options& options, const Ranks& ranks) {
  const auto start = std::chrono::steady_clock::now();
  std::optional<RunDir> opened;
  std::optional<Checkpoint> checkpoint;
  if (s.resume) {
    opened.emplace(open_run(s, "", ranks));  // first: a process that ends there may still save
    checkpoint = load_newest_checkpoint(*s.resume, ranks);
  }
  const ImageData data = open_data(s, true);
  const auto net = make_model(s, data);
  if (!opened) opened.emplace(open_run(s, data.name, ranks));
  RunDir& run = *opened;
  if (ranks.main()) Ranks::remember_run(run.path());
  print_start(s, data, *net, run, ranks);

  Trainer trainer(s, data, *net, run, ranks);
  if (checkpoint) {
    TrainState at;
    restore_values(*checkpoint, at);
    trainer.resume(*checkpoint, ranks.main()
                                    ? load_history(run.path() / "metrics.jsonl", at.step, at.epoch)
                                    : History());
    checkpoint.reset();
    if (trainer.state().epoch >= s.epochs) {
      if (!ranks.main()) return 0;
      std::printf("All %lld epochs are done; a larger --epochs goes on.\n",
                  static_cast<long long>(s.epochs));
      return 0;
    }
    if (ranks.main()) {
      std::printf("resumed in epoch %lld, after %lld of %lld batches\n",
                  static_cast<long long>(trainer.state().epoch + 1),
                  static_cast<long long>(trainer.state().batch),
                  static_cast<long long>(trainer.state().epoch_batches));
      note_longer_cycle(s, trainer);
    }
    std::fflush(stdout);
  }
  if (ranks.main()) run.write_config(options, num_threads());
  const bool complete = trainer.fit();
  if (!ranks.main()) return 0;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  print_summary(s, trainer, run, took.count(), complete);
  return 0;
}

int train(ResnetSettings& s, const Options& options, const Ranks& ranks) {
  constexpr int64_t kMost = int64_t{1} << 20;
  if (s.memory.find_batch) s.batch_size = search_batch(s, kMost, false);
  if (ranks.size() > 1) return train_once(s, options, ranks);  // all would have to search together
  return run_or_advise(
      s.memory, Device(s.device), s.batch_size, [&] { return train_once(s, options, ranks); },
      [&](int64_t most) { return search_batch(s, most, true); });
}

// The folder of KIND:DIR by its whole path.
std::string with_whole_folder(const std::string& data) {
  const size_t colon = data.find(':');
  if (colon == std::string::npos || colon + 1 == data.size()) return data;
  return data.substr(0, colon + 1) + whole_path(data.substr(colon + 1));
}

int run(int argc, char** argv) {
  ResnetSettings s;
  Options options("tarn-resnet", "Trains and tests ResNets on images.");
  declare_flags(options, s);
  if (!options.parse(argc, argv)) return 0;
  if (s.resume) {
    inherit_flags(options, *s.resume,
                  {"--resume", "--weights", "--start-epoch", "--output-dir", "--name",
                   "--test-only", "--progress", "--find-batch", "--profile", "--memory-report"});
  }
  check_settings(s, &options);
  forget_launch(s.ranks, options);
  const Ranks ranks = Ranks::join(s.ranks, s.device);
  check_find_batch(s.memory, ranks);
  ranks.share(s.batch_size, "--batch-size");
  check_rank_flags(s.ranks, ranks, options);
  const std::string before = ranks.restarted_run();
  if (!before.empty() && !s.test_only) {
    s.resume = before;
    s.weights.reset();
  }
  s.device = choose_device(s.device, std::cout).str();
  replica_devices(s.ranks, Device(s.device));  // throws where they are not there
  apply_memory_limit(s.memory, Device(s.device));
  set_allow_tf32(s.allow_tf32);
  if (s.threads > 0) set_num_threads(static_cast<int>(s.threads));
  manual_seed(static_cast<uint64_t>(s.seed));
  if (s.test_only) return test_only(s, ranks);
  s.data = with_whole_folder(s.data);
  return train(s, options, ranks);
}

}  // namespace

int main(int argc, char** argv) {
  return main_guard("tarn-resnet", [&] { return run(argc, argv); });
}
