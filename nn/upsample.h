// upsample.h - Upsample and PixelShuffle: images made larger.
#pragma once

#include "tarn/autograd/functions_interpolate.h"
#include "tarn/nn/module.h"

namespace tarn::nn {

/// See tarn::interpolate, which also says what throws:
///   nn::Upsample up{this, "up", {.scale_factor = 2, .mode = InterpolateMode::kBilinear}};
class Upsample final : public Module {
 public:
  using Options = InterpolateOptions;
  explicit Upsample(const Options& options) : Upsample(nullptr, "", options) {}
  Upsample(Module* parent, std::string name, const Options& options)
      : Module(parent, std::move(name)), options_(options) {}
  Tensor forward(const Tensor& x) override { return tarn::interpolate(x, options_); }
  std::string details() const override;

 private:
  Options options_;
};

struct PixelShuffleOptions {
  int64_t factor = 1;
};
/// [..., C factor^2, H, W] -> [..., C, H factor, W factor], see tarn::pixel_shuffle.
class PixelShuffle final : public Module {
 public:
  using Options = PixelShuffleOptions;
  explicit PixelShuffle(const Options& options) : PixelShuffle(nullptr, "", options) {}
  PixelShuffle(Module* parent, std::string name, const Options& options)
      : Module(parent, std::move(name)), options_(options) {}
  Tensor forward(const Tensor& x) override { return tarn::pixel_shuffle(x, options_.factor); }
  std::string details() const override;

 private:
  Options options_;
};

}  // namespace tarn::nn
