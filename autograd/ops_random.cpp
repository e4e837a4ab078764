// ops_random.cpp - random tensors, and dropout with its gradient.
#include "tarn/autograd/functions_elementwise.h"
#include "tarn/autograd/functions_random.h"
#include "tarn/autograd/functions_reduce.h"
#include "tarn/autograd/record.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/random_draws.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_random.h"

namespace tarn {

Tensor rand(const Shape& sizes, const TensorOptions& options, Generator* generator) {
  Tensor out = empty(sizes, options);
  raw::uniform_(out, 0, 1, generator);
  return out;
}
Tensor randn(const Shape& sizes, const TensorOptions& options, Generator* generator) {
  Tensor out = empty(sizes, options);
  raw::normal_(out, 0, 1, generator);
  return out;
}
Tensor randint(int64_t low, int64_t high, const Shape& sizes, const TensorOptions& options,
               Generator* generator) {
  Tensor out = empty(sizes, options);
  raw::randint_(out, low, high, generator);
  return out;
}
Tensor randperm(int64_t n, const TensorOptions& options, Generator* generator) {
  return raw::randperm(n, options.dtype, options.device, generator);
}
Tensor rand_like(const Tensor& like, Generator* generator) {
  Tensor out = empty_like(like);
  raw::uniform_(out, 0, 1, generator);
  return out;
}
Tensor randn_like(const Tensor& like, Generator* generator) {
  Tensor out = empty_like(like);
  raw::normal_(out, 0, 1, generator);
  return out;
}
Tensor randint_like(const Tensor& like, int64_t low, int64_t high, Generator* generator) {
  Tensor out = empty_like(like);
  raw::randint_(out, low, high, generator);
  return out;
}

namespace {
// On a GPU a look at the values would wait for the device.
void check_probabilities(const Tensor& p) {
  if (p.device() != kCPU || p.numel() == 0) return;
  const Tensor values = p.detach();
  raw::check_probability("bernoulli", amin(values).item());
  raw::check_probability("bernoulli", amax(values).item());
}
}  // namespace

Tensor bernoulli(const Tensor& p, Generator* generator) {
  const OpScope scope("bernoulli");
  raw::check_defined("bernoulli", "p", p);
  check_probabilities(p);
  const Tensor u = empty(p.sizes(), {.dtype = p.dtype(), .device = p.device()});
  raw::uniform_(u, 0, 1, generator);
  return raw::to(raw::lt(u, p), p.dtype());
}
Tensor multinomial(const Tensor& weights, int64_t count, bool replacement, Generator* generator) {
  return raw::multinomial(weights, count, replacement, generator);
}

namespace {
// x was overwritten: nothing flows to its old value.
const Tensor& overwritten(const char* name, const Tensor& x) {
  record(name, x, {x}, save(),
         [](const Saved&, const Tensor& g, Wants) { return Grads(zeros_like(g)); });
  return x;
}
}  // namespace

const Tensor& uniform_(const Tensor& x, double low, double high, Generator* generator) {
  begin_inplace("uniform_", x);
  raw::uniform_(x, low, high, generator);
  return overwritten("uniform_", x);
}
const Tensor& normal_(const Tensor& x, double mean, double stddev, Generator* generator) {
  begin_inplace("normal_", x);
  raw::normal_(x, mean, stddev, generator);
  return overwritten("normal_", x);
}
const Tensor& bernoulli_(const Tensor& x, double p, Generator* generator) {
  begin_inplace("bernoulli_", x);
  raw::bernoulli_(x, p, generator);
  return overwritten("bernoulli_", x);
}

namespace {
// Linear in x, so its gradient is the same operation with the same draws.
Tensor dropout_with(const Tensor& x, double p, PhiloxState state, MemoryFormat format) {
  Tensor out = raw::dropout(x, p, state, format);
  return record("dropout", out, {x}, save(),
                [p, state, format](const Saved&, const Tensor& g, Wants) {
                  return Grads(dropout_with(g, p, state, format));
                });
}
PhiloxState take(Generator* generator, int64_t draws32) {
  return (generator ? *generator : default_generator()).take(draws::counters32(draws32));
}
}  // namespace

Tensor dropout(const Tensor& x, double p, bool training, Generator* generator) {
  raw::check_probability("dropout", p);
  raw::check_defined("dropout", "x", x);
  if (!training || p == 0) return x;
  const MemoryFormat format = !x.is_contiguous() && x.is_contiguous(MemoryFormat::kChannelsLast)
                                  ? MemoryFormat::kChannelsLast
                                  : MemoryFormat::kContiguous;
  return dropout_with(x, p, take(generator, x.numel()), format);
}

Tensor dropout_add(const Tensor& x, const Tensor& residual, double p, bool training,
                   Generator* generator) {
  raw::check_probability("dropout_add", p);
  raw::check_defined("dropout_add", "x", x);
  raw::check_defined("dropout_add", "residual", residual);
  const bool alike = x.sizes() == residual.sizes() && x.dtype() == residual.dtype() &&
                     x.is_contiguous() && residual.is_contiguous();
  if (!training || p == 0 || !alike) return add(dropout(x, p, training, generator), residual);
  raw::check_same_device("dropout_add", x, residual);
  const PhiloxState state = take(generator, x.numel());
  const Tensor out = raw::dropout(x, p, state, MemoryFormat::kContiguous, residual);
  return record("dropout_add", out, {x, residual}, save(),
                [p, state](const Saved&, const Tensor& g, Wants w) {
                  const auto format = MemoryFormat::kContiguous;
                  return Grads(w[0] ? dropout_with(g, p, state, format) : Tensor(), g);
                });
}

Tensor dropout2d(const Tensor& x, double p, bool training, Generator* generator) {
  raw::check_probability("dropout2d", p);
  raw::check_defined("dropout2d", "x", x);
  TARN_CHECK_AS(ShapeError, x.dim() >= 3, "dropout2d: x must be [N, C, ...]; got ", x.describe());
  if (!training || p == 0) return x;
  Shape sizes = Shape::filled(x.dim(), 1);
  sizes[0] = x.sizes()[0];
  sizes[1] = x.sizes()[1];
  const Tensor one = ones(sizes, {.dtype = x.dtype(), .device = x.device()});
  return mul(x, raw::dropout(one, p, take(generator, one.numel()), MemoryFormat::kContiguous));
}

}  // namespace tarn
