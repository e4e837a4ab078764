// batch_norm.h - what the files of the norm kernels share.
#pragma once

#include <initializer_list>

#include "tarn/core/tensor.h"
#include "tarn/cuda/batch_norm_tiles.cuh"
#include "tarn/cuda/channel_values.cuh"

namespace tarn::cuda {

/// x -> (x - mean) * scale + shift per channel, with scale = weight * rstd.
struct BatchNormChannels {
  ChannelValues mean, rstd, weight, bias;

  template <class A, int kC>
  __device__ void load(int64_t channel, A (&m)[kC], A (&scale)[kC], A (&shift)[kC]) const {
    mean.load(channel, A(0), m);
    bias.load(channel, A(0), shift);
    A r[kC];
    rstd.load(channel, A(1), r);
    weight.load(channel, A(1), scale);
#pragma unroll
    for (int k = 0; k < kC; ++k) scale[k] *= r[k];
  }
};

/// True if every tensor that is defined starts on 16 bytes.
inline bool all_aligned(std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* t : tensors) {
    if (t->defined() && !is_aligned(t->data(), 16)) return false;
  }
  return true;
}

/// Calls f(type tag, vector width, is columns), the last two as integral constants.
template <class F>
void visit_norm_tiles(DType dtype, const NormTiles& t, F f) {
  visit_floating(dtype, [&](auto tag) {
    constexpr int kWidth = kVecWidth<typename decltype(tag)::type>;
    const auto with_width = [&](auto width) {
      t.columns ? f(tag, width, std::true_type()) : f(tag, width, std::false_type());
    };
    t.vectors ? with_width(std::integral_constant<int, kWidth>())
              : with_width(std::integral_constant<int, 1>());
  });
}

void batch_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& y, const Tensor& weight,
                         const Tensor& bias, const Tensor& mean, const Tensor& rstd, bool relu,
                         bool training, const Tensor& gx, const Tensor& gweight,
                         const Tensor& gbias, const Tensor& gresidual, Stream stream);
void layer_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                double eps, const Tensor& sum, const Tensor& y, const Tensor& mean,
                const Tensor& rstd, Stream stream);
void layer_norm_backward(const Tensor& gy, const Tensor& gsum, const Tensor& x,
                         const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                         const Tensor& gx, const Tensor& gweight, const Tensor& gbias,
                         Stream stream);

}  // namespace tarn::cuda
