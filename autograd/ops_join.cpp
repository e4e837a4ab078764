// ops_join.cpp - joining, taking apart, padding, repeating, and their gradients.
#include <algorithm>
#include <limits>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/record.h"
#include "tarn/core/factory.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_index.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {

/// The gradient of cat: each input gets its part back, in its dtype.
class CatNode final : public Node {
 public:
  CatNode(std::span<const Tensor> inputs, int dim) : Node("cat", 1), dim_(dim) {
    for (const Tensor& x : inputs) {
      edges_store_.push_back(gradient_edge(x));
      parts_.push_back({x.numel() == 0 ? 0 : x.sizes()[dim], x.dtype(), x.sizes()});
    }
    set_edges(edges_store_.data(), static_cast<int>(edges_store_.size()));
  }
  Grads backward(std::span<const Tensor> grads) override {
    std::vector<Tensor> result(parts_.size());
    int64_t at = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      if (edges_store_[i].node) {
        result[i] = part.length == 0
                        ? zeros(part.sizes, {.dtype = part.dtype, .device = grads[0].device()})
                        : to(narrow(grads[0], dim_, at, part.length), part.dtype);
      }
      at += part.length;
    }
    return Grads(std::move(result));
  }

 private:
  struct Part {
    int64_t length;
    DType dtype;
    Shape sizes;
  };
  int dim_;
  std::vector<Edge> edges_store_;
  std::vector<Part> parts_;
};

/// The gradient of taking a tensor apart: that of the parts, joined once, however many there are.
class PartsNode final : public Node {
 public:
  PartsNode(const char* name, const Tensor& x, int dim, bool keeps_dim,
            const std::vector<Tensor>& parts)
      : Node(name, static_cast<int>(parts.size())),
        edge_(gradient_edge(x)),
        dim_(dim),
        keeps_dim_(keeps_dim),
        options_{.dtype = x.dtype(), .device = x.device()} {
    for (const Tensor& part : parts) sizes_.push_back(part.sizes());
    set_edges(&edge_, 1);
  }
  Grads backward(std::span<const Tensor> grads) override {
    std::vector<Tensor> all(grads.begin(), grads.end());
    for (size_t i = 0; i < all.size(); ++i) {
      if (!all[i].defined()) all[i] = zeros(sizes_[i], options_);
    }
    return Grads(keeps_dim_ ? cat(all, dim_) : stack(all, dim_));
  }

 private:
  Edge edge_;
  int dim_;
  bool keeps_dim_;
  TensorOptions options_;
  std::vector<Shape> sizes_;
};

/// parts are views of x along dim, all of it, in order.
std::vector<Tensor> record_parts(const char* name, const Tensor& x, int dim, bool keeps_dim,
                                 std::vector<Tensor> parts) {
  if (!parts.empty() && any_requires_grad(std::span(&x, 1))) {
    const Ref<Node> node(new PartsNode(name, x, dim, keeps_dim, parts));
    for (size_t i = 0; i < parts.size(); ++i) {
      set_history(parts[i], node, static_cast<uint32_t>(i));
    }
  }
  for (const Tensor& part : parts) detail::mark_view(part, x);
  return parts;
}

}  // namespace

Tensor cat(std::span<const Tensor> tensors, int64_t dim) {
  const OpScope scope("cat");
  const Tensor out = raw::cat(tensors, dim);
  if (is_floating(out.dtype()) && any_requires_grad(tensors)) {
    set_history(out, Ref<Node>(new CatNode(tensors, wrap_dim("cat", dim, out.dim()))), 0);
  }
  return out;
}

Tensor stack(const std::vector<Tensor>& tensors, int64_t dim) {
  TARN_CHECK_AS(ValueError, !tensors.empty(), "stack: at least one tensor is needed; got none");
  std::vector<Tensor> parts;
  for (size_t i = 0; i < tensors.size(); ++i) {
    raw::check_defined("stack", "each of the tensors", tensors[i]);
    raw::check_same_device("stack", tensors[0], tensors[i]);
    TARN_CHECK_AS(ShapeError, tensors[i].sizes() == tensors[0].sizes(),
                  "stack: all tensors must have one shape; got tensor 0=", tensors[0].describe(),
                  ", tensor ", i, "=", tensors[i].describe());
    parts.push_back(unsqueeze(tensors[i], dim));
  }
  const int rank = tensors[0].dim() + 1;
  return cat(parts, wrap_dim("stack", dim, rank));
}

