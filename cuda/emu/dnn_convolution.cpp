// dnn_convolution.cpp - stand-in for cuDNN: reads convolution graphs and computes them.
#if TARN_HAVE_CUDNN

#include <algorithm>
#include <bit>
#include <cstring>

#include "tarn/cuda/emu/dnn.h"
#include "tarn/cuda/emu/dnn_index.h"

namespace tarn::emu {
namespace {

// The attributes of a convolution operation, which differ between passes in name only.
struct Names {
  int convolution, x, weight, y;
};

Names names_of(cudnnBackendDescriptorType_t pass) {
  switch (pass) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      return {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      return {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
    default:
      return {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};
  }
}

/// A convolution in one of its three directions, and a bias that is added to its result.
struct Convolution final : DnnProblem {
  cudnnBackendDescriptorType_t pass;
  DnnTensor x, weight, y;
  int64_t padding[2], stride[2], dilation[2];
  bool has_bias = false;
  DnnTensor bias, sum;  // y = sum + bias

  std::vector<const DnnTensor*> operands() const override {
    std::vector<const DnnTensor*> list{&x, &weight, &y};
    if (has_bias) list.push_back(&bias);
    return list;
  }
  bool is_f32() const override { return x.type == CUDNN_DATA_FLOAT; }
  void run(const std::vector<void*>& data, bool tf32) const override;
};

Convolution read_convolution(const DnnNode& operation) {
  const Names names = names_of(operation.type);
  Convolution p;
  p.pass = operation.type;
  p.x = read_tensor(*operation.node(names.x));
  p.weight = read_tensor(*operation.node(names.weight));
  p.y = read_tensor(*operation.node(names.y));
  for (const DnnTensor* t : {&p.x, &p.weight, &p.y}) {
    require(size_of(t->type) != 0, CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "data type of a tensor");
  }
  const DnnNode& convolution = *operation.node(names.convolution);
  const auto copy = [&](int name, int64_t* to) {
    const auto values = convolution.numbers(name);
    std::copy(values.begin(), values.end(), to);
  };
  copy(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, p.padding);
  copy(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, p.stride);
  copy(CUDNN_ATTR_CONVOLUTION_DILATIONS, p.dilation);
  const auto after = convolution.numbers(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
  const int64_t groups = p.x.sizes[1] / std::max<int64_t>(p.weight.sizes[1], 1);
  require(p.x.sizes[0] == p.y.sizes[0] && p.weight.sizes[0] == p.y.sizes[1] &&
              groups * p.weight.sizes[1] == p.x.sizes[1] && p.y.sizes[1] % groups == 0,
          CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "channels or images do not match");
  for (int i = 0; i < 2; ++i) {
    const int64_t reach = p.x.sizes[2 + i] + p.padding[i] + after[static_cast<size_t>(i)] -
                          p.dilation[i] * (p.weight.sizes[2 + i] - 1) - 1;
    require(p.y.sizes[2 + i] == reach / p.stride[i] + 1, CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
            "output sizes do not follow from input, filter, padding, stride and dilation");
  }
  return p;
}

float round_to_tf32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7F800000u) == 0x7F800000u) return value;  // infinities and NaN
  return std::bit_cast<float>((bits + 0xFFFu + ((bits >> 13) & 1u)) & ~0x1FFFu);
}

// f(x offset, weight offset, y offset) for every product of the convolution.
template <class F>
void for_each_product(const Convolution& p, F f) {
  const int64_t* const y = p.y.sizes;
  const int64_t* const w = p.weight.sizes;
  const int64_t per_group = y[1] / (p.x.sizes[1] / w[1]);
  for (int64_t n = 0; n < y[0]; ++n) {
    for (int64_t oh = 0; oh < y[2]; ++oh) {
      for (int64_t ow = 0; ow < y[3]; ++ow) {
        for (int64_t r = 0; r < w[2]; ++r) {
          const int64_t ih = oh * p.stride[0] - p.padding[0] + r * p.dilation[0];
          if (ih < 0 || ih >= p.x.sizes[2]) continue;
          for (int64_t s = 0; s < w[3]; ++s) {
            const int64_t iw = ow * p.stride[1] - p.padding[1] + s * p.dilation[1];
            if (iw < 0 || iw >= p.x.sizes[3]) continue;
            for (int64_t k = 0; k < y[1]; ++k) {
              for (int64_t c = 0; c < w[1]; ++c) {
                f(p.x.offset(n, k / per_group * w[1] + c, ih, iw), p.weight.offset(k, c, r, s),
                  p.y.offset(n, k, oh, ow));
              }
            }
          }
        }
      }
    }
  }
}

std::vector<float> load_all(const DnnTensor& t, const void* data, bool tf32) {
  std::vector<float> values(static_cast<size_t>(t.extent()));
  for_each_index(t.sizes, [&](int64_t n, int64_t c, int64_t h, int64_t w) {
    const int64_t at = t.offset(n, c, h, w);
    const float value = load(t, data, at);
    values[static_cast<size_t>(at)] = tf32 ? round_to_tf32(value) : value;
  });
  return values;
}

void Convolution::run(const std::vector<void*>& data, bool tf32) const {
  const Convolution& p = *this;
  const bool forward = p.pass == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR;
  const bool backward_data = p.pass == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
  std::vector<float> x, w, y;
  if (!backward_data) x = load_all(p.x, data[0], tf32);
  if (forward || backward_data) w = load_all(p.weight, data[1], tf32);
  if (!forward) y = load_all(p.y, data[2], tf32);
  const DnnTensor& out = forward ? p.y : backward_data ? p.x : p.weight;
  std::vector<double> sums(static_cast<size_t>(out.extent()));
  const auto at = [](auto& values, int64_t i) -> auto& {
    return values[static_cast<size_t>(i)];
  };
  for_each_product(p, [&](int64_t xi, int64_t wi, int64_t yi) {
    if (forward) {
      at(sums, yi) += static_cast<double>(at(x, xi)) * static_cast<double>(at(w, wi));
    } else if (backward_data) {
      at(sums, xi) += static_cast<double>(at(y, yi)) * static_cast<double>(at(w, wi));
    } else {
      at(sums, wi) += static_cast<double>(at(x, xi)) * static_cast<double>(at(y, yi));
    }
  });
  void* const to = data[forward ? 2 : backward_data ? 0 : 1];
  for_each_index(out.sizes, [&](int64_t n, int64_t c, int64_t h, int64_t w) {
    const int64_t i = out.offset(n, c, h, w);
    double value = at(sums, i);
    if (p.has_bias) value += static_cast<double>(load(p.bias, data[3], p.bias.offset(0, c, 0, 0)));
    store(out, to, i, static_cast<float>(value));
  });
}

}  // namespace

