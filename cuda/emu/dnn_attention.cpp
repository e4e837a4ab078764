// dnn_attention.cpp - stand-in for cuDNN: reads graphs of products, pointwise operations,
// reductions and reshapes, and computes them operation by operation.
//
// A tensor inside a graph is rounded to its type, as in registers; sums are in f32 in order of
// their index. cuDNN takes fewer graphs than this: which, is tested on the library itself.
#if TARN_HAVE_CUDNN

#include <algorithm>
#include <cmath>
#include <limits>

#include "tarn/cuda/emu/dnn.h"
#include "tarn/cuda/emu/dnn_index.h"

namespace tarn::emu {
namespace {

struct Operation {
  cudnnBackendDescriptorType_t type;
  int mode = 0, axis = -1;
  std::vector<std::size_t> inputs;  // places in Program::tensors
  std::size_t output = 0;
};

/// Elements as f32, laid out as the tensor says.
struct Values {
  const DnnTensor* t;
  std::vector<float> at;

  float& operator()(int64_t a, int64_t b, int64_t c, int64_t d) {
    return at[static_cast<std::size_t>(t->offset(a, b, c, d))];
  }
  float operator()(int64_t a, int64_t b, int64_t c, int64_t d) const {
    return at[static_cast<std::size_t>(t->offset(a, b, c, d))];
  }
};

float rounded(cudnnDataType_t type, float value) {
  if (size_of(type) != 2) return value;
  DnnTensor t;
  t.type = type;
  uint16_t bits;
  store(t, &bits, 0, value);
  return load(t, &bits, 0);
}

/// c = a b for each batch and head; where c has more heads, neighbours share those of an operand.
void multiply(const Values& a, const Values& b, Values& c) {
  const int64_t* const n = c.t->sizes;
  const auto head = [n](const Values& x, int64_t h) { return h * x.t->sizes[1] / n[1]; };
  for_each_index(c.t->sizes, [&](int64_t i, int64_t h, int64_t row, int64_t column) {
    float sum = 0;
    for (int64_t k = 0; k < a.t->sizes[3]; ++k) {
      sum += a(i, head(a, h), row, k) * b(i, head(b, h), k, column);
    }
    c(i, h, row, column) = sum;
  });
}

/// Sizes of one are repeated.
float repeated(const Values& x, const int64_t (&i)[4]) {
  const int64_t* const n = x.t->sizes;
  return x(n[0] > 1 ? i[0] : 0, n[1] > 1 ? i[1] : 0, n[2] > 1 ? i[2] : 0, n[3] > 1 ? i[3] : 0);
}

float point(const Operation& operation, const float (&x)[3], const int64_t (&index)[4]) {
  switch (operation.mode) {
    case CUDNN_POINTWISE_ADD:
      return x[0] + x[1];
    case CUDNN_POINTWISE_SUB:
      return x[0] - x[1];
    case CUDNN_POINTWISE_MUL:
      return x[0] * x[1];
    case CUDNN_POINTWISE_DIV:
      return x[0] / x[1];
    case CUDNN_POINTWISE_EXP:
      return std::exp(x[0]);
    case CUDNN_POINTWISE_LOG:
      return std::log(x[0]);
    case CUDNN_POINTWISE_CMP_GE:
      return x[0] >= x[1] ? 1.0f : 0.0f;
    case CUDNN_POINTWISE_GEN_INDEX:
      return static_cast<float>(index[operation.axis]);
    case CUDNN_POINTWISE_BINARY_SELECT:
      return x[2] != 0 ? x[0] : x[1];
    default:  // CUDNN_POINTWISE_IDENTITY
      return x[0];
  }
}

/// How many operands a mode has; 0: not known here.
std::size_t operands_of(int mode) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD:
    case CUDNN_POINTWISE_SUB:
    case CUDNN_POINTWISE_MUL:
    case CUDNN_POINTWISE_DIV:
    case CUDNN_POINTWISE_CMP_GE:
      return 2;
    case CUDNN_POINTWISE_BINARY_SELECT:
      return 3;
    case CUDNN_POINTWISE_EXP:
    case CUDNN_POINTWISE_LOG:
    case CUDNN_POINTWISE_IDENTITY:
    case CUDNN_POINTWISE_GEN_INDEX:
      return 1;
    default:
      return 0;
  }
}

