// file_store.h - FileStore: a folder that all ranks see, one file per key.
//
// For hosts that share a file system but no reachable port, and for tests. The folder must be new
// for every run: what an earlier run left would be taken for the ranks of this one.
#pragma once

#include <filesystem>
#include <string>

#include "tarn/dist/store.h"

namespace tarn::dist {

/// Waits look every 5 ms. Values appear whole (written beside, then renamed); add() holds a lock.
class FileStore final : public Store {
 public:
  /// Makes the folder if it is not there. Throws FileError if it cannot.
  explicit FileStore(std::filesystem::path folder);

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> try_get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t delta) override;
  bool erase(const std::string& key) override;
  std::optional<std::string> wait_for(const std::string& key, Millis limit) override;
  std::string describe() const override { return "file store in " + folder_.string(); }

 private:
  std::filesystem::path file(const std::string& key) const;
  std::filesystem::path folder_;
};

}  // namespace tarn::dist
