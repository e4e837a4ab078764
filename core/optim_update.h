// optim_update.h - what an optimizer does to one element, for the CPU's loops and CUDA's kernels.
//
// Every product that meets a sum is a mul_add, so no compiler has a choice left and all devices
// with fused multiply-add get the same bits. P is the type of parameters and state; gradients come
// in as P, unscaled.
#pragma once

#include <cmath>

#include "tarn/core/kernels/optim.h"
#include "tarn/core/mul_add.h"

namespace tarn {

/// The scaled gradient plus what weight decay adds to it. Without decay the parameter stays out of
/// it: 0 * infinity would be NaN.
template <class P>
TARN_HD P decayed(P g, P scale, P decay, P p) {
  return mul_add(g, scale, decay != P(0) ? decay * p : P(0));
}

template <class P>
struct SgdUpdate {
  P lr, momentum, undamped, decay, scale;
  bool first;

  SgdUpdate(const SgdArgs& a, double grad_scale)
      : lr(static_cast<P>(a.lr)),
        momentum(static_cast<P>(a.momentum)),
        undamped(static_cast<P>(a.first_step ? 1 : 1 - a.dampening)),
        decay(static_cast<P>(a.weight_decay)),
        scale(static_cast<P>(a.maximize ? -grad_scale : grad_scale)),
        first(a.first_step) {}

  TARN_HD void plain(P g, P& p) const { p = mul_add(-lr, decayed(g, scale, decay, p), p); }

  template <bool kNesterov>
  TARN_HD void with_momentum(P g, P& p, P& buffer) const {
    const P d = decayed(g, scale, decay, p);
    const P old = first ? P(0) : momentum * buffer;
    const P b = mul_add(undamped, d, old);
    buffer = b;
    p = mul_add(-lr, kNesterov ? mul_add(momentum, b, d) : b, p);
  }
};

template <class P>
struct AdamUpdate {
  P beta1, one_minus_beta1, beta2, one_minus_beta2, eps, step_size, inv_root, coupled, keep, scale;

  AdamUpdate(const AdamArgs& a, double grad_scale)
      : beta1(static_cast<P>(a.beta1)),
        one_minus_beta1(static_cast<P>(1 - a.beta1)),
        beta2(static_cast<P>(a.beta2)),
        one_minus_beta2(static_cast<P>(1 - a.beta2)),
        eps(static_cast<P>(a.eps)),
        coupled(static_cast<P>(a.decoupled ? 0 : a.weight_decay)),
        keep(static_cast<P>(a.decoupled ? 1 - a.lr * a.weight_decay : 1)),
        scale(static_cast<P>(a.maximize ? -grad_scale : grad_scale)) {
    const auto t = static_cast<double>(a.step);
    step_size = static_cast<P>(a.lr / (1 - std::pow(a.beta1, t)));
    inv_root = static_cast<P>(1 / std::sqrt(1 - std::pow(a.beta2, t)));
  }

  TARN_HD void plain(P g, P& p, P& m, P& v) const {
    moments(g, p, m, v);
    step(p, m, v);
  }
  TARN_HD void amsgrad(P g, P& p, P& m, P& v, P& v_max) const {
    moments(g, p, m, v);
    v_max = v_max > v ? v_max : v;
    step(p, m, v_max);
  }

 private:
  TARN_HD void moments(P g, P p, P& m, P& v) const {
    const P d = decayed(g, scale, coupled, p);
    m = mul_add(beta1, m, one_minus_beta1 * d);
    v = mul_add(beta2, v, one_minus_beta2 * d * d);
  }
  TARN_HD void step(P& p, P m, P v) const {
    const P root = mul_add(std::sqrt(v), inv_root, eps);
    p = mul_add(p, keep, -(step_size * m / root));
  }
};

template <class P>
struct RmspropUpdate {
  P lr, alpha, eps, fresh, decay, momentum, scale;

  RmspropUpdate(const RmspropArgs& a, double grad_scale)
      : lr(static_cast<P>(a.lr)),
        alpha(static_cast<P>(a.alpha)),
        eps(static_cast<P>(a.eps)),
        fresh(static_cast<P>(1 - a.alpha)),
        decay(static_cast<P>(a.weight_decay)),
        momentum(static_cast<P>(a.momentum)),
        scale(static_cast<P>(a.maximize ? -grad_scale : grad_scale)) {}

  /// `mean` is used if kCentered, `buffer` if kMomentum.
  template <bool kCentered, bool kMomentum>
  TARN_HD void update(P g, P& p, P& s, P& mean, P& buffer) const {
    const P d = decayed(g, scale, decay, p);
    s = mul_add(alpha, s, fresh * d * d);
    P variance = s;
    if constexpr (kCentered) {
      mean = mul_add(alpha, mean, fresh * d);
      variance = mul_add(-mean, mean, s);
      variance = variance < P(0) ? P(0) : variance;  // one that rounds below zero; NaN stays
    }
    P step = d / (std::sqrt(variance) + eps);
    if constexpr (kMomentum) step = buffer = mul_add(momentum, buffer, step);
    p = mul_add(-lr, step, p);
  }
};

template <class P>
struct AdagradUpdate {
  P lr, eps, decay, scale;

  AdagradUpdate(const AdagradArgs& a, double grad_scale)
      : lr(static_cast<P>(a.lr)),
        eps(static_cast<P>(a.eps)),
        decay(static_cast<P>(a.weight_decay)),
        scale(static_cast<P>(a.maximize ? -grad_scale : grad_scale)) {}

  TARN_HD void update(P g, P& p, P& s) const {
    const P d = decayed(g, scale, decay, p);
    s = mul_add(d, d, s);
    p -= lr * d / (std::sqrt(s) + eps);
  }
};

}  // namespace tarn
