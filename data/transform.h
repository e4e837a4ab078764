// transform.h - what happens to a picture between the file and the batch.
//
//   ImagePipeline train{.steps = {random_crop(32, 4), random_horizontal_flip()},
//                       .mean = {0.4914f, 0.4822f, 0.4465f},
//                       .std = {0.2470f, 0.2435f, 0.2616f}};
//
// Steps work on bytes; the last stage divides by 255, normalises and writes straight into the
// batch. Each step draws from the sample's own Rng (rng.h). Names, parameters and defaults are
// torchvision's.
#pragma once

#include <functional>
#include <vector>

#include "tarn/data/image.h"
#include "tarn/data/rng.h"

namespace tarn::data {

/// Takes a picture, returns the changed one.
using ImageStep = std::function<Image(Image, Rng&)>;

/// Scales so that the shorter side has `size` pixels (bilinear, antialiased).
ImageStep resize_shorter(int64_t size);
/// The middle [size, size]; a smaller picture is padded with zeros.
ImageStep center_crop(int64_t size);
/// Pads each side with `padding` zeros, then takes a random [size, size].
ImageStep random_crop(int64_t size, int64_t padding = 0);
ImageStep random_horizontal_flip(double probability = 0.5);

struct ResizedCropOptions {
  double min_area = 0.08, max_area = 1.0;             ///< share of the picture
  double min_aspect = 3.0 / 4, max_aspect = 4.0 / 3;  ///< width / height
};
/// A random part of random aspect ratio, scaled to [size, size].
ImageStep random_resized_crop(int64_t size, const ResizedCropOptions& options = {});

/// Sets a random rectangle of the normalised picture to zero.
struct ErasingOptions {
  double probability = 0;
  double min_area = 0.02, max_area = 0.33;
  double min_aspect = 0.3, max_aspect = 3.3;
};

struct ImagePipeline {
  std::vector<ImageStep> steps = {};
  /// Per channel, of values in [0, 1]; empty leaves them there. One value serves all channels.
  std::vector<float> mean = {}, std = {};
  ErasingOptions erasing = {};

  Image run_steps(Image image, Rng& rng) const;
  /// (pixel / 255 - mean) / std, then erasing, as C*H*W floats at `out`: HWC order if
  /// channels_last, else CHW. Throws ValueError if mean or std have the wrong length.
  void write(const Image& image, Rng& rng, bool channels_last, float* out) const;
};

}  // namespace tarn::data
