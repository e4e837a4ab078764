// store.cpp - waits with a limit, the store of one process, and the meeting of ranks.
#include "tarn/dist/store.h"

#include <algorithm>
#include <charconv>

namespace tarn::dist {
namespace {

// How long a rank waits before it looks whether the meeting was called off.
constexpr Millis kSlice{200};

}  // namespace

std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> names;
  for (int rank : ranks) names.push_back(std::to_string(rank));
  return (ranks.size() == 1 ? "rank " : "ranks ") + list_text(names);
}

int64_t detail::add_decimal(const std::string& key, std::string& value, int64_t delta) {
  int64_t number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  TARN_CHECK_AS(ValueError, value.empty() || (error == std::errc() && stop == end),
                "store: add needs a number; key \"", key, "\" holds \"", value, "\"");
  value = std::to_string(number + delta);
  return number + delta;
}

std::string Store::get(const std::string& key, Millis timeout) {
  const auto value = wait_for(key, timeout);
  TARN_CHECK_AS(TimeoutError, value, "store: nobody set \"", key, "\" within ",
                duration_text(timeout), " (", describe(), ")");
  return *value;
}

void Store::wait(std::span<const std::string> keys, Millis timeout) {
  const auto deadline = Clock::now() + timeout;
  std::vector<std::string> missing;
  for (const std::string& key : keys) {
    if (!wait_for(key, time_left(deadline))) missing.push_back("\"" + key + "\"");
  }
  TARN_CHECK_AS(TimeoutError, missing.empty(), "store: nobody set ", list_text(missing), " within ",
                duration_text(timeout), " (", describe(), ")");
}

void MemoryStore::set(const std::string& key, const std::string& value) {
  {
    std::lock_guard lock(mutex_);
    values_[key] = value;
  }
  changed_.notify_all();
}

std::optional<std::string> MemoryStore::try_get(const std::string& key) {
  return wait_for(key, Millis(0));
}

int64_t MemoryStore::add(const std::string& key, int64_t delta) {
  int64_t sum;
  {
    std::lock_guard lock(mutex_);
    sum = detail::add_decimal(key, values_[key], delta);
  }
  changed_.notify_all();
  return sum;
}

bool MemoryStore::erase(const std::string& key) {
  std::lock_guard lock(mutex_);
  return values_.erase(key) > 0;
}

std::optional<std::string> MemoryStore::wait_for(const std::string& key, Millis limit) {
  std::unique_lock lock(mutex_);
  const auto there = [&] { return values_.count(key) > 0; };
  if (limit > Millis(0)) changed_.wait_for(lock, limit, [&] { return there() || error_; });
  if (there()) return values_.at(key);
  if (error_) std::rethrow_exception(error_);
  return {};
}

void MemoryStore::abort(std::exception_ptr error) {
  {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  changed_.notify_all();
}

namespace {

// Calls the meeting off for all who still wait, and throws.
[[noreturn]] void refuse(Store& store, const std::string& name, const std::string& text) {
  store.set(name + "/refused", text);
  throw DistError(text);
}

std::string who(const std::string& name, int rank) {
  return name + ": rank " + std::to_string(rank);
}

}  // namespace

std::vector<std::string> exchange(Store& store, const std::string& name, int rank, int size,
                                  const std::string& value, Millis timeout) {
  TARN_CHECK_AS(ValueError, size > 0 && rank >= 0 && rank < size, "exchange: rank must be in [0, ",
                size, "); got ", rank);
  const auto deadline = Clock::now() + timeout;
  const auto key = [&](int r) { return name + "/rank/" + std::to_string(r); };
  if (store.add(key(rank) + "/count", 1) > 1) {
    refuse(store, name, who(name, rank) + " was claimed by two processes; give each its own RANK");
  }
  store.set(key(rank), std::to_string(size) + " " + value);

  std::vector<std::string> values(static_cast<size_t>(size));
  std::vector<int> missing;
  for (int r = 0; r < size; ++r) {
    std::optional<std::string> found;
    do {
      found = store.wait_for(key(r), std::min(kSlice, time_left(deadline)));
      if (found) break;
      if (const auto text = store.try_get(name + "/refused")) throw DistError(*text);
    } while (time_left(deadline) > Millis(0));
    if (!found) {
      missing.push_back(r);
      continue;
    }
    const size_t space = found->find(' ');
    const std::string theirs = found->substr(0, space);
    if (theirs != std::to_string(size)) {
      refuse(store, name,
             who(name, r) + " was started for " + theirs + " ranks, but rank " +
                 std::to_string(rank) + " for " + std::to_string(size) +
                 "; WORLD_SIZE must be the same everywhere");
    }
    values[static_cast<size_t>(r)] = found->substr(space + 1);
  }
  TARN_CHECK_AS(TimeoutError, missing.empty(), name, ": ", ranks_text(missing), " of ", size,
                " did not come within ", duration_text(timeout), " (rank ", rank, " waited; ",
                store.describe(), ")");
  return values;
}

}  // namespace tarn::dist
