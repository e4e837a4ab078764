// zip.cpp - reading and writing the zip container.
#include "tarn/core/zip.h"

#include <algorithm>

#include <zlib.h>

namespace tarn::detail {
namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr uint32_t kFull32 = 0xFFFFFFFF;  // "see the zip64 extra field"
constexpr uint16_t kUtf8Name = 0x800, kEncrypted = 1;
constexpr uint16_t kDate1980 = 33;  // 1 January 1980, so that equal data gives equal bytes

/// Little-endian number of `bytes` bytes at `at`, which the caller has checked.
uint64_t get(const std::string& s, size_t at, int bytes) {
  uint64_t value = 0;
  for (int i = bytes - 1; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(s[at + i]);
  return value;
}
void put(std::string& s, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) s += static_cast<char>(value >> (8 * i));
}

std::string read_at(InputFile& file, uint64_t offset, uint64_t bytes, const char* what) {
  file.seek(offset);
  if (offset > file.size() || bytes > file.size() - offset) {
    file.fail("truncated: ", what, " needs ", bytes, " bytes at offset ", offset, "; the file has ",
              file.size());
  }
  std::string out(bytes, '\0');
  file.read(out.data(), bytes, what);
  return out;
}

struct Directory {
  uint64_t count, bytes, offset;
};

Directory find_directory(InputFile& file) {
  constexpr uint64_t kEndBytes = 22, kMaxComment = 65535, kLocatorBytes = 20;
  const uint64_t tail = std::min(file.size(), kEndBytes + kMaxComment + kLocatorBytes);
  const std::string end = read_at(file, file.size() - tail, tail, "the end of the archive");
  for (size_t at = end.size() < kEndBytes ? 0 : end.size() - kEndBytes + 1; at-- > 0;) {
    if (get(end, at, 4) != kEnd || at + kEndBytes + get(end, at + 20, 2) != end.size()) continue;
    Directory d{get(end, at + 10, 2), get(end, at + 12, 4), get(end, at + 16, 4)};
    if (at >= kLocatorBytes && get(end, at - kLocatorBytes, 4) == kLocator64) {
      const std::string end64 =
          read_at(file, get(end, at - kLocatorBytes + 8, 8), 56, "the zip64 end record");
      if (get(end64, 0, 4) != kEnd64) file.fail("not a zip archive: bad zip64 end record");
      d = {get(end64, 32, 8), get(end64, 40, 8), get(end64, 48, 8)};
    }
    return d;
  }
  file.fail("not a zip archive, or truncated: it has no end record");
}

/// Replaces the fields that say 0xFFFFFFFF by those of the zip64 extra field.
void apply_zip64(InputFile& file, const std::string& extra, ZipMember& m) {
  for (size_t at = 0; at + 4 <= extra.size();) {
    const uint64_t id = get(extra, at, 2), bytes = get(extra, at + 2, 2);
    const size_t end = at + 4 + bytes;
    if (end > extra.size()) break;
    if (id == 1) {
      size_t field = at + 4;
      for (uint64_t* value : {&m.size, &m.packed, &m.offset}) {
        if (*value != kFull32) continue;
        if (field + 8 > end) file.fail("member '", m.name, "' has a short zip64 field");
        *value = get(extra, field, 8);
        field += 8;
      }
    }
    at = end;
  }
}

std::string inflate_all(InputFile& file, const ZipMember& m, const std::string& packed) {
  // Deflate shrinks at most 1032 times: refuse sizes the data cannot have before taking memory.
  if (m.size / 1032 > m.packed + 1) file.fail("member '", m.name, "' claims an impossible size");
  std::string out(m.size, '\0');
  z_stream z{};
  if (inflateInit2(&z, -MAX_WBITS) != Z_OK) file.fail("zlib has no memory");
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  uint64_t in_left = packed.size(), out_left = out.size();
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  int status = Z_OK;
  constexpr uint64_t kStep = 1 << 30;  // zlib counts in 32 bits
  while (status == Z_OK) {
    const uInt in_step = z.avail_in = static_cast<uInt>(std::min(in_left, kStep));
    const uInt out_step = z.avail_out = static_cast<uInt>(std::min(out_left, kStep));
    status = inflate(&z, Z_NO_FLUSH);
    in_left -= in_step - z.avail_in;
    out_left -= out_step - z.avail_out;
  }
  inflateEnd(&z);
  if (status != Z_STREAM_END || out_left != 0) {
    file.fail("member '", m.name, "' does not unpack to its ", m.size, " bytes");
  }
  return out;
}

std::string deflate_all(const std::string& bytes) {
  z_stream z{};
  TARN_CHECK_AS(FileError,
                deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -MAX_WBITS, 8,
                             Z_DEFAULT_STRATEGY) == Z_OK,
                "save_npz: zlib has no memory");
  std::string out;
  std::string block(1 << 20, '\0');
  size_t in_left = bytes.size();
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  int status = Z_OK;
  while (status != Z_STREAM_END) {
    constexpr size_t kStep = 1 << 30;
    const uInt in_step = z.avail_in = static_cast<uInt>(std::min(in_left, kStep));
    z.next_out = reinterpret_cast<Bytef*>(block.data());
    z.avail_out = static_cast<uInt>(block.size());
    status = deflate(&z, in_left <= kStep ? Z_FINISH : Z_NO_FLUSH);
    in_left -= in_step - z.avail_in;
    out.append(block, 0, block.size() - z.avail_out);
  }
  deflateEnd(&z);
  return out;
}

