// sync_batch_norm.cpp - batch normalisation over the batches of all ranks.
#include "tarn/dist/sync_batch_norm.h"

#include <cmath>
#include <numeric>

#include "tarn/autograd/custom.h"
#include "tarn/autograd/recompute.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_norm.h"
#include "tarn/core/views.h"
#include "tarn/nn/norm.h"

namespace tarn::dist {
namespace {

struct Statistics {
  Tensor mean, rstd;  // [C], of the dtype in which statistics are kept
  double count = 0;   // values per channel, of all ranks
};

DType statistics_dtype(const Tensor& x) {
  return x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
}

// {count, mean of C channels, variance of C channels} of this rank's x, in f64, on the CPU: the
// host merges them, and has to see the counts.
Tensor local_statistics(const Tensor& x, double eps) {
  const int64_t C = x.size(1);
  const Tensor out = zeros({2 * C + 1}, {.dtype = DType::kF64});
  const int64_t count = C > 0 ? x.numel() / C : 0;
  out.data<double>()[0] = static_cast<double>(count);
  if (count == 0) return out;
  const auto put = [&](const Tensor& values, int64_t at) {
    raw::copy_(raw::narrow(out, 0, at, C), raw::reshape(values, {C}));
  };
  if (count == 1) {  // its variance is 0, where batch_norm_train would refuse
    put(x, 1);
    return out;
  }
  const raw::BatchNormResult r = raw::batch_norm_train(x, {}, {}, {}, false, eps);
  put(r.mean, 1);
  put(r.var, 1 + C);
  return out;
}

// Merges what all ranks know, in rank order: means by count, variances as
// sum n_r (var_r + (mean_r - mean)^2) / N. Moves the running statistics.
Statistics merge(ProcessGroup& group, const Tensor& x, const Tensor& running_mean,
                 const Tensor& running_var, const BatchNormOptions& options) {
  const int64_t C = x.size(1), W = group.size(), stride = 2 * C + 1;
  const Tensor all = empty({W, stride}, {.dtype = DType::kF64});
  group.all_gather(all, local_statistics(x, options.eps))->wait();
  const double* rows = all.data<double>();
  Statistics s;
  for (int64_t r = 0; r < W; ++r) s.count += rows[r * stride];
  TARN_CHECK_AS(ValueError, s.count != 1,
                "sync_batch_norm: needs more than one value per channel in training; all ranks "
                "together have one");
  const Tensor mean = zeros({C}, {.dtype = DType::kF64}), var = zeros({C}, {.dtype = DType::kF64});
  const Tensor rstd = zeros({C}, {.dtype = DType::kF64});
  for (int64_t c = 0; c < C && s.count > 0; ++c) {
    double m = 0, v = 0;
    for (int64_t r = 0; r < W; ++r) m += rows[r * stride] * rows[r * stride + 1 + c];
    m /= s.count;
    for (int64_t r = 0; r < W; ++r) {
      const double d = rows[r * stride + 1 + c] - m;
      v += rows[r * stride] * (rows[r * stride + 1 + C + c] + d * d);
    }
    v /= s.count;
    mean.data<double>()[c] = m;
    var.data<double>()[c] = v;
    rstd.data<double>()[c] = 1 / std::sqrt(v + options.eps);
  }
  if (s.count > 0) {
    const auto move = [&](const Tensor& running, const Tensor& to, double factor) {
      if (!running.defined() || is_recomputing()) return;
      const Tensor moved = raw::add(raw::mul(raw::to(running, kCPU), 1 - options.momentum),
                                    raw::mul(to, options.momentum * factor));
      raw::copy_(running, moved);
    };
    move(running_mean, mean, 1);
    move(running_var, var, s.count / (s.count - 1));  // unbiased
  }
  s.mean = raw::to(raw::to(mean, statistics_dtype(x)), x.device());
  s.rstd = raw::to(raw::to(rstd, statistics_dtype(x)), x.device());
  return s;
}

}  // namespace

Tensor sync_batch_norm(ProcessGroup& group, const Tensor& x, const Tensor& residual,
                       const Tensor& running_mean, const Tensor& running_var, const Tensor& weight,
                       const Tensor& bias, const BatchNormOptions& options) {
  raw::check_batch_norm("sync_batch_norm", x, weight, bias, running_mean, running_var, residual);
  const bool affine = weight.defined(), added = residual.defined(), relu = options.relu;
  std::vector<Tensor> inputs{x};
  if (affine) inputs.insert(inputs.end(), {weight, bias});
  if (added) inputs.push_back(residual);
  const Statistics s = merge(group, x.detach(), running_mean, running_var, options);

  return custom_function(
      "sync_batch_norm", inputs,
      [&](CustomContext& ctx, const std::vector<Tensor>& in) {
        const Tensor w = affine ? in[1] : Tensor(), b = affine ? in[2] : Tensor();
        Tensor y =
            raw::batch_norm_eval(in[0], w, b, added ? in.back() : Tensor(), relu, s.mean, s.rstd);
        ctx.save({in[0], y, w, b, s.mean, s.rstd});
        return y;
      },
      [held = group.shared_from_this(), affine, added, relu, count = s.count](
          const CustomContext& ctx, const std::vector<Tensor>& grads) {
        const Tensor in = ctx.saved(0), y = ctx.saved(1), mean = ctx.saved(4), rstd = ctx.saved(5);
        const Tensor w = affine ? ctx.saved(2) : Tensor(), b = affine ? ctx.saved(3) : Tensor();
        const int64_t C = in.size(1);
        // With fixed statistics first; its affine gradients are the sums that all ranks need.
        const TensorOptions kept{.dtype = statistics_dtype(in), .device = in.device()};
        const Tensor one = affine ? w : ones({C}, kept);
        const Tensor nil = affine ? b : zeros({C}, kept);
        const raw::BatchNormGrads g = raw::batch_norm_backward(
            grads[0], in, y, one, nil, mean, rstd, relu, false, true, true, added);
        const Tensor sums = empty({2, C}, {.dtype = DType::kF64, .device = in.device()});
        raw::copy_(raw::select(sums, 0, 0), g.bias);
        raw::copy_(raw::select(sums, 0, 1), g.weight);
        held->all_reduce(sums)->wait();
        // gx -= rstd w (mean(gy) + xhat mean(gy xhat)): again a batch norm with fixed statistics.
        const Tensor scale =
            raw::mul(raw::mul(rstd, raw::to(one, rstd.dtype())), -1 / std::max(count, 1.0));
        const auto scaled = [&](int64_t row) {
          return raw::mul(scale, raw::to(raw::select(sums, 0, row), rstd.dtype()));
        };
        std::vector<Tensor> out{
            raw::batch_norm_eval(in, scaled(1), scaled(0), g.x, false, mean, rstd)};
        if (affine) out.insert(out.end(), {g.weight, g.bias});
        if (added) out.push_back(relu ? g.residual : grads[0]);
        return out;
      });
}

int convert_sync_batch_norm(nn::Module& module, ProcessGroup& group) {
  std::vector<int> all(static_cast<size_t>(group.size()));
  std::iota(all.begin(), all.end(), 0);
  const std::shared_ptr<ProcessGroup> own = group.subgroup(all);
  int count = 0;
  for (const auto& [name, part] : module.named_modules()) {
    auto* norm = dynamic_cast<nn::BatchNorm*>(part);
    if (!norm) continue;
    ++count;
    norm->set_function([own](const Tensor& x, const Tensor& residual, const Tensor& running_mean,
                             const Tensor& running_var, const Tensor& weight, const Tensor& bias,
                             const BatchNormOptions& options) {
      return sync_batch_norm(*own, x, residual, running_mean, running_var, weight, bias, options);
    });
  }
  return count;
}

}  // namespace tarn::dist
