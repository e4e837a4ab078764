// dnn.h - inside the stand-in for cuDNN: descriptors as plain data, and the graphs they make.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <cudnn.h>

#include "tarn/cuda/emu/runtime.h"

namespace tarn::emu {

struct DnnNode;
using DnnNodeRef = std::shared_ptr<DnnNode>;

/// One attribute: numbers as raw bytes, or references to other descriptors.
struct DnnValue {
  cudnnBackendAttributeType_t type;
  int64_t count = 0;
  std::vector<char> bytes;
  std::vector<DnnNodeRef> nodes;
};

/// What a cudnnBackendDescriptor_t stands for.
struct DnnNode {
  cudnnBackendDescriptorType_t type;
  bool finalized = false;
  std::map<int, DnnValue> values;              // by attribute name
  std::shared_ptr<struct DnnProblem> problem;  // of graphs, and what is made from them
  int engine = -1;                             // of engines, configurations and plans

  template <class T>
  T number(int name, T otherwise) const {
    const auto found = values.find(name);
    if (found == values.end()) return otherwise;
    T value;
    std::memcpy(&value, found->second.bytes.data(), sizeof value);
    return value;
  }
  std::vector<int64_t> numbers(int name) const;
  DnnNodeRef node(int name) const;  // null if it is not set
};

/// What a descriptor accepts, and whether it can be finalized without.
struct DnnRule {
  int name;
  cudnnBackendAttributeType_t type;
  int64_t least, most;
  bool required;
};
const std::vector<DnnRule>& dnn_rules(cudnnBackendDescriptorType_t type);
std::size_t attribute_size(cudnnBackendAttributeType_t type);  // bytes of one value

/// An error: what the call returns, and what cudnnGetLastErrorString says.
struct DnnFailure {
  cudnnStatus_t status;
  std::string text;
};
[[noreturn]] void fail_dnn(cudnnStatus_t status, std::string text);

struct DnnTensor {
  int64_t id = 0, alignment = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int64_t sizes[4], strides[4];  // N, C, H, W; or batch, head, row, column
  bool is_virtual = false;
  bool is_by_value = false;  // one number in host memory

  int64_t extent() const;  // elements from the first to the last, both included
  int64_t offset(int64_t a, int64_t b, int64_t c, int64_t d) const {
    return a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3];
  }
};
/// Throws DnnFailure unless it has 4 dimensions.
DnnTensor read_tensor(const DnnNode& node);

std::size_t size_of(cudnnDataType_t type);  // 0: not one of f32, f16, bf16
float load(const DnnTensor& t, const void* data, int64_t at);
void store(const DnnTensor& t, void* data, int64_t at, float value);

/// What an operation graph computes.
struct DnnProblem {
  virtual ~DnnProblem() = default;

  /// The tensors that the caller has to give.
  virtual std::vector<const DnnTensor*> operands() const = 0;
  virtual bool is_f32() const = 0;
  /// Computes it now; `data` in the order of operands(). With `tf32`, f32 inputs lose their lower
  /// 13 bits first. Device memory must be accessible.
  virtual void run(const std::vector<void*>& data, bool tf32) const = 0;
};

/// Check an operation, or an operation graph, as cuDNN does, and read it. Throw DnnFailure.
void check_convolution(const DnnNode& operation);
std::shared_ptr<DnnProblem> read_convolution_graph(const DnnNode& graph);
std::shared_ptr<DnnProblem> read_attention_graph(const DnnNode& graph);

/// Throws DnnFailure unless `condition` holds.
inline void require(bool condition, cudnnStatus_t status, const char* text) {
  if (!condition) fail_dnn(status, text);
}

// Engines of the stand-in, one of each kind that a caller must be able to tell apart.
enum DnnEngine {
  kDnnExact = 0,       // needs a little workspace
  kDnnTensorCore = 1,  // f32 by TF32
  kDnnAtomics = 2,     // sums in any order
  kDnnHungry = 3,      // needs 3 GiB of workspace
  kDnnElsewhere = 4,   // proposed, but has no plan for this GPU
};

}  // namespace tarn::emu
