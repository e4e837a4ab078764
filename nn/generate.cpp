// generate.cpp - sampling with temperature, top-k and top-p, and the key-value cache.
#include "tarn/nn/generate.h"

#include <algorithm>
#include <limits>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn::nn {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kLeast = std::numeric_limits<float>::min();  // smaller ones are 0 in f32
constexpr double kCold = 1e-30;  // logits divided by less would overflow

/// Logits below the k-th largest of their row to -inf.
Tensor keep_top_k(const Tensor& logits, int64_t k) {
  if (k <= 0 || k >= logits.size(1)) return logits;
  const Tensor smallest = topk(logits, k, 1).first.narrow(1, k - 1, 1);
  return masked_fill(logits, lt(logits, smallest), -kInf);
}

/// Keeps the most likely tokens of a row until their probabilities reach p; always the first.
Tensor keep_top_p(const Tensor& logits, double p) {
  if (p >= 1) return logits;
  const auto [sorted, order] = sort(logits, 1, true);
  const Tensor probability = softmax(sorted, 1);
  const Tensor before = cumsum(probability, 1) - probability;
  const Tensor dropped = ge(before, Scalar(std::max(p, kLeast)));
  return masked_fill(logits, scatter(zeros_like(dropped), 1, order, dropped), -kInf);
}

}  // namespace

Tensor sample_tokens(const Tensor& logits, const SampleOptions& options) {
  TARN_CHECK_AS(ShapeError, logits.dim() == 2, "sample_tokens: logits must be [B, V]; got ",
                logits.describe());
  TARN_CHECK_AS(ValueError, options.temperature >= 0 && options.top_k >= 0,
                "sample_tokens: temperature and top_k must not be negative; got temperature=",
                options.temperature, ", top_k=", options.top_k);
  TARN_CHECK_AS(ValueError, options.top_p > 0 && options.top_p <= 1,
                "sample_tokens: top_p must be in (0, 1]; got ", options.top_p);
  const NoGradGuard no_grad;
  const Tensor wide = is_half(logits.dtype()) ? logits.to(DType::kF32) : logits;
  if (options.temperature < kCold) return argmax(wide, 1);
  const Tensor kept =
      keep_top_p(keep_top_k(wide * (1 / options.temperature), options.top_k), options.top_p);
  return multinomial(softmax(kept, 1), 1, false, options.generator).select(1, 0);
}

KeyValueCache::KeyValueCache(int64_t layers, int64_t capacity) : capacity_(capacity) {
  TARN_CHECK_AS(ValueError, layers >= 0 && capacity >= 0,
                "KeyValueCache: layers and capacity must not be negative; got layers=", layers,
                ", capacity=", capacity);
  layers_.resize(static_cast<size_t>(layers));
}

KeyValueCache::Pair KeyValueCache::append(int64_t layer, const Tensor& k, const Tensor& v) {
  TARN_CHECK_AS(IndexError, layer >= 0 && layer < static_cast<int64_t>(layers_.size()),
                "KeyValueCache: no layer ", layer, "; there are ", layers_.size());
  TARN_CHECK_AS(ShapeError, k.dim() == 4 && v.dim() == 4 && k.size(2) == v.size(2),
                "KeyValueCache: k and v must be [B, H, T, D] of one T; got k=", k.describe(),
                ", v=", v.describe());
  Pair& all = layers_[static_cast<size_t>(layer)];
  const int64_t time = k.size(2);
  TARN_CHECK_AS(ShapeError, length_ + time <= capacity_, "KeyValueCache: it holds ", capacity_,
                " tokens; got ", length_ + time);
  const NoGradGuard no_grad;
  const auto room_for = [&](Tensor& room, const Tensor& x) {
    const Shape sizes{x.size(0), x.size(1), capacity_, x.size(3)};
    if (!room.defined() || room.sizes() != sizes || room.dtype() != x.dtype()) {
      TARN_CHECK_AS(ShapeError, length_ == 0,
                    "KeyValueCache: new tokens must have the batch, heads and dtype of the ",
                    length_, " it holds; got ", x.describe());
      room = empty(sizes, {.dtype = x.dtype(), .device = x.device()});
    }
    raw::copy_(raw::narrow(room, 2, length_, time), x);
    return raw::narrow(room, 2, 0, length_ + time);
  };
  return {room_for(all.k, k), room_for(all.v, v)};
}

}  // namespace tarn::nn
