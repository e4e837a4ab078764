// ops_cross_entropy.cpp - cross entropy (fused with its softmax) and the negative log likelihood.
#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/record.h"
#include "tarn/autograd/reduce_spread.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_softmax.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {

/// Class scores of any accepted sizes, seen as [M, C], and the sizes of the targets.
struct ClassRows {
  Shape sizes, target_sizes;
  int64_t rows = 1, classes = 1;

  ClassRows(const char* op, const Tensor& x) : sizes(x.sizes()) {
    TARN_CHECK_AS(ShapeError, x.dim() >= 1, op,
                  ": x must be [C], [N, C] or [N, C, d1, ...]; got x=", x.describe());
    TARN_CHECK_AS(DTypeError, is_floating(x.dtype()), op,
                  ": x must be floating; got x=", x.describe());
    const int at = x.dim() == 1 ? 0 : 1;
    classes = x.size(at);
    target_sizes = sizes;
    target_sizes.erase(at);
    rows = target_sizes.numel();
    TARN_CHECK_AS(ShapeError, classes > 0, op,
                  ": there must be at least one class; got x=", x.describe());
  }
  Tensor matrix(const Tensor& x) const {
    if (sizes.dim() <= 2) return reshape(x, {rows, classes});
    Shape order{0};
    for (int d = 2; d < sizes.dim(); ++d) order.push_back(d);
    order.push_back(1);
    return reshape(permute(x, order), {rows, classes});
  }
  Tensor back(const Tensor& matrix) const {
    if (sizes.dim() <= 2) return reshape(matrix, sizes);
    Shape moved{sizes[0]}, order{0, sizes.dim() - 1};
    for (int d = 2; d < sizes.dim(); ++d) {
      moved.push_back(sizes[d]);
      order.push_back(d - 1);
    }
    moved.push_back(classes);
    return permute(reshape(matrix, moved), order);
  }
};

void check_weight(const char* op, const Tensor& weight, const Tensor& x, int64_t classes) {
  if (!weight.defined()) return;
  raw::check_same_device(op, x, weight);
  TARN_CHECK_AS(ShapeError, weight.sizes() == Shape{classes}, op, ": weight must be [C] = [",
                classes, "]; got weight=", weight.describe(), ", x=", x.describe());
  TARN_CHECK_AS(DTypeError, is_floating(weight.dtype()), op,
                ": weight must be floating; got weight=", weight.describe());
}

Tensor checked_labels(const char* op, const Tensor& target, const Tensor& x, const ClassRows& v,
                      int64_t ignore_index) {
  raw::check_same_device(op, x, target);
  TARN_CHECK_AS(ShapeError, target.sizes() == v.target_sizes, op,
                ": target must hold one class index per item, sizes ", v.target_sizes,
                ", or probabilities of x's sizes; got x=", x.describe(),
                ", target=", target.describe());
  TARN_CHECK_AS(DTypeError, is_integral(target.dtype()), op,
                ": class indices must be integers; got target=", target.describe());
  const Tensor labels = raw::contiguous(raw::to(target, DType::kI64));
  raw::check_targets(op, labels, v.classes, ignore_index);
  return raw::reshape(labels, {v.rows});
}

struct CrossEntropyRecord {
  ClassRows view;
  CrossEntropyOptions options;
};

// Saved: x, labels, weight, stats, divisor (undefined unless mean). Gradient of the row losses.
Tensor row_gradient(const Saved& s, const Tensor& g, const CrossEntropyRecord& r) {
  const DType dtype = s[3].dtype();
  if (r.options.reduction == Reduction::kNone) return reshape(to(g, dtype), {r.view.rows});
  const Tensor one = s[4].defined() ? div(to(g, dtype), s[4]) : to(g, dtype);
  return expand(reshape(one, {1}), {r.view.rows});
}

// The gradient in recorded operations: g (p total - kept at the target - share w).
Tensor composed_gradient(const Saved& s, const Tensor& g, const CrossEntropyRecord& r) {
  const double e = r.options.label_smoothing;
  const double share = e / static_cast<double>(r.view.classes);
  const DType dtype = s[3].dtype();
  const Tensor x = to(r.view.matrix(s[0]), dtype), labels = raw::unsqueeze(s[1], 1);
  const Tensor counts = raw::to(raw::ne(labels, Scalar(r.options.ignore_index)), dtype);
  const Tensor weight = s[2].defined()
                            ? to(s[2], dtype)
                            : ones({r.view.classes}, {.dtype = dtype, .device = x.device()});
  const Tensor kept = mul(raw::narrow(s[3], 1, 2, 1), 1 - e);
  const Tensor total = add(kept, mul(counts, mul(sum(weight), share)));
  const Tensor at = to(detail::chosen(labels, {r.view.rows, r.view.classes}, 1), dtype);
  const Tensor inner =
      sub(sub(mul(softmax(x, 1), total), mul(at, kept)), mul(counts, mul(weight, share)));
  // Rows that do not count have g / 0 under an empty mean: they are 0, not NaN.
  const Tensor rows =
      masked_fill(unsqueeze(row_gradient(s, g, r), 1), raw::eq(counts, Scalar(0)), 0);
  return r.view.back(to(mul(inner, rows), s[0].dtype()));
}

