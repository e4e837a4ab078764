// op_table_inputs.cpp - the tensors a row is called on.
#include "op_table_inputs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn::optable {
namespace {

constexpr double kClearance = 0.05;  // from kinks

bool near_kink(double v, const In& in) {
  return std::any_of(in.avoid.begin(), in.avoid.end(),
                     [v](double kink) { return std::abs(v - kink) < kClearance; });
}

std::vector<double> reals(const In& in, DType dtype, Rng& rng) {
  const auto n = static_cast<size_t>(in.sizes.numel());
  std::vector<double> v(n);
  std::uniform_real_distribution<double> uniform(in.low, in.high);
  const bool integral = !is_floating(dtype);
  for (double& e : v) {
    do {
      e = uniform(rng);
      if (integral) e = dtype == DType::kU8 ? std::abs(std::round(e)) : std::round(e);
    } while (near_kink(e, in));
  }
  if (in.distinct) {
    std::iota(v.begin(), v.end(), 0.0);
    std::shuffle(v.begin(), v.end(), rng);
    if (integral) return v;
    const double step = (in.high - in.low) / static_cast<double>(std::max<size_t>(n, 1));
    for (double& e : v) e = in.low + (e + 0.25) * step;
  }
  return v;
}

Tensor reversed(const Tensor& x) {
  Shape order;
  for (int d = x.dim() - 1; d >= 0; --d) order.push_back(d);
  return raw::permute(x, order);
}

Tensor transposed(const Tensor& x) {
  return reversed(raw::clone(raw::contiguous(reversed(x))));
}

Tensor sliced(const Tensor& x) {
  Shape big;
  for (int64_t s : x.sizes()) big.push_back(2 * s + 1);
  if (x.dim() == 0) big = {3};
  Tensor whole = empty(big, {.dtype = x.dtype(), .device = x.device()});
  raw::fill_(whole, is_floating(x.dtype()) ? std::numeric_limits<double>::quiet_NaN() : 0.0);
  Tensor part = x.dim() == 0 ? raw::select(whole, 0, 1) : whole;
  for (int d = 0; d < x.dim(); ++d) part = raw::slice(part, d, 1, big[d], 2);
  raw::copy_(part, x);
  return part;
}

Tensor expanded(const Tensor& x, bool first) {
  if (x.dim() == 0 || x.numel() == 0) return x;
  return raw::expand(raw::narrow(x, first ? 0 : -1, 0, 1), x.sizes());
}

Tensor lay_out(const Tensor& x, Layout layout, bool is_first) {
  switch (layout) {
    case Layout::kTransposed:
      return transposed(x);
    case Layout::kFirstTransposed:
      return is_first ? transposed(x) : x;
    case Layout::kSliced:
      return sliced(x);
    case Layout::kExpandedFirst:
      return expanded(x, true);
    case Layout::kExpandedLast:
      return expanded(x, false);
    case Layout::kChannelsLast:
      return x.dim() == 4 ? raw::contiguous(x, MemoryFormat::kChannelsLast) : x;
  }
  return x;
}

}  // namespace

namespace {
Device where = kCPU;

// Converted on the CPU, so that the inputs are the same everywhere.
Tensor there(const Tensor& x, DType dtype) {
  return raw::to(raw::to(x, dtype), where);
}
}  // namespace
Device input_device() {
  return where;
}
InputDeviceGuard::InputDeviceGuard(Device device) : previous_(where) {
  where = device;
}
InputDeviceGuard::~InputDeviceGuard() {
  where = previous_;
}

Rng rng_for(const std::string& name) {
  uint64_t hash = 1469598103934665603u;  // FNV-1a: the same on every platform
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return Rng(hash);
}

std::vector<Tensor> make_inputs(const Case& c, DType dtype, Rng& rng) {
  std::vector<Tensor> inputs;
  for (const In& in : c) {
    const auto n = static_cast<size_t>(in.sizes.numel());
    if (in.kind == In::kReal) {
      inputs.push_back(there(from_vector(reals(in, dtype, rng), in.sizes), dtype));
    } else if (in.kind == In::kIndex) {
      std::vector<int64_t> v(n);
      const auto low = static_cast<int64_t>(in.low), high = static_cast<int64_t>(in.high);
      for (int64_t& e : v) e = std::uniform_int_distribution<int64_t>(low, high - 1)(rng);
      for (size_t i = 1; in.distinct && i < n; ++i)
        v[i] = (v[i - 1] + 1 - low) % (high - low) + low;
      inputs.push_back(raw::to(from_vector(v, in.sizes), where));
    } else {
      std::vector<bool> v(n);
      for (size_t i = 0; i < n; ++i) v[i] = rng() % 2 == 0;
      inputs.push_back(raw::to(from_vector(v, in.sizes), where));
    }
  }
  return inputs;
}

Tensor random_like(const Tensor& x, Rng& rng) {
  std::vector<double> v(static_cast<size_t>(x.numel()));
  for (double& e : v) {
    e = static_cast<double>(std::uniform_int_distribution<int>(-127, 127)(rng)) / 128;
  }
  return raw::to(raw::to(from_vector(v, x.sizes()), x.dtype()), x.device());
}

std::vector<Tensor> converted(const std::vector<Tensor>& in, const Case& c, DType dtype) {
  std::vector<Tensor> out;
  for (size_t i = 0; i < in.size(); ++i) {
    out.push_back(c[i].kind == In::kReal ? raw::to(in[i], dtype) : in[i]);
  }
  return out;
}

std::vector<Tensor> as_leaves(const std::vector<Tensor>& in, const Case& c) {
  std::vector<Tensor> out;
  for (size_t i = 0; i < in.size(); ++i) {
    out.push_back(raw::alias(in[i]));
    if (c[i].kind == In::kReal && c[i].grad && is_floating(in[i].dtype())) {
      out.back().set_requires_grad();
    }
  }
  return out;
}

std::vector<Tensor> laid_out(const std::vector<Tensor>& in, Layout layout) {
  std::vector<Tensor> out;
  for (const Tensor& x : in) out.push_back(lay_out(x, layout, out.empty()));
  return out;
}

std::vector<Tensor> special_inputs(size_t count, DType dtype) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const std::vector<double> values = {std::nan(""), kInf, -kInf, 0.0,   -0.0,   1.0, -1.0,  0.5,
                                      -0.5,         2.5,  -2.5,  1e-20, -1e-20, 700, -700,  3e4,
                                      -3e4,         1e30, -1e30, 20.5,  -20.5,  6.0, -3.25, 5.0};
  const size_t k = values.size();
  size_t total = 1;
  for (size_t i = 0; i < count; ++i) total *= k;
  std::vector<Tensor> inputs;
  size_t step = 1;
  for (size_t i = 0; i < count; ++i, step *= k) {
    std::vector<double> v(total);
    for (size_t j = 0; j < total; ++j) v[j] = values[j / step % k];
    inputs.push_back(there(from_vector(v, {static_cast<int64_t>(total)}), dtype));
  }
  return inputs;
}

}  // namespace tarn::optable
