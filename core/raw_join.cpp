// raw_join.cpp - concatenation and constant padding: copies into parts of a new tensor.
#include <algorithm>

#include "tarn/core/factory.h"
#include "tarn/core/number_check.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_index.h"
#include "tarn/core/views.h"

namespace tarn::raw {
namespace {

/// PyTorch lets a tensor of sizes [0] stand for "nothing" among tensors of any rank.
bool is_nothing(const Tensor& x) {
  return x.dim() == 1 && x.numel() == 0;
}

}  // namespace

Tensor cat(std::span<const Tensor> tensors, int64_t dim) {
  TARN_CHECK_AS(ValueError, !tensors.empty(), "cat: at least one tensor is needed; got none");
  const Tensor* first = nullptr;
  DType dtype = DType::kBool;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& x = tensors[i];
    TARN_CHECK_AS(ValueError, x.defined(), "cat: tensor ", i, " is undefined");
    TARN_CHECK_AS(ShapeError, x.dim() > 0, "cat: 0-d tensors cannot be joined; got tensor ", i, "=",
                  x.describe(), "; use stack");
    dtype = i == 0 ? x.dtype() : promote_types(dtype, x.dtype());
    if (!first && !is_nothing(x)) first = &x;
  }
  if (!first) first = &tensors[0];
  const int d = wrap_dim("cat", dim, first->dim());
  int64_t total = 0;
  bool channels_last = true;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& x = tensors[i];
    check_same_device("cat", *first, x);
    if (is_nothing(x) && first->dim() != 1) continue;
    Shape expected = first->sizes();
    if (x.dim() == first->dim()) expected[d] = x.sizes()[d];
    TARN_CHECK_AS(ShapeError, x.sizes() == expected, "cat: sizes must match outside dimension ", d,
                  "; got tensor 0=", first->describe(), ", tensor ", i, "=", x.describe());
    total += x.sizes()[d];
    channels_last =
        channels_last && x.is_contiguous(MemoryFormat::kChannelsLast) && !x.is_contiguous();
  }
  Shape sizes = first->sizes();
  sizes[d] = total;
  const auto format = channels_last ? MemoryFormat::kChannelsLast : MemoryFormat::kContiguous;
  const Tensor out = empty(sizes, {.dtype = dtype, .device = first->device(), .format = format});
  int64_t at = 0;
  for (const Tensor& x : tensors) {
    if (x.numel() == 0) continue;
    copy_(narrow(out, d, at, x.sizes()[d]), x);
    at += x.sizes()[d];
  }
  return out;
}

Tensor constant_pad(const Tensor& x, const Shape& pads, const Scalar& value) {
  check_defined("pad", "x", x);
  TARN_CHECK_AS(ValueError, pads.dim() % 2 == 0 && pads.dim() / 2 <= x.dim(),
                "pad: pads come in pairs {before, after} from the last dimension on; got ", pads,
                " for x=", x.describe());
  check_number_fits("pad", value, x.dtype());
  Shape sizes = x.sizes();
  for (int k = 0; k < pads.dim() / 2; ++k) {
    int64_t& size = sizes[x.dim() - 1 - k];
    const bool counts = !__builtin_add_overflow(size, pads[2 * k], &size) &&
                        !__builtin_add_overflow(size, pads[2 * k + 1], &size);
    TARN_CHECK_AS(ShapeError, counts, "pad: more places than 64 bits can count; got pads ", pads,
                  " for x=", x.describe());
    TARN_CHECK_AS(ShapeError, size >= 0, "pad: cuts more than there is; got pads ", pads,
                  " for x=", x.describe());
  }
  const bool last = x.is_contiguous(MemoryFormat::kChannelsLast) && !x.is_contiguous();
  const auto format = last ? MemoryFormat::kChannelsLast : MemoryFormat::kContiguous;
  const Tensor out =
      full(sizes, value, {.dtype = x.dtype(), .device = x.device(), .format = format});
  Tensor to = out, from = x;
  for (int k = 0; k < pads.dim() / 2; ++k) {
    const int d = x.dim() - 1 - k;
    const int64_t before = pads[2 * k], after = pads[2 * k + 1];
    const int64_t cut_front = std::max<int64_t>(0, -before),
                  cut_back = std::max<int64_t>(0, -after);
    const int64_t length = std::max<int64_t>(0, x.sizes()[d] - cut_front - cut_back);
    from = narrow(from, d, std::min(cut_front, x.sizes()[d]), length);
    to = narrow(to, d, std::min(std::max<int64_t>(0, before), sizes[d]), length);
  }
  if (to.numel() > 0) copy_(to, from);
  return out;
}

}  // namespace tarn::raw
