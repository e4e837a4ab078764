// ops_interpolate.cpp - resampling, one dimension after the other, and pixel shuffling.
//
// Along one dimension a place of the result is a sum of K places of x, with weights that do not
// depend on x:
//   L:  y[.., o, ..] = sum_k weight[k][o] * x[.., index[k][o], ..]
// L is linear, so its gradient is its adjoint A (each place of y handed back to where it came
// from), and the gradient of A is L again: neither keeps x or y for backward. index and weight are
// made on x's device, so that nothing waits for a copy.
#include <cmath>
#include <limits>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/autograd/record.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_index.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {

/// What happens along one dimension.
struct Line {
  int dim;
  int64_t in, out;
  double factor;  // 0: not given
};

struct Taps {
  Tensor index, weight;  // [K, out]
};

/// weight[k], laid along dimension d of a tensor of `rank` dimensions.
Tensor weight_along(const Tensor& weight, int64_t k, int d, int rank) {
  Shape sizes = Shape::filled(rank, 1);
  sizes[d] = weight.size(1);
  return raw::view(raw::select(weight, 0, k), sizes);
}

Tensor gather_taps(const Tensor& x, int d, const Tensor& index, const Tensor& weight);

// A: from [.., out, ..] to [.., in, ..].
Tensor scatter_taps(const Tensor& y, int d, int64_t in, const Tensor& index, const Tensor& weight) {
  Shape sizes = y.sizes();
  sizes[d] = in;
  Tensor x = zeros(sizes, {.dtype = y.dtype(), .device = y.device()});
  for (int64_t k = 0; k < index.size(0); ++k) {
    raw::index_add_(x, d, raw::select(index, 0, k),
                    raw::mul(y, weight_along(weight, k, d, y.dim())));
  }
  return record(
      "interpolate_backward", x, {y}, save(index, weight),
      [d](const Saved& s, const Tensor& g, Wants) { return Grads(gather_taps(g, d, s[0], s[1])); });
}

// L.
Tensor gather_taps(const Tensor& x, int d, const Tensor& index, const Tensor& weight) {
  Tensor y;
  for (int64_t k = 0; k < index.size(0); ++k) {
    const Tensor part = raw::mul(raw::index_select(x, d, raw::select(index, 0, k)),
                                 weight_along(weight, k, d, x.dim()));
    y = y.defined() ? raw::add(y, part) : part;
  }
  return record("interpolate", y, {x}, save(index, weight),
                [d, in = x.size(d)](const Saved& s, const Tensor& g, Wants) {
                  return Grads(scatter_taps(g, d, in, s[0], s[1]));
                });
}

/// Places of x for one of the result, in T: rounding decides at whole numbers, and is PyTorch's.
template <class T>
T step_of(const Line& line) {
  return line.factor > 0 ? static_cast<T>(1 / line.factor)
                         : static_cast<T>(line.in) / static_cast<T>(line.out);
}

double step_of(const Line& line, DType dtype) {
  return dtype == DType::kF64 ? step_of<double>(line) : static_cast<double>(step_of<float>(line));
}

// ---- nearest

/// True if floor(i * step) is i / times for every place i of the result.
template <class T>
bool repeats(const Line& line, int64_t times) {
  const T step = step_of<T>(line);
  for (int64_t i = 0; i < line.out; ++i) {
    const auto place = static_cast<float>(static_cast<T>(i) * step);  // as PyTorch, in f64 too
    if (static_cast<int64_t>(std::floor(place)) != i / times) return false;
  }
  return true;
}

/// How often each place is repeated; 0 if that is not all that happens.
int64_t whole_factor(const Line& line, DType dtype) {
  if (line.out % line.in != 0) return 0;
  const int64_t times = line.out / line.in;
  const bool whole =
      dtype == DType::kF64 ? repeats<double>(line, times) : repeats<float>(line, times);
  return whole ? times : 0;
}

Tensor nearest_along(const Tensor& x, const Line& line, DType dtype) {
  const auto index = [&] {
    const NoGradGuard no_grad;
    const Tensor places = arange(line.out, {.dtype = dtype, .device = x.device()});
    const Tensor exact = (places * step_of(line, dtype)).to(DType::kF32);  // as in repeats()
    return clamp_max(floor(exact), static_cast<double>(line.in - 1)).to(DType::kI64);
  }();
  return index_select(x, line.dim, index);
}

Tensor nearest(Tensor x, const std::vector<Line>& lines, DType dtype) {
  Shape repeated = x.sizes(), sizes = x.sizes();
  std::vector<Line> rest;
  Tensor y = x;
  for (size_t i = lines.size(); i-- > 0;) {  // from the last, so that earlier numbers still hold
    const Line& line = lines[i];
    if (line.in == line.out && line.factor == 0) continue;
    const int64_t times = whole_factor(line, dtype);
    if (times == 0) {
      rest.push_back(line);
    } else if (times > 1) {
      y = unsqueeze(y, line.dim + 1);
      repeated.insert(line.dim + 1, times);
      sizes[line.dim] = line.out;
    }
  }
  if (y.dim() != x.dim()) y = reshape(expand(y, repeated), sizes);
  for (const Line& line : rest) y = nearest_along(y, line, dtype);
  return y;
}

