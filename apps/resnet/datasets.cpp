// datasets.cpp - opens data sets and gives them their pipelines.
#include "tarn/apps/resnet/datasets.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "tarn/apps/common/text.h"
#include "tarn/core/file.h"
#include "tarn/data/cifar10.h"
#include "tarn/data/image_folder.h"
#include "tarn/data/mnist.h"

namespace tarn::apps {
namespace {

using data::ImagePipeline;

struct Normalisation {
  std::vector<float> mean, std;
};
const Normalisation kFashion{{0.286041f}, {0.353024f}};
const Normalisation kMnist{{0.1307f}, {0.3081f}};
const Normalisation kCifar{{0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f}};
const Normalisation kImageNet{{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}};

ImagePipeline small_pipeline(const Normalisation& n, int64_t size, int64_t padding, bool flip,
                             const ResnetSettings& s, bool train) {
  ImagePipeline p{.mean = n.mean, .std = n.std};
  if (train) p.erasing.probability = s.random_erase;
  if (!train || !s.augment) return p;
  if (padding > 0) p.steps.push_back(data::random_crop(size, padding));
  if (flip) p.steps.push_back(data::random_horizontal_flip());
  return p;
}

ImagePipeline folder_pipeline(const ResnetSettings& s, bool train) {
  ImagePipeline p{.mean = kImageNet.mean, .std = kImageNet.std};
  if (train) p.erasing.probability = s.random_erase;
  if (train && s.augment) {
    p.steps = {data::random_resized_crop(s.train_crop_size), data::random_horizontal_flip()};
  } else {
    const int64_t crop = train ? s.train_crop_size : s.val_crop_size;
    p.steps = {data::resize_shorter(std::max(s.val_resize_size, crop)), data::center_crop(crop)};
  }
  return p;
}

ImageData open_mnist(const std::string& name, const std::string& folder, const ResnetSettings& s,
                     bool with_train) {
  const bool fashion = name == "fashion-mnist";
  const auto& classes = fashion ? data::kFashionMnistClasses : std::vector<std::string>{};
  const Normalisation& n = fashion ? kFashion : kMnist;
  ImageData d{.name = name, .channels = 1, .image_size = 28};
  const auto open = [&](bool train) {
    auto set = data::load_mnist(folder, train, classes);
    set->pipeline = small_pipeline(n, 28, fashion ? 0 : 2, fashion, s, train);
    return set;
  };
  if (with_train) d.train = open(true);
  d.test = open(false);
  return d;
}

ImageData open_cifar10(const std::string& folder, const ResnetSettings& s, bool with_train) {
  ImageData d{.name = "cifar10"};
  const auto open = [&](bool train) {
    auto set = data::load_cifar10(folder, train);
    set->pipeline = small_pipeline(kCifar, 32, 4, true, s, train);
    return set;
  };
  if (with_train) d.train = open(true);
  d.test = open(false);
  return d;
}

bool holds_folders(const std::filesystem::path& path) {
  std::error_code none;  // of a path that cannot be read: it holds none
  const std::filesystem::directory_iterator entries(path, none);
  return std::any_of(begin(entries), end(entries),
                     [](const auto& entry) { return is_folder(entry.path().string()); });
}

// The first name that only one of two sorted lists has, and the list that lacks it.
std::string missing_class(const std::vector<std::string>& train,
                          const std::vector<std::string>& val) {
  const auto [t, v] = std::mismatch(train.begin(), train.end(), val.begin(), val.end());
  const bool in_train = v == val.end() || (t != train.end() && *t < *v);
  return "'" + (in_train ? *t : *v) + "' is missing in " + (in_train ? "val" : "train");
}

// DIR/train and DIR/val where they exist, else DIR itself for both.
ImageData open_folder(const std::string& folder, const ResnetSettings& s, bool with_train) {
  namespace fs = std::filesystem;
  const bool split = is_folder((fs::path(folder) / "val").string());
  // A class may be called "train", but then it holds pictures.
  TARN_CHECK_AS(FileError, split || !holds_folders(fs::path(folder) / "train"),
                "imagefolder: ", folder, "/train needs the test images beside it, in ", folder,
                "/val; there is no such folder");
  ImageData d{
      .name = "imagefolder",
      .note = split ? "" : "no folder val in " + folder + ": tests with the training images",
      // A run's network is made for what it was trained on, also where it is only tested.
      .image_size = with_train || s.resume ? s.train_crop_size : s.val_crop_size};
  const auto open = [&](bool train) {
    const std::string root =
        split ? (fs::path(folder) / (train ? "train" : "val")).string() : folder;
    auto set = std::make_unique<data::ImageFolder>(root);
    set->pipeline = folder_pipeline(s, train);
    return set;
  };
  if (with_train) d.train = open(true);
  d.test = open(false);
  d.classes = static_cast<int64_t>(d.test->classes().size());
  TARN_CHECK(!d.train || d.train->classes() == d.test->classes(), "imagefolder: ", folder,
             "/train and /val must have the same class folders; ",
             missing_class(d.train->classes(), d.test->classes()));
  return d;
}

}  // namespace

ImageData open_data(const ResnetSettings& s, bool with_train) {
  const size_t colon = s.data.find(':');
  const std::string kind = s.data.substr(0, colon);
  const std::string folder = colon == std::string::npos ? "" : s.data.substr(colon + 1);
  ImageData d;
  if (kind == "fashion-mnist") {
    TARN_CHECK_AS(FileError, !folder.empty() || is_folder(data::kFashionMnistFolder),
                  "fashion-mnist: no folder ", data::kFashionMnistFolder,
                  "; install Debian's package dataset-fashion-mnist, or pass "
                  "--data-path fashion-mnist:DIR");
    d = open_mnist(kind, folder.empty() ? data::kFashionMnistFolder : folder, s, with_train);
  } else if (kind == "mnist" && !folder.empty()) {
    d = open_mnist(kind, folder, s, with_train);
  } else if (kind == "cifar10" && !folder.empty()) {
    d = open_cifar10(folder, s, with_train);
  } else if (kind == "imagefolder" && !folder.empty()) {
    d = open_folder(folder, s, with_train);
  } else {
    const std::string near = nearest(kind, {"fashion-mnist", "mnist", "cifar10", "imagefolder"});
    throw UsageError(
        "--data-path: expected fashion-mnist, fashion-mnist:DIR, mnist:DIR, "
        "cifar10:DIR or imagefolder:DIR; got '" +
        s.data + "'" + (near.empty() || near == kind ? "" : "; did you mean " + near + "?"));
  }
  for (data::ImageDataset* set : {d.train.get(), d.test.get()}) {
    if (!set) continue;
    set->skip_unreadable = s.skip_unreadable;
    TARN_CHECK_AS(FileError, set->size() > 0, "--data-path ", s.data, ": it holds no ",
                  set == d.test.get() ? "test" : "training", " images");
  }
  return d;
}

}  // namespace tarn::apps
