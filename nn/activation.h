// activation.h - activation functions, softmax and dropout as modules.
#pragma once

#include "tarn/autograd/functions_elementwise.h"
#include "tarn/nn/module.h"

namespace tarn::nn {

/// Declares a module that is one function of its input.
#define TARN_ACTIVATION(Name, function)                                    \
  class Name final : public Module {                                       \
   public:                                                                 \
    using Module::Module;                                                  \
    Tensor forward(const Tensor& x) override { return tarn::function(x); } \
  };
TARN_ACTIVATION(ReLU, relu)
TARN_ACTIVATION(ReLU6, relu6)
TARN_ACTIVATION(Sigmoid, sigmoid)
TARN_ACTIVATION(LogSigmoid, logsigmoid)
TARN_ACTIVATION(Tanh, tanh)
TARN_ACTIVATION(SiLU, silu)
TARN_ACTIVATION(Mish, mish)
TARN_ACTIVATION(SELU, selu)
TARN_ACTIVATION(ELU, elu)
TARN_ACTIVATION(Softplus, softplus)
TARN_ACTIVATION(Softsign, softsign)
TARN_ACTIVATION(Hardsigmoid, hardsigmoid)
TARN_ACTIVATION(Hardswish, hardswish)
TARN_ACTIVATION(Hardtanh, hardtanh)
#undef TARN_ACTIVATION

struct GeluOptions {
  bool tanh = false;  ///< the approximation that GPT-2 uses
};
class GELU final : public Module {
 public:
  using Options = GeluOptions;
  using Module::Module;
  explicit GELU(const Options& options) : GELU(nullptr, "", options) {}
  GELU(Module* parent, std::string name, const Options& options)
      : Module(parent, std::move(name)), options_(options) {}
  Tensor forward(const Tensor& x) override { return tarn::gelu(x, options_.tanh); }

 private:
  Options options_;
};

struct LeakyReluOptions {
  double slope = 0.01;
};
class LeakyReLU final : public Module {
 public:
  using Options = LeakyReluOptions;
  using Module::Module;
  explicit LeakyReLU(const Options& options) : LeakyReLU(nullptr, "", options) {}
  LeakyReLU(Module* parent, std::string name, const Options& options)
      : Module(parent, std::move(name)), options_(options) {}
  Tensor forward(const Tensor& x) override { return tarn::leaky_relu(x, options_.slope); }

 private:
  Options options_;
};

struct PReluOptions {
  int64_t count = 1;  ///< 1, or the channels
  double init = 0.25;
};
/// x > 0 ? x : weight * x, with a slope for all or one per channel, dimension 1 of x. weight
/// [count]. Throws ShapeError when called with another number of channels. Source: He et al. 2015,
/// arXiv:1502.01852.
class PReLU final : public Module {
 public:
  using Options = PReluOptions;
  explicit PReLU(const Options& options = {}) : PReLU(nullptr, "", options) {}
  PReLU(Module* parent, std::string name, const Options& options = {});
  Tensor forward(const Tensor& x) override;
  std::string details() const override;

  Parameter weight;
};

struct SoftmaxOptions {
  int64_t dim = -1;  ///< sums to 1 along it
};
/// See tarn::softmax and tarn::log_softmax.
class Softmax final : public Module {
 public:
  using Options = SoftmaxOptions;
  using Module::Module;
  explicit Softmax(const Options& options) : Softmax(nullptr, "", options) {}
  Softmax(Module* parent, std::string name, const Options& options)
      : Module(parent, std::move(name)), options_(options) {}
  Tensor forward(const Tensor& x) override;
  std::string details() const override;

 private:
  Options options_;
};
class LogSoftmax final : public Module {
 public:
  using Options = SoftmaxOptions;
  using Module::Module;
  explicit LogSoftmax(const Options& options) : LogSoftmax(nullptr, "", options) {}
  LogSoftmax(Module* parent, std::string name, const Options& options)
      : Module(parent, std::move(name)), options_(options) {}
  Tensor forward(const Tensor& x) override;
  std::string details() const override;

 private:
  Options options_;
};

struct DropoutOptions {
  double p = 0.5;  ///< share of the elements set to zero
};
/// In training zeroes elements with probability p and scales the rest by 1 / (1 - p).
class Dropout final : public Module {
 public:
  using Options = DropoutOptions;
  using Module::Module;
  explicit Dropout(const Options& options) : Dropout(nullptr, "", options) {}
  /// Throws ValueError unless p is in [0, 1].
  Dropout(Module* parent, std::string name, const Options& options);
  Tensor forward(const Tensor& x) override;
  /// forward(x) + residual, in one pass over memory.
  Tensor add(const Tensor& x, const Tensor& residual);
  std::string details() const override;

 private:
  Options options_;
};

/// In training zeroes whole channels with probability p and scales the rest by 1 / (1 - p).
/// x [N, C, ...].
class Dropout2d final : public Module {
 public:
  using Options = DropoutOptions;
  using Module::Module;
  explicit Dropout2d(const Options& options) : Dropout2d(nullptr, "", options) {}
  /// Throws ValueError unless p is in [0, 1].
  Dropout2d(Module* parent, std::string name, const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string details() const override;

 private:
  Options options_;
};

}  // namespace tarn::nn
