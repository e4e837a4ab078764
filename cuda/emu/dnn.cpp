// dnn.cpp - stand-in for the part of cuDNN's graph API that tarn uses: entry points, descriptors,
// engines. Checks attributes as the library does; dnn_convolution.cpp and dnn_attention.cpp
// know what graphs mean.
#if TARN_HAVE_CUDNN

#include "tarn/cuda/emu/dnn.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <set>

using namespace tarn::emu;

struct cudnnContext {
  int device = 0;
  cudaStream_t stream = nullptr;
};

namespace tarn::emu {
namespace {

thread_local std::string last_text;

struct Live {
  std::mutex mutex;
  std::map<void*, DnnNodeRef> nodes;
};
Live& live() {
  static Live& instance = *new Live;
  return instance;
}

DnnNodeRef node_of(cudnnBackendDescriptor_t handle) {
  const std::lock_guard guard(live().mutex);
  const auto found = live().nodes.find(handle);
  if (found == live().nodes.end()) die("cuDNN: %p is not a live descriptor", handle);
  return found->second;
}

void set_attribute(DnnNode& node, int name, cudnnBackendAttributeType_t type, int64_t count,
                   const void* values) {
  if (node.finalized) fail_dnn(CUDNN_STATUS_BAD_PARAM, "the descriptor is finalized");
  const auto& known = dnn_rules(node.type);
  const auto rule =
      std::find_if(known.begin(), known.end(), [name](const DnnRule& r) { return r.name == name; });
  if (rule == known.end()) fail_dnn(CUDNN_STATUS_BAD_PARAM, "no such attribute here");
  if (rule->type != type) fail_dnn(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "attribute type");
  if (count < rule->least || count > rule->most) {
    fail_dnn(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "number of elements of an attribute");
  }
  if (values == nullptr) fail_dnn(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "attribute values");
  DnnValue value{type, count, {}, {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (int64_t i = 0; i < count; ++i) {
      value.nodes.push_back(node_of(static_cast<const cudnnBackendDescriptor_t*>(values)[i]));
      if (!value.nodes.back()->finalized) {
        fail_dnn(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a descriptor referred to");
      }
    }
  } else {
    const char* const bytes = static_cast<const char*>(values);
    value.bytes.assign(bytes, bytes + static_cast<std::size_t>(count) * attribute_size(type));
  }
  node.values[name] = std::move(value);
}

std::shared_ptr<DnnProblem> read_graph(const DnnNode& graph) {
  switch (graph.values.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes[0]->type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      return read_convolution_graph(graph);
    default:
      return read_attention_graph(graph);
  }
}

void finalize(DnnNode& node) {
  if (node.finalized) fail_dnn(CUDNN_STATUS_BAD_PARAM, "the descriptor is finalized");
  for (const DnnRule& rule : dnn_rules(node.type)) {
    if (rule.required && node.values.count(rule.name) == 0) {
      fail_dnn(CUDNN_STATUS_BAD_PARAM, "attribute " + std::to_string(rule.name) + " is not set");
    }
  }
  switch (node.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      for (int64_t size : node.numbers(CUDNN_ATTR_TENSOR_DIMENSIONS)) {
        if (size < 1) fail_dnn(CUDNN_STATUS_BAD_PARAM, "a dimension is not positive");
      }
      break;
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
      if (node.number<int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 0) != 2) {
        fail_dnn(CUDNN_STATUS_NOT_SUPPORTED, "the stand-in has 2-d convolutions only");
      }
      break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      check_convolution(node);
      break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      node.problem = read_graph(node);
      break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      node.problem = node.node(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)->problem;
      break;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
      const DnnNodeRef config = node.node(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
      if (config->engine == kDnnElsewhere) {
        fail_dnn(CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, "the engine is for another GPU");
      }
      node.problem = config->problem;
      node.engine = config->engine;
      break;
    }
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      if (node.values[CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS].count !=
          node.values[CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS].count) {
        fail_dnn(CUDNN_STATUS_BAD_PARAM, "as many pointers as ids");
      }
      break;
    default:
      break;
  }
  node.finalized = true;
}

int64_t workspace_of(int engine) {
  if (engine == kDnnHungry) return int64_t{3} << 30;
  return engine == kDnnExact ? 256 : 0;
}

std::vector<int> proposals(cudnnBackendHeurMode_t mode) {
  if (mode == CUDNN_HEUR_MODE_FALLBACK) return {kDnnExact};
  return {kDnnElsewhere, kDnnAtomics, kDnnHungry, kDnnTensorCore, kDnnExact};
}

std::vector<cudnnBackendNumericalNote_t> notes_of(const DnnNode& engine) {
  if (engine.engine == kDnnAtomics) return {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC};
  if (engine.engine != kDnnTensorCore) return {};
  if (!engine.problem->is_f32()) return {CUDNN_NUMERICAL_NOTE_TENSOR_CORE};
  return {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS};
}

// Fills descriptors that the caller created.
void fill(void* handles, int64_t index, cudnnBackendDescriptorType_t type, const DnnNode& from,
          int engine) {
  DnnNode& node = *node_of(static_cast<cudnnBackendDescriptor_t*>(handles)[index]);
  if (node.type != type || node.finalized) {
    fail_dnn(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "a descriptor to fill");
  }
  node.problem = from.problem;
  node.engine = engine;
  node.finalized = true;
}

template <class T>
int64_t give(const std::vector<T>& values, int64_t most, void* to) {
  for (int64_t i = 0; i < most && i < static_cast<int64_t>(values.size()); ++i) {
    static_cast<T*>(to)[i] = values[static_cast<std::size_t>(i)];
  }
  return static_cast<int64_t>(values.size());
}

// The number of values there are; writes up to `most` of them.
int64_t get_attribute(const DnnNode& node, int name, int64_t most, void* to) {
  if (!node.finalized) fail_dnn(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "reading an attribute");
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
      const std::vector<int> engines =
          proposals(node.number(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_HEUR_MODE_A));
      for (int64_t i = 0; i < most && i < static_cast<int64_t>(engines.size()); ++i) {
        fill(to, i, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, node, engines[static_cast<std::size_t>(i)]);
      }
      return static_cast<int64_t>(engines.size());
    }
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      if (most > 0) fill(to, 0, CUDNN_BACKEND_ENGINE_DESCRIPTOR, node, node.engine);
      return 1;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
      return give(notes_of(node), most, to);
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
      return give(std::vector<int64_t>{node.engine}, most, to);
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      return give(std::vector<int64_t>{workspace_of(node.engine)}, most, to);
    default:
      fail_dnn(CUDNN_STATUS_NOT_SUPPORTED, "the stand-in cannot read this attribute");
  }
}

void execute(const cudnnContext& handle, const DnnNode& plan, const DnnNode& pack) {
  if (plan.type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR ||
      pack.type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR || !plan.finalized || !pack.finalized) {
    fail_dnn(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "plan or variant pack");
  }
  Lock lock = lock_runtime();
  Stream* stream = stream_of(handle.stream);
  const auto* made_with =
      plan.number<const cudnnContext*>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, nullptr);
  if (stream == nullptr || stream->device != handle.device || made_with->device != handle.device) {
    fail_dnn(CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH, "stream, handle and plan are of one device");
  }
  const auto ids = pack.numbers(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.numbers(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  const std::vector<const DnnTensor*> operands = plan.problem->operands();
  std::vector<void*> data;
  auto numbers = std::make_shared<std::vector<float>>(operands.size());  // read now, used later
  for (const DnnTensor* t : operands) {
    const auto found = std::find(ids.begin(), ids.end(), t->id);
    if (found == ids.end()) fail_dnn(CUDNN_STATUS_BAD_PARAM, "an operand has no pointer");
    const int64_t address = pointers[static_cast<std::size_t>(found - ids.begin())];
    if (t->is_by_value) {
      float& number = (*numbers)[data.size()];
      std::memcpy(&number, reinterpret_cast<const void*>(address), sizeof number);
      data.push_back(&number);
      continue;
    }
    if (address % t->alignment != 0) {
      fail_dnn(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "an operand is less aligned than said");
    }
    data.push_back(reinterpret_cast<void*>(address));
  }
  void* const workspace = pack.number<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
  const auto bytes = static_cast<std::size_t>(workspace_of(plan.engine));
  const bool tf32 = plan.engine == kDnnTensorCore && plan.problem->is_f32();
  const cudaError_t error = enqueue(
      *stream,
      [problem = plan.problem, data, numbers, workspace, bytes, tf32] {
        // Blocks change in stream order, so this is when they can be checked.
        for (std::size_t i = 0; i < data.size(); ++i) {
          const DnnTensor& t = *problem->operands()[i];
          if (t.is_by_value) continue;
          require_device_range(data[i], static_cast<std::size_t>(t.extent()) * size_of(t.type),
                               "cudnnBackendExecute");
        }
        require_device_range(workspace, bytes, "cudnnBackendExecute: workspace");
        MemoryAccess access;
        if (bytes > 0) std::memset(workspace, 0xFF, bytes);
        problem->run(data, tf32);
      },
      lock);
  if (error != cudaSuccess) fail_dnn(CUDNN_STATUS_EXECUTION_FAILED_CUDART, "the stream");
}

// Runs an entry point's body: its failures become the status and the last error's text.
template <class F>
cudnnStatus_t guarded(Entry& entry, F body) {
  last_text.clear();
  try {
    if (const int code = entry.enter()) {
      fail_dnn(static_cast<cudnnStatus_t>(code), "injected by the emulator");
    }
    if (sticky_error() != cudaSuccess) fail_dnn(CUDNN_STATUS_EXECUTION_FAILED_CUDART, "the device");
    body();
  } catch (const DnnFailure& failure) {
    last_text = failure.text;
    return failure.status;
  }
  return CUDNN_STATUS_SUCCESS;
}

#define TARN_EMU_DNN(name, ...)                 \
  do {                                          \
    static Entry emu_entry(#name);              \
    return guarded(emu_entry, [&] __VA_ARGS__); \
  } while (0)

}  // namespace

void fail_dnn(cudnnStatus_t status, std::string text) {
  throw DnnFailure{status, std::move(text)};
}

std::vector<int64_t> DnnNode::numbers(int name) const {
  const auto found = values.find(name);
  if (found == values.end()) return {};
  std::vector<int64_t> list(static_cast<std::size_t>(found->second.count));
  std::memcpy(list.data(), found->second.bytes.data(), found->second.bytes.size());
  return list;
}

DnnNodeRef DnnNode::node(int name) const {
  const auto found = values.find(name);
  return found == values.end() ? nullptr : found->second.nodes[0];
}

}  // namespace tarn::emu

size_t cudnnGetVersion() {
  return CUDNN_VERSION;
}

const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS:
      return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED:
      return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_BAD_PARAM:
      return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_EXECUTION_FAILED:
      return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
      return "CUDNN_STATUS (see its number)";
  }
}

