// conv.h - Conv2d and Conv1d.
#pragma once

#include "tarn/core/raw_pool.h"
#include "tarn/nn/module.h"

namespace tarn::nn {

struct Conv2dOptions {
  int64_t in = 0, out = 0;
  Size2 kernel = 1, stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};

/// Cross-correlation: x [N, in, H, W] -> [N, out, OH, OW], OH = floor((H + 2 padding - dilation
/// (kernel - 1) - 1) / stride) + 1. weight [out, in/groups, kernel.h, kernel.w], bias [out].
/// Initialised U(-b, b), b = 1/sqrt(in/groups * kernel.h * kernel.w).
class Conv2d final : public Module {
 public:
  using Options = Conv2dOptions;
  explicit Conv2d(const Options& options) : Conv2d(nullptr, "", options) {}
  Conv2d(Module* parent, std::string name, const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string details() const override;

  Parameter weight, bias;

 private:
  Options options_;
};

struct Conv1dOptions {
  int64_t in = 0, out = 0;
  int64_t kernel = 1, stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};

/// The same along one dimension: x [N, in, L]; weight [out, in/groups, kernel].
class Conv1d final : public Module {
 public:
  using Options = Conv1dOptions;
  explicit Conv1d(const Options& options) : Conv1d(nullptr, "", options) {}
  Conv1d(Module* parent, std::string name, const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string details() const override;

  Parameter weight, bias;

 private:
  Options options_;
};

}  // namespace tarn::nn
