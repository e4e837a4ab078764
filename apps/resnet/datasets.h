// datasets.h - the data sets the trainer knows, with their usual augmentation and normalisation.
#pragma once

#include <memory>
#include <string>

#include "tarn/apps/resnet/settings.h"
#include "tarn/data/dataset.h"

namespace tarn::apps {

struct ImageData {
  std::string name;       ///< "fashion-mnist": for run names and titles
  std::string note = "";  ///< what one should know of it, if anything
  std::unique_ptr<data::ImageDataset> train = nullptr, test = nullptr;
  int64_t channels = 3, classes = 10, image_size = 32;
};

/// Opens what --data-path says. with_train = false leaves `train` empty (--test-only). Throws
/// UsageError on an unknown kind of data, FileError on missing or damaged files.
ImageData open_data(const ResnetSettings& s, bool with_train);

}  // namespace tarn::apps
