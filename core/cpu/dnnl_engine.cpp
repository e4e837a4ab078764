// dnnl_engine.cpp - the shared engine, and the seam between oneDNN 2.x and 3.x.
#include "tarn/core/cpu/dnnl_engine.h"

#if TARN_HAVE_DNNL

namespace tarn::cpu {

dnnl::engine& dnnl_engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::stream& dnnl_stream() {
  thread_local dnnl::stream stream(dnnl_engine());
  return stream;
}

dnnl::primitive_attr dnnl_attributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

#if DNNL_VERSION_MAJOR >= 3

void append_eltwise(dnnl::post_ops& ops, dnnl::algorithm algorithm, float alpha, float beta) {
  ops.append_eltwise(algorithm, alpha, beta);
}

dnnl::convolution_forward::primitive_desc conv_forward_desc(const DnnlConvDescs& d) {
  return {dnnl_engine(),
          dnnl::prop_kind::forward_training,
          dnnl::algorithm::convolution_direct,
          d.x,
          d.weight,
          d.bias,
          d.y,
          d.strides,
          d.dilation,
          d.padding,
          d.padding,
          dnnl_attributes()};
}

dnnl::convolution_backward_data::primitive_desc conv_backward_data_desc(const DnnlConvDescs& d) {
  return {dnnl_engine(),
          dnnl::algorithm::convolution_direct,
          d.x,
          d.weight,
          d.y,
          d.strides,
          d.dilation,
          d.padding,
          d.padding,
          conv_forward_desc(d),
          dnnl_attributes()};
}

dnnl::convolution_backward_weights::primitive_desc conv_backward_weights_desc(
    const DnnlConvDescs& d) {
  return {dnnl_engine(),
          dnnl::algorithm::convolution_direct,
          d.x,
          d.weight,
          d.y,
          d.strides,
          d.dilation,
          d.padding,
          d.padding,
          conv_forward_desc(d),
          dnnl_attributes()};
}

dnnl::matmul::primitive_desc matmul_desc(const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                                         const dnnl::memory::desc& bias,
                                         const dnnl::memory::desc& c,
                                         const dnnl::primitive_attr& attributes) {
  return {dnnl_engine(), a, b, bias, c, attributes};
}

#else

void append_eltwise(dnnl::post_ops& ops, dnnl::algorithm algorithm, float alpha, float beta) {
  ops.append_eltwise(1.0f, algorithm, alpha, beta);
}

dnnl::convolution_forward::primitive_desc conv_forward_desc(const DnnlConvDescs& d) {
  const dnnl::convolution_forward::desc desc(
      dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct, d.x, d.weight, d.bias,
      d.y, d.strides, d.dilation, d.padding, d.padding);
  return {desc, dnnl_attributes(), dnnl_engine()};
}

dnnl::convolution_backward_data::primitive_desc conv_backward_data_desc(const DnnlConvDescs& d) {
  const dnnl::convolution_backward_data::desc desc(dnnl::algorithm::convolution_direct, d.x,
                                                   d.weight, d.y, d.strides, d.dilation, d.padding,
                                                   d.padding);
  return {desc, dnnl_attributes(), dnnl_engine(), conv_forward_desc(d)};
}

dnnl::convolution_backward_weights::primitive_desc conv_backward_weights_desc(
    const DnnlConvDescs& d) {
  const dnnl::convolution_backward_weights::desc desc(dnnl::algorithm::convolution_direct, d.x,
                                                      d.weight, d.y, d.strides, d.dilation,
                                                      d.padding, d.padding);
  return {desc, dnnl_attributes(), dnnl_engine(), conv_forward_desc(d)};
}

dnnl::matmul::primitive_desc matmul_desc(const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                                         const dnnl::memory::desc& bias,
                                         const dnnl::memory::desc& c,
                                         const dnnl::primitive_attr& attributes) {
  return {dnnl::matmul::desc(a, b, bias, c), attributes, dnnl_engine()};
}

#endif

}  // namespace tarn::cpu

#endif  // TARN_HAVE_DNNL
