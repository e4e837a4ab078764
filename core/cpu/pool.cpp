// pool.cpp - max pooling and its gradient, on the CPU.
//
// Channels last: inner loops run over channels, one tap of a window at a time, with the running
// maxima in L1. The gradient is gathered: each input row asks the windows that cover it, so rows
// are independent and the result does not depend on the number of threads.
#include "tarn/core/cpu/pool.h"

#include <limits>

#include "tarn/core/cpu/pool_windows.h"
#include "tarn/core/cpu/table.h"
#include "tarn/core/cpu/vec.h"
#include "tarn/core/kernels.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {
namespace {

template <class T, class I>
void first_tap(const T* __restrict x, int64_t n, I at, T* __restrict y, I* __restrict index) {
  for (int64_t c = 0; c < n; ++c) {
    y[c] = x[c];
    index[c] = at;
  }
}

template <class T, class I>
void next_tap(const T* __restrict x, int64_t n, I at, T* __restrict y, I* __restrict index) {
  using A = compute_t<T>;
  for (int64_t c = 0; c < n; ++c) {
    const A v = to<A>(x[c]), best = to<A>(y[c]);
    const bool take = (v > best) | (v != v);
    y[c] = take ? x[c] : y[c];
    index[c] = take ? at : index[c];
  }
}

template <class T, class I>
void max_channels_last(const T* x, const PoolWindows& p, T* y, I* index) {
  const int64_t n = p.channels;
  parallel_for(p.batch * p.h.out, grain_for(p.work() * n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / p.h.out, oh = i % p.h.out;
      const T* image = x + b * p.h.in * p.w.in * n;
      for (int64_t ow = 0; ow < p.w.out; ++ow) {
        const int64_t to = (i * p.w.out + ow) * n;
        bool first = true;
        for (int64_t h = p.h.first[oh]; h < p.h.last[oh]; h += p.h.step) {
          for (int64_t w = p.w.first[ow]; w < p.w.last[ow]; w += p.w.step) {
            const int64_t at = h * p.w.in + w;
            if (first) {
              first_tap(image + at * n, n, static_cast<I>(at), y + to, index + to);
            } else {
              next_tap(image + at * n, n, static_cast<I>(at), y + to, index + to);
            }
            first = false;
          }
        }
      }
    }
  });
}

// One row of outputs of a plane, tap by tap, so that the loop runs along the row.
template <class T, class I>
void max_row(const T* __restrict plane, const PoolWindows& p, int64_t oh, T* __restrict y,
             I* __restrict index) {
  using A = compute_t<T>;
  for (int64_t ow = 0; ow < p.w.out; ++ow) {
    y[ow] = T(-std::numeric_limits<A>::infinity());
    index[ow] = static_cast<I>(p.h.first[oh] * p.w.in + p.w.first[ow]);
  }
  for (int64_t h = p.h.first[oh]; h < p.h.last[oh]; h += p.h.step) {
    for (int64_t k = 0; k < p.w.kernel; ++k) {
      const auto [begin, end] = p.w.windows_with_tap(k);
      const int64_t shift = k * p.w.step - p.w.pad, stride = p.w.stride;
      const T* __restrict row = plane + h * p.w.in;
      const I base = static_cast<I>(h * p.w.in + shift), step = static_cast<I>(stride);
      for (int64_t ow = begin; ow < end; ++ow) {
        const T x = row[ow * stride + shift];
        const A v = to<A>(x), best = to<A>(y[ow]);
        const bool take = (v > best) | (v != v);
        y[ow] = take ? x : y[ow];
        index[ow] = take ? base + static_cast<I>(ow) * step : index[ow];
      }
    }
  }
}

template <class T, class I>
void max_planes(const T* x, const PoolWindows& p, T* y, I* index) {
  using A = compute_t<T>;
  const int64_t in = p.h.in * p.w.in, out = p.h.out * p.w.out;
  parallel_for(p.batch * p.channels, grain_for(in), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* plane = x + i * in;
      for (int64_t oh = 0; !p.adaptive && oh < p.h.out; ++oh) {
        const int64_t at = i * out + oh * p.w.out;
        max_row(plane, p, oh, y + at, index + at);
      }
      for (int64_t o = 0; p.adaptive && o < out; ++o) {
        const int64_t oh = o / p.w.out, ow = o % p.w.out;
        int64_t at = p.h.first[oh] * p.w.in + p.w.first[ow];
        A best = to<A>(plane[at]);
        for (int64_t h = p.h.first[oh]; h < p.h.last[oh]; h += p.h.step) {
          for (int64_t w = p.w.first[ow]; w < p.w.last[ow]; w += p.w.step) {
            const A v = to<A>(plane[h * p.w.in + w]);
            const bool take = v > best || v != v;
            best = take ? v : best;
            at = take ? h * p.w.in + w : at;
          }
        }
        y[i * out + o] = plane[at];
        index[i * out + o] = static_cast<I>(at);
      }
    }
  });
}

