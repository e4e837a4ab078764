// cifar10.cpp - reading the records and interleaving their colour planes.
#include "tarn/data/cifar10.h"

#include <filesystem>

#include "tarn/core/factory.h"
#include "tarn/core/file.h"

namespace tarn::data {
namespace {
constexpr int64_t kSide = 32, kChannels = 3, kPlane = kSide * kSide;
constexpr int64_t kRecord = 1 + kChannels * kPlane;

std::string read_records(const std::string& path) {
  std::string bytes = read_file("load_cifar10", path);
  const auto size = static_cast<int64_t>(bytes.size());
  TARN_CHECK_AS(FileError, size > 0 && size % kRecord == 0, "load_cifar10: ", path,
                ": must hold whole records of ", kRecord, " bytes; it has ", size, " bytes, ",
                size / kRecord, " records and ", size % kRecord, " bytes");
  for (int64_t i = 0; i < size / kRecord; ++i) {
    const auto label = static_cast<unsigned char>(bytes[static_cast<size_t>(i * kRecord)]);
    TARN_CHECK_AS(FileError, label < 10, "load_cifar10: ", path, ": record ", i, " at offset ",
                  i * kRecord, " has label ", static_cast<int>(label), "; must be 0 to 9");
  }
  return bytes;
}
}  // namespace

const std::vector<std::string> kCifar10Classes = {
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};

std::unique_ptr<MemoryImages> load_cifar10(const std::string& folder, bool train) {
  namespace fs = std::filesystem;
  const fs::path inner = fs::path(folder) / "cifar-10-batches-bin";
  const fs::path root = is_folder(inner.string()) ? inner : fs::path(folder);
  std::vector<std::string> files;
  if (train) {
    for (int i = 1; i <= 5; ++i) {
      files.push_back((root / ("data_batch_" + std::to_string(i) + ".bin")).string());
    }
  } else {
    files.push_back((root / "test_batch.bin").string());
  }
  std::string records;
  for (const std::string& path : files) records += read_records(path);
  const int64_t count = static_cast<int64_t>(records.size()) / kRecord;
  Tensor pixels = empty({count, kSide, kSide, kChannels}, {.dtype = DType::kU8});
  std::vector<uint8_t> labels(static_cast<size_t>(count));
  uint8_t* to = pixels.data<uint8_t>();
  for (int64_t i = 0; i < count; ++i) {
    const auto* record = reinterpret_cast<const uint8_t*>(records.data()) + i * kRecord;
    labels[static_cast<size_t>(i)] = record[0];
    for (int64_t p = 0; p < kPlane; ++p) {
      for (int64_t c = 0; c < kChannels; ++c) *to++ = record[1 + c * kPlane + p];
    }
  }
  return std::make_unique<MemoryImages>(std::move(pixels), std::move(labels), kCifar10Classes);
}

}  // namespace tarn::data
