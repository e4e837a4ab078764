// dnn_conv.cpp - the convolution slots by cuDNN, with our own kernels behind them.
//
// cuDNN's fast engines want filters as [K, R, S, CG]; tarn keeps [K, CG, R, S], so they are
// permuted on the way in or out, 2 * R * S * CG * K elements of traffic. A ResNet-50 step moves
// 0.3 GB for it, 0.1 ms on an H200, so permuted filters are not kept: each optimizer step changes
// them anyway.
#if TARN_HAVE_CUDNN

#include <algorithm>
#include <optional>

#include "tarn/core/math_mode.h"
#include "tarn/cuda/conv_shape.h"
#include "tarn/cuda/dnn_run.h"
#include "tarn/cuda/dnn_settings.h"
#include "tarn/cuda/scratch.h"
#include "tarn/cuda/table.h"

namespace tarn::cuda {
namespace {

/// Filters in cuDNN's order: permuted into scratch memory unless both orders are the same bytes.
class Filters {
 public:
  Filters(const ConvShape& shape, const Tensor& weight, Stream stream)
      : shape_(shape), weight_(weight), stream_(stream) {
    if (shape.filter() > 1 && shape.cg() > 1) {
      packed_.emplace(static_cast<size_t>(weight.numel()) * item_bytes(), stream);
    }
  }
  void* data() const { return packed_ ? packed_->as<void>() : weight_.data(); }
  void pack() const {
    if (packed_) pack_filters(shape_, item_bytes(), weight_.data(), data(), stream_);
  }
  void unpack() const {
    if (packed_) unpack_filters(shape_, item_bytes(), data(), weight_.data(), stream_);
  }

 private:
  size_t item_bytes() const { return static_cast<size_t>(item_size(weight_.dtype())); }

  const ConvShape& shape_;
  const Tensor& weight_;
  Stream stream_;
  std::optional<Scratch> packed_;
};

/// What cuDNN is asked about at all. Its engines index with 32 bits.
bool is_for_dnn(const ConvShape& p, DType dtype) {
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  const int64_t x = p.n * p.x_image(), y = p.n * p.y_image(), w = p.weights();
  return dtype != DType::kF64 && std::min({x, y, w}) > 0 && std::max({x, y, w}) <= kMost &&
         dnn_api() != nullptr;
}

struct DnnOperands {
  void* x = nullptr;
  void* weight = nullptr;  // [K, R, S, CG]
  void* y = nullptr;
  void* bias = nullptr;  // forward, if there is one
};

/// False if cuDNN has no plan: nothing was done.
bool run_dnn_conv(ConvPass pass, const ConvShape& p, DType dtype, const DnnOperands& operands,
                  Stream stream) {
  DnnConv conv{.pass = pass,
               .dtype = dtype,
               .bias = operands.bias != nullptr,
               .tf32 = dtype == DType::kF32 && allow_tf32(),
               .deterministic = dnn_settings().deterministic,
               .device = stream.device.index,
               .shape = p};
  for (const void* pointer : {operands.x, operands.weight, operands.y, operands.bias}) {
    while (reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(conv.alignment) != 0) {
      conv.alignment /= 2;
    }
  }
  const DnnBinding bindings[] = {{kDnnX, operands.x},
                                 {kDnnWeight, operands.weight},
                                 {kDnnY, operands.y},
                                 {kDnnBias, operands.bias}};
  return run_dnn(conv, std::span(bindings).first(conv.bias ? 4 : 3), stream);
}

void forward(const Tensor& x, const Tensor& weight, const Tensor& bias,
             const Conv2dOptions& options, const Tensor& y, Stream stream) {
  const ConvShape p = conv_shape(x.sizes(), weight.sizes(), y.sizes(), options);
  if (is_for_dnn(p, x.dtype())) {
    const Filters filters(p, weight, stream);
    const DnnOperands operands{x.data(), filters.data(), y.data(), bias.data_or_null()};
    filters.pack();
    if (run_dnn_conv(ConvPass::kForward, p, x.dtype(), operands, stream)) {
      return;
    }
  }
  own_conv_kernels().forward(x, weight, bias, options, y, stream);
}

void backward_data(const Tensor& gy, const Tensor& weight, const Conv2dOptions& options,
                   const Tensor& gx, Stream stream) {
  const ConvShape p = conv_shape(gx.sizes(), weight.sizes(), gy.sizes(), options);
  if (is_for_dnn(p, gx.dtype())) {
    const Filters filters(p, weight, stream);
    const DnnOperands operands{gx.data(), filters.data(), gy.data()};
    filters.pack();
    if (run_dnn_conv(ConvPass::kBackwardData, p, gx.dtype(), operands, stream)) {
      return;
    }
  }
  own_conv_kernels().backward_data(gy, weight, options, gx, stream);
}

void backward_weight(const Tensor& x, const Tensor& gy, const Conv2dOptions& options,
                     const Tensor& gw, const Tensor& gb, Stream stream) {
  const ConvShape p = conv_shape(x.sizes(), gw.sizes(), gy.sizes(), options);
  if (is_for_dnn(p, x.dtype())) {
    const Filters filters(p, gw, stream);
    const DnnOperands operands{x.data(), filters.data(), gy.data()};
    if (run_dnn_conv(ConvPass::kBackwardWeight, p, x.dtype(), operands, stream)) {
      filters.unpack();
      if (gb.defined()) conv_bias_gradient(p, gy, gb, stream);
      return;
    }
  }
  own_conv_kernels().backward_weight(x, gy, options, gw, gb, stream);
}

}  // namespace

void add_dnn_kernels(KernelTable& table) {
  table.conv = {forward, backward_data, backward_weight};
}

}  // namespace tarn::cuda

#endif  // TARN_HAVE_CUDNN
