// zip.h - the zip container, as far as .npz needs it: stored and deflated members, zip64.
// Internal. Source: PKWARE APPNOTE 6.3.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tarn/core/file.h"

namespace tarn::detail {

struct ZipMember {
  std::string name;
  uint16_t method = 0;  // 0 stored, 8 deflate
  uint32_t crc = 0;
  uint64_t packed = 0, size = 0;
  uint64_t offset = 0;  // of the local header
};

/// The members listed in the archive's central directory. Throws FileError.
std::vector<ZipMember> read_zip_directory(InputFile& file);
/// The bytes of a member, unpacked and checked against its CRC. Throws FileError naming it.
std::string read_zip_member(InputFile& file, const ZipMember& member);

/// Writes members one after the other; finish() writes the directory.
class ZipWriter {
 public:
  explicit ZipWriter(OutputFile& file) : file_(file) {}
  void add(const std::string& name, const std::string& bytes, bool compress);
  void finish();

 private:
  OutputFile& file_;
  std::vector<ZipMember> members_;
};

}  // namespace tarn::detail
