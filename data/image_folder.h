// image_folder.h - pictures in root/CLASS/**, the layout of torchvision's ImageFolder.
#pragma once

#include <string>
#include <vector>

#include "tarn/data/dataset.h"

namespace tarn::data {

/// Classes are the folders under `root` in byte order; their files are walked in sorted order,
/// through symbolic links. Files with other extensions are passed over. Pictures are decoded as RGB
/// when they are asked for; one that cannot be is a FileError with its path (or is skipped, see
/// ImageDataset::skip_unreadable).
class ImageFolder final : public ImageDataset {
 public:
  /// Throws FileError if root cannot be read, has no class folders, or one of them no pictures.
  explicit ImageFolder(const std::string& root);

  int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  Image image(int64_t index) const override { return read_image(name(index)); }
  int64_t label(int64_t index) const override { return files_[static_cast<size_t>(index)].label; }
  std::string name(int64_t index) const override { return files_[static_cast<size_t>(index)].path; }
  const std::vector<std::string>& classes() const override { return classes_; }

 private:
  struct File {
    std::string path;
    int64_t label;
  };
  std::vector<File> files_;
  std::vector<std::string> classes_;
};

}  // namespace tarn::data
