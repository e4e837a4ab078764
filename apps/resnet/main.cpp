// main.cpp - tarn-resnet: trains and tests ResNets on images.
#include <chrono>
#include <cstdio>
#include <iostream>

#include <unistd.h>

#include "tarn/apps/common/main_guard.h"
#include "tarn/apps/resnet/trainer.h"
#include "tarn/core/parallel.h"
#include "tarn/core/random.h"

namespace {

using namespace tarn;
using namespace tarn::apps;

void report_skipped(const std::vector<std::string>& skipped) {
  if (skipped.empty()) return;
  std::printf("Left out %zu images that could not be read, the first: %s\n", skipped.size(),
              skipped[0].c_str());
}

// The line other programs read: keep its form.
void print_score(const Score& score) {
  std::printf("Test: Acc@1 %.3f (%lld/%lld)\n", score.accuracy(),
              static_cast<long long>(score.right), static_cast<long long>(score.count));
}

int test_only(const ResnetSettings& s) {
  const ImageData data = open_data(s, false);
  const auto net = make_model(s, data);
  if (s.resume) {
    net->load_state_dict(
        load_checkpoint(std::filesystem::path(*s.resume) / "checkpoints/best").model);
  }
  std::vector<std::string> skipped;
  const Score score = evaluate(*net, *data.test, s, skipped);
  report_skipped(skipped);
  std::printf("Test: loss %.4f\n", score.loss);
  print_score(score);
  return 0;
}

void print_summary(const Trainer& trainer, const RunDir& run, double seconds, bool complete) {
  const bool color = isatty(STDOUT_FILENO) && !std::getenv("NO_COLOR");
  if (trainer.history().step.size() > 1) {
    std::cout << "\n" << terminal_chart(trainer.history(), color);
  }
  report_skipped(trainer.skipped());
  std::printf("\n%s after %d:%02d min, %.0f images/s\n", complete ? "Done" : "Stopped and saved",
              static_cast<int>(seconds) / 60, static_cast<int>(seconds) % 60,
              trainer.images_per_second());
  const std::string path = run.path().string();
  std::printf("  run        %s  (config.json, metrics.jsonl, train.log, plots/, checkpoints/)\n",
              path.c_str());
  if (complete) {
    std::printf(
        "  try next   build/bin/tarn-resnet --model resnet20 --epochs 15\n"
        "             build/bin/tarn-resnet --help\n");
  } else {
    std::printf("  go on      the same command with --resume %s\n", path.c_str());
  }
  if (!trainer.history().epochs.empty()) {
    std::printf("  best       %.2f %%\n", trainer.best_accuracy());
    print_score(trainer.last_score());
  }
}

int train(const ResnetSettings& s, const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  const ImageData data = open_data(s, true);
  const auto net = make_model(s, data);
  RunDir run = s.resume
                   ? RunDir::open(*s.resume)
                   : RunDir::create(s.output_dir,
                                    s.name.empty() ? default_run_name(s.model, data.name) : s.name);
  run.write_config(options, num_threads());
  int64_t weights = 0;
  for (const Tensor& p : net->parameters()) weights += p.numel();
  std::printf("%s (%lld parameters) on %s: %lld training and %lld test images, %d threads, %s\n",
              s.model.c_str(), static_cast<long long>(weights), data.name.c_str(),
              static_cast<long long>(data.train->size()), static_cast<long long>(data.test->size()),
              num_threads(), s.device.c_str());
  Trainer trainer(s, data, *net, run);
  if (s.resume) trainer.resume(run.path() / "checkpoints/last");
  const bool complete = trainer.fit();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  print_summary(trainer, run, took.count(), complete);
  return 0;
}

int run(int argc, char** argv) {
  ResnetSettings s;
  Options options("tarn-resnet", "Trains and tests ResNets on images.");
  declare_flags(options, s);
  if (!options.parse(argc, argv)) return 0;
  check_settings(s);
  if (s.threads > 0) set_num_threads(static_cast<int>(s.threads));
  manual_seed(static_cast<uint64_t>(s.seed));
  return s.test_only ? test_only(s) : train(s, options);
}

}  // namespace

int main(int argc, char** argv) {
  return main_guard("tarn-resnet", [&] { return run(argc, argv); });
}
