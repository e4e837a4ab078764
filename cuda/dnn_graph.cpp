// dnn_graph.cpp - builds operation graphs by hand and asks the heuristics for engines.
#if TARN_HAVE_CUDNN

#include "tarn/cuda/dnn_graph.h"

#include <algorithm>

namespace tarn::cuda {
namespace {

cudnnDataType_t data_type(DType dtype) {
  if (dtype == DType::kF16) return CUDNN_DATA_HALF;
  return dtype == DType::kBF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

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

/// What an engine does to the numbers.
struct Notes {
  bool nondeterministic = false, tensor_core = false, narrows_inputs = false, narrow_sums = false;
  bool winograd = false, large_winograd = false;
};

Notes notes_of(const DnnDescriptor& engine) {
  constexpr int64_t kMost = 64;  // a newer library may know notes that these headers do not
  cudnnBackendNumericalNote_t list[kMost];
  const int64_t count = std::min(
      kMost, engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, kMost, list));
  const auto has = [&](cudnnBackendNumericalNote_t note) {
    return std::find(list, list + count, note) != list + count;
  };
  return {
      has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC), has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE),
      has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS),
      has(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION),
      has(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6) || has(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13)};
}

/// f32 on tensor cores is TF32. Winograd loses digits: with large tiles in f32, with any in a half.
bool allows(const DnnConv& conv, const Notes& notes) {
  if (conv.deterministic && notes.nondeterministic) return false;
  if (notes.narrow_sums || notes.large_winograd) return false;
  if (conv.dtype != DType::kF32 && notes.winograd) return false;
  const bool exact = conv.dtype == DType::kF32 && !conv.tf32;
  return !(exact && (notes.tensor_core || notes.narrows_inputs));
}

/// The engine configurations of one heuristic, best first.
std::vector<DnnDescriptor> configurations(const DnnGraph& graph, const DnnTarget& target,
                                          cudnnBackendHeurMode_t mode) {
  DnnDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "engine heuristics");
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
#if CUDNN_VERSION >= 90800
  if (target.described) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.described);
#endif
  heuristics.finalize();
  const int64_t count =
      heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
  std::vector<DnnDescriptor> found;
  std::vector<cudnnBackendDescriptor_t> handles;
  for (int64_t i = 0; i < count; ++i) {
    found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "engine configuration");
    handles.push_back(found.back().handle());
  }
  if (count == 0) return found;
  const int64_t filled = heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                        CUDNN_TYPE_BACKEND_DESCRIPTOR, count, handles.data());
  found.erase(found.begin() + std::min(filled, count), found.end());
  return found;
}

/// The plan of one configuration, if it is allowed, fits and can be made here.
bool try_plan(DnnDescriptor config, const DnnConv& conv, const DnnTarget& target, int64_t workspace,
              std::vector<DnnPlan>& plans) try {
  DnnDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR, "engine");
  cudnnBackendDescriptor_t handle = engine.handle();
  config.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &handle);
  if (!allows(conv, notes_of(engine))) return false;
  DnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "execution plan");
  if (target.handle) plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, target.handle);
#if CUDNN_VERSION >= 90800
  if (target.described) plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.described);
#endif
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
  plan.finalize();
  const int64_t bytes = plan.get_int(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  if (bytes > workspace) return false;
  const int64_t index = engine.get_int(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  plans.push_back({std::move(config), std::move(plan), bytes, index});
  return true;
} catch (const DnnError& e) {
  if (!e.not_supported() && !e.bad_parameter()) throw;
  return false;  // heuristics propose engines that then turn out not to fit
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
  DnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "operation graph");
  std::vector<cudnnBackendDescriptor_t> handles;
  for (const DnnDescriptor& operation : operations) handles.push_back(operation.handle());
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            static_cast<int64_t>(handles.size()), handles.data());
  if (target.handle) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, target.handle);
  graph.finalize();
  for (DnnDescriptor* part : {&convolution, &x, &weight, &y}) parts.push_back(std::move(*part));
  for (DnnDescriptor& operation : operations) parts.push_back(std::move(operation));
  return {std::move(parts), std::move(graph)};
}

std::vector<DnnPlan> make_plans(const DnnGraph& graph, const DnnConv& conv, const DnnTarget& target,
                                int64_t workspace, size_t most) {
  std::vector<DnnPlan> plans;
  for (cudnnBackendHeurMode_t mode :
       {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK}) {
    std::vector<DnnDescriptor> found;
    try {
      found = configurations(graph, target, mode);
    } catch (const DnnError& e) {
      if (!e.not_supported() && !e.bad_parameter()) throw;  // no such heuristic for this graph
    }
    for (DnnDescriptor& config : found) {
      try_plan(std::move(config), conv, target, workspace, plans);
      if (plans.size() == most) return plans;
    }
    if (!plans.empty()) break;  // the next heuristic is for graphs that this one does not know
  }
  return plans;
}

}  // namespace tarn::cuda

#endif  // TARN_HAVE_CUDNN
