// raw_softmax.cpp - checks, layouts and allocation for softmax and cross entropy.
#include "tarn/core/raw_softmax.h"

#include "tarn/core/factory.h"
#include "tarn/core/kernel_call.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn::raw {
namespace {

/// NCHW sizes over NHWC memory, seen as the row-major tensor it is; dim follows.
struct RowMajorView {
  bool channels_last;
  int64_t dim;

  RowMajorView(const Tensor& x, int d)
      : channels_last(!x.is_contiguous() && x.is_contiguous(MemoryFormat::kChannelsLast)), dim(d) {
    constexpr int64_t kMoved[] = {0, 3, 1, 2};
    if (channels_last) dim = kMoved[d];
  }
  Tensor of(const Tensor& x) const {
    return channels_last ? raw::permute(contiguous(x, MemoryFormat::kChannelsLast), {0, 2, 3, 1})
                         : contiguous(x);
  }
};

}  // namespace

Tensor softmax(const Tensor& x, int64_t dim, bool log) {
  const char* op = log ? "log_softmax" : "softmax";
  const OpScope scope(op);
  check_defined(op, "x", x);
  TARN_CHECK_AS(DTypeError, is_floating(x.dtype()), op,
                ": x must be floating; got x=", x.describe(), "; pass a dtype to convert it");
  const RowMajorView view(x, wrap_dim(op, dim, x.dim()));
  const Tensor in = view.channels_last ? x : contiguous(x);
  Tensor out = empty_like(in);
  if (x.numel() > 0) {
    TARN_KERNEL(softmax, softmax, x.device(), view.of(in), view.dim, log, view.of(out));
  }
  return out;
}

Tensor softmax_backward(const Tensor& gy, const Tensor& y, int64_t dim, bool log) {
  const OpScope scope(log ? "log_softmax_backward" : "softmax_backward");
  const RowMajorView view(y, wrap_dim("softmax", dim, y.dim()));
  const Tensor result = view.channels_last ? y : contiguous(y);
  Tensor gx = empty_like(result);
  if (y.numel() > 0) {
    TARN_KERNEL(softmax, softmax_backward, y.device(), view.of(gy), view.of(result), view.dim, log,
                view.of(gx));
  }
  return gx;
}

void check_targets(const char* op, const Tensor& target, int64_t classes, int64_t ignore_index) {
  check_values(target, {.op = op,
                        .high = classes,
                        .labels = true,
                        .ignore_index = ignore_index,
                        .sizes = target.sizes()});
}

CrossEntropyRows cross_entropy(const Tensor& logits, const Tensor& target, const Tensor& weight,
                               int64_t ignore_index, double smoothing) {
  const OpScope scope("cross_entropy");
  const TensorOptions options{.dtype = accumulate_dtype(logits.dtype()), .device = logits.device()};
  CrossEntropyRows rows{empty({logits.size(0)}, options), empty({logits.size(0), 3}, options),
                        empty({3}, options)};
  TARN_KERNEL(softmax, cross_entropy, logits.device(), contiguous(logits), contiguous(target),
              weight.defined() ? contiguous(weight) : weight, ignore_index, smoothing, rows.loss,
              rows.stats, rows.totals);
  return rows;
}

Tensor cross_entropy_backward(const Tensor& gloss, const Tensor& logits, const Tensor& target,
                              const Tensor& weight, int64_t ignore_index, double smoothing,
                              const Tensor& stats) {
  const OpScope scope("cross_entropy_backward");
  Tensor glogits = empty(logits.sizes(), {.dtype = logits.dtype(), .device = logits.device()});
  if (glogits.numel() > 0) {
    TARN_KERNEL(softmax, cross_entropy_backward, logits.device(), to(gloss, stats.dtype()),
                contiguous(logits), contiguous(target),
                weight.defined() ? contiguous(weight) : weight, ignore_index, smoothing, stats,
                glogits);
  }
  return glogits;
}

}  // namespace tarn::raw
