// optim.cu - optimizer steps over all parameters at once; the formulas are optim_update.h's.
//
// Memory-bound: each value is read and written once, in 16-byte accesses. Bytes per f32 element:
// SGD 12 (with momentum 20), Adam 28 (amsgrad 36), RMSprop 20 (centered and momentum 8 more each),
// Adagrad 20, scale and clamp 8, lerp 12. Elements do not depend on each other: the result is the
// CPU's, bit by bit, for any grid.
#include "tarn/core/kernels.h"
#include "tarn/core/optim_update.h"
#include "tarn/cuda/multi_tensor.cuh"
#include "tarn/cuda/table.h"

namespace tarn::cuda {
namespace {

template <class P>
struct SgdPlain {
  static constexpr int kWritten = 1, kRead = 1;
  SgdUpdate<P> update;
  __device__ void operator()(P (&w)[1], P g) const { update.plain(g, w[0]); }
};

template <class P>
struct SgdMomentum {
  static constexpr int kWritten = 2, kRead = 1;
  SgdUpdate<P> update;
  bool nesterov;
  __device__ void operator()(P (&w)[2], P g) const {
    if (nesterov) {
      update.template with_momentum<true>(g, w[0], w[1]);
    } else {
      update.template with_momentum<false>(g, w[0], w[1]);
    }
  }
};

template <class P>
struct AdamPlain {
  static constexpr int kWritten = 3, kRead = 1;
  AdamUpdate<P> update;
  __device__ void operator()(P (&w)[3], P g) const { update.plain(g, w[0], w[1], w[2]); }
};

template <class P>
struct AdamAmsgrad {
  static constexpr int kWritten = 4, kRead = 1;
  AdamUpdate<P> update;
  __device__ void operator()(P (&w)[4], P g) const { update.amsgrad(g, w[0], w[1], w[2], w[3]); }
};

/// State behind the parameter: square average, then gradient average (kCentered), then momentum
/// (kMomentum).
template <class P, bool kCentered, bool kMomentum>
struct Rmsprop {
  static constexpr int kWritten = 2 + kCentered + kMomentum, kRead = 1;
  RmspropUpdate<P> update;
  __device__ void operator()(P (&w)[kWritten], P g) const {
    P& mean = w[kCentered ? 2 : 1];
    P& buffer = w[kMomentum ? kWritten - 1 : 1];
    update.template update<kCentered, kMomentum>(g, w[0], w[1], mean, buffer);
  }
};

template <class P>
struct Adagrad {
  static constexpr int kWritten = 2, kRead = 1;
  AdagradUpdate<P> update;
  __device__ void operator()(P (&w)[2], P g) const { update.update(g, w[0], w[1]); }
};

template <class C>
struct Scale {
  static constexpr int kWritten = 1, kRead = 0;
  C factor;
  __device__ void operator()(C (&w)[1], C) const { w[0] *= factor; }
};

/// To [-limit, limit]; NaN stays.
template <class C>
struct Clamp {
  static constexpr int kWritten = 1, kRead = 0;
  C limit;
  __device__ void operator()(C (&w)[1], C) const {
    w[0] = w[0] > limit ? limit : w[0] < -limit ? -limit : w[0];
  }
};

template <class C>
struct Lerp {
  static constexpr int kWritten = 1, kRead = 1;
  C weight;
  __device__ void operator()(C (&w)[1], C b) const { w[0] = mul_add(weight, b - w[0], w[0]); }
};

template <class T, class R, int kLists, class Update, class Wanted>
void run(const Update& update, const std::span<const Tensor> (&lists)[kLists], Wanted wanted,
         Stream stream) {
  static_assert(kLists == Update::kWritten + Update::kRead);
  for_tables(lists, wanted, [&](const TensorTable<kLists>& table) {
    launch(update_tensors<T, R, Update>, blocks_of(table, stream), kMultiTensorThreads, 0, stream,
           table, update);
  });
}

struct All {
  bool operator()(const Tensor&) const { return true; }
};

/// Calls f(P, G) with tags of the types of parameters and gradients, which are one pair per call.
template <class F>
void visit_param_grad(std::span<const Tensor> params, std::span<const Tensor> grads, F f) {
  if (params.empty()) return;
  if (params[0].dtype() == DType::kF64) return f(TypeTag<double>(), TypeTag<double>());
  if (grads[0].dtype() == DType::kF16) return f(TypeTag<float>(), TypeTag<half>());
  if (grads[0].dtype() == DType::kBF16) return f(TypeTag<float>(), TypeTag<bfloat16>());
  f(TypeTag<float>(), TypeTag<float>());
}

void sgd(const SgdArgs& args, double grad_scale, std::span<const Tensor> params,
         std::span<const Tensor> grads, std::span<const Tensor> momentum, Stream stream) {
  visit_param_grad(params, grads, [&](auto param, auto grad) {
    using P = typename decltype(param)::type;
    using G = typename decltype(grad)::type;
    const SgdUpdate<P> update(args, grad_scale);
    if (momentum.empty()) {
      run<P, G>(SgdPlain<P>{update}, {params, grads}, All(), stream);
    } else {
      run<P, G>(SgdMomentum<P>{update, args.nesterov}, {params, momentum, grads}, All(), stream);
    }
  });
}

void adam(const AdamArgs& args, double grad_scale, std::span<const Tensor> params,
          std::span<const Tensor> grads, std::span<const Tensor> exp_avg,
          std::span<const Tensor> exp_avg_sq, std::span<const Tensor> max_exp_avg_sq,
          Stream stream) {
  visit_param_grad(params, grads, [&](auto param, auto grad) {
    using P = typename decltype(param)::type;
    using G = typename decltype(grad)::type;
    const AdamUpdate<P> update(args, grad_scale);
    if (args.amsgrad) {
      run<P, G>(AdamAmsgrad<P>{update}, {params, exp_avg, exp_avg_sq, max_exp_avg_sq, grads}, All(),
                stream);
    } else {
      run<P, G>(AdamPlain<P>{update}, {params, exp_avg, exp_avg_sq, grads}, All(), stream);
    }
  });
}

void rmsprop(const RmspropArgs& args, double grad_scale, std::span<const Tensor> params,
             std::span<const Tensor> grads, std::span<const Tensor> square_avg,
             std::span<const Tensor> grad_avg, std::span<const Tensor> momentum, Stream stream) {
  visit_param_grad(params, grads, [&](auto param, auto grad) {
    using P = typename decltype(param)::type;
    using G = typename decltype(grad)::type;
    const RmspropUpdate<P> update(args, grad_scale);
    if (args.centered && !momentum.empty()) {
      run<P, G>(Rmsprop<P, true, true>{update}, {params, square_avg, grad_avg, momentum, grads},
                All(), stream);
    } else if (args.centered) {
      run<P, G>(Rmsprop<P, true, false>{update}, {params, square_avg, grad_avg, grads}, All(),
                stream);
    } else if (!momentum.empty()) {
      run<P, G>(Rmsprop<P, false, true>{update}, {params, square_avg, momentum, grads}, All(),
                stream);
    } else {
      run<P, G>(Rmsprop<P, false, false>{update}, {params, square_avg, grads}, All(), stream);
    }
  });
}

void adagrad(const AdagradArgs& args, double grad_scale, std::span<const Tensor> params,
             std::span<const Tensor> grads, std::span<const Tensor> sum, Stream stream) {
  visit_param_grad(params, grads, [&](auto param, auto grad) {
    using P = typename decltype(param)::type;
    using G = typename decltype(grad)::type;
    run<P, G>(Adagrad<P>{AdagradUpdate<P>(args, grad_scale)}, {params, sum, grads}, All(), stream);
  });
}

/// Calls f(tag, wanted) for each floating type there is: `wanted` accepts tensors of that type.
template <class F>
void for_each_dtype(std::span<const Tensor> tensors, F f) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    const auto wanted = [dtype](const Tensor& t) { return t.dtype() == dtype; };
    if (std::none_of(tensors.begin(), tensors.end(), wanted)) continue;
    visit_floating(dtype, [&](auto tag) { f(tag, wanted); });
  }
}

