// dnnl_conv.cpp - oneDNN convolutions, one cached primitive per pass, shape and type.
#include "tarn/core/cpu/dnnl_conv.h"

#include "tarn/core/cpu/dnnl_engine.h"
#include "tarn/core/cpu/scratch.h"
#include "tarn/core/cpu/tasks.h"

#if TARN_HAVE_DNNL

#include <optional>
#include <string_view>

namespace tarn::cpu {
namespace {

using dnnl::memory;

constexpr size_t kCachedPrimitives = 512;
constexpr size_t kAlignment = 4096;

struct Key {
  Conv2dShape shape;
  ConvPass pass;
  DType dtype;
  bool bias;
  int threads;  // a primitive's partition of the work is fixed when it is made

  bool operator==(const Key&) const = default;
};

struct KeyHash {
  size_t operator()(const Key& k) const {
    const uint64_t rest = static_cast<uint64_t>(k.pass) | static_cast<uint64_t>(k.dtype) << 8 |
                          static_cast<uint64_t>(k.bias) << 16 |
                          static_cast<uint64_t>(k.threads) << 24;
    return hash_mix(Conv2dShapeHash{}(k.shape), rest);
  }
};

/// A primitive with its memory objects; the weights change format on their way in or out.
struct Conv {
  dnnl::primitive primitive;
  std::optional<dnnl::reorder> reorder;
  memory x, y, weights, plain, bias, scratchpad;
  std::unordered_map<int, memory> arguments;
};

/// Whether the library would fall back to its slow reference loops.
template <typename Desc>
bool is_reference(const Desc& desc) {
  return std::string_view(desc.impl_info_str()).substr(0, 3) == "ref";
}

template <typename Desc, typename Primitive>
std::optional<Conv> build(const Desc& desc, const memory::desc& weights, const DnnlConvDescs& d,
                          const memory::desc& plain, bool weights_are_output) {
  if (is_reference(desc)) return std::nullopt;
  Conv conv;
  conv.primitive = Primitive(desc);
  const auto make = [](const memory::desc& md) { return memory(md, dnnl_engine(), nullptr); };
  conv.x = make(d.x);
  conv.y = make(d.y);
  conv.weights = make(weights);
  conv.plain = make(plain);
  conv.scratchpad = make(desc.scratchpad_desc());
  if (weights != plain) {
    conv.reorder = weights_are_output ? dnnl::reorder(conv.weights, conv.plain)
                                      : dnnl::reorder(conv.plain, conv.weights);
  }
  conv.arguments = {{DNNL_ARG_SCRATCHPAD, conv.scratchpad}};
  return conv;
}

/// Passes whose bf16 kernels give wrong sums without a word. Seen in oneDNN 2.6 on
/// avx512_core_bf16; the conditions are wider than what was seen, where that costs nothing.
///  - Backward data of 1x1 (jit_bf16_1x1) with an odd number of output channels: wrong pixels in
///    images of 30, 59, 60, 89, 12x20, 30x30, ... pixels, at any number of input channels.
///  - Backward weights of groups with a kernel dilated in height: wrong sums, at stride 1 with rows
///    of 32 pixels for one.
///  - Backward weights with padding where the image is narrower than the stride: adds what happens
///    to lie beside the image, which may be anything.
bool is_wrong_in_library(const Key& key) {
  if (key.dtype != DType::kBF16) return false;
  const Conv2dShape& s = key.shape;
  if (key.pass == ConvPass::kBackwardData) {
    return s.kh == 1 && s.kw == 1 && s.k / s.groups % 2 != 0;
  }
  if (key.pass != ConvPass::kBackwardWeights) return false;
  return (s.groups > 1 && (s.dil_h > 1 || s.dil_w > 1)) || (s.pad_h > 0 && s.h < s.stride_h) ||
         (s.pad_w > 0 && s.w < s.stride_w);
}

std::optional<Conv> make_conv(const Key& key) {
  if (is_wrong_in_library(key)) return std::nullopt;
  const Conv2dShape& s = key.shape;
  const auto type = dnnl_type(key.dtype);
  const memory::dims weight_dims =
      s.groups == 1 ? memory::dims{s.k, s.c, s.kh, s.kw}
                    : memory::dims{s.groups, s.k / s.groups, s.c / s.groups, s.kh, s.kw};
  DnnlConvDescs d;
  d.x = {{s.n, s.c, s.h, s.w}, type, memory::format_tag::nhwc};
  d.y = {{s.n, s.k, s.oh(), s.ow()}, type, memory::format_tag::nhwc};
  d.weight = {weight_dims, type, memory::format_tag::any};
  if (key.bias) d.bias = {{s.k}, type, memory::format_tag::x};
  d.strides = {s.stride_h, s.stride_w};
  d.dilation = {s.dil_h - 1, s.dil_w - 1};
  d.padding = {s.pad_h, s.pad_w};
  const memory::desc plain(weight_dims, type,
                           s.groups == 1 ? memory::format_tag::oihw : memory::format_tag::goihw);
  std::optional<Conv> conv;
  try {
    switch (key.pass) {
      case ConvPass::kForward: {
        const auto desc = conv_forward_desc(d);
        conv = build<decltype(desc), dnnl::convolution_forward>(desc, desc.weights_desc(), d, plain,
                                                                false);
        if (!conv) return conv;
        conv->arguments.insert(
            {{DNNL_ARG_SRC, conv->x}, {DNNL_ARG_WEIGHTS, conv->weights}, {DNNL_ARG_DST, conv->y}});
        if (key.bias) {
          conv->bias = memory(d.bias, dnnl_engine(), nullptr);
          conv->arguments.insert({DNNL_ARG_BIAS, conv->bias});
        }
        break;
      }
      case ConvPass::kBackwardData: {
        const auto desc = conv_backward_data_desc(d);
        conv = build<decltype(desc), dnnl::convolution_backward_data>(desc, desc.weights_desc(), d,
                                                                      plain, false);
        if (!conv) return conv;
        conv->arguments.insert({{DNNL_ARG_DIFF_SRC, conv->x},
                                {DNNL_ARG_WEIGHTS, conv->weights},
                                {DNNL_ARG_DIFF_DST, conv->y}});
        break;
      }
      case ConvPass::kBackwardWeights: {
        const auto desc = conv_backward_weights_desc(d);
        conv = build<decltype(desc), dnnl::convolution_backward_weights>(
            desc, desc.diff_weights_desc(), d, plain, true);
        if (!conv) return conv;
        conv->arguments.insert({{DNNL_ARG_SRC, conv->x},
                                {DNNL_ARG_DIFF_WEIGHTS, conv->weights},
                                {DNNL_ARG_DIFF_DST, conv->y}});
        break;
      }
    }
  } catch (const dnnl::error&) {
    return std::nullopt;  // the library has no kernel for it; the caller's own path takes it
  }
  return conv;
}

size_t round_up(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

bool dnnl_conv(ConvPass pass, const Conv2dShape& s, DType dtype, void* x, void* w, const void* bias,
               void* y) {
  tarn::detail::adopt_thread_count();
  thread_local DnnlCache<Key, std::optional<Conv>, KeyHash> cache(kCachedPrimitives);
  const Key key{s, pass, dtype, bias != nullptr, static_cast<int>(task_threads())};
  std::optional<Conv>& found = cache.get(key, [&] { return make_conv(key); });
  if (!found) return false;
  Conv& conv = *found;
  const size_t packed = conv.reorder ? round_up(conv.weights.get_desc().get_size()) : 0;
  char* block = static_cast<char*>(
      scratch(ScratchSlot::kLibrary, packed + conv.scratchpad.get_desc().get_size()));
  conv.x.set_data_handle(x);
  conv.y.set_data_handle(y);
  conv.weights.set_data_handle(conv.reorder ? block : w);
  conv.plain.set_data_handle(w);
  if (bias != nullptr) conv.bias.set_data_handle(const_cast<void*>(bias));
  conv.scratchpad.set_data_handle(block + packed);
  dnnl_checked("convolution", [&] {
    dnnl::stream& stream = dnnl_stream();
    const bool weights_are_output = pass == ConvPass::kBackwardWeights;
    if (conv.reorder && !weights_are_output) {
      conv.reorder->execute(stream, conv.plain, conv.weights);
    }
    conv.primitive.execute(stream, conv.arguments);
    if (conv.reorder && weights_are_output) {
      conv.reorder->execute(stream, conv.weights, conv.plain);
    }
    stream.wait();
  });
  return true;
}

}  // namespace tarn::cpu

#else

namespace tarn::cpu {
bool dnnl_conv(ConvPass, const Conv2dShape&, DType, void*, void*, const void*, void*) {
  return false;
}
}  // namespace tarn::cpu

#endif