// ---- linear and cubic

/// Keys' cubic convolution at distances t + 1, t, 1 - t and 2 - t: [4, out].
Tensor cubic_weights(const Tensor& t) {
  constexpr double a = -0.75;
  const auto near = [](const Tensor& u) { return (u * (a + 2) - (a + 3)) * u * u + 1; };
  const auto far = [](const Tensor& u) { return ((u * a - 5 * a) * u + 8 * a) * u - 4 * a; };
  return stack({far(t + 1), near(t), near(1 - t), far(2 - t)});
}

Taps taps_of(const Line& line, bool cubic, bool align_corners, const TensorOptions& options) {
  const NoGradGuard no_grad;
  const double last = static_cast<double>(line.in - 1);
  Tensor at = arange(line.out, options);
  if (align_corners) {
    // In x's dtype, as PyTorch rounds it.
    const double step = line.out == 1 ? 0
                        : options.dtype == DType::kF64
                            ? last / static_cast<double>(line.out - 1)
                            : static_cast<float>(last) / static_cast<float>(line.out - 1);
    at = at * step;
  } else {
    at = (at + 0.5) * step_of(line, options.dtype) - 0.5;
    if (!cubic) at = clamp_min(at, 0);
  }
  const Tensor below = cubic ? floor(at) : clamp_max(floor(at), last);
  const Tensor t = clamp(at - below, 0, 1);
  const Tensor steps = cubic ? arange(-1, 3, 1, options) : arange(2, options);
  return {clamp(below + steps.unsqueeze(1), 0, last).to(DType::kI64),
          cubic ? cubic_weights(t) : stack({1 - t, t})};
}

// ---- options

int spatial_dims(InterpolateMode mode) {
  switch (mode) {
    case InterpolateMode::kLinear:
      return 1;
    case InterpolateMode::kBilinear:
    case InterpolateMode::kBicubic:
      return 2;
    case InterpolateMode::kTrilinear:
      return 3;
    case InterpolateMode::kNearest:
    case InterpolateMode::kArea:
      break;
  }
  return 0;  // any
}

std::vector<Line> checked_lines(const Tensor& x, const InterpolateOptions& o) {
  raw::check_defined("interpolate", "x", x);
  const int spatial = x.dim() - 2, wanted = spatial_dims(o.mode);
  TARN_CHECK_AS(ShapeError, spatial >= 1 && spatial <= 3 && (wanted == 0 || wanted == spatial),
                "interpolate: x must be [N, C, L], [N, C, H, W] or [N, C, D, H, W], with linear, "
                "bilinear or bicubic, and trilinear in this order; got x=",
                x.describe());
  const auto given = static_cast<size_t>(spatial);
  const std::vector<double>& factors = o.scale_factor.values;
  TARN_CHECK_AS(ValueError, o.size.empty() != factors.empty(),
                "interpolate: give either size or scale_factor; got ",
                factors.empty() ? "neither" : "both");
  const size_t count = factors.empty() ? o.size.size() : factors.size();
  TARN_CHECK_AS(ValueError, count == 1 || count == given,
                "interpolate: size and scale_factor have one entry, or one for each of the ",
                spatial, " dimensions after [N, C]; got ", count);
  TARN_CHECK_AS(ValueError, wanted != 0 || !o.align_corners,
                "interpolate: align_corners is for linear, bilinear, trilinear and bicubic");
  TARN_CHECK_AS(
      DTypeError, o.mode == InterpolateMode::kNearest || is_floating(x.dtype()),
      "interpolate: x must be floating for other modes than nearest; got x=", x.describe());
  std::vector<Line> lines;
  for (int i = 0; i < spatial; ++i) {
    Line line{i + 2, x.size(i + 2), 0, 0};
    const auto entry = count == 1 ? size_t{0} : static_cast<size_t>(i);
    if (factors.empty()) {
      line.out = o.size[static_cast<int>(entry)];
    } else {
      line.factor = factors[entry];
      TARN_CHECK_AS(ValueError, line.factor > 0 && std::isfinite(line.factor),
                    "interpolate: scale factors must be positive; got ", line.factor);
      const double out = static_cast<double>(line.in) * line.factor;
      line.out = out < 0x1p62 ? static_cast<int64_t>(out) : std::numeric_limits<int64_t>::max();
    }
    TARN_CHECK_AS(ShapeError, line.in > 0 && line.out > 0,
                  "interpolate: sizes before and after must be positive; got x=", x.describe(),
                  " and ", line.out, " for dimension ", line.dim);
    TARN_CHECK_AS(ShapeError, line.out <= std::numeric_limits<int32_t>::max(),
                  "interpolate: a size must be below 2^31; got x=", x.describe(), " and ", line.out,
                  " for dimension ", line.dim);
    lines.push_back(line);
  }
  return lines;
}

