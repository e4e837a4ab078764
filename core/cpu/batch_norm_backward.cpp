// batch_norm_backward.cpp - gradients of batch norm (and of the relu and residual fused with it).
//
// Two passes over gy and x: per-channel sums of g and g * (x - mean), then gx. The relu's mask is
// recomputed from x, unless a residual was added: then it is read from y, and the second pass reads
// the masked gradient that the first one wrote for the residual.
#include <cmath>
#include <memory>

#include "tarn/core/cpu/batch_norm.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {
namespace {

enum class Mask { kNone, kFromX, kFromY };

template <class T>
struct Operands {
  using A = compute_t<T>;
  const T *gy, *x, *y;
  T *gx, *gresidual;
  const A *mean, *scale, *shift;  // per column of a row, or per channel
  bool fixed;                     // mean and rstd were constants
};

/// The gradient behind the relu.
template <Mask kMask, class T, class A>
TARN_INLINE A masked(T gy, T x, T y, A mean, A scale, A shift) {
  const A g = to<A>(gy);
  if constexpr (kMask == Mask::kFromX) {
    return mul_add(to<A>(x) - mean, scale, shift) <= A(0) ? A(0) : g;
  } else if constexpr (kMask == Mask::kFromY) {
    return to<A>(y) <= A(0) ? A(0) : g;
  } else {
    return g;
  }
}

template <class T, Mask kMask, bool kWrite>
void sum_row(const Operands<T>& o, int64_t at, int64_t width, compute_t<T>* __restrict sum,
             compute_t<T>* __restrict dot) {
  using A = compute_t<T>;
  const A* __restrict mean = o.mean, * __restrict scale = o.scale, * __restrict shift = o.shift;
  const T* __restrict gy = o.gy + at, * __restrict x = o.x + at, * __restrict y = o.y + at;
  T* __restrict w = o.gresidual + at;
  for (int64_t c = 0; c < width; ++c) {
    const A g = masked<kMask>(gy[c], x[c], y[c], mean[c], scale[c], shift[c]);
    if constexpr (kWrite) w[c] = T(g);
    sum[c] += g;
    dot[c] += g * (to<A>(x[c]) - mean[c]);
  }
}

// Two rows at a time halve the traffic to the sums.
template <class T, Mask kMask>
void sum_two_rows(const Operands<T>& o, int64_t at, int64_t width, compute_t<T>* __restrict sum,
                  compute_t<T>* __restrict dot) {
  using A = compute_t<T>;
  const A* __restrict mean = o.mean, * __restrict scale = o.scale, * __restrict shift = o.shift;
  const T* __restrict g0 = o.gy + at, * __restrict x0 = o.x + at, * __restrict y0 = o.y + at;
  const T* __restrict g1 = g0 + width, * __restrict x1 = x0 + width, * __restrict y1 = y0 + width;
  for (int64_t c = 0; c < width; ++c) {
    const A a = masked<kMask>(g0[c], x0[c], y0[c], mean[c], scale[c], shift[c]);
    const A b = masked<kMask>(g1[c], x1[c], y1[c], mean[c], scale[c], shift[c]);
    sum[c] += a + b;
    dot[c] += a * (to<A>(x0[c]) - mean[c]) + b * (to<A>(x1[c]) - mean[c]);
  }
}

template <class T, Mask kMask, bool kWrite>
void sum_rows(const Operands<T>& o, int64_t begin, int64_t end, int64_t width, compute_t<T>* sum,
              compute_t<T>* dot) {
  int64_t r = begin;
  if constexpr (!kWrite) {
    for (; r + 2 <= end; r += 2) sum_two_rows<T, kMask>(o, r * width, width, sum, dot);
  }
  for (; r < end; ++r) sum_row<T, kMask, kWrite>(o, r * width, width, sum, dot);
}

template <class T, Mask kMask, bool kWrite>
void sum_plane(const Operands<T>& o, int64_t at, int64_t n, int64_t channel, double* sum,
               double* dot) {
  using A = compute_t<T>;
  constexpr int kParts = 32;
  A sums[kParts] = {}, dots[kParts] = {};
  const A mean = o.mean[channel], scale = o.scale[channel], shift = o.shift[channel];
  const T* __restrict gy = o.gy + at, * __restrict x = o.x + at, * __restrict y = o.y + at;
  T* __restrict w = o.gresidual + at;
  for (int64_t i = 0; i < n; i += kParts) {
    const int64_t parts = std::min<int64_t>(kParts, n - i);
    for (int64_t k = 0; k < parts; ++k) {
      const A g = masked<kMask>(gy[i + k], x[i + k], y[i + k], mean, scale, shift);
      if constexpr (kWrite) w[i + k] = T(g);
      sums[k] += g;
      dots[k] += g * (to<A>(x[i + k]) - mean);
    }
  }
  const int used = static_cast<int>(std::min<int64_t>(kParts, n));
  for (int k = 0; k < used; ++k) {
    *sum += sums[k];
    *dot += dots[k];
  }
}

/// gx = scale * (g - sum / n - (x - mean) * rstd^2 * dot / n); `a` and `b` are the two factors.
/// With fixed statistics gx = scale * g: factors of 0 would still spread NaN from sums or from x.
template <class T, Mask kMask>
void gradient_row(const Operands<T>& o, int64_t at, int64_t n, const compute_t<T>* __restrict a,
                  const compute_t<T>* __restrict b) {
  using A = compute_t<T>;
  const A* __restrict mean = o.mean, * __restrict scale = o.scale, * __restrict shift = o.shift;
  const T* __restrict gy = o.gy + at, * __restrict x = o.x + at, * __restrict y = o.y + at;
  T* __restrict gx = o.gx + at;
  if (o.fixed) {
    for (int64_t c = 0; c < n; ++c) {
      gx[c] = T(scale[c] * masked<kMask>(gy[c], x[c], y[c], mean[c], scale[c], shift[c]));
    }
    return;
  }
  for (int64_t c = 0; c < n; ++c) {
    const A g = masked<kMask>(gy[c], x[c], y[c], mean[c], scale[c], shift[c]);
    gx[c] = T(scale[c] * (g - a[c] - (to<A>(x[c]) - mean[c]) * b[c]));
  }
}

template <class T, Mask kMask>
void gradient_plane(const Operands<T>& o, int64_t at, int64_t n, int64_t channel, compute_t<T> a,
                    compute_t<T> b) {
  using A = compute_t<T>;
  const A mean = o.mean[channel], scale = o.scale[channel], shift = o.shift[channel];
  const T* __restrict gy = o.gy + at, * __restrict x = o.x + at, * __restrict y = o.y + at;
  T* __restrict gx = o.gx + at;
  if (o.fixed) {
    for (int64_t i = 0; i < n; ++i) {
      gx[i] = T(scale * masked<kMask>(gy[i], x[i], y[i], mean, scale, shift));
    }
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const A g = masked<kMask>(gy[i], x[i], y[i], mean, scale, shift);
    gx[i] = T(scale * (g - a - (to<A>(x[i]) - mean) * b));
  }
}

struct ChannelSums {
  std::vector<double> sum, dot;  // of g, and of g * (x - mean)
};

template <class T, Mask kMask, bool kWrite>
ChannelSums channel_sums(const Operands<T>& o, const BatchNormLayout& l) {
  using A = compute_t<T>;
  const size_t channels = static_cast<size_t>(l.channels);
  ChannelSums total{std::vector<double>(channels), std::vector<double>(channels)};
  if (l.channels_last) {
    const int64_t block = std::clamp<int64_t>(65536 / l.width, 16, 512);
    const int64_t blocks = (l.rows + block - 1) / block, part = 2 * l.width;
    const auto parts = std::make_unique<A[]>(static_cast<size_t>(blocks * part));
    parallel_for(blocks, grain_for(block * l.width), [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        sum_rows<T, kMask, kWrite>(o, b * block, std::min(l.rows, (b + 1) * block), l.width,
                                   &parts[b * part], &parts[b * part + l.width]);
      }
    });
    for (int64_t b = 0; b < blocks * l.repeat; ++b) {
      const A* from = &parts[b / l.repeat * part + b % l.repeat * l.channels];
      for (size_t c = 0; c < channels; ++c) {
        total.sum[c] += from[c];
        total.dot[c] += from[static_cast<size_t>(l.width) + c];
      }
    }
    return total;
  }
  std::vector<double> parts(static_cast<size_t>(2 * l.planes));
  parallel_for(l.planes, grain_for(l.length), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      constexpr int64_t kPiece = 4096;
      for (int64_t from = 0; from < l.length; from += kPiece) {
        sum_plane<T, kMask, kWrite>(o, i * l.length + from, std::min(kPiece, l.length - from),
                                    i % l.channels, &parts[2 * i], &parts[2 * i + 1]);
      }
    }
  });
  for (int64_t i = 0; i < l.planes; ++i) {
    total.sum[i % l.channels] += parts[2 * i];
    total.dot[i % l.channels] += parts[2 * i + 1];
  }
  return total;
}

