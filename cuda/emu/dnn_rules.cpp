// dnn_rules.cpp - stand-in for cuDNN: which attributes a descriptor takes.
#if TARN_HAVE_CUDNN

#include "tarn/cuda/emu/dnn.h"

namespace tarn::emu {

constexpr int64_t kAny = 64;

const std::vector<DnnRule>& dnn_rules(cudnnBackendDescriptorType_t type) {
  using Rules = std::vector<DnnRule>;
  constexpr auto kDescriptor = CUDNN_TYPE_BACKEND_DESCRIPTOR;
  static const Rules kTensor{{CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, 1, true},
                             {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, true},
                             {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, 1, true},
                             {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 1, 8, true},
                             {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 1, 8, true},
                             {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, 1, false},
                             {CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, 1, false}};
  static const Rules kConvolution{
      {CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, true},
      {CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, 1, true},
      {CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, 1, true},
      {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, 2, true},
      {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, 2, true},
      {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, 2, true},
      {CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, 2, true}};
  const auto pass = [](int alpha) {  // in the header's order, which is the same for all passes
    return Rules{{alpha, CUDNN_TYPE_FLOAT, 1, 1, true}, {alpha + 1, CUDNN_TYPE_FLOAT, 1, 1, true},
                 {alpha + 2, kDescriptor, 1, 1, true},  {alpha + 3, kDescriptor, 1, 1, true},
                 {alpha + 4, kDescriptor, 1, 1, true},  {alpha + 5, kDescriptor, 1, 1, true}};
  };
  static const Rules kForward = pass(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA);
  static const Rules kData = pass(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA);
  static const Rules kFilter = pass(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA);
  static const Rules kPointwise{{CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, 1, true},
                                {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, 1, true},
                                {CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, 1, false}};
  static const Rules kPointwiseOperation{
      {CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kDescriptor, 1, 1, true},
      {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, kDescriptor, 1, 1, true},
      {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, kDescriptor, 1, 1, false},
      {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, kDescriptor, 1, 1, false},
      {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, kDescriptor, 1, 1, true}};
  static const Rules kProduct{{CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, true}};
  static const Rules kProductOperation{
      {CUDNN_ATTR_OPERATION_MATMUL_DESC, kDescriptor, 1, 1, true},
      {CUDNN_ATTR_OPERATION_MATMUL_ADESC, kDescriptor, 1, 1, true},
      {CUDNN_ATTR_OPERATION_MATMUL_BDESC, kDescriptor, 1, 1, true},
      {CUDNN_ATTR_OPERATION_MATMUL_CDESC, kDescriptor, 1, 1, true}};
  static const Rules kReduction{
      {CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, 1, true},
      {CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, true}};
  static const Rules kReductionOperation{
      {CUDNN_ATTR_OPERATION_REDUCTION_DESC, kDescriptor, 1, 1, true},
      {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, kDescriptor, 1, 1, true},
      {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, kDescriptor, 1, 1, true}};
  static const Rules kReshape{{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, kDescriptor, 1, 1, true},
                              {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, kDescriptor, 1, 1, true}};
  static const Rules kGraph{{CUDNN_ATTR_OPERATIONGRAPH_OPS, kDescriptor, 1, kAny, true},
                            {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, 1, true}};
  static const Rules kHeuristics{{CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, kDescriptor, 1, 1, true},
                                 {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, 1, true}};
  static const Rules kPlan{{CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, 1, true},
                           {CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, kDescriptor, 1, 1, true}};
  static const Rules kPack{
      {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 1, kAny, true},
      {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 1, kAny, true},
      {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, 1, true}};
  static const Rules kNone;
  switch (type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      return kTensor;
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
      return kConvolution;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      return kForward;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      return kData;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      return kFilter;
    case CUDNN_BACKEND_POINTWISE_DESCRIPTOR:
      return kPointwise;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
      return kPointwiseOperation;
    case CUDNN_BACKEND_MATMUL_DESCRIPTOR:
      return kProduct;
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      return kProductOperation;
    case CUDNN_BACKEND_REDUCTION_DESCRIPTOR:
      return kReduction;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      return kReductionOperation;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      return kReshape;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      return kGraph;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      return kHeuristics;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      return kPlan;
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      return kPack;
    default:  // engines and configurations are only read
      return kNone;
  }
}

std::size_t attribute_size(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
      return 8;
    case CUDNN_TYPE_BOOLEAN:
      return 1;
    default:  // float and enumerations
      return 4;
  }
}

}  // namespace tarn::emu

#endif  // TARN_HAVE_CUDNN
