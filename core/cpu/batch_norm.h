// batch_norm.h - the two layouts of batch norm, and its per-channel numbers as kernels read them.
#pragma once

#include <vector>

#include "tarn/core/cpu/vec.h"
#include "tarn/core/kernels/norm.h"

namespace tarn::cpu {

/// Channels last: `rows` rows of `width` numbers. A narrow row (16 channels fill one vector) is
/// `repeat` pixels wide, so that inner loops stay long. Row-major: planes of `length` numbers.
struct BatchNormLayout {
  bool channels_last = false;
  int64_t channels = 0;
  int64_t count = 0;                        ///< numbers per channel
  int64_t rows = 0, width = 0, repeat = 1;  ///< channels last
  int64_t planes = 0, length = 0;           ///< row-major: batch * channels planes
};

inline BatchNormLayout batch_norm_layout(const Tensor& x) {
  BatchNormLayout l;
  const int64_t batch = x.sizes()[0];
  l.channels = x.sizes()[1];
  l.count = l.channels ? x.numel() / l.channels : 0;
  l.length = batch ? l.count / batch : 0;
  l.planes = batch * l.channels;
  l.channels_last = l.length == 1 || (l.channels > 1 && x.dim() == 4 &&
                                      x.is_contiguous(MemoryFormat::kChannelsLast));
  constexpr int64_t kWide = 64;
  while (l.count > 0 && l.channels * l.repeat < kWide && l.count % (2 * l.repeat) == 0)
    l.repeat *= 2;
  l.width = l.channels * l.repeat;
  l.rows = l.count / l.repeat;
  return l;
}

/// The values of a per-channel tensor, or `fallback` for each channel if there is none.
inline std::vector<double> channel_values(const Tensor& t, int64_t channels, double fallback) {
  std::vector<double> values(static_cast<size_t>(channels), fallback);
  if (!t.defined()) return values;
  visit_floating(t.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = static_cast<const T*>(t.data());
    for (int64_t c = 0; c < channels; ++c) values[c] = to<double>(from[c]);
  });
  return values;
}

/// Per-channel numbers in the compute type, repeated to the width of a row.
template <class A>
std::vector<A> row_values(const std::vector<double>& channels, int64_t repeat) {
  std::vector<A> values;
  values.reserve(channels.size() * static_cast<size_t>(repeat));
  for (int64_t r = 0; r < repeat; ++r) {
    for (double v : channels) values.push_back(static_cast<A>(v));
  }
  return values;
}

/// x -> (x - mean) * scale + shift, per channel.
template <class A>
struct BatchNormAffine {
  std::vector<A> mean, scale, shift;

  BatchNormAffine(const Tensor& weight, const Tensor& bias, const Tensor& mean_in,
                  const Tensor& rstd, const BatchNormLayout& l) {
    const int64_t repeat = l.channels_last ? l.repeat : 1;
    std::vector<double> w = channel_values(weight, l.channels, 1);
    const std::vector<double> r = channel_values(rstd, l.channels, 1);
    for (size_t c = 0; c < w.size(); ++c) w[c] *= r[c];
    scale = row_values<A>(w, repeat);
    shift = row_values<A>(channel_values(bias, l.channels, 0), repeat);
    mean = row_values<A>(channel_values(mean_in, l.channels, 0), repeat);
  }
};

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

}  // namespace tarn::cpu
