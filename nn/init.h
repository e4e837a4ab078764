// init.h - filling tensors with their first values, in place and unrecorded.
//
// Drawn from the default generator (manual_seed), the same on every device. Names and formulas are
// those of torch.nn.init.
#pragma once

#include "tarn/core/tensor.h"

namespace tarn::nn::init {

enum class FanMode : uint8_t { kFanIn, kFanOut };
enum class Nonlinearity : uint8_t { kLinear, kSigmoid, kTanh, kRelu, kLeakyRelu, kSelu };

struct Fans {
  int64_t in, out;
};
/// Inputs and outputs of one unit: weight [out, in, K...] has in * prod(K) and out * prod(K).
/// Throws ShapeError on fewer than two dimensions.
Fans fans(const Tensor& weight);
/// The factor that keeps the variance: sqrt(2) for relu, 5/3 for tanh, sqrt(2 / (1 + slope^2)) for
/// leaky relu, 3/4 for selu, else 1.
double gain(Nonlinearity f, double slope = 0.01);

void zeros_(const Tensor& x);
void ones_(const Tensor& x);
void constant_(const Tensor& x, double value);
void uniform_(const Tensor& x, double low = 0, double high = 1);
void normal_(const Tensor& x, double mean = 0, double stddev = 1);
/// The normal distribution without what lies outside [low, high] (absolute bounds).
void trunc_normal_(const Tensor& x, double mean = 0, double stddev = 1, double low = -2,
                   double high = 2);

struct KaimingOptions {
  FanMode mode = FanMode::kFanIn;
  Nonlinearity nonlinearity = Nonlinearity::kLeakyRelu;
  double slope = 0;  ///< of leaky relu
};
/// U(-b, b) with b = gain * sqrt(3 / fan). Source: He et al. 2015, arXiv:1502.01852.
void kaiming_uniform_(const Tensor& x, const KaimingOptions& options = {});
/// N(0, gain^2 / fan).
void kaiming_normal_(const Tensor& x, const KaimingOptions& options = {});
/// U(-b, b) with b = gain * sqrt(6 / (fan_in + fan_out)). Source: Glorot and Bengio 2010.
void xavier_uniform_(const Tensor& x, double gain = 1);
/// N(0, 2 gain^2 / (fan_in + fan_out)).
void xavier_normal_(const Tensor& x, double gain = 1);
/// gain times a matrix with orthonormal rows or columns, whichever are fewer; x [rows, ...] counts
/// as [rows, the rest]. From the QR factorisation of a normal matrix, its signs such that r has a
/// positive diagonal: uniform over all such matrices. Throws ShapeError on fewer than two
/// dimensions. Source: Saxe et al. 2013, arXiv:1312.6120; Mezzadri 2007, arXiv:math-ph/0609050.
void orthogonal_(const Tensor& x, double gain = 1);

}  // namespace tarn::nn::init
