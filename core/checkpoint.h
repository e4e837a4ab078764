// checkpoint.h - a run's state on disk: written whole or not at all, and checked when it is read.
//
//   Checkpoint c{.step = step, .tensors = {{"model", net.state_dict()}, {"optim",
//   sgd.state_dict()}}}; c.generators["default"] = default_generator().state();
//   c.values["best_loss"] = best_loss;
//   save_checkpoint("checkpoints/a", c);
//
//   const Checkpoint c = load_checkpoint("checkpoints/a");
//   net.load_state_dict(c.tensors.at("model"));
//   best_loss = c.number("best_loss");
//
// It is a folder of NAME.safetensors files and, written last, manifest.json with the size and the
// CRC-32 of each file, of the manifest itself, and all that is not a tensor. The folder is written
// under another name, synced, and renamed: a kill, a power cut or a full disk at any moment leaves
// the one that was there, or the new one. checkpoint_manager.h keeps several of a run.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "tarn/core/random.h"
#include "tarn/core/tensor_dict.h"

namespace tarn {

/// What is saved together. Batches need no place in it beyond numbers: samplers and loaders are
/// functions of seed, epoch and batch.
struct Checkpoint {
  using Value = std::variant<int64_t, double, std::string>;

  int64_t step = 0;
  bool best = false;                               ///< of all so far, by the caller's measure
  std::map<std::string, TensorDict> tensors = {};  ///< each to NAME.safetensors; empty ones are not
  std::map<std::string, PhiloxState> generators = {};  ///< random number generators
  std::map<std::string, Value> values = {};            ///< any others, kept exactly

  /// NAME's tensors; an empty dict if there are none.
  const TensorDict& dict(const std::string& name) const;
  /// Members of `values`. Throws FileError that says what is missing or of another type.
  int64_t integer(const std::string& name) const;
  double number(const std::string& name) const;
  const std::string& text(const std::string& name) const;
  /// Throws FileError if there is none.
  PhiloxState generator(const std::string& name) const;

  /// One that shares no memory with the model: every tensor is copied, into memory of the host.
  Checkpoint copy() const;
};

/// Writes `folder`, replacing what is there in one step. On disk for good when it returns. Throws
/// FileError, ValueError on an undefined tensor or a name that cannot be a file's; then what was
/// there is whole.
void save_checkpoint(const std::string& folder, const Checkpoint& checkpoint);

/// Reads it, or only the dicts in `only`. Throws FileError that lists all that is missing or
/// damaged of what it reads (a file cut short, a flipped bit, an unreadable manifest), and
/// ValueError if a newer version of tarn wrote it.
Checkpoint load_checkpoint(const std::string& folder, const std::vector<std::string>& only = {});

namespace detail {
/// Takes a file or folder away at once, however long deleting it takes. Never throws.
void discard_path(const std::string& path);
/// True if the manifest can be read and says so.
bool is_best_checkpoint(const std::string& folder);
/// True for names that writing and deleting checkpoints leave behind if they are stopped.
bool is_checkpoint_leftover(const std::string& name);
}  // namespace detail

}  // namespace tarn
