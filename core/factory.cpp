// factory.cpp - tensors from nothing.
#include "tarn/core/factory.h"

#include <cmath>
#include <cstring>

#include "tarn/core/kernel_call.h"
#include "tarn/core/number_check.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn {
namespace {

int64_t checked_bytes(const char* op, const Shape& sizes, int64_t numel, DType dtype) {
  int64_t bytes = 0;
  TARN_CHECK_AS(ShapeError, !__builtin_mul_overflow(numel, item_size(dtype), &bytes), op,
                ": more bytes than 64 bits can count; got ", sizes, " ", dtype);
  return bytes;
}

Tensor make(const char* op, const Shape& sizes, const Shape& strides, DType dtype, Device device) {
  const int64_t bytes = checked_bytes(op, sizes, checked_numel(op, sizes), dtype);
  return Tensor(Storage::create(static_cast<size_t>(bytes), device), sizes, strides, 0, dtype);
}

// The usual case, without looking at the layout again: strides and numel in one walk.
Tensor make_row_major(const char* op, const Shape& sizes, DType dtype, Device device) {
  Ref<TensorImpl> impl(TensorImpl::make());
  const int n = sizes.dim();
  impl->sizes = sizes;
  impl->strides = Shape::filled(n, 1);
  int64_t numel = 1;
  bool plain = true;
  for (int d = n - 1; d >= 0; --d) {
    impl->strides[d] = numel;
    plain &= sizes[d] > 0 && !__builtin_mul_overflow(numel, sizes[d], &numel);
  }
  if (!plain) {  // a zero, a negative size or an overflow: the careful way
    numel = checked_numel(op, sizes);
    impl->strides = contiguous_strides(sizes);
  }
  impl->numel = numel;
  impl->dtype = dtype;
  impl->storage =
      Storage::create(static_cast<size_t>(checked_bytes(op, sizes, numel, dtype)), device);
  if (n == 4) impl->update_layout();  // may be channels_last as well
  return Tensor(std::move(impl));
}

// Dense strides with the dimensions in the order in which `like` walks memory.
Shape strides_in_order_of(const Tensor& like) {
  const Shape& sizes = like.sizes();
  Shape strides = Shape::filled(sizes.dim(), 1);
  int64_t step = 1;
  for (int64_t d : dims_by_stride(like.strides())) {
    strides[static_cast<int>(d)] = step;
    step = wrapping_mul(step, std::max<int64_t>(sizes[static_cast<int>(d)], 1));
  }
  return strides;
}

}  // namespace

Tensor empty(const Shape& sizes, const TensorOptions& options) {
  const Shape strides = options.format == MemoryFormat::kChannelsLast ? channels_last_strides(sizes)
                                                                      : contiguous_strides(sizes);
  return make("empty", sizes, strides, options.dtype, options.device);
}

Tensor empty_strided(const Shape& sizes, const Shape& strides, const TensorOptions& options) {
  const int64_t span = checked_span("empty_strided", sizes, strides);
  const auto bytes = static_cast<size_t>(span * item_size(options.dtype));
  return Tensor(Storage::create(bytes, options.device), sizes, strides, 0, options.dtype);
}

Tensor empty_like(const Tensor& like, DType dtype) {
  if (like.is_contiguous()) return make_row_major("empty_like", like.sizes(), dtype, like.device());
  return make("empty_like", like.sizes(), strides_in_order_of(like), dtype, like.device());
}
Tensor empty_like(const Tensor& like) {
  return empty_like(like, like.dtype());
}

Tensor full(const Shape& sizes, const Scalar& value, const TensorOptions& options) {
  check_number_fits("full", value, options.dtype);
  Tensor out = empty(sizes, options);
  raw::fill_(out, value);
  return out;
}
Tensor zeros(const Shape& sizes, const TensorOptions& options) {
  return full(sizes, 0, options);
}
Tensor ones(const Shape& sizes, const TensorOptions& options) {
  return full(sizes, 1, options);
}

Tensor full_like(const Tensor& like, const Scalar& value) {
  check_number_fits("full_like", value, like.dtype());
  Tensor out = empty_like(like);
  raw::fill_(out, value);
  return out;
}
Tensor zeros_like(const Tensor& like) {
  return full_like(like, 0);
}
Tensor ones_like(const Tensor& like) {
  return full_like(like, 1);
}

Tensor arange(const Scalar& start, const Scalar& end, const Scalar& step,
              const TensorOptions& options) {
  const bool integral = !start.is_floating() && !end.is_floating() && !step.is_floating();
  TARN_CHECK_AS(ValueError,
                std::isfinite(start.to_double()) && std::isfinite(end.to_double()) &&
                    std::isfinite(step.to_double()),
                "arange: start, end and step must be finite; got start=", start, ", end=", end,
                ", step=", step);
  const auto whole = [](const Scalar& s) { return s.to_double() == std::trunc(s.to_double()); };
  TARN_CHECK_AS(ValueError, is_floating(options.dtype) || (whole(start) && whole(step)),
                "arange: start and step must be whole numbers for ", options.dtype,
                "; got start=", start, ", step=", step, "; pass {.dtype = DType::kF32}");
  const double span = end.to_double() - start.to_double();
  TARN_CHECK_AS(ValueError, step.to_double() != 0 && span * step.to_double() >= 0,
                "arange: step must lead from start to end; got start=", start, ", end=", end,
                ", step=", step);
  const double count = std::ceil(span / step.to_double());
  TARN_CHECK_AS(ShapeError, count < 0x1p63,
                "arange: more elements than 64 bits can count; got start=", start, ", end=", end,
                ", step=", step);
  auto n = static_cast<int64_t>(count);
  if (integral) {  // exact beyond 2^53 as well
    const __int128 s = step.to_int64(),
                   d = static_cast<__int128>(end.to_int64()) - start.to_int64();
    n = static_cast<int64_t>(d / s + (d % s != 0));
  }
  Tensor out = empty({n}, options);
  if (n > 0) TARN_KERNEL(elementwise, arange, out.device(), start, step, out);
  return out;
}
Tensor arange(int64_t end, const TensorOptions& options) {
  return arange(0, end, 1, options);
}

