// random.cpp - Philox kernels for the CPU: bits in blocks of 64 counters, then plain loops.
//
// A block's 256 words stay in the first-level cache. Cost per f32 element: about a dozen integer
// operations for the bits; 4 bytes written (dropout: 4 read, 4 written).
#include "tarn/core/cpu/random_words.h"
#include "tarn/core/cpu/table.h"
#include "tarn/core/mul_add.h"
#include "tarn/core/parallel.h"
#include "tarn/core/random_draws.h"

namespace tarn::cpu {
namespace {

constexpr int kCounters = 64;
constexpr int kWords = 4 * kCounters;

/// Calls f(words, first element, count) for every block; kPerElement words belong to an element.
template <int kPerElement, class F>
void for_blocks(const PhiloxState& state, int64_t numel, F f) {
  constexpr int kElements = kWords / kPerElement;
  const int64_t blocks = (numel + kElements - 1) / kElements;
  parallel_for(blocks, 32, [&](int64_t begin, int64_t end) {
    alignas(64) uint32_t words[kWords];
    for (int64_t b = begin; b < end; ++b) {
      fill_words(state, static_cast<uint64_t>(b) * kCounters, kCounters, words);
      const int64_t first = b * kElements;
      const int64_t left = numel - first;
      f(words, first, static_cast<int>(left < kElements ? left : kElements));
    }
  });
}

void uniform(PhiloxState state, double low, double high, const Tensor& out, Stream) {
  visit_floating(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = compute_t<T>;
    T* y = out.data<T>();
    const C lo = static_cast<C>(low), hi = static_cast<C>(high);
    if constexpr (sizeof(T) == 8) {
      for_blocks<2>(state, out.numel(), [=](const uint32_t* w, int64_t first, int n) {
        for (int i = 0; i < n; ++i) {
          y[first + i] = draws::between<T>(lo, hi, philox_uniform_double(w[2 * i], w[2 * i + 1]));
        }
      });
    } else {
      for_blocks<1>(state, out.numel(), [=](const uint32_t* w, int64_t first, int n) {
        for (int i = 0; i < n; ++i) y[first + i] = draws::between<T>(lo, hi, draws::unit<T>(w[i]));
      });
    }
  });
}

void normal_double(PhiloxState state, double mean, double stddev, const Tensor& out) {
  double* y = out.data<double>();
  for_blocks<2>(state, out.numel(), [=](const uint32_t* w, int64_t first, int n) {
    for (int i = 0; i < n; i += 2) {
      const auto pair = draws::normal_pair(w[2 * i], w[2 * i + 1], w[2 * i + 2], w[2 * i + 3]);
      y[first + i] = mean + stddev * pair.a;
      if (i + 1 < n) y[first + i + 1] = mean + stddev * pair.b;
    }
  });
}

void normal(PhiloxState state, double mean, double stddev, const Tensor& out, Stream) {
  if (out.dtype() == DType::kF64) return normal_double(state, mean, stddev, out);
  visit_floating(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (sizeof(T) < 8) {
      T* y = out.data<T>();
      const auto m = static_cast<float>(mean), s = static_cast<float>(stddev);
      for_blocks<1>(state, out.numel(), [=](const uint32_t* w, int64_t first, int n) {
        alignas(64) float z[kWords];
        for (int i = 0; i < kWords / 2; ++i) {
          const auto pair = draws::normal_pair(w[2 * i], w[2 * i + 1]);
          z[2 * i] = pair.a;
          z[2 * i + 1] = pair.b;
        }
        for (int i = 0; i < n; ++i) y[first + i] = T(m + s * z[i]);
      });
    }
  });
}

void bernoulli(PhiloxState state, double p, const Tensor& out, Stream) {
  const uint64_t limit = draws::threshold(p);
  visit_dtype(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* y = out.data<T>();
    for_blocks<1>(state, out.numel(), [=](const uint32_t* w, int64_t first, int n) {
      for (int i = 0; i < n; ++i) y[first + i] = T(w[i] < limit ? 1.0f : 0.0f);
    });
  });
}

void randint(PhiloxState state, int64_t low, int64_t high, const Tensor& out, Stream) {
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  visit_dtype(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = compute_t<T>;
    T* y = out.data<T>();
    for_blocks<2>(state, out.numel(), [=](const uint32_t* w, int64_t first, int n) {
      for (int i = 0; i < n; ++i) {
        const uint64_t r = draws::below(w[2 * i], w[2 * i + 1], range);
        y[first + i] = T(static_cast<C>(static_cast<int64_t>(static_cast<uint64_t>(low) + r)));
      }
    });
  });
}

void dropout(PhiloxState state, double p, const Tensor& x, const Tensor& residual, const Tensor& y,
             Stream) {
  const uint64_t limit = draws::threshold(p);
  visit_floating(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = compute_t<T>;
    const T* from = x.data<T>();
    const T* add = residual.data_or_null<T>();
    T* to = y.data<T>();
    const C scale = p < 1 ? static_cast<C>(1 / (1 - p)) : C(0);
    for_blocks<1>(state, x.numel(), [=](const uint32_t* w, int64_t first, int n) {
      if (add == nullptr) {
        for (int i = 0; i < n; ++i) {
          const C kept = static_cast<C>(from[first + i]) * scale;
          to[first + i] = T(w[i] < limit ? C(0) : kept);
        }
      } else {
        for (int i = 0; i < n; ++i) {
          const C other = static_cast<C>(add[first + i]);
          const C kept = mul_add(static_cast<C>(from[first + i]), scale, other);
          to[first + i] = T(w[i] < limit ? other : kept);
        }
      }
    });
  });
}

}  // namespace

void add_random_kernels(KernelTable& table) {
  table.random.uniform = uniform;
  table.random.normal = normal;
  table.random.bernoulli = bernoulli;
  table.random.randint = randint;
  table.random.dropout = dropout;
}

}  // namespace tarn::cpu
