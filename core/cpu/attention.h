// attention.h - the parts of the CPU's attention that stand in files of their own.
#pragma once

#include "tarn/core/cpu/tasks.h"
#include "tarn/core/kernels/attention.h"

namespace tarn::cpu::attention {

constexpr int64_t kSerialMacs = 1 << 17;  // below, threads cost more than they bring

/// Runs f(i) for i in [0, n): over the threads, unless the work is small.
template <class F>
void for_pieces(int64_t macs, int64_t n, F&& f) {
  if (macs > kSerialMacs) return parallel_tasks(n, f);
  for (int64_t i = 0; i < n; ++i) f(i);
}

void scaled_dot_product_attention_backward(const AttentionCall& call, const Tensor& out,
                                           const Tensor& logsumexp, const Tensor& gout,
                                           const Tensor& gq, const Tensor& gk, const Tensor& gv,
                                           Stream stream);

}  // namespace tarn::cpu::attention
