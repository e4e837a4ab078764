// random.cu - Philox kernels: a thread makes 16 bytes of numbers at a time from its own counters.
//
// Element i depends on its index alone, so any grid gives the CPU's numbers; the formulas are
// core/random_draws.h's. About 100 integer operations a counter. Bytes per element: one write of
// it; dropout reads it as well.
#include "tarn/core/cast.h"
#include "tarn/core/mul_add.h"
#include "tarn/core/random_draws.h"
#include "tarn/cuda/grid.cuh"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/table.h"
#include "tarn/cuda/vec.cuh"

namespace tarn::cuda {
namespace {

constexpr int kThreads = 256;

// A draw makes kPerCounter elements of its type from the four words of a counter. x and z are the
// inputs at these places if there are so many (kInputs), else nothing.

template <class T>
struct Uniform {
  static constexpr int kPerCounter = sizeof(T) == 8 ? 2 : 4;
  static constexpr int kInputs = 0;
  compute_t<T> low, high;
  __device__ void operator()(const Philox4& r, const T*, const T*, T* y) const {
    if constexpr (sizeof(T) == 8) {
      y[0] = draws::between<T>(low, high, philox_uniform_double(r.v[0], r.v[1]));
      y[1] = draws::between<T>(low, high, philox_uniform_double(r.v[2], r.v[3]));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) y[i] = draws::between<T>(low, high, draws::unit<T>(r.v[i]));
    }
  }
};

template <class T>
struct Normal {
  static constexpr int kPerCounter = sizeof(T) == 8 ? 2 : 4;
  static constexpr int kInputs = 0;
  compute_t<T> mean, stddev;
  __device__ void operator()(const Philox4& r, const T*, const T*, T* y) const {
    if constexpr (sizeof(T) == 8) {
      store_pair(draws::normal_pair(r.v[0], r.v[1], r.v[2], r.v[3]), y);
    } else {
      store_pair(draws::normal_pair(r.v[0], r.v[1]), y);
      store_pair(draws::normal_pair(r.v[2], r.v[3]), y + 2);
    }
  }
  __device__ void store_pair(const draws::NormalPair<compute_t<T>>& z, T* y) const {
    y[0] = T(mean + stddev * z.a);
    y[1] = T(mean + stddev * z.b);
  }
};

template <class T>
struct Bernoulli {
  static constexpr int kPerCounter = 4;
  static constexpr int kInputs = 0;
  uint64_t limit;
  __device__ void operator()(const Philox4& r, const T*, const T*, T* y) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = T(r.v[i] < limit ? 1.0f : 0.0f);
  }
};

template <class T>
struct Randint {
  static constexpr int kPerCounter = 2;
  static constexpr int kInputs = 0;
  uint64_t low, range;
  __device__ void operator()(const Philox4& r, const T*, const T*, T* y) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint64_t value = low + draws::below(r.v[2 * i], r.v[2 * i + 1], range);
      y[i] = T(static_cast<compute_t<T>>(static_cast<int64_t>(value)));
    }
  }
};

template <class T>
struct Dropout {
  static constexpr int kPerCounter = 4;
  static constexpr int kInputs = 1;
  uint64_t limit;
  compute_t<T> scale;
  __device__ void operator()(const Philox4& r, const T* x, const T*, T* y) const {
    using C = compute_t<T>;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const C kept = static_cast<C>(x[i]) * scale;
      y[i] = T(r.v[i] < limit ? C(0) : kept);
    }
  }
};

template <class T>
struct DropoutAdd {
  static constexpr int kPerCounter = 4;
  static constexpr int kInputs = 2;
  uint64_t limit;
  compute_t<T> scale;
  __device__ void operator()(const Philox4& r, const T* x, const T* z, T* y) const {
    using C = compute_t<T>;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const C other = static_cast<C>(z[i]);
      y[i] = T(r.v[i] < limit ? other : mul_add(static_cast<C>(x[i]), scale, other));
    }
  }
};

/// Elements of a thread at a time: 16 bytes, or what one counter makes.
template <class Draw, class T>
constexpr int group_size() {
  return kVecWidth<T> > 2 * Draw::kPerCounter ? 2 * Draw::kPerCounter
         : kVecWidth<T> > Draw::kPerCounter   ? kVecWidth<T>
                                              : Draw::kPerCounter;
}

/// `left` of kGroup elements at x.
template <int kGroup, int kWidth, class T>
__device__ __forceinline__ void load_group(const T* x, int64_t left, bool wide, T (&in)[kGroup]) {
  if (wide && left >= kGroup) {
#pragma unroll
    for (int k = 0; k < kGroup; k += kWidth) {
      const Vec<T, kWidth> v = load_vec<kWidth>(x + k);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) in[k + j] = v.v[j];
    }
  } else {
#pragma unroll
    for (int k = 0; k < kGroup; ++k) in[k] = k < left ? x[k] : T(0);
  }
}

