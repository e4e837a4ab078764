// dnn_plan.cpp - finishes operation graphs and asks the heuristics for engines.
#if TARN_HAVE_CUDNN

#include "tarn/cuda/dnn_plan.h"

#include <algorithm>

namespace tarn::cuda {
namespace {

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
bool allows(const DnnNumerics& want, const Notes& notes) {
  if (want.deterministic && notes.nondeterministic) return false;
  if (notes.narrow_sums || notes.large_winograd) return false;
  if (want.dtype != DType::kF32 && notes.winograd) return false;
  const bool exact = want.dtype == DType::kF32 && !want.tf32;
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

/// Appends the plan of one configuration, if it is allowed, fits and can be made here.
void try_plan(DnnDescriptor config, const DnnNumerics& want, const DnnTarget& target,
              int64_t workspace, std::vector<DnnPlan>& plans) try {
  DnnDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR, "engine");
  cudnnBackendDescriptor_t handle = engine.handle();
  config.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &handle);
  if (!allows(want, notes_of(engine))) return;
  DnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "execution plan");
  if (target.handle) plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, target.handle);
#if CUDNN_VERSION >= 90800
  if (target.described) plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.described);
#endif
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
  plan.finalize();
  const int64_t bytes = plan.get_int(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  if (bytes > workspace) return;
  const int64_t index = engine.get_int(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  plans.push_back({std::move(config), std::move(plan), bytes, index});
} catch (const DnnError& e) {
  if (!e.says_try_another()) throw;
}

}  // namespace

cudnnDataType_t data_type(DType dtype) {
  if (dtype == DType::kF16) return CUDNN_DATA_HALF;
  return dtype == DType::kBF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

DnnGraph finish_graph(std::vector<DnnDescriptor> parts, std::vector<DnnDescriptor> operations,
                      const DnnTarget& target) {
  DnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "operation graph");
  std::vector<cudnnBackendDescriptor_t> handles;
  for (const DnnDescriptor& operation : operations) handles.push_back(operation.handle());
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            static_cast<int64_t>(handles.size()), handles.data());
  if (target.handle) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, target.handle);
  graph.finalize();
  for (DnnDescriptor& operation : operations) parts.push_back(std::move(operation));
  return {std::move(parts), std::move(graph)};
}

std::vector<DnnPlan> make_plans(const DnnGraph& graph, const DnnNumerics& want,
                                const DnnTarget& target, int64_t workspace, size_t most) {
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
      try_plan(std::move(config), want, target, workspace, plans);
      if (plans.size() == most) return plans;
    }
    if (!plans.empty()) break;  // the next heuristic is for graphs that this one does not know
  }
  return plans;
}

}  // namespace tarn::cuda

#endif  // TARN_HAVE_CUDNN
