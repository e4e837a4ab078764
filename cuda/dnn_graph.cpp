// dnn_graph.cpp - builds the operation graphs of convolutions by hand.
#if TARN_HAVE_CUDNN

#include "tarn/cuda/dnn_graph.h"

namespace tarn::cuda {
namespace {

/// Sizes in the order N, C, H, W; memory in the order N, H, W, C.
DnnDescriptor make_tensor(int64_t id, cudnnDataType_t type, int64_t alignment, int64_t n, int64_t c,
                          int64_t h, int64_t w) {
  DnnDescriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor");
  d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
  d.set(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  d.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, alignment);
  d.set(CUDNN_ATTR_TENSOR_DIMENSIONS, {n, c, h, w});
  d.set(CUDNN_ATTR_TENSOR_STRIDES, {c * h * w, 1, w * c, c});
  return d;
}

DnnDescriptor make_convolution(const ConvShape& p) {
  DnnDescriptor d(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, "convolution");
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  d.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  d.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  d.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, int64_t{2});
  d.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, {p.pad_h, p.pad_w});
  d.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, {p.pad_h, p.pad_w});
  d.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, {p.stride_h, p.stride_w});
  d.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, {p.dilation_h, p.dilation_w});
  d.finalize();
  return d;
}

/// The three passes have descriptors of the same form under different names.
struct PassNames {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t alpha, beta, convolution, x, weight, y;
};

PassNames names_of(ConvPass pass) {
  switch (pass) {
    case ConvPass::kForward:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
    case ConvPass::kBackwardData:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
    case ConvPass::kBackwardWeight:
      break;
  }
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};
}

DnnDescriptor make_operation(ConvPass pass, const DnnDescriptor& convolution,
                             const DnnDescriptor& x, const DnnDescriptor& weight,
                             const DnnDescriptor& y) {
  const PassNames names = names_of(pass);
  DnnDescriptor d(names.type, "convolution operation");
  const float one = 1, zero = 0;
  d.set(names.alpha, CUDNN_TYPE_FLOAT, 1, &one);
  d.set(names.beta, CUDNN_TYPE_FLOAT, 1, &zero);
  d.set(names.convolution, convolution);
  d.set(names.x, x);
  d.set(names.weight, weight);
  d.set(names.y, y);
  d.finalize();
  return d;
}

/// y = a + b, computed in f32. Appends its mode descriptor to `parts`.
DnnDescriptor make_add(std::vector<DnnDescriptor>& parts, const DnnDescriptor& a,
                       const DnnDescriptor& b, const DnnDescriptor& y) {
  DnnDescriptor mode(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "pointwise");
  const cudnnPointwiseMode_t add = CUDNN_POINTWISE_ADD;
  mode.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &add);
  mode.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
  mode.finalize();
  DnnDescriptor d(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "pointwise operation");
  d.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, mode);
  d.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, a);
  d.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  d.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  d.finalize();
  parts.push_back(std::move(mode));
  return d;
}

}  // namespace

std::string DnnConv::describe() const {
  const ConvShape& p = shape;
  const char* const names[] = {"forward", "input gradient", "weight gradient"};
  return tarn::detail::concat(names[static_cast<int>(pass)], ", ", dtype, ", x=[", p.n, ", ", p.c,
                              ", ", p.h, ", ", p.w, "], weight=[", p.k, ", ", p.cg(), ", ", p.r,
                              ", ", p.s, "], stride=[", p.stride_h, ", ", p.stride_w,
                              "], padding=[", p.pad_h, ", ", p.pad_w, "], dilation=[", p.dilation_h,
                              ", ", p.dilation_w, "], groups=", p.groups, " on cuda:", device);
}

DnnGraph make_graph(const DnnConv& conv, const DnnTarget& target) {
  const ConvShape& p = conv.shape;
  const cudnnDataType_t type = data_type(conv.dtype);
  std::vector<DnnDescriptor> parts;
  const auto tensor = [&](DnnOperand id, int64_t n, int64_t c, int64_t h, int64_t w) {
    DnnDescriptor d = make_tensor(id, type, conv.alignment, n, c, h, w);
    d.finalize();
    return d;
  };
  DnnDescriptor convolution = make_convolution(p);
  DnnDescriptor x = tensor(kDnnX, p.n, p.c, p.h, p.w);
  DnnDescriptor weight = tensor(kDnnWeight, p.k, p.cg(), p.r, p.s);
  DnnDescriptor y = tensor(kDnnY, p.n, p.k, p.oh, p.ow);
  std::vector<DnnDescriptor> operations;
  if (conv.bias) {
    DnnDescriptor bias = tensor(kDnnBias, 1, p.k, 1, 1);
    DnnDescriptor sum = make_tensor(kDnnSum, CUDNN_DATA_FLOAT, 16, p.n, p.k, p.oh, p.ow);
    const bool in_registers = true;
    sum.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &in_registers);
    sum.finalize();
    operations.push_back(make_operation(conv.pass, convolution, x, weight, sum));
    operations.push_back(make_add(parts, sum, bias, y));
    parts.push_back(std::move(bias));
    parts.push_back(std::move(sum));
  } else {
    operations.push_back(make_operation(conv.pass, convolution, x, weight, y));
  }
  for (DnnDescriptor* part : {&convolution, &x, &weight, &y}) parts.push_back(std::move(*part));
  return finish_graph(std::move(parts), std::move(operations), target);
}

}  // namespace tarn::cuda

#endif  // TARN_HAVE_CUDNN
