// checkpoint_manager.cpp - names, links and the deletion of old checkpoints; the thread that saves.
#include "tarn/core/checkpoint_manager.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <future>

#include <unistd.h>

#include "tarn/core/file.h"

namespace tarn {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "step-";

std::string name_of(int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step-%06lld", static_cast<long long>(step));
  return text;
}

// The step in a name that name_of gives.
std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = 0;
  const char *begin = name.data() + kPrefix.size(), *end = name.data() + name.size();
  const auto [at, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || at != end || name_of(step) != name) return std::nullopt;
  return step;
}

// What is in a folder; nothing if there is none. A folder that cannot be asked about is an error:
// a resume that finds nothing begins anew.
std::vector<std::string> entries(const std::string& folder) {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (fs::status_known(status) && !fs::is_directory(status)) return {};
  return list_folder("checkpoint", folder);
}

}  // namespace

struct CheckpointManager::Background {
  std::future<void> writing;
};

CheckpointManager::CheckpointManager(std::string folder, CheckpointManagerOptions options)
    : folder_(std::move(folder)), options_(options), background_(std::make_unique<Background>()) {
  TARN_CHECK_AS(ValueError, options.keep_last >= 1,
                "CheckpointManager: keep_last must be at least ", "1; got ", options.keep_last);
}

CheckpointManager::~CheckpointManager() {
  if (background_->writing.valid()) background_->writing.wait();
}

void CheckpointManager::save(const Checkpoint& checkpoint) {
  wait();
  write(checkpoint);
}

void CheckpointManager::save_async(const Checkpoint& checkpoint) {
  wait();
  background_->writing =
      std::async(std::launch::async, [this, c = checkpoint.copy()] { write(c); });
}

bool CheckpointManager::wait_for(double seconds) {
  std::future<void>& writing = background_->writing;
  if (!writing.valid()) return true;
  constexpr double kMost = 1e9;  // the clock's nanoseconds have 64 bits
  if (writing.wait_for(std::chrono::duration<double>(std::min(seconds, kMost))) !=
      std::future_status::ready) {
    return false;
  }
  writing.get();
  return true;
}

void CheckpointManager::wait() {
  if (background_->writing.valid()) background_->writing.get();
}

void CheckpointManager::write(const Checkpoint& checkpoint) {
  try {
    save_checkpoint(path(checkpoint.step), checkpoint);
  } catch (const FileError& e) {
    const std::vector<int64_t> all = steps();
    if (all.empty() || all.back() >= checkpoint.step) throw;
    detail::fail<FileError>(e.what(), "; that of step ", all.back(), " is whole");
  }
  std::erase(damaged_, checkpoint.step);
  point("last", checkpoint.step);
  prune(checkpoint.step);
  if (const auto best = best_step()) point("best", *best);
}

void CheckpointManager::relink() const {
  const std::vector<int64_t> all = steps();
  const auto newest =
      std::find_if(all.rbegin(), all.rend(), [&](int64_t step) { return !is_damaged(step); });
  if (newest != all.rend()) point("last", *newest);
  if (const auto best = best_step()) point("best", *best);
}

// The links are for people and other programs: what is the newest and the best is read from the
// folders, which are right wherever a run was killed.
void CheckpointManager::point(const std::string& link, int64_t step) const {
  const std::string path = folder_ + "/" + link, fresh = path + ".tmp", name = name_of(step);
  std::error_code ignored;
  if (fs::is_symlink(path, ignored) && fs::read_symlink(path, ignored) == name) return;
  fs::remove_all(fresh, ignored);
  int error = ::symlink(name.c_str(), fresh.c_str()) == 0 ? 0 : errno;
  if (error == EPERM || error == EOPNOTSUPP || error == ENOSYS) return;  // there are no links here
  // Folders are there in a run that was copied with its links followed.
  if (error == 0 && fs::is_directory(fs::symlink_status(path, ignored))) detail::discard_path(path);
  if (error == 0 && std::rename(fresh.c_str(), path.c_str()) != 0) error = errno;
  TARN_CHECK_AS(FileError, error == 0, "checkpoint: cannot make the link ", path, ": ",
                std::strerror(error));
  sync_folder(folder_);
}

std::optional<int64_t> CheckpointManager::best_step() const {
  const std::vector<int64_t> all = steps();
  const auto found = std::find_if(all.rbegin(), all.rend(), [&](int64_t step) {
    return !is_damaged(step) && detail::is_best_checkpoint(path(step));
  });
  return found == all.rend() ? std::nullopt : std::optional(*found);
}

bool CheckpointManager::is_damaged(int64_t step) const {
  return std::find(damaged_.begin(), damaged_.end(), step) != damaged_.end();
}

// Deletes what is too many or damaged among those up to the newest, and what was left half written
// or half deleted. Later steps stay: they are of a run that went further, or this one will replace
// them.
void CheckpointManager::prune(int64_t newest) {
  const auto best = best_step();
  int64_t kept = 0;
  std::vector<int64_t> all = steps();
  std::reverse(all.begin(), all.end());
  for (const int64_t step : all) {
    const bool keep =
        step > newest || step == best || (!is_damaged(step) && kept < options_.keep_last);
    if (step <= newest && !is_damaged(step)) ++kept;
    if (!keep) detail::discard_path(path(step));
  }
  std::error_code ignored;
  for (const std::string& path : entries(folder_)) {
    const std::string name = fs::path(path).filename().string();
    if (name.starts_with(kPrefix) && detail::is_checkpoint_leftover(name)) {
      fs::remove_all(path, ignored);
    }
  }
}

std::optional<Checkpoint> CheckpointManager::load_newest(
    const std::function<void(const std::string&)>& damaged, const std::vector<std::string>& only) {
  wait();
  std::string first;
  std::vector<int64_t> all = steps();
  for (auto step = all.rbegin(); step != all.rend(); ++step) {
    try {
      Checkpoint c = load(*step, only);
      distrust_after(*step);
      return c;
    } catch (const FileError& e) {
      if (first.empty()) first = e.what();
      if (damaged) damaged(e.what());
    }
  }
  TARN_CHECK_AS(FileError, all.empty(), "checkpoint: none of the ", all.size(), " in ", folder_,
                " is whole; the newest: ", first);
  return std::nullopt;
}

void CheckpointManager::distrust_after(int64_t step) {
  wait();
  damaged_ = steps();
  std::erase_if(damaged_, [&](int64_t other) { return other <= step; });
}

Checkpoint CheckpointManager::load(int64_t step, const std::vector<std::string>& only) const {
  return load_checkpoint(path(step), only);
}

Checkpoint CheckpointManager::load_best(const std::vector<std::string>& only) const {
  const auto best = best_step();
  TARN_CHECK_AS(FileError, best, "checkpoint: no best one in ", folder_);
  return load(*best, only);
}

std::vector<int64_t> CheckpointManager::steps() const {
  std::vector<int64_t> found;
  for (const std::string& path : entries(folder_)) {
    const auto step = step_of(fs::path(path).filename().string());
    if (step && is_folder(path)) found.push_back(*step);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string CheckpointManager::path(int64_t step) const {
  return folder_ + "/" + name_of(step);
}

}  // namespace tarn