template <class T, class I, class A>
void add_where(const T* __restrict gy, const I* __restrict index, int64_t n, I at,
               A* __restrict gx) {
  for (int64_t c = 0; c < n; ++c) gx[c] += index[c] == at ? to<A>(gy[c]) : A(0);
}

template <class T, class I>
void max_backward_channels_last(const T* gy, const I* index, const PoolWindows& p, T* gx) {
  using A = compute_t<T>;
  const int64_t n = p.channels, row = p.w.in * n;
  parallel_for(p.batch * p.h.in, grain_for(row), [&](int64_t begin, int64_t end) {
    std::vector<A> sums(static_cast<size_t>(row));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / p.h.in, h = i % p.h.in;
      std::fill(sums.begin(), sums.end(), A(0));
      for (int64_t oh = p.h.from[h]; oh < p.h.until[h]; ++oh) {
        if (!p.h.covers(oh, h)) continue;
        for (int64_t ow = 0; ow < p.w.out; ++ow) {
          const int64_t o = ((b * p.h.out + oh) * p.w.out + ow) * n;
          for (int64_t w = p.w.first[ow]; w < p.w.last[ow]; w += p.w.step) {
            add_where(gy + o, index + o, n, static_cast<I>(h * p.w.in + w), &sums[w * n]);
          }
        }
      }
      T* __restrict to = gx + i * row;
      for (int64_t c = 0; c < row; ++c) to[c] = T(sums[c]);
    }
  });
}

template <class T, class I>
void max_backward_planes(const T* gy, const I* index, const PoolWindows& p, T* gx) {
  using A = compute_t<T>;
  const int64_t in = p.h.in * p.w.in, out = p.h.out * p.w.out;
  parallel_for(p.batch * p.channels, grain_for(in), [&](int64_t begin, int64_t end) {
    std::vector<A> sums(static_cast<size_t>(in));
    for (int64_t i = begin; i < end; ++i) {
      std::fill(sums.begin(), sums.end(), A(0));
      for (int64_t o = i * out; o < (i + 1) * out; ++o) sums[index[o]] += to<A>(gy[o]);
      for (int64_t k = 0; k < in; ++k) gx[i * in + k] = T(sums[k]);
    }
  });
}

template <class F>
void visit_index(DType dtype, F&& f) {
  dtype == DType::kI32 ? f(TypeTag<int32_t>{}) : f(TypeTag<int64_t>{});
}

void max_pool2d(const Tensor& x_in, const Pool2dOptions& options, const Tensor& y_in,
                const Tensor& index_in, Stream) {
  const PoolWindows p(x_in, y_in, options);
  visit_floating(x_in.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* x = static_cast<const T*>(x_in.data());
    T* y = static_cast<T*>(y_in.data());
    visit_index(index_in.dtype(), [&](auto index_tag) {
      auto* index = index_in.data<typename decltype(index_tag)::type>();
      p.channels_last ? max_channels_last(x, p, y, index) : max_planes(x, p, y, index);
    });
  });
}

void max_pool2d_backward(const Tensor& gy_in, const Tensor& index_in, const Pool2dOptions& options,
                         const Tensor& gx_in, Stream) {
  const PoolWindows p(gx_in, gy_in, options);
  visit_floating(gx_in.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* gy = static_cast<const T*>(gy_in.data());
    T* gx = static_cast<T*>(gx_in.data());
    visit_index(index_in.dtype(), [&](auto index_tag) {
      const auto* index = index_in.data<typename decltype(index_tag)::type>();
      p.channels_last ? max_backward_channels_last(gy, index, p, gx)
                      : max_backward_planes(gy, index, p, gx);
    });
  });
}

}  // namespace

void add_pool_kernels(KernelTable& table) {
  table.pool.max_pool2d = max_pool2d;
  table.pool.max_pool2d_backward = max_pool2d_backward;
  table.pool.avg_pool2d = avg_pool2d;
  table.pool.avg_pool2d_backward = avg_pool2d_backward;
}

}  // namespace tarn::cpu
