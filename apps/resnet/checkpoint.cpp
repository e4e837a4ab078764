// checkpoint.cpp - writing and reading a run's state.
#include "tarn/apps/resnet/checkpoint.h"

#include <nlohmann/json.hpp>

#include "tarn/apps/common/checkpoint_folder.h"

namespace tarn::apps {
namespace {

namespace fs = std::filesystem;
constexpr int kFormat = 1;

JsonObject state_json(const Checkpoint& c) {
  JsonObject json;
  json.add("format", kFormat)
      .add("model", c.model_name)
      .add("epoch", c.state.epoch)
      .add("batch", c.state.batch)
      .add("step", c.state.step)
      .add("updates", c.state.updates)
      .add("epoch_batches", c.state.epoch_batches)
      .add("loss_sum", c.state.loss_sum)
      .add("right", c.state.right)
      .add("seen", c.state.seen)
      .add("best_accuracy", c.state.best_accuracy);
  add_random_state(json, c.state.random);
  return json;
}

}  // namespace

void save_checkpoint(const fs::path& folder, const Checkpoint& c) {
  std::vector<std::pair<std::string, TensorDict>> dicts{{"model", c.model}, {"optim", c.optimizer}};
  if (!c.ema.empty()) dicts.emplace_back("ema", c.ema);
  if (!c.scaler.empty()) dicts.emplace_back("scaler", c.scaler);
  save_checkpoint_folder(folder, dicts, state_json(c));
}

Checkpoint load_checkpoint(const fs::path& folder) {
  Checkpoint c;
  read_checkpoint_state(folder, kFormat, [&](const nlohmann::json& j) {
    c.model_name = j.at("model");
    c.state.epoch = j.at("epoch");
    c.state.batch = j.at("batch");
    c.state.step = j.at("step");
    c.state.updates = j.value("updates", c.state.step);  // not in older checkpoints
    c.state.epoch_batches = j.at("epoch_batches");
    c.state.loss_sum = j.at("loss_sum");
    c.state.right = j.at("right");
    c.state.seen = j.at("seen");
    c.state.best_accuracy = j.at("best_accuracy");
    c.state.random = random_state(j);
  });
  c.model = read_checkpoint_dict(folder, "model");
  c.optimizer = read_checkpoint_dict(folder, "optim");
  c.ema = read_checkpoint_dict(folder, "ema", true);
  c.scaler = read_checkpoint_dict(folder, "scaler", true);
  return c;
}

}  // namespace tarn::apps