Tensor cross_entropy_gradient(const Saved& s, const Tensor& g, const CrossEntropyRecord& r) {
  if (grad_enabled()) return composed_gradient(s, g, r);
  const Tensor gx =
      raw::cross_entropy_backward(row_gradient(s, g, r), r.view.matrix(s[0]), s[1], s[2],
                                  r.options.ignore_index, r.options.label_smoothing, s[3]);
  return r.view.back(gx);
}

Tensor cross_entropy_of_labels(const Tensor& x, const Tensor& labels, const Tensor& weight,
                               const CrossEntropyRecord& r) {
  const ClassRows& v = r.view;
  Tensor out, divisor;
  raw::CrossEntropyRows rows;
  {
    NoGradGuard no_grad;
    rows = raw::cross_entropy(v.matrix(x), labels, weight, r.options.ignore_index,
                              r.options.label_smoothing);
    if (r.options.reduction == Reduction::kNone) {
      out = raw::resized_result(rows.loss, v.target_sizes);
    } else if (r.options.reduction == Reduction::kSum) {
      out = raw::select(rows.totals, 0, 0);
    } else {
      divisor = raw::select(rows.totals, 0, 1);
      out = raw::clone(raw::select(rows.totals, 0, 2));  // callers may write to it: not a part
    }
    out = raw::to(out, widened_dtype(x));
  }
  return record("cross_entropy", out, {x}, save(x, labels, weight, rows.stats, divisor),
                [r](const Saved& s, const Tensor& g, Wants) {
                  return Grads(cross_entropy_gradient(s, g, r));
                });
}

Tensor cross_entropy_of_probabilities(const Tensor& x, const Tensor& target, const Tensor& weight,
                                      const CrossEntropyRecord& r) {
  const double e = r.options.label_smoothing;
  Tensor t = r.view.matrix(target);
  if (e > 0) t = add(mul(t, 1 - e), e / static_cast<double>(r.view.classes));
  Tensor terms = mul(log_softmax(r.view.matrix(x), 1), t);
  if (weight.defined()) terms = mul(terms, to(weight, x.dtype()));
  const Tensor rows = neg(sum(terms, {1}));
  if (r.options.reduction == Reduction::kNone) return reshape(rows, r.view.target_sizes);
  return r.options.reduction == Reduction::kSum ? sum(rows) : mean(rows);
}

// Rows or items, ignored or not, with weights or without: no mean over a batch is agreed upon.
void check_reduction(const char* op, Reduction reduction) {
  TARN_CHECK_AS(ValueError, reduction != Reduction::kBatchMean, op,
                ": the reduction must be kNone, kMean or kSum; got kBatchMean; kMean divides by "
                "the items that count");
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& target, const Tensor& weight,
                     const CrossEntropyOptions& options) {
  constexpr const char* op = "cross_entropy";
  raw::check_defined(op, "x", logits);
  raw::check_defined(op, "target", target);
  TARN_CHECK_AS(ValueError, options.label_smoothing >= 0 && options.label_smoothing <= 1, op,
                ": label_smoothing must be in [0, 1]; got ", options.label_smoothing);
  check_reduction(op, options.reduction);
  const CrossEntropyRecord r{ClassRows(op, logits), options};
  check_weight(op, weight, logits, r.view.classes);
  if (is_floating(target.dtype()) && target.sizes() == logits.sizes()) {
    raw::check_same_device(op, logits, target);
    if (const auto c = cast(CastPolicy::kF32, logits)) {
      return cross_entropy(c[0], target, weight, options);
    }
    return cross_entropy_of_probabilities(logits, to(target, logits.dtype()), weight, r);
  }
  const Tensor labels = checked_labels(op, target, logits, r.view, options.ignore_index);
  return cross_entropy_of_labels(logits, labels, weight, r);
}

Tensor nll_loss(const Tensor& x, const Tensor& target, const Tensor& weight, int64_t ignore_index,
                Reduction reduction) {
  // cross_entropy needs no such line: its kernels read halves and compute in f32.
  if (const auto c = cast(CastPolicy::kF32, x, weight)) {
    return nll_loss(c[0], target, c[1], ignore_index, reduction);
  }
  constexpr const char* op = "nll_loss";
  raw::check_defined(op, "x", x);
  raw::check_defined(op, "target", target);
  check_reduction(op, reduction);
  const ClassRows v(op, x);
  check_weight(op, weight, x, v.classes);
  const Tensor labels = raw::unsqueeze(checked_labels(op, target, x, v, ignore_index), 1);
  const Tensor ignored = raw::eq(labels, Scalar(ignore_index));
  const Tensor at = raw::to(masked_fill(labels, ignored, 0), DType::kI64);
  const TensorOptions like_x{.dtype = x.dtype(), .device = x.device()};
  const Tensor classes = weight.defined() ? raw::to(weight, x.dtype()) : ones({v.classes}, like_x);
  const Tensor row_weight =
      masked_fill(unsqueeze(index_select(classes, 0, raw::reshape(at, {v.rows})), 1), ignored, 0);
  const Tensor picked = masked_fill(gather(v.matrix(x), 1, at), ignored, 0);
  const Tensor rows = neg(mul(picked, row_weight));
  if (reduction == Reduction::kNone) return reshape(rows, v.target_sizes);
  if (reduction == Reduction::kSum) return sum(rows);
  return div(sum(rows), sum(row_weight));
}

}  // namespace tarn
