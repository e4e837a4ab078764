// upsample.cpp - how Upsample and PixelShuffle print.
#include "tarn/nn/upsample.h"

namespace tarn::nn {

std::string Upsample::details() const {
  static constexpr const char* kModes[] = {"nearest",   "linear",  "bilinear",
                                           "trilinear", "bicubic", "area"};
  std::string text;
  if (options_.scale_factor.values.empty()) {
    text = tarn::detail::concat("size=", options_.size);
  } else {
    for (const double factor : options_.scale_factor.values) {
      text += tarn::detail::concat(text.empty() ? "scale_factor=" : "x", factor);
    }
  }
  text += std::string(", mode=") + kModes[static_cast<size_t>(options_.mode)];
  return text + (options_.align_corners ? ", align_corners" : "");
}

std::string PixelShuffle::details() const {
  return std::to_string(options_.factor);
}

}  // namespace tarn::nn
