// store.h - Store: the small shared map through which ranks find each other.
//
//   TcpStore     rank 0 serves, all ranks are its clients (tcp_store.h)
//   FileStore    a folder that all ranks see (file_store.h)
//   MemoryStore  ranks that are threads of one process
//
// Values are bytes. Every wait has a limit, and the error names the keys, or with exchange() the
// ranks, that are missing.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tarn/dist/error.h"

namespace tarn::dist {

inline constexpr Millis kStoreTimeout{30000};

/// Thread safety: every method may be called from any thread.
class Store {
 public:
  virtual ~Store() = default;

  virtual void set(const std::string& key, const std::string& value) = 0;
  /// The value, or none if the key is not there now.
  virtual std::optional<std::string> try_get(const std::string& key) = 0;
  /// Adds to a decimal number (0 if the key is new) and returns the sum. Throws ValueError if the
  /// value is not a number.
  virtual int64_t add(const std::string& key, int64_t delta) = 0;
  /// True if the key was there.
  virtual bool erase(const std::string& key) = 0;
  /// The value, waiting at most `limit` for it; none if it did not come.
  virtual std::optional<std::string> wait_for(const std::string& key, Millis limit) = 0;
  /// "TCP store at 127.0.0.1:29500", for messages.
  virtual std::string describe() const = 0;

  /// The value, as soon as somebody sets it. Throws TimeoutError that names the key.
  std::string get(const std::string& key, Millis timeout = kStoreTimeout);
  /// Returns when all keys are there. Throws TimeoutError that lists the missing ones.
  void wait(std::span<const std::string> keys, Millis timeout = kStoreTimeout);
};

/// A part of another store: every key gets a prefix, so that two groups do not meet.
class PrefixStore final : public Store {
 public:
  PrefixStore(std::shared_ptr<Store> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}
  void set(const std::string& key, const std::string& value) override {
    store_->set(prefix_ + key, value);
  }
  std::optional<std::string> try_get(const std::string& key) override {
    return store_->try_get(prefix_ + key);
  }
  int64_t add(const std::string& key, int64_t delta) override {
    return store_->add(prefix_ + key, delta);
  }
  bool erase(const std::string& key) override { return store_->erase(prefix_ + key); }
  std::optional<std::string> wait_for(const std::string& key, Millis limit) override {
    return store_->wait_for(prefix_ + key, limit);
  }
  std::string describe() const override { return store_->describe() + ", prefix " + prefix_; }

 private:
  std::shared_ptr<Store> store_;
  std::string prefix_;
};

/// The store of one process.
class MemoryStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> try_get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t delta) override;
  bool erase(const std::string& key) override;
  std::optional<std::string> wait_for(const std::string& key, Millis limit) override;
  std::string describe() const override { return "memory store"; }
  /// Whoever waits for a key that is not there, now or later, gets this error at once: of several
  /// the first.
  void abort(std::exception_ptr error);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::exception_ptr error_;
};

/// The meeting of `size` ranks: each gives a value and gets those of all, in rank order. `name`
/// must be new in this store. Throws TimeoutError that lists the ranks that did not come, and
/// DistError, on every rank that still waits, if two processes claim one rank or the sizes differ.
std::vector<std::string> exchange(Store& store, const std::string& name, int rank, int size,
                                  const std::string& value, Millis timeout = kStoreTimeout);

/// "rank 2", "ranks 1, 3, 4", at most eight of them.
std::string ranks_text(const std::vector<int>& ranks);

namespace detail {
/// value + delta as decimal text and number, with the check that Store::add promises.
int64_t add_decimal(const std::string& key, std::string& value, int64_t delta);
}  // namespace detail

}  // namespace tarn::dist
