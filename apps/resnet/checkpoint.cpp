// checkpoint.cpp - writing and reading a run's state.
#include "tarn/apps/resnet/checkpoint.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <stdio.h>

#include "tarn/apps/common/file.h"
#include "tarn/apps/common/json_object.h"
#include "tarn/core/serialize.h"

namespace tarn::apps {
namespace {

namespace fs = std::filesystem;
constexpr int kFormat = 1;

// Puts `fresh` where `folder` is. Linux exchanges two folders in one step; where the file system
// cannot, there is a moment without a checkpoint under the name.
void replace_folder(const fs::path& fresh, const fs::path& folder) {
  if (!fs::exists(folder)) {
    fs::rename(fresh, folder);
    return;
  }
  if (renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) {
    fs::remove_all(fresh);
    return;
  }
  const fs::path old = folder.string() + ".old";
  fs::remove_all(old);
  fs::rename(folder, old);
  fs::rename(fresh, folder);
  fs::remove_all(old);
}

std::string state_json(const Checkpoint& c) {
  return JsonObject()
      .add("format", kFormat)
      .add("model", c.model_name)
      .add("epoch", c.state.epoch)
      .add("batch", c.state.batch)
      .add("step", c.state.step)
      .add("epoch_batches", c.state.epoch_batches)
      .add("loss_sum", c.state.loss_sum)
      .add("right", c.state.right)
      .add("seen", c.state.seen)
      .add("best_accuracy", c.state.best_accuracy)
      .add("random_seed", std::to_string(c.state.random.seed))
      .add("random_offset", std::to_string(c.state.random.offset))
      .pretty();
}

void read_state(const fs::path& path, Checkpoint& c) {
  std::ifstream in(path);
  TARN_CHECK_AS(FileError, in.good(), "checkpoint: cannot read ", path.string(), ": ",
                std::strerror(errno));
  try {
    const nlohmann::json j = nlohmann::json::parse(in);
    const int format = j.at("format");
    TARN_CHECK_AS(FileError, format == kFormat, "checkpoint: ", path.string(), " has format ",
                  format, "; this version reads format ", kFormat);
    c.model_name = j.at("model");
    c.state.epoch = j.at("epoch");
    c.state.batch = j.at("batch");
    c.state.step = j.at("step");
    c.state.epoch_batches = j.at("epoch_batches");
    c.state.loss_sum = j.at("loss_sum");
    c.state.right = j.at("right");
    c.state.seen = j.at("seen");
    c.state.best_accuracy = j.at("best_accuracy");
    c.state.random.seed = std::stoull(j.at("random_seed").get<std::string>());
    c.state.random.offset = std::stoull(j.at("random_offset").get<std::string>());
  } catch (const nlohmann::json::exception& e) {
    detail::fail<FileError>("checkpoint: ", path.string(), " is damaged: ", e.what());
  }
}

}  // namespace

void save_checkpoint(const fs::path& folder, const Checkpoint& c) {
  const fs::path fresh = folder.string() + ".tmp";
  try {
    fs::remove_all(fresh);
    make_folder(fresh);
    save_safetensors(fresh / "model.safetensors", c.model, {{"format", "pt"}});
    save_safetensors(fresh / "optim.safetensors", c.optimizer);
    if (!c.ema.empty()) save_safetensors(fresh / "ema.safetensors", c.ema, {{"format", "pt"}});
    write_file(fresh / "state.json", state_json(c) + "\n");
    replace_folder(fresh, folder);
  } catch (const std::exception& e) {
    std::error_code ignored;
    fs::remove_all(fresh, ignored);
    detail::fail<FileError>("checkpoint: cannot save ", folder.string(), ": ", e.what(),
                            fs::exists(folder, ignored) ? "; the one saved before is whole" : "");
  }
}

Checkpoint load_checkpoint(const fs::path& folder) {
  TARN_CHECK_AS(FileError, fs::is_directory(folder), "checkpoint: no folder ", folder.string(),
                "; a run has one once an epoch is done or a signal ended it");
  Checkpoint c;
  read_state(folder / "state.json", c);
  c.model = load_safetensors(folder / "model.safetensors").tensors;
  c.optimizer = load_safetensors(folder / "optim.safetensors").tensors;
  if (fs::exists(folder / "ema.safetensors")) {
    c.ema = load_safetensors(folder / "ema.safetensors").tensors;
  }
  return c;
}

}  // namespace tarn::apps
