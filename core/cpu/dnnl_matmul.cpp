// dnnl_matmul.cpp - oneDNN matrix products, one cached primitive per shape, strides and epilogue.
#include "tarn/core/cpu/dnnl_matmul.h"

#include "tarn/core/cpu/dnnl_engine.h"
#include "tarn/core/cpu/scratch.h"
#include "tarn/core/cpu/tasks.h"

#if TARN_HAVE_DNNL

#include <array>
#include <bit>
#include <optional>
#include <string_view>

namespace tarn::cpu {
namespace {

using dnnl::memory;

constexpr size_t kCachedPrimitives = 512;

/// Everything a primitive depends on: sizes, strides, scalars and flags.
struct Key {
  std::array<int64_t, 12> sizes;
  double alpha, beta;
  uint64_t flags;
  bool operator==(const Key&) const = default;
};

struct KeyHash {
  size_t operator()(const Key& k) const {
    size_t h = hash_mix(static_cast<size_t>(k.flags), std::bit_cast<uint64_t>(k.alpha));
    h = hash_mix(h, std::bit_cast<uint64_t>(k.beta));
    for (int64_t v : k.sizes) h = hash_mix(h, static_cast<uint64_t>(v));
    return h;
  }
};

struct Product {
  dnnl::primitive primitive;
  memory a, b, c, bias, scratchpad;
  std::unordered_map<int, memory> arguments;
};

dnnl::post_ops make_post_ops(const MatmulCall& call) {
  dnnl::post_ops ops;
  if (call.alpha != 1) {
    append_eltwise(ops, dnnl::algorithm::eltwise_linear, static_cast<float>(call.alpha), 0.0f);
  }
  if (call.beta != 0) ops.append_sum(static_cast<float>(call.beta));
  switch (call.epilogue) {
    case Epilogue::kNone:
      break;
    case Epilogue::kRelu:
      append_eltwise(ops, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
      break;
    case Epilogue::kGelu:
      append_eltwise(ops, dnnl::algorithm::eltwise_gelu_erf, 0.0f, 0.0f);
      break;
    case Epilogue::kGeluTanh:
      append_eltwise(ops, dnnl::algorithm::eltwise_gelu_tanh, 0.0f, 0.0f);
      break;
  }
  return ops;
}

std::optional<Product> make_product(const MatmulCall& call) {
  const auto type = memory::data_type::bf16;
  const bool batched = call.batch > 1;
  const auto desc = [&](int64_t rows, int64_t cols, int64_t batch_stride, int64_t row, int64_t col,
                        bool wide = false) {
    const auto as = wide ? memory::data_type::f32 : type;
    if (!batched) return memory::desc({rows, cols}, as, memory::dims{row, col});
    // A stride of 0 is a batch of one, which the library broadcasts.
    const int64_t batch = batch_stride == 0 ? 1 : call.batch;
    return memory::desc({batch, rows, cols}, as,
                        memory::dims{batch_stride == 0 ? rows * cols : batch_stride, row, col});
  };
  try {
    Product p;
    const memory::desc a = desc(call.m, call.k, call.a_batch, call.a_row, call.a_col);
    const memory::desc b = desc(call.k, call.n, call.b_batch, call.b_row, call.b_col);
    const memory::desc c = desc(call.m, call.n, call.c_batch, call.c_row, 1, call.wide_c);
    memory::desc bias;
    if (call.bias != nullptr) {
      bias = batched ? memory::desc({1, 1, call.n}, type, memory::format_tag::abc)
                     : memory::desc({1, call.n}, type, memory::format_tag::ab);
    }
    dnnl::primitive_attr attributes = dnnl_attributes();
    attributes.set_post_ops(make_post_ops(call));
    const auto pd = matmul_desc(a, b, bias, c, attributes);
    if (std::string_view(pd.impl_info_str()).substr(0, 3) == "ref") return std::nullopt;
    const auto make = [](const memory::desc& md) { return memory(md, dnnl_engine(), nullptr); };
    p.primitive = dnnl::matmul(pd);
    p.a = make(a);
    p.b = make(b);
    p.c = make(c);
    p.scratchpad = make(pd.scratchpad_desc());
    p.arguments = {{DNNL_ARG_SRC, p.a},
                   {DNNL_ARG_WEIGHTS, p.b},
                   {DNNL_ARG_DST, p.c},
                   {DNNL_ARG_SCRATCHPAD, p.scratchpad}};
    if (call.bias != nullptr) {
      p.bias = make(bias);
      p.arguments.insert({DNNL_ARG_BIAS, p.bias});
    }
    return p;
  } catch (const dnnl::error&) {
    return std::nullopt;  // the library has no kernel for it; the caller's own path takes it
  }
}

}  // namespace

Bf16Products dnnl_bf16_products() {
  static const Bf16Products found = [] {
    const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    const auto has = [&](dnnl::cpu_isa wanted) {
      return (isa & static_cast<unsigned>(wanted)) == static_cast<unsigned>(wanted);
    };
#if defined(__x86_64__)
    const bool slow_dots = __builtin_cpu_is("intel") != 0;
#else
    const bool slow_dots = false;
#endif
    if (has(dnnl::cpu_isa::avx512_core_amx)) return Bf16Products::kTiles;
    if (has(dnnl::cpu_isa::avx512_core_bf16) && !slow_dots) return Bf16Products::kDots;
    return Bf16Products::kNoGain;
  }();
  return found;
}

bool dnnl_matmul(const MatmulCall& call) {
  // The library adds the bias before it scales.
  if (call.bias != nullptr && call.alpha != 1) return false;
  tarn::detail::adopt_thread_count();
  thread_local DnnlCache<Key, std::optional<Product>, KeyHash> cache(kCachedPrimitives);
  const Key key{{call.batch, call.m, call.n, call.k, call.a_batch, call.a_row, call.a_col,
                 call.b_batch, call.b_row, call.b_col, call.c_batch, call.c_row},
                call.alpha,
                call.beta,
                static_cast<uint64_t>(call.epilogue) << 8 |
                    static_cast<uint64_t>(call.bias != nullptr) << 16 |
                    static_cast<uint64_t>(call.wide_c) << 17 |
                    static_cast<uint64_t>(task_threads()) << 24};
  std::optional<Product>& found = cache.get(key, [&] { return make_product(call); });
  if (!found) return false;
  Product& p = *found;
  p.a.set_data_handle(const_cast<void*>(call.a));
  p.b.set_data_handle(const_cast<void*>(call.b));
  p.c.set_data_handle(call.c);
  if (call.bias != nullptr) p.bias.set_data_handle(const_cast<void*>(call.bias));
  p.scratchpad.set_data_handle(scratch(ScratchSlot::kLibrary, p.scratchpad.get_desc().get_size()));
  dnnl_checked("matmul", [&] {
    p.primitive.execute(dnnl_stream(), p.arguments);
    dnnl_stream().wait();
  });
  return true;
}

}  // namespace tarn::cpu

#else

namespace tarn::cpu {
bool dnnl_matmul(const MatmulCall&) {
  return false;
}
Bf16Products dnnl_bf16_products() {
  return Bf16Products::kNoGain;
}
}  // namespace tarn::cpu

#endif
