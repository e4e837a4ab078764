// mnist.cpp - IDX through zlib, which reads plain files as well.
#include "tarn/data/mnist.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <zlib.h>

#include "tarn/core/factory.h"
#include "tarn/core/file.h"

namespace tarn::data {
namespace {

class GzipFile {
 public:
  explicit GzipFile(const std::string& path) : path_(path) {
    TARN_CHECK_AS(FileError, !is_folder(path), "load_idx: cannot open ", path, ": it is a folder");
    std::error_code ignored;  // gzopen would wait for the writer of a pipe
    TARN_CHECK_AS(FileError, !is_there(path) || std::filesystem::is_regular_file(path, ignored),
                  "load_idx: cannot open ", path, ": not a plain file");
    errno = 0;
    file_ = gzopen(path.c_str(), "rb");
    TARN_CHECK_AS(FileError, file_, "load_idx: cannot open ", path, ": ", std::strerror(errno));
    gzbuffer(file_, 1 << 18);
  }
  ~GzipFile() { gzclose(file_); }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  /// Up to `bytes` bytes; fewer only at the end of the file.
  uint64_t read(void* to, uint64_t bytes) {
    char* out = static_cast<char*>(to);
    uint64_t done = 0;
    while (done < bytes) {
      const auto step = static_cast<unsigned>(std::min<uint64_t>(bytes - done, 1u << 30));
      const int got = gzread(file_, out + done, step);
      int code = Z_OK;
      const char* why = gzerror(file_, &code);
      if (got < 0 || (code != Z_OK && code != Z_STREAM_END)) {
        if (code == Z_BUF_ERROR) fail("truncated gzip: the file ends too early");
        // zlib names the file before the reason; fail() has named it already.
        std::string_view reason = why;
        if (reason.starts_with(path_ + ": ")) reason.remove_prefix(path_.size() + 2);
        fail("corrupt gzip: ", reason);
      }
      if (got == 0) break;
      done += static_cast<uint64_t>(got);
    }
    return done;
  }
  void read_exactly(void* to, uint64_t bytes, const char* what) {
    const uint64_t got = read(to, bytes);
    if (got != bytes) fail("truncated: ", what, " needs ", bytes, " bytes, there are ", got);
  }
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    tarn::detail::fail<FileError>("load_idx: ", path_, ": ", parts...);
  }

 private:
  std::string path_;
  gzFile file_;
};

/// The file of that name in `folder`, in one of its spellings.
std::string find_file(const std::string& folder, const std::string& name) {
  std::string dotted = name;  // some mirrors unpack to "train-images.idx3-ubyte"
  dotted[dotted.find("-idx")] = '.';
  for (const std::string& candidate : {name, name + ".gz", dotted, dotted + ".gz"}) {
    const std::string path = (std::filesystem::path(folder) / candidate).string();
    if (is_there(path) && !is_folder(path)) return path;  // some archives have folders so named
  }
  tarn::detail::fail<FileError>("load_mnist: neither ", name, " nor ", name, ".gz is in ", folder);
}

}  // namespace

const std::vector<std::string> kFashionMnistClasses = {
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};

Tensor load_idx(const std::string& path) {
  GzipFile file(path);
  std::array<unsigned char, 4> magic;
  file.read_exactly(magic.data(), magic.size(), "the magic number");
  if (magic[0] != 0 || magic[1] != 0) file.fail("not an IDX file: it must begin with two zeros");
  if (magic[2] != 0x08) {
    file.fail("IDX type ", static_cast<int>(magic[2]), "; only bytes (8) are supported");
  }
  if (magic[3] < 1 || magic[3] > kMaxDims) {
    file.fail("IDX with ", static_cast<int>(magic[3]), " dimensions; must be 1 to ", kMaxDims);
  }
  Shape sizes;
  uint64_t count = 1;
  for (int d = 0; d < magic[3]; ++d) {
    std::array<unsigned char, 4> b;
    file.read_exactly(b.data(), b.size(), "the sizes");
    const uint64_t size = uint64_t{b[0]} << 24 | b[1] << 16 | b[2] << 8 | b[3];
    constexpr uint64_t kMost = uint64_t{1} << 40;
    if (__builtin_mul_overflow(count, std::max<uint64_t>(size, 1), &count) || count > kMost) {
      file.fail("IDX sizes beyond 1 TiB");
    }
    sizes.push_back(static_cast<int64_t>(size));
  }
  // Grow with what is really there: the sizes may claim more memory than the machine has.
  std::vector<char> data;
  const auto total = static_cast<uint64_t>(sizes.numel());
  while (data.size() < total) {
    const uint64_t step = std::min<uint64_t>(total - data.size(), uint64_t{64} << 20);
    const uint64_t before = data.size();
    data.resize(before + step);
    const uint64_t got = file.read(data.data() + before, step);
    if (got != step) {
      file.fail("truncated: sizes ", sizes, " need ", total, " bytes, there are ", before + got);
    }
  }
  char extra;
  if (file.read(&extra, 1) != 0) file.fail("longer than its sizes ", sizes, " say");
  Tensor out = empty(sizes, {.dtype = DType::kU8});
  if (total) std::memcpy(out.data(), data.data(), total);
  return out;
}

std::unique_ptr<MemoryImages> load_mnist(const std::string& folder, bool train,
                                         const std::vector<std::string>& class_names) {
  std::vector<std::string> classes = class_names;
  for (int i = 0; i < 10 && class_names.empty(); ++i) classes.push_back(std::to_string(i));
  const std::string prefix = train ? "train" : "t10k";
  const std::string image_path = find_file(folder, prefix + "-images-idx3-ubyte");
  const std::string label_path = find_file(folder, prefix + "-labels-idx1-ubyte");
  const Tensor images = load_idx(image_path), labels = load_idx(label_path);
  TARN_CHECK_AS(FileError, images.dim() == 3, "load_mnist: ", image_path,
                ": pictures must be [N, H, W]; got ", images.sizes());
  TARN_CHECK_AS(FileError, labels.dim() == 1 && labels.size(0) == images.size(0),
                "load_mnist: ", label_path, ": ", images.size(0),
                " pictures need as many labels; got ", labels.sizes());
  const uint8_t* values = labels.data<uint8_t>();
  for (int64_t i = 0; i < labels.numel(); ++i) {
    TARN_CHECK_AS(FileError, values[i] < classes.size(), "load_mnist: ", label_path, ": label ", i,
                  " is ", static_cast<int>(values[i]), "; must be below ", classes.size());
  }
  const Shape nhwc{images.size(0), images.size(1), images.size(2), 1};
  return std::make_unique<MemoryImages>(
      Tensor(images.storage(), nhwc, contiguous_strides(nhwc), 0, DType::kU8),
      std::vector<uint8_t>(values, values + labels.numel()), std::move(classes));
}

}  // namespace tarn::data
