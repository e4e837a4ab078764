// ops_shape.cpp - views, copies and casts, and their gradients.
#include "tarn/autograd/functions.h"
#include "tarn/autograd/record.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {

// Gradient of taking a part: zeros of the whole with the part's gradient written in. `show` finds
// the part in the whole. Differentiable itself: its gradient is the part again.
template <class Show>
Tensor part_backward(const Tensor& grad, const Shape& whole, Show show) {
  Tensor out = zeros(whole, {.dtype = grad.dtype(), .device = grad.device()});
  raw::copy_(show(out), grad);
  return record("part_backward", out, {grad}, save(), [show](const Saved&, const Tensor& g, Wants) {
    return Grads(record_view("part", show(g), g,
                             [show, whole = g.sizes()](const Saved&, const Tensor& gg, Wants) {
                               return Grads(part_backward(gg, whole, show));
                             }));
  });
}

template <class Show>
Tensor part(const char* name, const Tensor& x, Show show) {
  return record_view(name, show(x), x,
                     [show, whole = x.sizes()](const Saved&, const Tensor& g, Wants) {
                       return Grads(part_backward(g, whole, show));
                     });
}

// Views that only rearrange: the gradient is reshaped back.
Tensor back_to_sizes(const char* name, Tensor out, const Tensor& x) {
  return record_view(
      name, std::move(out), x,
      [from = x.sizes()](const Saved&, const Tensor& g, Wants) { return Grads(reshape(g, from)); });
}

}  // namespace

Tensor view(const Tensor& x, const Shape& sizes) {
  return back_to_sizes("view", raw::view(x, sizes), x);
}
Tensor reshape(const Tensor& x, const Shape& sizes) {
  return back_to_sizes("reshape", raw::reshape(x, sizes), x);
}
Tensor flatten(const Tensor& x, int64_t start, int64_t end) {
  const int first = wrap_dim("flatten", start, x.dim()), last = wrap_dim("flatten", end, x.dim());
  TARN_CHECK_AS(ShapeError, first <= last, "flatten: start must not come after end; got ", start,
                " and ", end, " for ", x.describe());
  if (x.dim() == 0) return reshape(x, {1});
  Shape sizes;
  int64_t joined = 1;
  for (int d = 0; d < x.dim(); ++d) {
    if (d < first || d > last) {
      sizes.push_back(x.sizes()[d]);
    } else {
      joined *= x.sizes()[d];
      if (d == last) sizes.push_back(joined);
    }
  }
  return reshape(x, sizes);
}
Tensor transpose(const Tensor& x, int64_t a, int64_t b) {
  return record_view(
      "transpose", raw::transpose(x, a, b), x,
      [a, b](const Saved&, const Tensor& g, Wants) { return Grads(transpose(g, a, b)); });
}
Tensor t(const Tensor& x) {
  return record_view("t", raw::t(x), x,
                     [](const Saved&, const Tensor& g, Wants) { return Grads(t(g)); });
}
Tensor permute(const Tensor& x, const Shape& dims) {
  Tensor out = raw::permute(x, dims);
  Shape inverse = dims;
  for (int i = 0; i < dims.dim(); ++i) inverse[wrap_dim("permute", dims[i], x.dim())] = i;
  return record_view("permute", out, x, [inverse](const Saved&, const Tensor& g, Wants) {
    return Grads(permute(g, inverse));
  });
}
Tensor unsqueeze(const Tensor& x, int64_t dim) {
  return back_to_sizes("unsqueeze", raw::unsqueeze(x, dim), x);
}
Tensor squeeze(const Tensor& x) {
  return back_to_sizes("squeeze", raw::squeeze(x), x);
}
Tensor squeeze(const Tensor& x, int64_t dim) {
  return back_to_sizes("squeeze", raw::squeeze(x, dim), x);
}
Tensor expand(const Tensor& x, const Shape& sizes) {
  return record_view("expand", raw::expand(x, sizes), x,
                     [from = x.sizes()](const Saved&, const Tensor& g, Wants) {
                       return Grads(sum_to_size(g, from));
                     });
}
Tensor broadcast_to(const Tensor& x, const Shape& sizes) {
  return expand(x, sizes);
}
Tensor select(const Tensor& x, int64_t dim, int64_t index) {
  return part("select", x, [dim, index](const Tensor& w) { return raw::select(w, dim, index); });
}
Tensor slice(const Tensor& x, int64_t dim, int64_t start, int64_t end, int64_t step) {
  return part("slice", x, [=](const Tensor& w) { return raw::slice(w, dim, start, end, step); });
}
Tensor narrow(const Tensor& x, int64_t dim, int64_t start, int64_t length) {
  return part("narrow", x, [=](const Tensor& w) { return raw::narrow(w, dim, start, length); });
}
Tensor diagonal(const Tensor& x, int64_t offset, int64_t dim1, int64_t dim2) {
  return part("diagonal", x, [=](const Tensor& w) { return raw::diagonal(w, offset, dim1, dim2); });
}

Tensor contiguous(const Tensor& x, MemoryFormat format) {
  raw::check_defined("contiguous", "x", x);
  if (x.is_contiguous(format)) return x;
  return record("contiguous", raw::contiguous(x, format), {x}, save(),
                [](const Saved&, const Tensor& g, Wants) { return Grads(g); });
}
Tensor clone(const Tensor& x) {
  return record("clone", raw::clone(x), {x}, save(),
                [](const Saved&, const Tensor& g, Wants) { return Grads(g); });
}
Tensor to(const Tensor& x, DType dtype) {
  raw::check_defined("to", "x", x);
  if (x.dtype() == dtype) return x;
  Tensor out = raw::to(x, dtype);
  if (!is_floating(dtype)) return out;
  out = record("to", out, {x}, save(), [from = x.dtype()](const Saved&, const Tensor& g, Wants) {
    return Grads(to(g, from));
  });
  if (const AutogradMeta* meta = meta_of(out); meta && meta->grad_fn) {
    meta->grad_fn->set_converts_to(x.dtype());
  }
  return out;
}
Tensor to(const Tensor& x, Device device) {
  raw::check_defined("to", "x", x);
  if (x.device() == device) return x;
  return record(
      "to", raw::to(x, device), {x}, save(),
      [from = x.device()](const Saved&, const Tensor& g, Wants) { return Grads(to(g, from)); });
}

Tensor before_write(const Tensor& x, const Tensor& other) {
  if (!x.defined() || !other.defined() || !will_record(x, other)) return other;
  return other.storage() == x.storage() ? clone(other) : other;
}

void copy_(const Tensor& to, const Tensor& source) {
  const Tensor from = before_write(to, source);
  begin_inplace("copy_", to, from);
  raw::copy_(to, from);
  if (!is_floating(to.dtype())) return;  // no gradient comes through integers
  // The old values of `to` count for nothing, but its history must go.
  record("copy_", to, {to, from}, save(),
         [sizes = from.sizes(), dtype = from.dtype(), device = from.device()](
             const Saved&, const Tensor& g, Wants w) {
           return Grads(w[0] ? zeros_like(g) : Tensor(),
                        w[1] ? sum_to_size(tarn::to(tarn::to(g, dtype), device), sizes) : Tensor());
         });
}

}  // namespace tarn