/// Means over the windows of adaptive pooling; over a volume first in its images, then across them.
Tensor area(const Tensor& x, const std::vector<Line>& lines) {
  if (lines.size() == 1) return adaptive_avg_pool1d(x, lines[0].out);
  if (lines.size() == 2) return adaptive_avg_pool2d(x, {lines[0].out, lines[1].out});
  const int64_t n = x.size(0), c = x.size(1);
  const Tensor images = reshape(x, {n, c * x.size(2), x.size(3), x.size(4)});
  const Tensor small = adaptive_avg_pool2d(images, {lines[1].out, lines[2].out});
  const int64_t area = lines[1].out * lines[2].out;
  const Tensor across = reshape(small, {n, c, x.size(2), area});
  return reshape(adaptive_avg_pool2d(across, {lines[0].out, area}),
                 {n, c, lines[0].out, lines[1].out, lines[2].out});
}

Tensor resample(Tensor x, const std::vector<Line>& lines, const InterpolateOptions& o) {
  const DType dtype = x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  if (o.mode == InterpolateMode::kNearest) return nearest(x, lines, dtype);
  const bool cubic = o.mode == InterpolateMode::kBicubic;
  const DType given = x.dtype();
  Tensor y = to(x, dtype);
  for (const Line& line : lines) {
    if (line.in == line.out && (!cubic || line.factor == 0)) continue;  // every weight 0 or 1
    const Taps taps = taps_of(line, cubic, o.align_corners, {.dtype = dtype, .device = x.device()});
    y = gather_taps(y, line.dim, taps.index, taps.weight);
  }
  return to(y, given);
}

}  // namespace

Tensor interpolate(const Tensor& x, const InterpolateOptions& options) {
  std::vector<Line> lines = checked_lines(x, options);
  const OpScope scope("interpolate");
  if (options.mode == InterpolateMode::kArea) return area(x, lines);
  const bool channels_last =
      x.dim() == 4 && x.is_contiguous(MemoryFormat::kChannelsLast) && !x.is_contiguous();
  if (!channels_last) return resample(x, lines, options);
  for (Line& line : lines) --line.dim;
  return permute(resample(permute(x, {0, 2, 3, 1}), lines, options), {0, 3, 1, 2});
}

namespace {
// The square of more could be 0 modulo 2^64.
void check_factor(const char* op, int64_t r) {
  TARN_CHECK_AS(ValueError, r > 0 && r <= 65536, op, ": r must be from 1 to 65536; got ", r);
}
}  // namespace

Tensor pixel_shuffle(const Tensor& x, int64_t r) {
  raw::check_defined("pixel_shuffle", "x", x);
  check_factor("pixel_shuffle", r);
  TARN_CHECK_AS(ShapeError, x.dim() >= 3 && x.size(x.dim() - 3) % (r * r) == 0,
                "pixel_shuffle: x must be [..., C r^2, H, W] with r=", r, "; got x=", x.describe());
  const OpScope scope("pixel_shuffle");
  const int d = x.dim();
  Shape sizes = x.sizes();
  sizes[d - 3] /= r * r, sizes[d - 2] *= r, sizes[d - 1] *= r;
  const int64_t h = x.size(d - 2), w = x.size(d - 1);
  int64_t planes = sizes[d - 3];
  for (int i = 0; i < d - 3; ++i) planes *= sizes[i];
  return reshape(permute(reshape(x, {planes, r, r, h, w}), {0, 3, 1, 4, 2}), sizes);
}

Tensor pixel_unshuffle(const Tensor& x, int64_t r) {
  raw::check_defined("pixel_unshuffle", "x", x);
  check_factor("pixel_unshuffle", r);
  TARN_CHECK_AS(
      ShapeError, x.dim() >= 3 && x.size(x.dim() - 2) % r == 0 && x.size(x.dim() - 1) % r == 0,
      "pixel_unshuffle: x must be [..., C, H r, W r] with r=", r, "; got x=", x.describe());
  const OpScope scope("pixel_unshuffle");
  const int d = x.dim();
  Shape sizes = x.sizes();
  int64_t planes = 1;
  for (int i = 0; i < d - 2; ++i) planes *= sizes[i];
  sizes[d - 3] *= r * r, sizes[d - 2] /= r, sizes[d - 1] /= r;
  const int64_t h = sizes[d - 2], w = sizes[d - 1];
  return reshape(permute(reshape(x, {planes, h, r, w, r}), {0, 2, 4, 1, 3}), sizes);
}

}  // namespace tarn
