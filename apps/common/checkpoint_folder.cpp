// checkpoint_folder.cpp - writing a checkpoint beside the old one, and exchanging the two.
#include "tarn/apps/common/checkpoint_folder.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <stdio.h>

#include "tarn/apps/common/file.h"
#include "tarn/core/serialize.h"

namespace tarn::apps {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

void save_checkpoint_folder(const fs::path& folder,
                            const std::vector<std::pair<std::string, TensorDict>>& dicts,
                            const JsonObject& state) {
  const fs::path fresh = folder.string() + ".tmp";
  try {
    fs::remove_all(fresh);
    make_folder(fresh);
    for (const auto& [name, dict] : dicts) {
      save_safetensors(fresh / (name + ".safetensors"), dict, {{"format", "pt"}});
    }
    write_file(fresh / "state.json", state.pretty() + "\n");
    replace_folder(fresh, folder);
  } catch (const std::exception& e) {
    std::error_code ignored;
    fs::remove_all(fresh, ignored);
    detail::fail<FileError>("checkpoint: cannot save ", folder.string(), ": ", e.what(),
                            fs::exists(folder, ignored) ? "; the one saved before is whole" : "");
  }
}

void read_checkpoint_state(const fs::path& folder, int format,
                           const std::function<void(const nlohmann::json&)>& read) {
  TARN_CHECK_AS(FileError, fs::is_directory(folder), "checkpoint: no folder ", folder.string(),
                "; a run has one once an epoch is done or a signal ended it");
  const fs::path path = folder / "state.json";
  std::ifstream in(path);
  TARN_CHECK_AS(FileError, in.good(), "checkpoint: cannot read ", path.string(), ": ",
                std::strerror(errno));
  try {
    const nlohmann::json json = nlohmann::json::parse(in);
    const int found = json.at("format");
    TARN_CHECK_AS(FileError, found == format, "checkpoint: ", path.string(), " has format ", found,
                  "; this version reads format ", format);
    read(json);
  } catch (const nlohmann::json::exception& e) {
    detail::fail<FileError>("checkpoint: ", path.string(), " is damaged: ", e.what());
  }
}

TensorDict read_checkpoint_dict(const fs::path& folder, const std::string& name, bool optional) {
  const fs::path path = folder / (name + ".safetensors");
  if (optional && !fs::exists(path)) return {};
  return load_safetensors(path).tensors;
}

void add_random_state(JsonObject& json, const PhiloxState& state) {
  json.add("random_seed", std::to_string(state.seed));
  json.add("random_offset", std::to_string(state.offset));
}

PhiloxState random_state(const nlohmann::json& json) {
  return {.seed = std::stoull(json.at("random_seed").get<std::string>()),
          .offset = std::stoull(json.at("random_offset").get<std::string>())};
}

}  // namespace tarn::apps
