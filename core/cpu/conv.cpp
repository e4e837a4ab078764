// conv.cpp - fills the convolution slots: tensors to shapes and pointers.
#include "tarn/core/cpu/conv_dispatch.h"
#include "tarn/core/cpu/table.h"

namespace tarn::cpu {
namespace {

Conv2dShape make_shape(const Tensor& x, const Tensor& weight, const Conv2dOptions& o) {
  Conv2dShape s;
  s.n = x.sizes()[0], s.c = x.sizes()[1], s.h = x.sizes()[2], s.w = x.sizes()[3];
  s.k = weight.sizes()[0], s.kh = weight.sizes()[2], s.kw = weight.sizes()[3];
  s.stride_h = o.stride_h, s.stride_w = o.stride_w;
  s.pad_h = o.pad_h, s.pad_w = o.pad_w;
  s.dil_h = o.dilation_h, s.dil_w = o.dilation_w;
  s.groups = o.groups;
  return s;
}

void forward(const Tensor& x, const Tensor& weight, const Tensor& bias,
             const Conv2dOptions& options, const Tensor& y, Stream) {
  conv2d_forward(make_shape(x, weight, options), x.dtype(), x.data(), weight.data(),
                 bias.data_or_null(), y.data());
}

void backward_data(const Tensor& gy, const Tensor& weight, const Conv2dOptions& options,
                   const Tensor& gx, Stream) {
  conv2d_backward_data(make_shape(gx, weight, options), gx.dtype(), gy.data(), weight.data(),
                       gx.data());
}

void backward_weight(const Tensor& x, const Tensor& gy, const Conv2dOptions& options,
                     const Tensor& gw, const Tensor& gb, Stream) {
  conv2d_backward_weights(make_shape(x, gw, options), x.dtype(), x.data(), gy.data(), gw.data(),
                          gb.data_or_null());
}

}  // namespace

void add_conv_kernels(KernelTable& table) {
  table.conv = {forward, backward_data, backward_weight};
}

}  // namespace tarn::cpu