uint32_t crc_of(const std::string& bytes) {
  return static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

uint16_t flags_of(const std::string& name) {
  const bool ascii = std::all_of(name.begin(), name.end(), [](char c) { return c >= 0; });
  return ascii ? 0 : kUtf8Name;
}

}  // namespace

std::vector<ZipMember> read_zip_directory(InputFile& file) {
  const Directory d = find_directory(file);
  const std::string text = read_at(file, d.offset, d.bytes, "the zip directory");
  std::vector<ZipMember> members;
  size_t at = 0;
  for (uint64_t i = 0; i < d.count; ++i) {
    constexpr size_t kFixed = 46;
    if (at + kFixed > text.size() || get(text, at, 4) != kCentral) {
      file.fail("the zip directory breaks off at entry ", i, " of ", d.count);
    }
    const size_t name = get(text, at + 28, 2), extra = get(text, at + 30, 2);
    const size_t next = at + kFixed + name + extra + get(text, at + 32, 2);
    if (next > text.size()) file.fail("the zip directory breaks off in entry ", i);
    ZipMember m;
    m.name = text.substr(at + kFixed, name);
    m.method = static_cast<uint16_t>(get(text, at + 10, 2));
    m.crc = static_cast<uint32_t>(get(text, at + 16, 4));
    m.packed = get(text, at + 20, 4);
    m.size = get(text, at + 24, 4);
    m.offset = get(text, at + 42, 4);
    if (get(text, at + 8, 2) & kEncrypted) file.fail("member '", m.name, "' is encrypted");
    apply_zip64(file, text.substr(at + kFixed + name, extra), m);
    members.push_back(std::move(m));
    at = next;
  }
  return members;
}

std::string read_zip_member(InputFile& file, const ZipMember& m) {
  const std::string local = read_at(file, m.offset, 30, "a member's header");
  if (get(local, 0, 4) != kLocal) {
    file.fail("member '", m.name, "' is not at offset ", m.offset, " as the directory says");
  }
  // The sizes stand in the directory; the local header only says how long it is itself.
  const uint64_t data = m.offset + 30 + get(local, 26, 2) + get(local, 28, 2);
  if (m.method != 0 && m.method != 8) {
    file.fail("member '", m.name, "' is packed by method ", m.method,
              "; only stored and deflated ones are supported");
  }
  std::string bytes = read_at(file, data, m.packed, m.name.c_str());
  if (m.method == 8) bytes = inflate_all(file, m, bytes);
  if (bytes.size() != m.size) {
    file.fail("member '", m.name, "' has ", bytes.size(), " bytes instead of ", m.size);
  }
  if (crc_of(bytes) != m.crc) file.fail("member '", m.name, "' is corrupt: its CRC does not match");
  return bytes;
}