void check_convolution(const DnnNode& operation) {
  const Convolution p = read_convolution(operation);
  for (const DnnTensor* t : {&p.x, &p.weight, &p.y}) {
    require(t->is_virtual || t->alignment % static_cast<int64_t>(size_of(t->type)) == 0,
            CUDNN_STATUS_BAD_PARAM, "alignment is no multiple of the element");
  }
}

std::shared_ptr<DnnProblem> read_convolution_graph(const DnnNode& graph) {
  const auto& operations = graph.values.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes;
  const DnnNode& first = *operations[0];
  require(operations.size() <= 2, CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
          "only convolution and convolution + bias");
  auto problem = std::make_shared<Convolution>(read_convolution(first));
  if (operations.size() == 2) {
    const DnnNode& add = *operations[1];
    require(
        first.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR &&
            add.type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR &&
            add.node(CUDNN_ATTR_OPERATION_POINTWISE_BDESC) != nullptr &&
            add.node(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)
                    ->number(CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_MUL) == CUDNN_POINTWISE_ADD,
        CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "only a forward convolution has a bias");
    problem->has_bias = true;
    problem->sum = problem->y;
    problem->y = read_tensor(*add.node(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
    problem->bias = read_tensor(*add.node(CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
    const DnnTensor in = read_tensor(*add.node(CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
    require(in.id == problem->sum.id && in.is_virtual, CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
            "the sum must read the convolution's virtual result");
    const DnnTensor& b = problem->bias;
    require(std::equal(in.sizes, in.sizes + 4, problem->y.sizes) && b.sizes[1] == in.sizes[1] &&
                b.sizes[0] * b.sizes[2] * b.sizes[3] == 1,
            CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "shapes of the sum do not match");
  }
  std::vector<int64_t> ids;
  for (const DnnTensor* t : problem->operands()) {
    require(!t->is_virtual, CUDNN_STATUS_BAD_PARAM, "an operand of the graph is virtual");
    ids.push_back(t->id);
  }
  std::sort(ids.begin(), ids.end());
  require(std::adjacent_find(ids.begin(), ids.end()) == ids.end(),
          CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "two tensors have one unique id");
  return problem;
}

}  // namespace tarn::emu

#endif  // TARN_HAVE_CUDNN