template <class T, Mask kMask>
void input_gradient(const Operands<T>& o, const BatchNormLayout& l, const std::vector<double>& a,
                    const std::vector<double>& b) {
  using A = compute_t<T>;
  const int64_t repeat = l.channels_last ? l.repeat : 1;
  const std::vector<A> first = row_values<A>(a, repeat), second = row_values<A>(b, repeat);
  if (l.channels_last) {
    parallel_for(l.rows, grain_for(l.width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        gradient_row<T, kMask>(o, r * l.width, l.width, first.data(), second.data());
      }
    });
    return;
  }
  parallel_for(l.planes, grain_for(l.length), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t c = i % l.channels;
      gradient_plane<T, kMask>(o, i * l.length, l.length, c, first[c], second[c]);
    }
  });
}

template <class T>
ChannelSums first_pass(const Operands<T>& o, const BatchNormLayout& l, Mask mask, bool write) {
  if (mask == Mask::kFromX) return channel_sums<T, Mask::kFromX, false>(o, l);
  if (mask == Mask::kNone) return channel_sums<T, Mask::kNone, false>(o, l);
  return write ? channel_sums<T, Mask::kFromY, true>(o, l)
               : channel_sums<T, Mask::kFromY, false>(o, l);
}

void store(const std::vector<double>& values, const Tensor& to) {
  visit_floating(to.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* out = static_cast<T*>(to.data());
    for (size_t c = 0; c < values.size(); ++c) out[c] = T(static_cast<compute_t<T>>(values[c]));
  });
}

}  // namespace