/// Over neighbours, so many that y's sizes come out.
void reduce(const Operation& operation, const Values& x, Values& y) {
  const bool adds = operation.mode == CUDNN_REDUCE_TENSOR_ADD;
  std::fill(y.at.begin(), y.at.end(), adds ? 0.0f : -std::numeric_limits<float>::infinity());
  const int64_t *const from = x.t->sizes, *const to = y.t->sizes;
  for_each_index(x.t->sizes, [&](int64_t a, int64_t b, int64_t c, int64_t d) {
    float& sum =
        y(a * to[0] / from[0], b * to[1] / from[1], c * to[2] / from[2], d * to[3] / from[3]);
    const float value = x(a, b, c, d);
    sum = adds ? sum + value : std::max(sum, value);
  });
}

class Program final : public DnnProblem {
 public:
  void add(const DnnNode& node);
  void check_operands() const;

  std::vector<const DnnTensor*> operands() const override {
    std::vector<const DnnTensor*> list;
    for (const DnnTensor& t : tensors_) {
      if (!t.is_virtual) list.push_back(&t);
    }
    return list;
  }
  bool is_f32() const override { return false; }
  void run(const std::vector<void*>& data, bool tf32) const override;

 private:
  std::size_t place_of(const DnnNode& node);
  void check_shapes(const Operation& operation) const;
  void compute(const Operation& operation, std::vector<Values>& values) const;

  std::vector<const DnnNode*> nodes_;  // of tensors_, while the graph is read
  std::vector<DnnTensor> tensors_;
  std::vector<bool> written_;
  std::vector<Operation> operations_;
};

std::size_t Program::place_of(const DnnNode& node) {
  const DnnTensor t = read_tensor(node);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].id != t.id) continue;
    require(nodes_[i] == &node, CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
            "two tensors have one unique id");
    return i;
  }
  require(t.is_virtual || size_of(t.type) != 0, CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE,
          "data type of an operand");
  require(!t.is_by_value || t.type == CUDNN_DATA_FLOAT, CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE,
          "the stand-in has f32 scalars only");
  nodes_.push_back(&node);
  tensors_.push_back(t);
  written_.push_back(false);
  return tensors_.size() - 1;
}