Tensor linspace(double start, double end, int64_t steps, const TensorOptions& options) {
  TARN_CHECK_AS(ValueError, steps >= 0, "linspace: steps must not be negative; got ", steps);
  if (!is_floating(options.dtype)) {
    start = std::trunc(start);
    end = std::trunc(end);
  }
  // Each half counts from its own end, so both ends are exact.
  const Tensor exact = empty({steps}, {.dtype = DType::kF64});
  double* values = exact.data<double>();
  const double step = steps > 1 ? (end - start) / static_cast<double>(steps - 1) : 0;
  for (int64_t i = 0; i < steps; ++i) {
    values[i] = i < (steps + 1) / 2 ? start + step * static_cast<double>(i)
                                    : end - step * static_cast<double>(steps - 1 - i);
  }
  return raw::to(raw::to(exact, options.dtype), options.device);
}

Tensor eye(int64_t n, int64_t m, const TensorOptions& options) {
  Tensor out = zeros({n, m}, options);
  Tensor diagonal(out.storage(), {std::min(n, m)}, {m + 1}, 0, out.dtype());
  raw::fill_(diagonal, 1);
  return out;
}

Tensor scalar_tensor(const Scalar& value, const TensorOptions& options) {
  return full({}, value, options);
}

template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& sizes, Device device) {
  TARN_CHECK_AS(ShapeError,
                checked_numel("from_vector", sizes) == static_cast<int64_t>(values.size()),
                "from_vector: sizes must hold exactly the values given; got ", values.size(),
                " values for ", sizes);
  Tensor out = empty(sizes, {.dtype = dtype_of<T>});
  std::copy(values.begin(), values.end(), static_cast<T*>(out.data()));
  return raw::to(out, device);
}
template Tensor from_vector(const std::vector<float>&, const Shape&, Device);
template Tensor from_vector(const std::vector<double>&, const Shape&, Device);
template Tensor from_vector(const std::vector<half>&, const Shape&, Device);
template Tensor from_vector(const std::vector<bfloat16>&, const Shape&, Device);
template Tensor from_vector(const std::vector<int64_t>&, const Shape&, Device);
template Tensor from_vector(const std::vector<int32_t>&, const Shape&, Device);
template Tensor from_vector(const std::vector<uint8_t>&, const Shape&, Device);
template Tensor from_vector(const std::vector<bool>&, const Shape&, Device);

namespace {
Shape nested_sizes(const NestedValues& values) {
  Shape sizes;
  const NestedValues* at = &values;
  while (at->is_list()) {
    sizes.push_back(static_cast<int64_t>(at->list().size()));
    if (at->list().empty()) break;
    at = &at->list().front();
  }
  return sizes;
}

void append(const NestedValues& values, const Shape& sizes, int depth, std::vector<double>& out) {
  const bool ends = depth == sizes.dim();
  TARN_CHECK_AS(ShapeError,
                values.is_list() != ends &&
                    (ends || static_cast<int64_t>(values.list().size()) == sizes[depth]),
                "tensor: lists of one depth must be of one length; the first ones give ", sizes,
                ", but at depth ", depth, " there is ",
                values.is_list() ? detail::concat("a list of ", values.list().size()) : "a number");
  if (ends) {
    out.push_back(values.value());
  } else {
    for (const NestedValues& v : values.list()) append(v, sizes, depth + 1, out);
  }
}
}  // namespace

Tensor detail::from_doubles(const std::vector<double>& values, const Shape& sizes,
                            const TensorOptions& options) {
  return raw::to(raw::to(from_vector(values, sizes), options.dtype), options.device);
}

Tensor tensor(const NestedValues& values, const Shape& sizes, const TensorOptions& options) {
  std::vector<double> flat;
  append(values, nested_sizes(values), 0, flat);
  return detail::from_doubles(flat, sizes, options);
}
Tensor tensor(const NestedValues& values, const TensorOptions& options) {
  return tensor(values, nested_sizes(values), options);
}

Tensor from_blob(void* data, const Shape& sizes, DType dtype, std::function<void()> release) {
  const int64_t bytes = checked_bytes("from_blob", sizes, checked_numel("from_blob", sizes), dtype);
  return Tensor(Storage::wrap(data, static_cast<size_t>(bytes), kCPU, std::move(release)), sizes,
                contiguous_strides(sizes), 0, dtype);
}

}  // namespace tarn