void ZipWriter::add(const std::string& name, const std::string& bytes, bool compress) {
  const std::string packed = compress ? deflate_all(bytes) : std::string();
  const std::string& data = compress ? packed : bytes;
  ZipMember m{.name = name,
              .method = static_cast<uint16_t>(compress ? 8 : 0),
              .crc = crc_of(bytes),
              .packed = data.size(),
              .size = bytes.size(),
              .offset = file_.position()};
  const bool big = m.packed >= kFull32 || m.size >= kFull32;
  std::string h;
  put(h, kLocal, 4);
  put(h, big ? 45 : 20, 2);
  put(h, flags_of(name), 2);
  put(h, m.method, 2);
  put(h, uint64_t{kDate1980} << 16, 4);
  put(h, m.crc, 4);
  put(h, big ? kFull32 : m.packed, 4);
  put(h, big ? kFull32 : m.size, 4);
  put(h, name.size(), 2);
  put(h, 20, 2);  // a zip64 field even where none is needed, as numpy writes it
  h += name;
  put(h, 1, 2);
  put(h, 16, 2);
  put(h, m.size, 8);
  put(h, m.packed, 8);
  file_.write(h);
  file_.write(data);
  members_.push_back(std::move(m));
}

void ZipWriter::finish() {
  const uint64_t start = file_.position();
  std::string d;
  for (const ZipMember& m : members_) {
    std::string extra;
    for (uint64_t value : {m.size, m.packed, m.offset}) {
      if (value >= kFull32) put(extra, value, 8);
    }
    const uint64_t version = extra.empty() ? 20 : 45;
    put(d, kCentral, 4);
    put(d, version | 3 << 8, 2);  // made by Unix
    put(d, version, 2);
    put(d, flags_of(m.name), 2);
    put(d, m.method, 2);
    put(d, uint64_t{kDate1980} << 16, 4);
    put(d, m.crc, 4);
    put(d, std::min<uint64_t>(m.packed, kFull32), 4);
    put(d, std::min<uint64_t>(m.size, kFull32), 4);
    put(d, m.name.size(), 2);
    put(d, extra.empty() ? 0 : extra.size() + 4, 2);
    put(d, 0, 2 + 2 + 2);             // comment, disk, internal attributes
    put(d, uint64_t{0600} << 16, 4);  // permissions
    put(d, std::min<uint64_t>(m.offset, kFull32), 4);
    d += m.name;
    if (!extra.empty()) {
      put(d, 1, 2);
      put(d, extra.size(), 2);
      d += extra;
    }
  }
  const uint64_t bytes = d.size(), count = members_.size();
  if (count >= 0xFFFF || bytes >= kFull32 || start >= kFull32) {
    const uint64_t end64 = start + d.size();
    put(d, kEnd64, 4);
    put(d, 44, 8);
    put(d, 45 | 3 << 8, 2);
    put(d, 45, 2);
    put(d, 0, 8);  // disks
    put(d, count, 8);
    put(d, count, 8);
    put(d, bytes, 8);
    put(d, start, 8);
    put(d, kLocator64, 4);
    put(d, 0, 4);
    put(d, end64, 8);
    put(d, 1, 4);
  }
  put(d, kEnd, 4);
  put(d, 0, 4);
  put(d, std::min<uint64_t>(count, 0xFFFF), 2);
  put(d, std::min<uint64_t>(count, 0xFFFF), 2);
  put(d, std::min<uint64_t>(bytes, kFull32), 4);
  put(d, std::min<uint64_t>(start, kFull32), 4);
  put(d, 0, 2);
  file_.write(d);
}

}  // namespace tarn::detail
