// norm.h - BatchNorm1d, BatchNorm2d, LayerNorm, RMSNorm, GroupNorm.
#pragma once

#include <functional>
#include <optional>

#include "tarn/autograd/functions_norm.h"
#include "tarn/nn/module.h"

namespace tarn::nn {

struct BatchNormOptions {
  int64_t features = 0;
  double eps = 1e-5;
  std::optional<double> momentum = 0.1;  ///< none: running statistics are plain averages
  bool affine = true;                    ///< has weight and bias
  bool track_running_stats = true;       ///< else evaluation uses the batch as well
};

/// Computes what tarn::batch_norm_act computes, with its arguments.
using BatchNormFunction = std::function<Tensor(
    const Tensor& x, const Tensor& residual, const Tensor& running_mean, const Tensor& running_var,
    const Tensor& weight, const Tensor& bias, const tarn::BatchNormOptions& options)>;

/// (x - mean) / sqrt(var + eps) * weight + bias per channel, see tarn::batch_norm. x [N, C, ...].
/// State: weight, bias, running_mean, running_var [C], num_batches_tracked (i64).
class BatchNorm : public Module {
 public:
  using Options = BatchNormOptions;
  Tensor forward(const Tensor& x) override { return run(x, {}, false); }
  /// relu(bn(x)) and relu(bn(x) + residual), in one pass over memory unless hooks want to see
  /// bn(x).
  Tensor relu(const Tensor& x);
  Tensor add_relu(const Tensor& x, const Tensor& residual);
  std::string details() const override;
  /// Lets another function than tarn::batch_norm_act do it wherever the batch's own statistics are
  /// used: one that takes them over several ranks. An empty function restores the usual one.
  void set_function(BatchNormFunction function) { function_ = std::move(function); }

  Parameter weight, bias;
  Buffer running_mean, running_var, num_batches_tracked;

 protected:
  BatchNorm(Module* parent, std::string name, const Options& options);
  /// Throws ShapeError unless x has dimensions this layer takes.
  virtual void check(const Tensor& x) const = 0;

 private:
  Tensor run(const Tensor& x, const Tensor& residual, bool relu);
  Options options_;
  BatchNormFunction function_;
};

/// x [N, C] or [N, C, L].
class BatchNorm1d final : public BatchNorm {
 public:
  explicit BatchNorm1d(const Options& options) : BatchNorm1d(nullptr, "", options) {}
  BatchNorm1d(Module* parent, std::string name, const Options& options)
      : BatchNorm(parent, std::move(name), options) {}

 private:
  void check(const Tensor& x) const override;
};

/// x [N, C, H, W].
class BatchNorm2d final : public BatchNorm {
 public:
  explicit BatchNorm2d(const Options& options) : BatchNorm2d(nullptr, "", options) {}
  BatchNorm2d(Module* parent, std::string name, const Options& options)
      : BatchNorm(parent, std::move(name), options) {}

 private:
  void check(const Tensor& x) const override;
};

struct LayerNormOptions {
  Shape shape;  ///< of the last dimensions
  double eps = 1e-5;
  bool affine = true;
  bool bias = true;
};

/// Normalises over the last dimensions, see tarn::layer_norm. weight, bias: of sizes `shape`.
class LayerNorm final : public Module {
 public:
  using Options = LayerNormOptions;
  explicit LayerNorm(const Options& options) : LayerNorm(nullptr, "", options) {}
  LayerNorm(Module* parent, std::string name, const Options& options);
  Tensor forward(const Tensor& x) override;
  /// x + residual and its norm, in one pass over memory. Their dtypes are those of the two steps.
  AddNormResult add(const Tensor& x, const Tensor& residual);
  std::string details() const override;

  Parameter weight, bias;

 private:
  Options options_;
};

struct RmsNormOptions {
  int64_t size = 0;
  double eps = 1e-5;
};
/// x / sqrt(mean(x^2) + eps) * weight over the last dimension, see tarn::rms_norm. weight [size].
class RMSNorm final : public Module {
 public:
  using Options = RmsNormOptions;
  explicit RMSNorm(const Options& options) : RMSNorm(nullptr, "", options) {}
  RMSNorm(Module* parent, std::string name, const Options& options);
  Tensor forward(const Tensor& x) override;
  /// x + residual and its norm, as LayerNorm::add.
  AddNormResult add(const Tensor& x, const Tensor& residual);
  std::string details() const override;

  Parameter weight;

 private:
  Options options_;
};

struct GroupNormOptions {
  int64_t groups = 1, channels = 0;
  double eps = 1e-5;
  bool affine = true;
};

/// Normalises groups of channels, see tarn::group_norm. x [N, C, ...]; weight, bias [C].
class GroupNorm final : public Module {
 public:
  using Options = GroupNormOptions;
  explicit GroupNorm(const Options& options) : GroupNorm(nullptr, "", options) {}
  GroupNorm(Module* parent, std::string name, const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string details() const override;

  Parameter weight, bias;

 private:
  Options options_;
};

}  // namespace tarn::nn