void batch_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& y, const Tensor& weight,
                         const Tensor& bias, const Tensor& mean, const Tensor& rstd, bool relu,
                         bool training, const Tensor& gx, const Tensor& gweight,
                         const Tensor& gbias, const Tensor& gresidual, Stream) {
  const BatchNormLayout l = batch_norm_layout(x);
  visit_floating(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const BatchNormAffine<compute_t<T>> p(weight, bias, mean, rstd, l);
    Mask mask = !relu ? Mask::kNone : y.defined() ? Mask::kFromY : Mask::kFromX;
    Operands<T> o{gy.data<T>(),
                  x.data<T>(),
                  (mask == Mask::kFromY ? y : x).template data<T>(),
                  gx.data_or_null<T>(),
                  gresidual.data_or_null<T>(),
                  p.mean.data(),
                  p.scale.data(),
                  p.shift.data(),
                  !training};
    const bool writes = mask == Mask::kFromY && gresidual.defined();
    if (!writes) o.gresidual = x.data<T>();  // a valid address that is not written
    const ChannelSums sums = first_pass(o, l, mask, writes);
    const std::vector<double> r = channel_values(rstd, l.channels, 1);
    const double n = 1.0 / static_cast<double>(l.count);
    std::vector<double> a(r.size()), b(r.size()), gw(r.size());
    for (size_t c = 0; c < r.size(); ++c) {
      a[c] = sums.sum[c] * n;
      b[c] = sums.dot[c] * r[c] * r[c] * n;
      gw[c] = sums.dot[c] * r[c];
    }
    if (gweight.defined()) store(gw, gweight);
    if (gbias.defined()) store(sums.sum, gbias);
    if (!gx.defined()) return;
    if (writes) o.gy = o.gresidual;
    if (writes || mask == Mask::kNone) return input_gradient<T, Mask::kNone>(o, l, a, b);
    if (mask == Mask::kFromX) return input_gradient<T, Mask::kFromX>(o, l, a, b);
    input_gradient<T, Mask::kFromY>(o, l, a, b);
  });
}

}  // namespace tarn::cpu
