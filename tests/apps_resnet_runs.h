// apps_resnet_runs.h - small trainings in folders of their own, stopped and resumed, for the tests.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "apps_resnet_tools.h"
#include <gtest/gtest.h>
#include <signal.h>

#include "tarn/apps/resnet/setup.h"
#include "tarn/apps/resnet/trainer.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/random.h"
#include "tarn/data/sampler.h"

namespace tarn::apps::runs {

// Bright or dark pictures, made on demand. A test may ask for a signal when the n-th picture is
// taken, and say which cannot be read.
class Pictures final : public data::ImageDataset {
 public:
  explicit Pictures(int64_t n) : n_(n) { pipeline = {.mean = {0.5f}, .std = {0.25f}}; }
  int64_t size() const override { return n_; }
  data::Image image(int64_t index) const override {
    if (++taken == signal_at) raise(SIGINT);
    TARN_CHECK_AS(FileError, !unreadable.contains(index), "not a picture");
    data::Image picture(12, 12, 1);
    for (size_t p = 0; p < picture.pixels.size(); ++p) {
      picture.pixels[p] = static_cast<uint8_t>(label(index) * 90 + (p * 37 + 11 * index) % 100);
    }
    return picture;
  }
  int64_t label(int64_t index) const override { return index % 2; }
  const std::vector<std::string>& classes() const override { return classes_; }

  mutable std::atomic<int64_t> taken = 0;  // by several loader threads
  int64_t signal_at = -1;
  std::set<int64_t> unreadable;

 private:
  int64_t n_;
  std::vector<std::string> classes_{"dark", "light"};
};

inline ResnetSettings quick() {
  ResnetSettings s;
  s.device = "cpu";
  s.batch_size = 8;
  s.workers = 0;
  s.epochs = 2;
  s.lr = 0.05;
  s.progress = false;
  s.print_freq = 1;
  return s;
}

inline ImageData pictures(int64_t train = 40, int64_t test = 16) {
  ImageData d{.name = "pictures", .channels = 1, .classes = 2, .image_size = 12};
  d.train = std::make_unique<Pictures>(train);
  d.test = std::make_unique<Pictures>(test);
  return d;
}

inline Pictures& training_pictures(ImageData& d) {
  return static_cast<Pictures&>(*d.train);
}

// A run in its own folder; on: goes on in that folder.
struct OneRun {
  OneRun(const ResnetSettings& settings, ImageData& data, const std::string& folder,
         bool on = false)
      : s(settings), run(on ? RunDir::open(folder) : RunDir::create(folder, "run")) {
    manual_seed(static_cast<uint64_t>(s.seed));
    net = make_model(s, data);
    trainer = std::make_unique<Trainer>(s, data, *net, run);
    if (!on) return;
    const Checkpoint c = load_newest_checkpoint(run.path().string());
    trainer->resume(c, load_history(run.path() / "metrics.jsonl", c.step, c.integer("epoch")));
  }
  std::string weights() const {
    return test::content(run.path() / "checkpoints/last/model.safetensors");
  }
  std::string momenta() const {
    return test::content(run.path() / "checkpoints/last/optim.safetensors");
  }
  int64_t lines() const {
    const std::string text = test::slurp(run.path() / "metrics.jsonl");
    return std::count(text.begin(), text.end(), '\n');
  }

  ResnetSettings s;
  RunDir run;
  std::unique_ptr<nn::Module> net;
  std::unique_ptr<Trainer> trainer;
};

inline std::string whole_run(const ResnetSettings& s) {
  const test::TempFolder folder;
  ImageData data = pictures();
  OneRun run(s, data, folder.str());
  EXPECT_TRUE(run.trainer->fit());
  return run.weights();
}

// The run stopped when the picture `at` was taken, and resumed; equal to the one never stopped.
inline void expect_resume_is_exact(const ResnetSettings& s, int64_t at, int64_t batch) {
  const test::TempFolder stopped, never;
  ImageData data = pictures();
  {
    training_pictures(data).signal_at = at;
    OneRun run(s, data, stopped.str());
    EXPECT_FALSE(run.trainer->fit());
    EXPECT_EQ(run.trainer->state().batch, batch);
  }
  training_pictures(data).signal_at = -1;
  std::string weights, momenta;
  EpochFigures last;
  {
    OneRun run(s, data, stopped / "run", true);
    EXPECT_TRUE(run.trainer->fit());
    weights = run.weights();
    momenta = run.momenta();
    EXPECT_EQ(run.trainer->history().steps.size(), 10u);
    EXPECT_EQ(run.trainer->history().epochs.size(), 2u);
    EXPECT_EQ(run.lines(), 12);
    last = run.trainer->history().epochs.at(1);
  }
  OneRun run(s, data, never.str());
  EXPECT_TRUE(run.trainer->fit());
  EXPECT_EQ(run.weights(), weights);
  EXPECT_EQ(run.momenta(), momenta);
  EXPECT_EQ(run.trainer->history().epochs.at(1).train_loss, last.train_loss);
  EXPECT_EQ(run.trainer->history().epochs.at(1).train_accuracy, last.train_accuracy);
}

// The momenta of a run of one step over all pictures, in batches of 8, are its gradients: those
// that are made by hand, the mean over the `readable` pictures.
inline void expect_gradients_by_hand(const OneRun& run, const ImageData& data, int64_t readable,
                                     double tolerance) {
  manual_seed(1);
  const auto net = make_model(run.s, data);
  const data::DataLoader loader(
      *data.train,
      std::make_unique<data::DistributedSampler>(
          data.train->size(), data::DistributedOptions{.drop_last = true, .seed = 1}),
      {.batch_size = 8, .drop_last = true, .seed = 1});
  for (const data::Batch& batch : loader.epoch(0)) {
    if (batch.size() == 0) continue;
    const double share = static_cast<double>(batch.size()) / static_cast<double>(readable);
    (cross_entropy((*net)(batch.input), batch.target) * share).backward();
  }
  const Checkpoint c = load_newest_checkpoint(run.run.path().string());
  const auto params = net->parameters();
  for (size_t i = 0; i < params.size(); ++i) {
    const auto got =
        c.dict("optim").at("state." + std::to_string(i) + ".momentum_buffer").to_vector<float>();
    const auto wanted = params[i].grad().to_vector<float>();
    ASSERT_EQ(got.size(), wanted.size()) << i;
    for (size_t k = 0; k < got.size(); ++k) ASSERT_NEAR(got[k], wanted[k], tolerance) << i;
  }
}

}  // namespace tarn::apps::runs
