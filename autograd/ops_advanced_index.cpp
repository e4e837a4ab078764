// ops_advanced_index.cpp - x[tensors...]: reduced to picking and writing rows of a matrix.
//
// The indexed dimensions are moved to the front and merged; the entries become one tensor of row
// numbers. So reading is one index_select, writing one index_add or index_copy, and both get their
// gradients from there.
#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_index.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {

struct RowPlan {
  Shape order;     // permutation that brings the indexed dimensions to the front
  Shape back;      // its inverse
  Shape permuted;  // sizes after `order`
  int64_t rows = 1;
  Tensor row;         // i64 [count]: the rows meant
  Shape index_sizes;  // broadcast sizes of the entries
  Shape rest;         // sizes of the dimensions that are not indexed
  int result_at = 0;  // where index_sizes stand in the result
  bool neighbours = true;
};

/// One entry per dimension: masks become the positions of their true elements.
std::vector<Tensor> entries_of(const char* op, const Tensor& x,
                               const std::vector<Tensor>& indices) {
  std::vector<Tensor> entries;
  for (const Tensor& entry : indices) {
    if (!entry.defined() || entry.dtype() != DType::kBool) {
      entries.push_back(entry);
      continue;
    }
    TARN_CHECK_AS(ShapeError, entry.dim() > 0, op, ": a mask must have at least one dimension");
    const int first = static_cast<int>(entries.size());
    for (int d = 0; d < entry.dim(); ++d) {
      TARN_CHECK_AS(IndexError, first + d < x.dim() && entry.sizes()[d] == x.sizes()[first + d], op,
                    ": a mask must have the sizes of the dimensions it picks from; got mask=",
                    entry.describe(), " for x=", x.describe(), " from dimension ", first);
    }
    const Tensor positions = raw::nonzero(entry);
    for (int d = 0; d < entry.dim(); ++d) entries.push_back(raw::select(positions, 1, d));
  }
  TARN_CHECK_AS(IndexError, static_cast<int>(entries.size()) <= x.dim(), op, ": too many indices (",
                entries.size(), ") for x=", x.describe());
  entries.resize(static_cast<size_t>(x.dim()));
  return entries;
}

RowPlan plan_rows(const char* op, const Tensor& x, const std::vector<Tensor>& indices) {
  raw::check_defined(op, "x", x);
  const std::vector<Tensor> entries = entries_of(op, x, indices);
  RowPlan plan;
  Shape indexed, kept;
  for (int d = 0; d < x.dim(); ++d) {
    if (!entries[static_cast<size_t>(d)].defined()) {
      kept.push_back(d);
      plan.rest.push_back(x.sizes()[d]);
      continue;
    }
    if (!indexed.empty() && indexed.back() != d - 1) plan.neighbours = false;
    indexed.push_back(d);
    plan.rows *= x.sizes()[d];
    plan.index_sizes =
        broadcast_shapes(op, plan.index_sizes, entries[static_cast<size_t>(d)].sizes());
  }
  TARN_CHECK_AS(ValueError, !indexed.empty(), op,
                ": at least one index is needed for x=", x.describe());
  plan.result_at = plan.neighbours ? static_cast<int>(indexed[0]) : 0;
  for (int64_t d : indexed) {
    const Tensor& entry = entries[static_cast<size_t>(d)];
    raw::check_same_device(op, x, entry);
    Tensor ix = raw::checked_index(op, entry, d, x.sizes()[static_cast<int>(d)], true);
    if (plan.row.defined()) {
      ix = raw::add(raw::mul(plan.row, x.sizes()[static_cast<int>(d)]), ix);
    }
    plan.row = ix;
    plan.order.push_back(d);
  }
  plan.row = raw::reshape(raw::expand(plan.row, plan.index_sizes), {-1});
  for (int64_t d : kept) plan.order.push_back(d);
  plan.back = Shape::filled(x.dim(), 0);
  for (int i = 0; i < x.dim(); ++i) {
    plan.back[static_cast<int>(plan.order[i])] = i;
    plan.permuted.push_back(x.sizes()[static_cast<int>(plan.order[i])]);
  }
  return plan;
}

/// x as [rows, rest...].
Tensor as_rows(const Tensor& x, const RowPlan& plan) {
  Shape sizes{plan.rows};
  for (int64_t n : plan.rest) sizes.push_back(n);
  return reshape(permute(x, plan.order), sizes);
}

/// Sizes of the result, and the permutation from [index_sizes..., rest...] to it and back.
struct ResultOrder {
  Shape front, sizes, to_result, to_front;
  explicit ResultOrder(const RowPlan& plan) {
    const int k = plan.index_sizes.dim(), n = k + plan.rest.dim();
    for (int64_t s : plan.index_sizes) front.push_back(s);
    for (int64_t s : plan.rest) front.push_back(s);
    for (int i = 0; i < plan.result_at; ++i) to_result.push_back(k + i);
    for (int i = 0; i < k; ++i) to_result.push_back(i);
    for (int i = plan.result_at; i < plan.rest.dim(); ++i) to_result.push_back(k + i);
    to_front = Shape::filled(n, 0);
    for (int i = 0; i < n; ++i) {
      sizes.push_back(front[static_cast<int>(to_result[i])]);
      to_front[static_cast<int>(to_result[i])] = i;
    }
  }
};

/// values broadcast to the result's sizes, as [count, rest...].
Tensor value_rows(const RowPlan& plan, const Tensor& x, const Tensor& values) {
  const ResultOrder result(plan);
  raw::check_defined("index_put", "values", values);
  raw::check_same_device("index_put", x, values);
  const Tensor v = to(values, x.dtype());
  TARN_CHECK_AS(ShapeError, broadcast_shapes("index_put", v.sizes(), result.sizes) == result.sizes,
                "index_put: values must broadcast to ", result.sizes,
                "; got values=", values.describe());
  Shape sizes{plan.row.numel()};
  for (int64_t n : plan.rest) sizes.push_back(n);
  return reshape(permute(expand(v, result.sizes), result.to_front), sizes);
}

}  // namespace

Tensor index(const Tensor& x, const std::vector<Tensor>& indices) {
  const RowPlan plan = plan_rows("index", x, indices);
  const ResultOrder result(plan);
  const Tensor picked = index_select(as_rows(x, plan), 0, plan.row);
  return permute(reshape(picked, result.front), result.to_result);
}

Tensor index_put(const Tensor& x, const std::vector<Tensor>& indices, const Tensor& values,
                 bool accumulate) {
  const RowPlan plan = plan_rows("index_put", x, indices);
  const Tensor rows = as_rows(x, plan), src = value_rows(plan, x, values);
  const Tensor out =
      accumulate ? index_add(rows, 0, plan.row, src) : index_copy(rows, 0, plan.row, src);
  return permute(reshape(out, plan.permuted), plan.back);
}

const Tensor& index_put_(const Tensor& x, const std::vector<Tensor>& indices, const Tensor& values,
                         bool accumulate) {
  // Copied back whole: correct for any overlap of values and x, and recorded by copy_.
  copy_(x, index_put(x, indices, values, accumulate));
  return x;
}

}  // namespace tarn
