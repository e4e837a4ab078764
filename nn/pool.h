// pool.h - pooling layers.
#pragma once

#include "tarn/core/raw_pool.h"
#include "tarn/nn/module.h"

namespace tarn::nn {

struct MaxPool2dOptions {
  Size2 kernel = 2;
  Size2 stride = 0;  ///< 0: the kernel's size
  Size2 padding = 0, dilation = 1;
  bool ceil_mode = false;
};
/// The maximum of each window, see tarn::max_pool2d. x [N, C, H, W].
class MaxPool2d final : public Module {
 public:
  using Options = MaxPool2dOptions;
  explicit MaxPool2d(const Options& options) : MaxPool2d(nullptr, "", options) {}
  MaxPool2d(Module* parent, std::string name, const Options& options)
      : Module(parent, std::move(name)), options_(options) {}
  Tensor forward(const Tensor& x) override;

 private:
  Options options_;
};

struct AvgPool2dOptions {
  Size2 kernel = 2;
  Size2 stride = 0;  ///< 0: the kernel's size
  Size2 padding = 0;
  bool ceil_mode = false;
  bool count_include_pad = true;
};
/// The mean of each window, see tarn::avg_pool2d. x [N, C, H, W].
class AvgPool2d final : public Module {
 public:
  using Options = AvgPool2dOptions;
  explicit AvgPool2d(const Options& options) : AvgPool2d(nullptr, "", options) {}
  AvgPool2d(Module* parent, std::string name, const Options& options)
      : Module(parent, std::move(name)), options_(options) {}
  Tensor forward(const Tensor& x) override;

 private:
  Options options_;
};

struct AdaptiveAvgPool2dOptions {
  Size2 output = 1;
};
/// Means over windows such that the output is of size `output`. x [N, C, H, W].
class AdaptiveAvgPool2d final : public Module {
 public:
  using Options = AdaptiveAvgPool2dOptions;
  explicit AdaptiveAvgPool2d(const Options& options) : AdaptiveAvgPool2d(nullptr, "", options) {}
  AdaptiveAvgPool2d(Module* parent, std::string name, const Options& options)
      : Module(parent, std::move(name)), options_(options) {}
  Tensor forward(const Tensor& x) override;

 private:
  Options options_;
};

}  // namespace tarn::nn