/// y[i] for i < n from Draw. `wide`: x, z and y are aligned to vectors.
template <class Draw, class T>
__global__ void __launch_bounds__(kThreads)
    draw_kernel(const PhiloxState state, const Draw draw, const T* x, const T* z, T* y, int64_t n,
                bool wide) {
  constexpr int kGroup = group_size<Draw, T>();
  constexpr int kWidth = kGroup < kVecWidth<T> ? kGroup : kVecWidth<T>;
  constexpr int kCounters = kGroup / Draw::kPerCounter;
  for (int64_t group = grid_index(); group * kGroup < n; group += grid_step()) {
    const int64_t first = group * kGroup;
    const int64_t left = n - first;
    T in[kGroup], other[kGroup], out[kGroup];
    if constexpr (Draw::kInputs > 0) load_group<kGroup, kWidth>(x + first, left, wide, in);
    if constexpr (Draw::kInputs > 1) load_group<kGroup, kWidth>(z + first, left, wide, other);
#pragma unroll
    for (int c = 0; c < kCounters; ++c) {
      const Philox4 words = philox(state, static_cast<uint64_t>(group) * kCounters + c);
      const int at = c * Draw::kPerCounter;
      draw(words, in + at, other + at, out + at);
    }
    if (wide && left >= kGroup) {
#pragma unroll
      for (int k = 0; k < kGroup; k += kWidth) {
        Vec<T, kWidth> v;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) v.v[j] = out[k + j];
        store_vec(y + first + k, v);
      }
    } else {
#pragma unroll
      for (int k = 0; k < kGroup; ++k) {
        if (k < left) y[first + k] = out[k];
      }
    }
  }
}

template <class Draw, class T>
void run(PhiloxState state, const Draw& draw, const T* x, const T* z, T* y, int64_t n,
         Stream stream) {
  constexpr int kGroup = group_size<Draw, T>();
  const bool wide = is_aligned(y, 16) && is_aligned(x, 16) && is_aligned(z, 16);
  launch(draw_kernel<Draw, T>, blocks_for(n, int64_t{kThreads} * kGroup, stream), kThreads, 0,
         stream, state, draw, x, z, y, n, wide);
}

void uniform(PhiloxState state, double low, double high, const Tensor& out, Stream stream) {
  visit_floating(out.dtype(), [&]<class T>(TypeTag<T>) {
    using C = compute_t<T>;
    const Uniform<T> draw{static_cast<C>(low), static_cast<C>(high)};
    run<Uniform<T>, T>(state, draw, nullptr, nullptr, out.data<T>(), out.numel(), stream);
  });
}

void normal(PhiloxState state, double mean, double stddev, const Tensor& out, Stream stream) {
  visit_floating(out.dtype(), [&]<class T>(TypeTag<T>) {
    using C = compute_t<T>;
    const Normal<T> draw{static_cast<C>(mean), static_cast<C>(stddev)};
    run<Normal<T>, T>(state, draw, nullptr, nullptr, out.data<T>(), out.numel(), stream);
  });
}

void bernoulli(PhiloxState state, double p, const Tensor& out, Stream stream) {
  visit_dtype(out.dtype(), [&]<class T>(TypeTag<T>) {
    const Bernoulli<T> draw{draws::threshold(p)};
    run<Bernoulli<T>, T>(state, draw, nullptr, nullptr, out.data<T>(), out.numel(), stream);
  });
}

void randint(PhiloxState state, int64_t low, int64_t high, const Tensor& out, Stream stream) {
  const auto first = static_cast<uint64_t>(low);
  visit_dtype(out.dtype(), [&]<class T>(TypeTag<T>) {
    if constexpr (!std::is_same_v<T, bool>) {
      const Randint<T> draw{first, static_cast<uint64_t>(high) - first};
      run<Randint<T>, T>(state, draw, nullptr, nullptr, out.data<T>(), out.numel(), stream);
    }
  });
}

void dropout(PhiloxState state, double p, const Tensor& x, const Tensor& residual, const Tensor& y,
             Stream stream) {
  visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
    using C = compute_t<T>;
    const uint64_t limit = draws::threshold(p);
    const C scale = p < 1 ? static_cast<C>(1 / (1 - p)) : C(0);
    if (residual.defined()) {
      run<DropoutAdd<T>, T>(state, {limit, scale}, x.data<T>(), residual.data<T>(), y.data<T>(),
                            x.numel(), stream);
    } else {
      run<Dropout<T>, T>(state, {limit, scale}, x.data<T>(), nullptr, y.data<T>(), x.numel(),
                         stream);
    }
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

}  // namespace tarn::cuda
