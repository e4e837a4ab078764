// functions_random.h - random tensors and dropout.
//
// The numbers come from Philox4x32-10 and depend on the generator's state, the sizes and the dtype
// alone: not on device, strides or threads. generator: default_generator() where nullptr.
#pragma once

#include "tarn/core/factory.h"
#include "tarn/core/random.h"

namespace tarn {

/// Uniform in [0, 1).
Tensor rand(const Shape& sizes, const TensorOptions& options = {}, Generator* generator = nullptr);
/// Normal with mean 0 and standard deviation 1.
Tensor randn(const Shape& sizes, const TensorOptions& options = {}, Generator* generator = nullptr);
/// Integers in [low, high).
Tensor randint(int64_t low, int64_t high, const Shape& sizes,
               const TensorOptions& options = {.dtype = DType::kI64},
               Generator* generator = nullptr);
/// 0..n-1 in random order.
Tensor randperm(int64_t n, const TensorOptions& options = {.dtype = DType::kI64},
                Generator* generator = nullptr);
/// The same in sizes, dtype, device and layout of `like`.
Tensor rand_like(const Tensor& like, Generator* generator = nullptr);
Tensor randn_like(const Tensor& like, Generator* generator = nullptr);
Tensor randint_like(const Tensor& like, int64_t low, int64_t high, Generator* generator = nullptr);
/// 1 with the probability that p holds there, else 0; p floating, values in [0, 1]. Throws
/// ValueError for others, but not on a GPU: there a p below 0 or NaN gives 0, one above 1 gives 1.
Tensor bernoulli(const Tensor& p, Generator* generator = nullptr);
/// `count` indices per row of weights ([n] or [rows, n]), in proportion to the weights.
Tensor multinomial(const Tensor& weights, int64_t count, bool replacement = false,
                   Generator* generator = nullptr);

/// In-place fills. Under recording the gradient of what was there before is 0.
const Tensor& uniform_(const Tensor& x, double low = 0, double high = 1,
                       Generator* generator = nullptr);
const Tensor& normal_(const Tensor& x, double mean = 0, double stddev = 1,
                      Generator* generator = nullptr);
const Tensor& bernoulli_(const Tensor& x, double p = 0.5, Generator* generator = nullptr);

/// Zeroes each element with probability p and divides the others by 1 - p; x itself when not
/// training. Saves no mask: backward draws it again. Draws follow memory where x is channels_last.
/// Source: Srivastava et al. 2014, "Dropout".
Tensor dropout(const Tensor& x, double p = 0.5, bool training = true,
               Generator* generator = nullptr);
/// dropout(x) + residual in one pass over memory. Sizes and dtypes of the sum are those of +.
Tensor dropout_add(const Tensor& x, const Tensor& residual, double p = 0.5, bool training = true,
                   Generator* generator = nullptr);
/// Zeroes whole channels: x [N, C, ...], one draw per (n, c).
Tensor dropout2d(const Tensor& x, double p = 0.5, bool training = true,
                 Generator* generator = nullptr);

}  // namespace tarn
