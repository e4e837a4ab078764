// tokens.h - long rows of token ids: in memory, or in a file that is mapped and never read whole.
//
//   llm.c     1024 bytes of header (256 x i32: magic 20240520, version 1, count), then u16 ids;
//             magic 20240801, version 7: u32 ids
//   nanoGPT   u16 ids and nothing else
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tarn::data {

/// Read-only and cheap to copy. Thread safety: may be read from any thread at once.
class Tokens {
 public:
  Tokens() = default;
  /// Kept in memory, as u16 where all fit. Throws ValueError on a negative id.
  explicit Tokens(const std::vector<int32_t>& ids, std::string name = "tokens");

  /// Maps a .bin file of llm.c (known by its magic number) or nanoGPT. Throws FileError if it is
  /// missing, empty, truncated or of another version.
  static Tokens open(const std::string& path);

  int64_t size() const { return size_; }
  int64_t operator[](int64_t i) const { return wide_ ? wide_[i] : narrow_[i]; }
  /// Ids first .. first + count as i64. REQUIRES: they exist.
  void copy(int64_t first, int64_t count, int64_t* to) const;
  /// Ids first .. first + count of these. Throws IndexError beyond the end.
  Tokens slice(int64_t first, int64_t count) const;
  /// The file, or what the maker called it: for errors.
  const std::string& name() const { return name_; }

 private:
  std::shared_ptr<const void> owner_;
  const uint16_t* narrow_ = nullptr;
  const uint32_t* wide_ = nullptr;  // one of the two
  int64_t size_ = 0;
  std::string name_;
};

/// Write files for other programs. Throw ValueError on an id the format has no room for, FileError
/// if the file cannot be written.
void save_llmc_tokens(const std::string& path, std::span<const int32_t> ids);
void save_nanogpt_tokens(const std::string& path, std::span<const int32_t> ids);

}  // namespace tarn::data
