// image_folder.cpp - finding the classes and their files.
#include "tarn/data/image_folder.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <system_error>

#include "tarn/core/error.h"

namespace tarn::data {
namespace {

namespace fs = std::filesystem;

bool is_picture(const fs::path& path) {
  constexpr std::array<std::string_view, 9> kExtensions = {".jpg", ".jpeg", ".png",  ".ppm", ".bmp",
                                                           ".pgm", ".tif",  ".tiff", ".webp"};
  std::string ext = path.extension().string();
  for (char& c : ext) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::find(kExtensions.begin(), kExtensions.end(), ext) != kExtensions.end();
}

std::vector<fs::path> list(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  TARN_CHECK_AS(FileError, !error, "ImageFolder: cannot read folder ", folder.string(), ": ",
                error.message());
  return entries;
}

/// Adds `folder` and every folder below it. `above` holds the real paths on the way down, so that a
/// link back up ends the walk instead of going round for ever.
void collect_folders(const fs::path& folder, std::vector<fs::path>& above,
                     std::vector<std::string>& out) {
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  if (error || std::find(above.begin(), above.end(), real) != above.end()) return;
  above.push_back(real);
  out.push_back(folder.string());
  for (const fs::path& entry : list(folder)) {
    if (fs::is_directory(entry, error)) collect_folders(entry, above, out);
  }
  above.pop_back();
}

std::vector<std::string> find_pictures(const fs::path& class_folder) {
  std::vector<std::string> folders, files;
  std::vector<fs::path> above;
  collect_folders(class_folder, above, folders);
  std::sort(folders.begin(), folders.end());
  for (const std::string& folder : folders) {
    const size_t first = files.size();
    for (const fs::path& entry : list(folder)) {
      if (is_picture(entry) && !fs::is_directory(entry)) files.push_back(entry.string());
    }
    std::sort(files.begin() + static_cast<int64_t>(first), files.end());
  }
  return files;
}

}  // namespace

ImageFolder::ImageFolder(const std::string& root) {
  std::vector<std::string> folders;
  for (const fs::path& entry : list(root)) {
    if (fs::is_directory(entry)) folders.push_back(entry.filename().string());
  }
  TARN_CHECK_AS(FileError, !folders.empty(), "ImageFolder: no class folders in ", root,
                "; the layout is ROOT/CLASS/picture.jpg");
  std::sort(folders.begin(), folders.end());
  for (const std::string& name : folders) {
    const auto label = static_cast<int64_t>(classes_.size());
    const std::vector<std::string> paths = find_pictures(fs::path(root) / name);
    TARN_CHECK_AS(FileError, !paths.empty(), "ImageFolder: class folder ",
                  (fs::path(root) / name).string(), " holds no pictures");
    for (const std::string& path : paths) files_.push_back({path, label});
    classes_.push_back(name);
  }
}

}  // namespace tarn::data
