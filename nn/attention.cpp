// attention.cpp - multi-head attention over the fused op, and positions.
#include "tarn/nn/attention.h"

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "tarn/autograd/functions.h"
#include "tarn/core/capture.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_random.h"
#include "tarn/nn/init.h"

namespace tarn::nn {
namespace {

const MultiheadAttentionOptions& checked(const MultiheadAttentionOptions& o) {
  TARN_CHECK_AS(ValueError, o.size > 0 && o.heads > 0 && o.size % o.heads == 0,
                "MultiheadAttention: size must be a positive multiple of heads; got size=", o.size,
                ", heads=", o.heads);
  raw::check_probability("MultiheadAttention", o.dropout);
  return o;
}

/// [B, T, H * D] -> [B, H, T, D].
Tensor split_heads(const Tensor& x, int64_t heads) {
  return x.reshape({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

void check_input(const char* name, const Tensor& x, int64_t size) {
  TARN_CHECK_AS(ShapeError, x.dim() == 3 && x.size(2) == size, "MultiheadAttention: ", name,
                " must be [B, T, ", size, "]; got ", x.describe());
}

}  // namespace

MultiheadAttention::MultiheadAttention(Module* parent, std::string name, const Options& o)
    : Module(parent, std::move(name)),
      in_proj_weight(this, "in_proj_weight", parameter_memory({3 * checked(o).size, o.size})),
      in_proj_bias(this, "in_proj_bias", o.bias ? parameter_memory({3 * o.size}) : Tensor()),
      out_proj(this, "out_proj", {.in = o.size, .out = o.size, .bias = o.bias}),
      options_(o) {
  init::xavier_uniform_(in_proj_weight);
  if (!o.bias) return;
  init::zeros_(in_proj_bias);
  init::zeros_(out_proj.bias);
}

Tensor joined_mask(const AttentionMask& m) {
  if (!m.key_mask.defined()) return m.mask;
  TARN_CHECK_AS(ShapeError, m.key_mask.dim() == 2 && m.key_mask.dtype() == DType::kBool,
                "attention: key_mask must be [B, S] bool; got ", m.key_mask.describe());
  const Tensor keys = m.key_mask.unsqueeze(1).unsqueeze(1);  // [B, 1, 1, S]
  if (!m.mask.defined()) return keys;
  if (m.mask.dtype() == DType::kBool) return logical_and(m.mask, keys);
  TARN_CHECK_AS(DTypeError, is_floating(m.mask.dtype()),
                "attention: mask must be bool or floating; got ", m.mask.describe());
  return where(keys, m.mask,
               full({}, -std::numeric_limits<double>::infinity(),
                    {.dtype = m.mask.dtype(), .device = m.mask.device()}));
}

Tensor MultiheadAttention::project(const Tensor& x, int64_t first, int64_t count) const {
  const int64_t size = options_.size;
  return linear(
      x, in_proj_weight.narrow(0, first * size, count * size),
      in_proj_bias.defined() ? in_proj_bias.narrow(0, first * size, count * size) : Tensor());
}

Tensor MultiheadAttention::attend(const Tensor& x, const AttentionMask& mask) {
  return hooked(x, [&](const Tensor& in) {
    check_input("x", in, options_.size);
    const Tensor y =
        scaled_dot_product_attention_qkv(linear(in, in_proj_weight, in_proj_bias), options_.heads,
                                         {.mask = joined_mask(mask),
                                          .causal = mask.causal,
                                          .dropout = training() ? options_.dropout : 0});
    return out_proj(y);
  });
}

Tensor MultiheadAttention::attend(const Tensor& query, const Tensor& key, const Tensor& value,
                                  const AttentionMask& mask) {
  if (query.is_same(key) && key.is_same(value)) return attend(query, mask);
  return hooked(query, [&](const Tensor& q) { return attend_across(q, key, value, mask); });
}

Tensor MultiheadAttention::attend_across(const Tensor& query, const Tensor& key,
                                         const Tensor& value, const AttentionMask& mask) {
  check_input("query", query, options_.size);
  check_input("key", key, options_.size);
  check_input("value", value, options_.size);
  Tensor k, v;
  if (key.is_same(value)) {
    const Tensor both = project(key, 1, 2);
    k = both.narrow(2, 0, options_.size);
    v = both.narrow(2, options_.size, options_.size);
  } else {
    k = project(key, 1, 1);
    v = project(value, 2, 1);
  }
  const Tensor y =
      scaled_dot_product_attention(split_heads(project(query, 0, 1), options_.heads),
                                   split_heads(k, options_.heads), split_heads(v, options_.heads),
                                   {.mask = joined_mask(mask),
                                    .causal = mask.causal,
                                    .dropout = training() ? options_.dropout : 0});
  return out_proj(y.transpose(1, 2).reshape(query.sizes()));
}

std::string MultiheadAttention::details() const {
  return tarn::detail::concat(options_.size, ", heads=", options_.heads);
}

Tensor sinusoidal_positions(int64_t time, int64_t size) {
  TARN_CHECK_AS(ValueError, time >= 0 && size >= 0,
                "sinusoidal_positions: time and size must not be negative; got time=", time,
                ", size=", size);
  std::vector<float> table(static_cast<size_t>(time * size));
  for (int64_t t = 0; t < time; ++t) {
    for (int64_t i = 0; i < size; ++i) {
      const double exponent = static_cast<double>(i - i % 2) / static_cast<double>(size);
      const double angle = static_cast<double>(t) * std::pow(10000.0, -exponent);
      table[static_cast<size_t>(t * size + i)] =
          static_cast<float>(i % 2 == 0 ? std::sin(angle) : std::cos(angle));
    }
  }
  return from_vector(table, {time, size});
}

namespace {

struct RotaryTables {
  Tensor cosines, sines;  // [T, D / 2]
};

RotaryTables make_rotary_tables(const Tensor& x, int64_t first, double base) {
  const int64_t time = x.size(2), half = x.size(3) / 2;
  std::vector<float> cosines(static_cast<size_t>(time * half)), sines(cosines.size());
  for (int64_t i = 0; i < time * half; ++i) {
    const double rate = std::pow(base, -static_cast<double>(i % half) / static_cast<double>(half));
    const double angle = static_cast<double>(first + i / half) * rate;
    cosines[static_cast<size_t>(i)] = static_cast<float>(std::cos(angle));
    sines[static_cast<size_t>(i)] = static_cast<float>(std::sin(angle));
  }
  const auto table = [&](const std::vector<float>& values) {
    return from_vector(values, {time, half}).to(x.device()).to(x.dtype());
  };
  return {table(cosines), table(sines)};
}

// Made once for each stream that uses them: copies from the host cannot be recorded into a CUDA
// graph. A graph keeps those that it reads; others go when there are too many.
std::shared_ptr<const RotaryTables> rotary_tables(const Tensor& x, int64_t first, double base) {
  using Key = std::tuple<DeviceType, int, void*, DType, int64_t, int64_t, int64_t, double>;
  constexpr size_t kMost = 64;
  static std::mutex& mutex = *new std::mutex;
  static auto& all = *new std::map<Key, std::shared_ptr<const RotaryTables>>;
  const Device device = x.device();
  const Stream stream = current_stream(device);
  const Key key(device.type, device.index, stream.handle, x.dtype(), x.size(2), x.size(3), first,
                base);
  const std::lock_guard lock(mutex);
  auto found = all.find(key);
  if (found == all.end()) {
    auto made = std::make_shared<const RotaryTables>(make_rotary_tables(x, first, base));
    if (all.size() == kMost) all.clear();
    found = all.emplace(key, std::move(made)).first;
  }
  tarn::detail::keep_for_graph(stream, found->second);
  return found->second;
}

}  // namespace

Tensor rotary_positions(const Tensor& x, int64_t first, double base) {
  TARN_CHECK_AS(ShapeError, x.dim() == 4 && x.size(3) % 2 == 0,
                "rotary_positions: x must be [B, H, T, D] with even D; got ", x.describe());
  TARN_CHECK_AS(DTypeError, is_floating(x.dtype()), "rotary_positions: x must be floating; got ",
                x.describe());
  TARN_CHECK_AS(ValueError, base > 0, "rotary_positions: base must be positive; got ", base);
  const auto tables = rotary_tables(x, first, base);
  const Tensor &c = tables->cosines, &s = tables->sines;
  const int64_t half = x.size(3) / 2;
  const Tensor a = x.narrow(3, 0, half), b = x.narrow(3, half, half);
  return cat({a * c - b * s, b * c + a * s}, 3);
}

}  // namespace tarn::nn
