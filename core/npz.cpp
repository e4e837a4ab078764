// npz.cpp - .npy files and .npz archives.
#include "tarn/core/npz.h"

#include <cstring>

#include "tarn/core/file.h"
#include "tarn/core/host.h"
#include "tarn/core/npy_format.h"
#include "tarn/core/zip.h"

namespace tarn {
namespace {
constexpr char kSuffix[] = ".npy";

bool is_array(const std::string& name) {
  return name.size() >= 4 && name.compare(name.size() - 4, 4, kSuffix) == 0;
}

Tensor parse_member(InputFile& file, const detail::ZipMember& member) {
  const std::string bytes = detail::read_zip_member(file, member);
  uint64_t at = 0;
  detail::NpySource source;
  source.size = bytes.size();
  source.fail = [&](const std::string& why) { file.fail("member '", member.name, "': ", why); };
  source.read = [&](void* to, uint64_t count, const char* what) {
    if (count > bytes.size() - at) {
      source.fail("truncated: " + std::string(what) + " needs " + std::to_string(count) +
                  " bytes at offset " + std::to_string(at));
    }
    if (count > 0) std::memcpy(to, bytes.data() + at, count);
    at += count;
  };
  return detail::read_npy(source);
}
}  // namespace

Tensor load_npy(const std::string& path) {
  InputFile file("load_npy", path);
  detail::NpySource source;
  source.size = file.size();
  source.fail = [&](const std::string& why) { file.fail(why); };
  source.read = [&](void* to, uint64_t bytes, const char* what) { file.read(to, bytes, what); };
  return detail::read_npy(source);
}

void save_npy(const std::string& path, const Tensor& tensor) {
  TARN_CHECK_AS(ValueError, tensor.defined(), "save_npy: the tensor is undefined");
  const std::string header = detail::npy_header(tensor);
  OutputFile file("save_npy", path);
  file.write(header);
  const Tensor packed = host_row_major(tensor);
  file.write(packed.data(), static_cast<uint64_t>(packed.numel() * item_size(packed.dtype())));
  file.commit();
}

TensorDict load_npz(const std::string& path) {
  InputFile file("load_npz", path);
  TensorDict tensors;
  for (const detail::ZipMember& member : detail::read_zip_directory(file)) {
    if (!is_array(member.name)) continue;
    std::string name = member.name.substr(0, member.name.size() - 4);
    if (tensors.contains(name)) file.fail("member '", member.name, "' appears twice");
    tensors.add(std::move(name), parse_member(file, member));
  }
  return tensors;
}

void save_npz(const std::string& path, const TensorDict& tensors, const NpzOptions& options) {
  OutputFile file("save_npz", path);
  detail::ZipWriter zip(file);
  for (const auto& [name, tensor] : tensors) {
    TARN_CHECK_AS(ValueError, tensor.defined(), "save_npz: tensor '", name, "' is undefined");
    TARN_CHECK_AS(ValueError, name.size() < 65000, "save_npz: a name of ", name.size(), " bytes");
    const Tensor packed = host_row_major(tensor);
    std::string bytes = detail::npy_header(packed);
    bytes.append(static_cast<const char*>(packed.data()),
                 static_cast<size_t>(packed.numel() * item_size(packed.dtype())));
    zip.add(name + kSuffix, bytes, options.compress);
  }
  zip.finish();
  file.commit();
}

}  // namespace tarn