std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& sizes, int64_t dim) {
  raw::check_defined("split", "x", x);
  const int d = wrap_dim("split", dim, x.dim());
  TARN_CHECK_AS(ShapeError, x.dim() > 0, "split: a 0-d tensor cannot be split");
  int64_t total = 0;
  for (int64_t n : sizes) {
    TARN_CHECK_AS(ValueError, n >= 0, "split: sizes must not be negative; got ", n);
    if (__builtin_add_overflow(total, n, &total)) total = std::numeric_limits<int64_t>::max();
  }
  TARN_CHECK_AS(ShapeError, total == x.sizes()[d], "split: sizes must add up to dimension ", d,
                " of x=", x.describe(), "; got a sum of ", total);
  std::vector<Tensor> parts;
  int64_t at = 0;
  for (int64_t n : sizes) {
    parts.push_back(raw::narrow(x, d, at, n));
    at += n;
  }
  return record_parts("split", x, d, true, std::move(parts));
}

std::vector<Tensor> split(const Tensor& x, int64_t size, int64_t dim) {
  raw::check_defined("split", "x", x);
  TARN_CHECK_AS(ValueError, size > 0, "split: size must be positive; got ", size);
  const int64_t n = x.dim() > 0 ? x.sizes()[wrap_dim("split", dim, x.dim())] : 0;
  std::vector<int64_t> sizes;
  for (int64_t at = 0; at < n; at += size) sizes.push_back(std::min(size, n - at));
  if (sizes.empty()) sizes.push_back(0);  // an empty tensor gives one empty part
  return split(x, sizes, dim);
}

std::vector<Tensor> chunk(const Tensor& x, int64_t chunks, int64_t dim) {
  raw::check_defined("chunk", "x", x);
  TARN_CHECK_AS(ValueError, chunks > 0, "chunk: the number of chunks must be positive; got ",
                chunks);
  TARN_CHECK_AS(ShapeError, x.dim() > 0, "chunk: a 0-d tensor cannot be split");
  const int64_t n = x.sizes()[wrap_dim("chunk", dim, x.dim())];
  if (n == 0) return split(x, std::vector<int64_t>(static_cast<size_t>(chunks), 0), dim);
  return split(x, (n - 1) / chunks + 1, dim);
}

std::vector<Tensor> unbind(const Tensor& x, int64_t dim) {
  raw::check_defined("unbind", "x", x);
  TARN_CHECK_AS(ShapeError, x.dim() > 0, "unbind: a 0-d tensor has no dimension to unbind");
  const int d = wrap_dim("unbind", dim, x.dim());
  std::vector<Tensor> parts;
  for (int64_t i = 0; i < x.sizes()[d]; ++i) parts.push_back(raw::select(x, d, i));
  return record_parts("unbind", x, d, false, std::move(parts));
}

namespace {

Tensor constant_pad(const Tensor& x, const Shape& pads, const Scalar& value) {
  const OpScope scope("pad");
  return record("pad", raw::constant_pad(x, pads, value), {x}, save(),
                [pads](const Saved&, const Tensor& g, Wants) {
                  Shape cut = pads;
                  for (int64_t& p : cut) p = -p;
                  return Grads(constant_pad(g, cut, 0));
                });
}

/// Which place of a dimension of size n the padded place i (before <= 0 <= i < n inside) shows.
int64_t shown(PadMode mode, int64_t i, int64_t n) {
  if (mode == PadMode::kReplicate) return std::clamp<int64_t>(i, 0, n - 1);
  if (mode == PadMode::kCircular) return (i + n) % n;
  return i < 0 ? -i : i >= n ? 2 * (n - 1) - i : i;
}

}  // namespace

