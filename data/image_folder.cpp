// image_folder.cpp - finding the classes and their files.
#include "tarn/data/image_folder.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <system_error>

#include "tarn/core/file.h"

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

std::vector<std::string> list(const std::string& folder) {
  return list_folder("ImageFolder", folder);
}

/// Adds `folder` and every folder below it. `above` holds the real paths on the way down, so that a
/// link back up ends the walk instead of going round for ever.
void collect_folders(const std::string& folder, std::vector<fs::path>& above,
                     std::vector<std::string>& out) {
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  if (error || std::find(above.begin(), above.end(), real) != above.end()) return;
  above.push_back(real);
  out.push_back(folder);
  for (const std::string& entry : list(folder)) {
    if (is_folder(entry)) collect_folders(entry, above, out);
  }
  above.pop_back();
}

std::vector<std::string> find_pictures(const std::string& class_folder) {
  std::vector<std::string> folders, files;
  std::vector<fs::path> above;
  collect_folders(class_folder, above, folders);
  std::sort(folders.begin(), folders.end());
  for (const std::string& folder : folders) {
    const size_t first = files.size();
    for (const std::string& entry : list(folder)) {
      if (is_picture(entry) && !is_folder(entry)) files.push_back(entry);
    }
    std::sort(files.begin() + static_cast<int64_t>(first), files.end());
  }
  return files;
}

}  // namespace

ImageFolder::ImageFolder(const std::string& root) {
  std::vector<std::string> folders;
  for (const std::string& entry : list(root)) {
    if (is_folder(entry)) folders.push_back(fs::path(entry).filename().string());
  }
  TARN_CHECK_AS(FileError, !folders.empty(), "ImageFolder: no class folders in ", root,
                "; the layout is ROOT/CLASS/picture.jpg");
  std::sort(folders.begin(), folders.end());
  for (const std::string& name : folders) {
    const auto label = static_cast<int64_t>(classes_.size());
    const std::string folder = (fs::path(root) / name).string();
    const std::vector<std::string> paths = find_pictures(folder);
    TARN_CHECK_AS(FileError, !paths.empty(), "ImageFolder: class folder ", folder,
                  " holds no pictures");
    for (const std::string& path : paths) files_.push_back({path, label});
    classes_.push_back(name);
  }
}

}  // namespace tarn::data
