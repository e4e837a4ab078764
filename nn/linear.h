// linear.h - Linear, Embedding, Flatten, Identity.
#pragma once

#include "tarn/nn/module.h"

namespace tarn::nn {

struct LinearOptions {
  int64_t in = 0, out = 0;
  bool bias = true;
};

/// y = x @ weight.t() + bias. x [..., in] -> [..., out]; weight [out, in], bias [out].
/// Initialised U(-1/sqrt(in), 1/sqrt(in)).
class Linear final : public Module {
 public:
  using Options = LinearOptions;
  explicit Linear(const Options& options) : Linear(nullptr, "", options) {}
  Linear(Module* parent, std::string name, const Options& options);
  Tensor forward(const Tensor& x) override;
  /// gelu(forward(x)), in one pass over memory where nothing is recorded.
  Tensor gelu(const Tensor& x, bool tanh_approximation = false);
  std::string details() const override;

  Parameter weight, bias;
};

struct EmbeddingOptions {
  int64_t count = 0, size = 0;
  int64_t padding = -1;  ///< a row that stays zero and gets no gradient; -1: none
};

/// Rows of weight [count, size]: x [...] (i64) -> [..., size]. Initialised N(0, 1).
class Embedding final : public Module {
 public:
  using Options = EmbeddingOptions;
  explicit Embedding(const Options& options) : Embedding(nullptr, "", options) {}
  Embedding(Module* parent, std::string name, const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string details() const override;

  Parameter weight;

 private:
  int64_t padding_;
};

/// [N, ...] -> [N, product].
class Flatten final : public Module {
 public:
  using Module::Module;
  Tensor forward(const Tensor& x) override { return x.flatten(1); }
};

class Identity final : public Module {
 public:
  using Module::Module;
  Tensor forward(const Tensor& x) override { return x; }
};

}  // namespace tarn::nn
