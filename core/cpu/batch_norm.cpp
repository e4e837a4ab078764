// batch_norm.cpp - batch norm forward on the CPU, fused with an added residual and relu.
//
// Training reads x twice (statistics, then the result) and writes y once; the statistics are those
// of moments.h. Loops run over channels (channels last) or over a plane (row-major).
#include "tarn/core/cpu/batch_norm.h"

#include <cmath>

#include "tarn/core/cpu/moments.h"
#include "tarn/core/cpu/table.h"
#include "tarn/core/kernels.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {
namespace {

template <bool kRelu, class A>
TARN_INLINE A activate(A t) {
  if constexpr (kRelu) return t < A(0) ? A(0) : t;  // NaN stays
  return t;
}

template <class T, bool kRelu, bool kResidual>
void apply_row(const T* __restrict x, const T* __restrict residual, int64_t n,
               const compute_t<T>* __restrict mean, const compute_t<T>* __restrict scale,
               const compute_t<T>* __restrict shift, T* __restrict y) {
  using A = compute_t<T>;
  for (int64_t c = 0; c < n; ++c) {
    A t = mul_add(to<A>(x[c]) - mean[c], scale[c], shift[c]);
    if constexpr (kResidual) t += to<A>(residual[c]);
    y[c] = T(activate<kRelu>(t));
  }
}

template <class T, bool kRelu, bool kResidual>
void apply_plane(const T* __restrict x, const T* __restrict residual, int64_t n, compute_t<T> mean,
                 compute_t<T> scale, compute_t<T> shift, T* __restrict y) {
  using A = compute_t<T>;
  for (int64_t i = 0; i < n; ++i) {
    A t = mul_add(to<A>(x[i]) - mean, scale, shift);
    if constexpr (kResidual) t += to<A>(residual[i]);
    y[i] = T(activate<kRelu>(t));
  }
}

template <class T, bool kRelu, bool kResidual>
void apply(const Tensor& x_in, const Tensor& residual_in, const BatchNormLayout& l,
           const BatchNormAffine<compute_t<T>>& p, const Tensor& y_in) {
  const T* x = static_cast<const T*>(x_in.data());
  const T* residual = kResidual ? static_cast<const T*>(residual_in.data()) : x;
  T* y = static_cast<T*>(y_in.data());
  if (l.channels_last) {
    parallel_for(l.rows, grain_for(l.width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t at = r * l.width;
        apply_row<T, kRelu, kResidual>(x + at, residual + at, l.width, p.mean.data(),
                                       p.scale.data(), p.shift.data(), y + at);
      }
    });
    return;
  }
  parallel_for(l.planes, grain_for(l.length), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = i * l.length;
      const size_t c = static_cast<size_t>(i % l.channels);
      apply_plane<T, kRelu, kResidual>(x + at, residual + at, l.length, p.mean[c], p.scale[c],
                                       p.shift[c], y + at);
    }
  });
}

void batch_norm_eval(const Tensor& x, const Tensor& weight, const Tensor& bias,
                     const Tensor& residual, bool relu, const Tensor& mean, const Tensor& rstd,
                     const Tensor& y, Stream) {
  const BatchNormLayout l = batch_norm_layout(x);
  visit_floating(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const BatchNormAffine<compute_t<T>> p(weight, bias, mean, rstd, l);
    if (residual.defined()) {
      relu ? apply<T, true, true>(x, residual, l, p, y)
           : apply<T, false, true>(x, residual, l, p, y);
    } else {
      relu ? apply<T, true, false>(x, residual, l, p, y)
           : apply<T, false, false>(x, residual, l, p, y);
    }
  });
}

ReducePlan plan_of(const BatchNormLayout& l) {
  ReducePlan p;
  p.kept = 1;
  p.out_stride[0] = 1;
  p.columns = l.channels_last;
  if (l.channels_last) {
    p.reduced = 1;
    p.outputs = p.kept_size[0] = l.width;
    p.kept_stride[0] = 1;
    p.count = p.reduced_size[0] = l.rows;
    p.reduced_stride[0] = l.width;
  } else {
    p.outputs = p.kept_size[0] = l.channels;
    p.kept_stride[0] = l.length;
    p.reduced = 2;
    p.count = l.count;
    p.reduced_size[0] = l.length;
    p.reduced_stride[0] = 1;
    p.reduced_size[1] = l.length ? l.count / l.length : 0;
    p.reduced_stride[1] = l.channels * l.length;
  }
  return p;
}

// Mean and biased variance per channel: the `repeat` parts of a row are sets of equal size.
void channel_statistics(const Tensor& x, const BatchNormLayout& l, std::vector<double>* mean,
                        std::vector<double>* var) {
  const ReducePlan plan = plan_of(l);
  const size_t outputs = static_cast<size_t>(plan.outputs),
               channels = static_cast<size_t>(l.channels);
  std::vector<double> means(outputs), squares(outputs);
  moments(x, plan, means.data(), squares.data());
  const int64_t repeat = l.channels_last ? l.repeat : 1;
  const double count = static_cast<double>(l.count);
  mean->assign(channels, 0);
  var->assign(channels, 0);
  for (size_t c = 0; c < channels; ++c) {
    double sum = 0, m2 = 0;
    for (int64_t r = 0; r < repeat; ++r) sum += means[r * channels + c];
    (*mean)[c] = sum / static_cast<double>(repeat);
    for (int64_t r = 0; r < repeat; ++r) {
      const double d = means[r * channels + c] - (*mean)[c];
      m2 += squares[r * channels + c] + d * d * (count / static_cast<double>(repeat));
    }
    (*var)[c] = m2 / count;
  }
}

void batch_norm_train(const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const Tensor& residual, bool relu, double eps, const Tensor& y,
                      const Tensor& mean, const Tensor& rstd, const Tensor& var, Stream stream) {
  const BatchNormLayout l = batch_norm_layout(x);
  if (l.count == 0 || l.channels == 0) return;
  std::vector<double> means, vars;
  channel_statistics(x, l, &means, &vars);
  visit_floating(mean.dtype(), [&](auto tag) {
    using A = compute_t<typename decltype(tag)::type>;
    for (int64_t c = 0; c < l.channels; ++c) {
      static_cast<A*>(mean.data())[c] = static_cast<A>(means[c]);
      static_cast<A*>(var.data())[c] = static_cast<A>(vars[c]);
      static_cast<A*>(rstd.data())[c] = static_cast<A>(1 / std::sqrt(vars[c] + eps));
    }
  });
  batch_norm_eval(x, weight, bias, residual, relu, mean, rstd, y, stream);
}

}  // namespace

void add_norm_kernels(KernelTable& table) {
  table.norm.batch_norm_train = batch_norm_train;
  table.norm.batch_norm_eval = batch_norm_eval;
  table.norm.batch_norm_backward = batch_norm_backward;
  table.norm.layer_norm = layer_norm;
  table.norm.layer_norm_backward = layer_norm_backward;
}

}  // namespace tarn::cpu
