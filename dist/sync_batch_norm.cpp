// sync_batch_norm.cpp - batch normalisation over the batches of all ranks.
#include "tarn/dist/sync_batch_norm.h"

#include <cmath>
#include <numeric>

#include "tarn/autograd/autocast.h"
#include "tarn/autograd/composed_norm.h"
#include "tarn/autograd/custom.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
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

// What backward needs beside the saved tensors, which are x, y, weight, bias, mean and rstd.
struct Record {
  std::shared_ptr<ProcessGroup> group;  // held until then
  bool relu, added;
  double eps, count;
};

// The sum over the ranks, recorded: what a rank gives counts in the results of all, so its gradient
// is the sum of theirs.
Tensor sum_over_ranks(const std::shared_ptr<ProcessGroup>& group, const Tensor& x) {
  return custom_function(
      "sum_over_ranks", {x},
      [&](CustomContext&, const std::vector<Tensor>& in) {
        const Tensor all = empty(in[0].sizes(), {.dtype = DType::kF64, .device = in[0].device()});
        raw::copy_(all, in[0]);
        group->all_reduce(all)->wait();
        return raw::to(all, in[0].dtype());
      },
      [group](const CustomContext&, const std::vector<Tensor>& grads) {
        return sum_over_ranks(group, grads[0]);
      });
}

// For create_graph: in recorded operations, with the statistics taken again so that they are on the
// tape, over the ranks as well.
std::vector<Tensor> composed_gradients(const Record& r, const CustomContext& ctx,
                                       const Tensor& gy) {
  const Tensor in = ctx.saved(0), w = ctx.saved(2), b = ctx.saved(3);
  const DType kept = statistics_dtype(in);
  Shape dims, per_channel = Shape::filled(in.dim(), 1);
  per_channel[1] = in.size(1);
  for (int d = 0; d < in.dim(); ++d) {
    if (d != 1) dims.push_back(d);
  }
  const auto mean_of = [&](const Tensor& t) {
    return mul(sum_over_ranks(r.group, sum(t, dims, true)), 1 / std::max(r.count, 1.0));
  };
  const Tensor g = to(r.relu ? masked_fill(gy, raw::le(ctx.saved(1), Scalar(0)), 0) : gy, kept);
  const Tensor weight = w.defined() ? reshape(to(w, kept), per_channel) : Tensor();
  const NormGrads grads = composed_norm_backward(g, to(in, kept), weight, dims, r.eps,
                                                 NormStatistics::kCentred, {}, {}, mean_of);
  return {to(grads.x, in.dtype()), w.defined() ? to(sum(grads.weight, dims), w.dtype()) : Tensor(),
          b.defined() ? to(sum(grads.bias, dims), b.dtype()) : Tensor(),
          r.added ? to(g, in.dtype()) : Tensor()};
}

// Halves are widened first and rounded once, in the end.
std::vector<Tensor> gradients(const Record& r, const CustomContext& ctx, const Tensor& gy) {
  const Tensor weight = ctx.saved(2), bias = ctx.saved(3), mean = ctx.saved(4), rstd = ctx.saved(5);
  const DType dtype = ctx.saved(0).dtype(), kept = rstd.dtype();
  const Tensor in = raw::to(ctx.saved(0), kept);
  const Tensor y = r.relu ? raw::to(ctx.saved(1), kept) : Tensor();
  const int64_t C = in.size(1);
  const TensorOptions like{.dtype = kept, .device = in.device()};
  const Tensor w = weight.defined() ? raw::to(weight, kept) : ones({C}, like);
  const Tensor b = bias.defined() ? raw::to(bias, kept) : zeros({C}, like);
  // With fixed statistics first; its affine gradients are the sums that all ranks need.
  const raw::BatchNormGrads g = raw::batch_norm_backward(raw::to(gy, kept), in, y, w, b, mean, rstd,
                                                         r.relu, false, true, true, r.added);
  const Tensor sums = empty({2, C}, {.dtype = DType::kF64, .device = in.device()});
  raw::copy_(raw::select(sums, 0, 0), g.bias);
  raw::copy_(raw::select(sums, 0, 1), g.weight);
  r.group->all_reduce(sums)->wait();
  // gx -= rstd w (mean(gy) + xhat mean(gy xhat)): again a batch norm with fixed statistics.
  const Tensor scale = raw::mul(raw::mul(rstd, w), -1 / std::max(r.count, 1.0));
  const auto scaled = [&](int64_t row) {
    return raw::mul(scale, raw::to(raw::select(sums, 0, row), kept));
  };
  const Tensor gx = raw::batch_norm_eval(in, scaled(1), scaled(0), g.x, false, mean, rstd);
  Tensor residual = r.added ? gy : Tensor();
  if (r.added && r.relu) residual = raw::to(g.residual, dtype);
  return {raw::to(gx, dtype), weight.defined() ? raw::to(g.weight, weight.dtype()) : Tensor(),
          bias.defined() ? raw::to(g.bias, bias.dtype()) : Tensor(), residual};
}

}  // namespace

Tensor sync_batch_norm(ProcessGroup& group, const Tensor& x, const Tensor& residual,
                       const Tensor& running_mean, const Tensor& running_var, const Tensor& weight,
                       const Tensor& bias, const BatchNormOptions& options) {
  // As batch_norm_act.
  if (residual.defined() && residual.dtype() != x.dtype()) {
    if (const auto c = cast(CastPolicy::kPromote, x, residual)) {
      return sync_batch_norm(group, c[0], c[1], running_mean, running_var, weight, bias, options);
    }
  }
  raw::check_batch_norm("sync_batch_norm", x, weight, bias, running_mean, running_var, residual);
  const Statistics s = merge(group, x.detach(), running_mean, running_var, options);
  const Record r{group.shared_from_this(), options.relu, residual.defined(), options.eps, s.count};
  return custom_function(
      "sync_batch_norm", {x, weight, bias, residual},
      [&](CustomContext& ctx, const std::vector<Tensor>& in) {
        Tensor y = raw::batch_norm_eval(in[0], in[1], in[2], in[3], r.relu, s.mean, s.rstd);
        ctx.save({in[0], y, in[1], in[2], s.mean, s.rstd});
        return y;
      },
      [r](const CustomContext& ctx, const std::vector<Tensor>& grads) {
        return grad_enabled() ? composed_gradients(r, ctx, grads[0]) : gradients(r, ctx, grads[0]);
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