void Program::add(const DnnNode& node) {
  Operation operation{.type = node.type, .inputs = {}};
  const auto read = [&](std::initializer_list<int> inputs, int output) {
    for (int name : inputs) {
      const DnnNodeRef tensor = node.node(name);
      if (tensor) operation.inputs.push_back(place_of(*tensor));
    }
    operation.output = place_of(*node.node(output));
  };
  switch (node.type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      read({CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC},
           CUDNN_ATTR_OPERATION_MATMUL_CDESC);
      break;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
      const DnnNode& how = *node.node(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
      operation.mode = how.number(CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_IDENTITY);
      operation.axis = static_cast<int>(how.number<int64_t>(CUDNN_ATTR_POINTWISE_AXIS, -1));
      read({CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
            CUDNN_ATTR_OPERATION_POINTWISE_TDESC},
           CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
      const std::size_t wanted = operands_of(operation.mode);
      require(wanted > 0, CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
              "mode of a pointwise operation");
      require(operation.inputs.size() == wanted, CUDNN_STATUS_BAD_PARAM,
              "number of operands of a pointwise operation");
      require(operation.mode != CUDNN_POINTWISE_GEN_INDEX ||
                  (operation.axis >= 0 && operation.axis < 4),
              CUDNN_STATUS_BAD_PARAM, "axis of an index");
      break;
    }
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      operation.mode = node.node(CUDNN_ATTR_OPERATION_REDUCTION_DESC)
                           ->number(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_REDUCE_TENSOR_ADD);
      require(
          operation.mode == CUDNN_REDUCE_TENSOR_ADD || operation.mode == CUDNN_REDUCE_TENSOR_MAX,
          CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "mode of a reduction");
      read({CUDNN_ATTR_OPERATION_REDUCTION_XDESC}, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
      break;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      read({CUDNN_ATTR_OPERATION_RESHAPE_XDESC}, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
      break;
    default:
      fail_dnn(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "operation of a graph");
  }
  for (std::size_t input : operation.inputs) {
    require(written_[input] || !tensors_[input].is_virtual, CUDNN_STATUS_BAD_PARAM,
            "a virtual tensor is read before it is written");
  }
  require(!written_[operation.output] && !tensors_[operation.output].is_by_value,
          CUDNN_STATUS_BAD_PARAM, "a tensor is written twice, or by value");
  check_shapes(operation);
  written_[operation.output] = true;
  operations_.push_back(std::move(operation));
}

void Program::check_shapes(const Operation& operation) const {
  const DnnTensor &x = tensors_[operation.inputs[0]], &y = tensors_[operation.output];
  bool fits = true;
  switch (operation.type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: {
      const DnnTensor& b = tensors_[operation.inputs[1]];
      require(size_of(x.type) == 2 && x.type == b.type, CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE,
              "attention has products of f16 or bf16");
      fits = x.sizes[0] == y.sizes[0] && b.sizes[0] == y.sizes[0] && x.sizes[2] == y.sizes[2] &&
             b.sizes[3] == y.sizes[3] && x.sizes[3] == b.sizes[2] && y.sizes[1] % x.sizes[1] == 0 &&
             y.sizes[1] % b.sizes[1] == 0;
      break;
    }
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      fits = x.extent() == y.extent();
      break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      for (int d = 0; d < 4; ++d) fits = fits && x.sizes[d] % y.sizes[d] == 0;
      break;
    default:
      for (std::size_t input : operation.inputs) {
        for (int d = 0; d < 4; ++d) {
          const int64_t n = tensors_[input].sizes[d];
          fits = fits && (n == 1 || n == y.sizes[d]);
        }
      }
  }
  require(fits, CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "sizes of an operation do not match");
}

void Program::check_operands() const {
  for (const DnnTensor& t : tensors_) {
    if (t.is_virtual || size_of(t.type) != 2) continue;
    const int64_t width = t.strides[3] == 1 ? t.sizes[3] : t.sizes[2];
    require(t.strides[3] == 1 || t.strides[2] == 1, CUDNN_STATUS_NOT_SUPPORTED_LAYOUT,
            "the width of a head is not dense");
    require(width % 8 == 0 && width <= 256, CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "width of a head");
  }
}

void Program::compute(const Operation& operation, std::vector<Values>& values) const {
  const Values& x = values[operation.inputs[0]];
  Values& y = values[operation.output];
  switch (operation.type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      multiply(x, values[operation.inputs[1]], y);
      break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      reduce(operation, x, y);
      break;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      y.at = x.at;
      break;
    default:
      for_each_index(y.t->sizes, [&](int64_t a, int64_t b, int64_t c, int64_t d) {
        const int64_t index[] = {a, b, c, d};
        float in[3] = {};
        for (std::size_t i = 0; i < operation.inputs.size(); ++i) {
          in[i] = repeated(values[operation.inputs[i]], index);
        }
        y(a, b, c, d) = point(operation, in, index);
      });
  }
  for (float& value : y.at) value = rounded(y.t->type, value);
}

void Program::run(const std::vector<void*>& data, bool) const {
  std::vector<Values> values;
  std::vector<void*> memory;
  std::size_t given = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const DnnTensor& t = tensors_[i];
    memory.push_back(t.is_virtual ? nullptr : data[given++]);
    values.push_back({&t, std::vector<float>(static_cast<std::size_t>(t.extent()))});
    if (t.is_virtual || written_[i]) continue;
    for_each_index(t.sizes, [&](int64_t a, int64_t b, int64_t c, int64_t d) {
      values[i](a, b, c, d) = load(t, memory[i], t.offset(a, b, c, d));
    });
  }
  for (const Operation& operation : operations_) {
    compute(operation, values);
    const DnnTensor& t = tensors_[operation.output];
    if (t.is_virtual) continue;
    const Values& result = values[operation.output];
    for_each_index(t.sizes, [&](int64_t a, int64_t b, int64_t c, int64_t d) {
      store(t, memory[operation.output], t.offset(a, b, c, d), result(a, b, c, d));
    });
  }
}

}  // namespace

std::shared_ptr<DnnProblem> read_attention_graph(const DnnNode& graph) {
  auto program = std::make_shared<Program>();
  for (const DnnNodeRef& operation : graph.values.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes) {
    program->add(*operation);
  }
  program->check_operands();
  return program;
}

}  // namespace tarn::emu

#endif  // TARN_HAVE_CUDNN
