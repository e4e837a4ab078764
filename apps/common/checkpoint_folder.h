// checkpoint_folder.h - a folder of safetensors files and one JSON file that appears whole or not
// at all.
//
//   checkpoints/last/  model.safetensors  optim.safetensors  state.json
//
// It is written beside the old one and then exchanged with it in one step, so a full disk or a kill
// in the middle leaves the old checkpoint whole.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tarn/apps/common/json_object.h"
#include "tarn/core/random.h"
#include "tarn/core/tensor_dict.h"

namespace tarn::apps {

/// Writes each dict as NAME.safetensors, and state.json, into `folder`, replacing what is there.
/// Throws FileError; then the old content is untouched.
void save_checkpoint_folder(const std::filesystem::path& folder,
                            const std::vector<std::pair<std::string, TensorDict>>& dicts,
                            const JsonObject& state);

/// Calls read with what state.json holds. Throws FileError if the folder is missing (the text says
/// when a run has one), the file is damaged or lacks what read asks for, or its "format" is not the
/// one given.
void read_checkpoint_state(const std::filesystem::path& folder, int format,
                           const std::function<void(const nlohmann::json&)>& read);
/// NAME.safetensors of it; an empty dict if `optional` and there is none. Throws FileError.
TensorDict read_checkpoint_dict(const std::filesystem::path& folder, const std::string& name,
                                bool optional = false);

/// Random state as two members of state.json (numbers of 64 bits are text there).
void add_random_state(JsonObject& json, const PhiloxState& state);
PhiloxState random_state(const nlohmann::json& json);

}  // namespace tarn::apps
