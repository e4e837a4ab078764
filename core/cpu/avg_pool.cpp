// avg_pool.cpp - average pooling, plain and adaptive, and its gradient, on the CPU.
//
// Halves are summed in f32 and rounded once. The gradient is gathered per input row, see pool.cpp.
#include "tarn/core/cpu/pool.h"
#include "tarn/core/cpu/pool_windows.h"
#include "tarn/core/cpu/reduce_ops.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {
namespace {

template <class T, class A>
void add_row(const T* __restrict x, int64_t n, A* __restrict sum) {
  for (int64_t c = 0; c < n; ++c) sum[c] += to<A>(x[c]);
}

template <class T, class A>
void add_scaled_row(const T* __restrict x, int64_t n, A scale, A* __restrict sum) {
  for (int64_t c = 0; c < n; ++c) sum[c] += to<A>(x[c]) * scale;
}

template <class T>
void avg_channels_last(const T* x, const PoolWindows& p, T* y) {
  using A = compute_t<T>;
  const int64_t n = p.channels;
  parallel_for(p.batch * p.h.out, grain_for(p.work() * n), [&](int64_t begin, int64_t end) {
    std::vector<A> sums(static_cast<size_t>(n));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / p.h.out, oh = i % p.h.out;
      const T* image = x + b * p.h.in * p.w.in * n;
      for (int64_t ow = 0; ow < p.w.out; ++ow) {
        std::fill(sums.begin(), sums.end(), A(0));
        for (int64_t h = p.h.first[oh]; h < p.h.last[oh]; ++h) {
          for (int64_t w = p.w.first[ow]; w < p.w.last[ow]; ++w) {
            add_row(image + (h * p.w.in + w) * n, n, sums.data());
          }
        }
        const A divisor = static_cast<A>(p.divisor(oh, ow));
        T* __restrict to = y + (i * p.w.out + ow) * n;
        for (int64_t c = 0; c < n; ++c) to[c] = T(sums[c] / divisor);
      }
    }
  });
}

// One row of outputs of a plane, tap by tap, so that the loop runs along the row.
template <class T, class A>
void avg_row(const T* __restrict plane, const PoolWindows& p, int64_t oh, A* __restrict sums,
             T* __restrict y) {
  for (int64_t ow = 0; ow < p.w.out; ++ow) sums[ow] = 0;
  for (int64_t h = p.h.first[oh]; h < p.h.last[oh]; ++h) {
    for (int64_t k = 0; k < p.w.kernel; ++k) {
      const auto [begin, end] = p.w.windows_with_tap(k);
      const int64_t stride = p.w.stride;
      const T* __restrict row = plane + h * p.w.in + k - p.w.pad;
      for (int64_t ow = begin; ow < end; ++ow) sums[ow] += to<A>(row[ow * stride]);
    }
  }
  for (int64_t ow = 0; ow < p.w.out; ++ow) {
    y[ow] = T(sums[ow] / static_cast<A>(p.divisor(oh, ow)));
  }
}

template <class T>
void avg_planes(const T* x, const PoolWindows& p, T* y) {
  using A = compute_t<T>;
  const int64_t in = p.h.in * p.w.in, out = p.h.out * p.w.out;
  parallel_for(p.batch * p.channels, grain_for(in), [&](int64_t begin, int64_t end) {
    std::vector<A> sums(static_cast<size_t>(p.w.out));
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t oh = 0; !p.adaptive && oh < p.h.out; ++oh) {
        avg_row(x + i * in, p, oh, sums.data(), y + i * out + oh * p.w.out);
      }
      for (int64_t o = 0; p.adaptive && o < out; ++o) {
        const int64_t oh = o / p.w.out, ow = o % p.w.out;
        const int64_t begin = p.h.first[oh], end = p.h.last[oh];
        const T* rows = x + i * in + begin * p.w.in;
        A sum = 0;
        if (p.w.out == 1) {  // whole rows, one after the other
          sum = static_cast<A>(fold_chunk(SumOp<T>(), rows, (end - begin) * p.w.in));
        } else {
          for (int64_t h = begin; h < end; ++h, rows += p.w.in) {
            for (int64_t w = p.w.first[ow]; w < p.w.last[ow]; ++w) sum += to<A>(rows[w]);
          }
        }
        y[i * out + o] = T(sum / static_cast<A>(p.divisor(oh, ow)));
      }
    }
  });
}

template <class T>
void avg_backward_channels_last(const T* gy, const PoolWindows& p, T* gx) {
  using A = compute_t<T>;
  const int64_t n = p.channels, row = p.w.in * n;
  parallel_for(p.batch * p.h.in, grain_for(row), [&](int64_t begin, int64_t end) {
    std::vector<A> sums(static_cast<size_t>(row));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / p.h.in, h = i % p.h.in;
      std::fill(sums.begin(), sums.end(), A(0));
      for (int64_t oh = p.h.from[h]; oh < p.h.until[h]; ++oh) {
        for (int64_t ow = 0; ow < p.w.out; ++ow) {
          const T* g = gy + ((b * p.h.out + oh) * p.w.out + ow) * n;
          const A scale = A(1) / static_cast<A>(p.divisor(oh, ow));
          for (int64_t w = p.w.first[ow]; w < p.w.last[ow]; ++w) {
            add_scaled_row(g, n, scale, &sums[w * n]);
          }
        }
      }
      T* __restrict to = gx + i * row;
      for (int64_t c = 0; c < row; ++c) to[c] = T(sums[c]);
    }
  });
}

template <class T>
void avg_backward_planes(const T* gy, const PoolWindows& p, T* gx) {
  using A = compute_t<T>;
  const int64_t in = p.h.in * p.w.in, out = p.h.out * p.w.out;
  parallel_for(p.batch * p.channels, grain_for(in), [&](int64_t begin, int64_t end) {
    std::vector<A> sums(static_cast<size_t>(in));
    for (int64_t i = begin; i < end; ++i) {
      std::fill(sums.begin(), sums.end(), A(0));
      for (int64_t o = 0; o < out; ++o) {
        const int64_t oh = o / p.w.out, ow = o % p.w.out;
        const A g = to<A>(gy[i * out + o]) / static_cast<A>(p.divisor(oh, ow));
        for (int64_t h = p.h.first[oh]; h < p.h.last[oh]; ++h) {
          for (int64_t w = p.w.first[ow]; w < p.w.last[ow]; ++w) sums[h * p.w.in + w] += g;
        }
      }
      for (int64_t k = 0; k < in; ++k) gx[i * in + k] = T(sums[k]);
    }
  });
}

}  // namespace

void avg_pool2d(const Tensor& x_in, const Pool2dOptions& options, const Tensor& y_in, Stream) {
  const PoolWindows p(x_in, y_in, options);
  visit_floating(x_in.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* x = static_cast<const T*>(x_in.data());
    T* y = static_cast<T*>(y_in.data());
    p.channels_last ? avg_channels_last(x, p, y) : avg_planes(x, p, y);
  });
}

void avg_pool2d_backward(const Tensor& gy_in, const Pool2dOptions& options, const Tensor& gx_in,
                         Stream) {
  const PoolWindows p(gx_in, gy_in, options);
  visit_floating(gx_in.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* gy = static_cast<const T*>(gy_in.data());
    T* gx = static_cast<T*>(gx_in.data());
    p.channels_last ? avg_backward_channels_last(gy, p, gx) : avg_backward_planes(gy, p, gx);
  });
}

}  // namespace tarn::cpu
