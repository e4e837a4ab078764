// conv.h - Conv2d, Conv1d and their transposes.
#pragma once

#include "tarn/core/raw_pool.h"
#include "tarn/nn/module.h"

namespace tarn::nn {

/// S: Size2, or int64_t along one dimension.
template <class S>
struct ConvOptions {
  int64_t in = 0, out = 0;
  S kernel = 1, stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};
using Conv2dOptions = ConvOptions<Size2>;
using Conv1dOptions = ConvOptions<int64_t>;

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

/// As ConvOptions.
template <class S>
struct ConvTransposeOptions {
  int64_t in = 0, out = 0;
  S kernel = 1, stride = 1, padding = 0, output_padding = 0, dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};
using ConvTranspose2dOptions = ConvTransposeOptions<Size2>;
using ConvTranspose1dOptions = ConvTransposeOptions<int64_t>;

/// The gradient of a Conv2d of these options with respect to its input, as a layer that makes
/// images larger: x [N, in, H, W] -> [N, out, OH, OW], OH = (H - 1) stride - 2 padding + dilation
/// (kernel - 1) + output_padding + 1. weight [in, out/groups, kernel.h, kernel.w], bias [out].
/// Initialised U(-b, b), b = 1/sqrt(out/groups * kernel.h * kernel.w). Throws ValueError unless in
/// and out are multiples of groups; when called, unless output_padding is smaller than stride or
/// dilation.
class ConvTranspose2d final : public Module {
 public:
  using Options = ConvTranspose2dOptions;
  explicit ConvTranspose2d(const Options& options) : ConvTranspose2d(nullptr, "", options) {}
  ConvTranspose2d(Module* parent, std::string name, const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string details() const override;

  Parameter weight, bias;

 private:
  Options options_;
};

/// The same along one dimension: x [N, in, L] or [in, L]; weight [in, out/groups, kernel].
class ConvTranspose1d final : public Module {
 public:
  using Options = ConvTranspose1dOptions;
  explicit ConvTranspose1d(const Options& options) : ConvTranspose1d(nullptr, "", options) {}
  ConvTranspose1d(Module* parent, std::string name, const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string details() const override;

  Parameter weight, bias;

 private:
  Options options_;
};

}  // namespace tarn::nn
