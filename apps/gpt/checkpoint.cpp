// checkpoint.cpp - writing and reading a run's state.
#include "tarn/apps/gpt/checkpoint.h"

#include <nlohmann/json.hpp>

#include "tarn/apps/common/checkpoint_folder.h"

namespace tarn::apps {
namespace {
constexpr int kFormat = 1;
}  // namespace

void save_checkpoint(const std::filesystem::path& folder, const GptCheckpoint& c) {
  JsonObject json;
  json.add("format", kFormat)
      .add("step", c.state.step)
      .add("evaluated_step", c.state.evaluated_step)
      .add("best_val_loss", c.state.best_val_loss)
      .add("vocab", c.options.vocab)
      .add("block", c.options.block)
      .add("layers", c.options.layers)
      .add("heads", c.options.heads)
      .add("size", c.options.size)
      .add("bias", c.options.bias);
  add_random_state(json, c.state.random);
  std::vector<std::pair<std::string, TensorDict>> dicts{{"model", c.model}, {"optim", c.optimizer}};
  if (!c.scaler.empty()) dicts.emplace_back("scaler", c.scaler);
  save_checkpoint_folder(folder, dicts, json);
}

GptCheckpoint load_gpt_checkpoint(const std::filesystem::path& folder) {
  GptCheckpoint c;
  read_checkpoint_state(folder, kFormat, [&](const nlohmann::json& j) {
    c.state = {.step = j.at("step"),
               .evaluated_step = j.at("evaluated_step"),
               .best_val_loss = j.at("best_val_loss"),
               .random = random_state(j)};
    c.options.vocab = j.at("vocab");
    c.options.block = j.at("block");
    c.options.layers = j.at("layers");
    c.options.heads = j.at("heads");
    c.options.size = j.at("size");
    c.options.bias = j.at("bias");
  });
  c.model = read_checkpoint_dict(folder, "model");
  c.optimizer = read_checkpoint_dict(folder, "optim");
  c.scaler = read_checkpoint_dict(folder, "scaler", true);
  return c;
}

}  // namespace tarn::apps
