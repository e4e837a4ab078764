// tokens.cpp - token files, mapped; written with one conversion.
#include "tarn/data/tokens.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tarn/core/error.h"
#include "tarn/core/file.h"

namespace tarn::data {
namespace {

constexpr int32_t kGpt2Magic = 20240520, kLlama3Magic = 20240801;
constexpr int32_t kGpt2Version = 1, kLlama3Version = 7;
constexpr int64_t kHeaderBytes = 1024;

// The whole file in memory, page by page as it is touched.
std::shared_ptr<const void> map_file(const std::string& path, int64_t bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  TARN_CHECK_AS(FileError, fd >= 0, "tokens: cannot open ", path, ": ", std::strerror(errno));
  void* at = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  close(fd);
  TARN_CHECK_AS(FileError, at != MAP_FAILED, "tokens: cannot map ", path, ": ",
                std::strerror(error));
  return {at, [bytes](const void* p) { munmap(const_cast<void*>(p), static_cast<size_t>(bytes)); }};
}

template <class T>
std::vector<T> converted(std::span<const int32_t> ids) {
  std::vector<T> out(ids.size());
  std::transform(ids.begin(), ids.end(), out.begin(),
                 [](int32_t id) { return static_cast<T>(id); });
  return out;
}

void check_narrow(const char* format, std::span<const int32_t> ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    TARN_CHECK_AS(ValueError, ids[i] >= 0 && ids[i] <= 0xFFFF, format, " token file: id ", ids[i],
                  " at place ", i, " does not fit 16 bits");
  }
}

void write_ids(OutputFile& out, std::span<const int32_t> ids) {
  const auto narrow = converted<uint16_t>(ids);
  out.write(narrow.data(), narrow.size() * sizeof(uint16_t));
  out.commit();
}

}  // namespace

Tokens::Tokens(const std::vector<int32_t>& ids, std::string name)
    : size_(static_cast<int64_t>(ids.size())), name_(std::move(name)) {
  const auto lowest = std::min_element(ids.begin(), ids.end());
  TARN_CHECK_AS(ValueError, ids.empty() || *lowest >= 0, "tokens: ids must not be negative; got ",
                *lowest);
  if (std::all_of(ids.begin(), ids.end(), [](int32_t id) { return id <= 0xFFFF; })) {
    auto values = std::make_shared<std::vector<uint16_t>>(converted<uint16_t>(ids));
    narrow_ = values->data();
    owner_ = std::move(values);
  } else {
    auto values = std::make_shared<std::vector<uint32_t>>(converted<uint32_t>(ids));
    wide_ = values->data();
    owner_ = std::move(values);
  }
}

Tokens Tokens::open(const std::string& path) {
  InputFile file("tokens", path);
  const auto bytes = static_cast<int64_t>(file.size());
  if (bytes == 0) file.fail("the file is empty");
  std::array<int32_t, 3> header{};
  if (bytes >= static_cast<int64_t>(sizeof header))
    file.read(header.data(), sizeof header, "header");
  const auto [magic, version, count] = header;
  Tokens tokens;
  tokens.name_ = path;
  const bool llama3 = magic == kLlama3Magic;
  if (magic != kGpt2Magic && !llama3) {
    if (bytes % 2 != 0) {
      file.fail("truncated: 16-bit ids take an even number of bytes, the file has ", bytes);
    }
    tokens.owner_ = map_file(path, bytes);
    tokens.narrow_ = static_cast<const uint16_t*>(tokens.owner_.get());
    tokens.size_ = bytes / 2;
    return tokens;
  }
  const int32_t known = llama3 ? kLlama3Version : kGpt2Version;
  if (version != known) {
    file.fail("llm.c token file of version ", version, "; version ", known, " can be read");
  }
  const int64_t expected = kHeaderBytes + int64_t{count} * (llama3 ? 4 : 2);
  if (count < 0 || bytes != expected) {
    file.fail(bytes < expected ? "truncated" : "damaged", ": the header says ", count,
              " tokens, which take ", expected, " bytes; the file has ", bytes);
  }
  tokens.owner_ = map_file(path, bytes);
  const char* ids = static_cast<const char*>(tokens.owner_.get()) + kHeaderBytes;
  if (llama3) {
    tokens.wide_ = reinterpret_cast<const uint32_t*>(ids);
  } else {
    tokens.narrow_ = reinterpret_cast<const uint16_t*>(ids);
  }
  tokens.size_ = count;
  return tokens;
}

void Tokens::copy(int64_t first, int64_t count, int64_t* to) const {
  if (wide_) {
    std::copy_n(wide_ + first, count, to);
  } else {
    std::copy_n(narrow_ + first, count, to);
  }
}

Tokens Tokens::slice(int64_t first, int64_t count) const {
  TARN_CHECK_AS(IndexError, first >= 0 && count >= 0 && first <= size_ && count <= size_ - first,
                "tokens: ", count, " from ", first, " on reach beyond the ", size_, " of ", name_);
  Tokens part = *this;
  if (wide_) {
    part.wide_ += first;
  } else {
    part.narrow_ += first;
  }
  part.size_ = count;
  return part;
}

void save_llmc_tokens(const std::string& path, std::span<const int32_t> ids) {
  TARN_CHECK_AS(ValueError, ids.size() <= INT32_MAX, "llm.c token file: ", ids.size(),
                " ids; the header counts up to ", INT32_MAX);
  check_narrow("llm.c", ids);
  std::array<int32_t, kHeaderBytes / 4> header{kGpt2Magic, kGpt2Version,
                                               static_cast<int32_t>(ids.size())};
  OutputFile out("save_llmc_tokens", path);
  out.write(header.data(), sizeof header);
  write_ids(out, ids);
}

void save_nanogpt_tokens(const std::string& path, std::span<const int32_t> ids) {
  check_narrow("nanoGPT", ids);
  OutputFile out("save_nanogpt_tokens", path);
  write_ids(out, ids);
}

}  // namespace tarn::data