void cudnnGetLastErrorString(char* message, size_t max_size) {
  std::snprintf(message, max_size, "%s", last_text.c_str());
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  TARN_EMU_DNN(cudnnCreate, { *handle = new cudnnContext{current_device(), nullptr}; });
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  TARN_EMU_DNN(cudnnDestroy, { delete handle; });
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  TARN_EMU_DNN(cudnnSetStream, { handle->stream = stream; });
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  TARN_EMU_DNN(cudnnBackendCreateDescriptor, {
    auto node = std::make_shared<DnnNode>();
    node->type = type;
    *descriptor = node.get();
    const std::lock_guard guard(live().mutex);
    live().nodes[node.get()] = std::move(node);
  });
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  TARN_EMU_DNN(cudnnBackendDestroyDescriptor, {
    const DnnNodeRef kept = node_of(descriptor);
    const std::lock_guard guard(live().mutex);
    live().nodes.erase(descriptor);
  });
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* values) {
  TARN_EMU_DNN(cudnnBackendSetAttribute,
               { set_attribute(*node_of(descriptor), name, type, count, values); });
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t most, int64_t* count,
                                       void* values) {
  TARN_EMU_DNN(cudnnBackendGetAttribute,
               { *count = get_attribute(*node_of(descriptor), name, most, values); });
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  TARN_EMU_DNN(cudnnBackendFinalize, { finalize(*node_of(descriptor)); });
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  TARN_EMU_DNN(cudnnBackendExecute, { execute(*handle, *node_of(plan), *node_of(pack)); });
}

#endif  // TARN_HAVE_CUDNN