Tensor pad(const Tensor& x, const Shape& pads, PadMode mode, const Scalar& value) {
  if (mode == PadMode::kConstant) return constant_pad(x, pads, value);
  raw::check_defined("pad", "x", x);
  TARN_CHECK_AS(ValueError, pads.dim() % 2 == 0 && pads.dim() / 2 <= x.dim(),
                "pad: pads come in pairs {before, after} from the last dimension on; got ", pads,
                " for x=", x.describe());
  if (mode == PadMode::kCircular) {
    // What is cut away does not come round again, as in PyTorch.
    Shape cut = pads, grow = pads;
    for (int i = 0; i < pads.dim(); ++i) {
      cut[i] = std::min<int64_t>(pads[i], 0);
      grow[i] = std::max<int64_t>(pads[i], 0);
    }
    if (!(grow == pads)) return pad(constant_pad(x, cut, 0), grow, mode);
  }
  Tensor out = x;
  for (int k = 0; k < pads.dim() / 2; ++k) {
    const int d = x.dim() - 1 - k;
    const int64_t n = x.sizes()[d], before = pads[2 * k], after = pads[2 * k + 1];
    if (before == 0 && after == 0) continue;
    const int64_t most = mode == PadMode::kReflect    ? n - 1
                         : mode == PadMode::kCircular ? n
                         : n > 0                      ? std::max(before, after)
                                                      : 0;
    int64_t size = n;
    const bool counts =
        !__builtin_add_overflow(size, before, &size) && !__builtin_add_overflow(size, after, &size);
    TARN_CHECK_AS(ValueError, counts && std::max(before, after) <= most && size >= 0,
                  "pad: pads of this mode must be at most ", most, " and leave something at ",
                  "dimension ", d, " of x=", x.describe(), "; got {", before, ", ", after, "}");
    const Tensor places = empty({size}, {.dtype = DType::kI64});
    auto* place = places.data<int64_t>();
    for (int64_t i = 0; i < size; ++i) place[i] = shown(mode, i - before, n);
    out = index_select(out, d, places.to(x.device()));
  }
  return out.is_same(x) ? clone(x) : out;
}

Tensor roll(const Tensor& x, const Shape& shifts, const Shape& dims) {
  raw::check_defined("roll", "x", x);
  TARN_CHECK_AS(ValueError, shifts.dim() == dims.dim(),
                "roll: one shift per dimension is needed; got shifts ", shifts, " and dims ", dims);
  Tensor out = x;
  for (int i = 0; i < dims.dim(); ++i) {
    const int d = wrap_dim("roll", dims[i], x.dim());
    const int64_t n = x.dim() > 0 ? x.sizes()[d] : 0;
    const int64_t s = n > 0 ? (shifts[i] % n + n) % n : 0;
    if (s > 0) out = cat({narrow(out, d, n - s, s), narrow(out, d, 0, n - s)}, d);
  }
  return out.is_same(x) ? clone(x) : out;
}

Tensor repeat_interleave(const Tensor& x, int64_t repeats, int64_t dim) {
  raw::check_defined("repeat_interleave", "x", x);
  TARN_CHECK_AS(ValueError, repeats >= 0, "repeat_interleave: repeats must not be negative; got ",
                repeats);
  const int d = wrap_dim("repeat_interleave", dim, x.dim());
  const Tensor whole = x.dim() == 0 ? reshape(x, {1}) : x;
  Shape wide = whole.sizes(), sizes = whole.sizes();
  wide.insert(d + 1, repeats);
  sizes[d] = wrapping_mul(sizes[d], repeats);  // expand refuses what overflows
  return reshape(expand(unsqueeze(whole, d + 1), wide), sizes);
}

Tensor repeat(const Tensor& x, const Shape& repeats) {
  raw::check_defined("repeat", "x", x);
  TARN_CHECK_AS(ValueError, repeats.dim() >= x.dim(),
                "repeat: at least one number per dimension is needed; got ", repeats,
                " for x=", x.describe());
  Shape sizes = x.sizes();
  while (sizes.dim() < repeats.dim()) sizes.insert(0, 1);
  Tensor out = reshape(x, sizes);
  for (int d = 0; d < repeats.dim(); ++d) {
    TARN_CHECK_AS(ValueError, repeats[d] >= 0, "repeat: numbers must not be negative; got ",
                  repeats);
    if (repeats[d] == 1) continue;
    // [.., 1, n, ..] stretched to [.., r, n, ..] and merged.
    Shape wide = out.sizes();
    wide.insert(d, repeats[d]);
    sizes[d] = wrapping_mul(sizes[d], repeats[d]);  // expand refuses what overflows
    out = reshape(expand(unsqueeze(out, d), wide), sizes);
  }
  return out.is_same(x) || out.storage() == x.storage() ? clone(out) : out;
}

}  // namespace tarn