void scale(std::span<const Tensor> tensors, double factor, Stream stream) {
  for_each_dtype(tensors, [&](auto tag, auto wanted) {
    using T = typename decltype(tag)::type;
    using C = compute_t<T>;
    run<T, T>(Scale<C>{static_cast<C>(factor)}, {tensors}, wanted, stream);
  });
}

void clamp(std::span<const Tensor> tensors, double limit, Stream stream) {
  for_each_dtype(tensors, [&](auto tag, auto wanted) {
    using T = typename decltype(tag)::type;
    using C = compute_t<T>;
    run<T, T>(Clamp<C>{static_cast<C>(limit)}, {tensors}, wanted, stream);
  });
}

void lerp(std::span<const Tensor> a, std::span<const Tensor> b, double weight, Stream stream) {
  for_each_dtype(a, [&](auto tag, auto wanted) {
    using T = typename decltype(tag)::type;
    using C = compute_t<T>;
    run<T, T>(Lerp<C>{static_cast<C>(weight)}, {a, b}, wanted, stream);
  });
}

}  // namespace

void add_optim_norm_kernels(KernelTable& table);

void add_optim_kernels(KernelTable& table) {
  table.optim.sgd = sgd;
  table.optim.adam = adam;
  table.optim.rmsprop = rmsprop;
  table.optim.adagrad = adagrad;
  table.optim.scale = scale;
  table.optim.clamp = clamp;
  table.optim.lerp = lerp;
  add_optim_norm_kernels(table);
}

}  // namespace tarn::cuda
