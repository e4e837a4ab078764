// dnn_attention_graph.cpp - builds the operation graphs of attention by hand.
//
// cuDNN has no attention operation that does what is wanted (its own has no causal mask in 9.19,
// and no backward): its engines recognise attention in a graph of products, pointwise operations
// and reductions, if that has exactly the form built here. It is the form that NVIDIA's
// cudnn-frontend builds (MIT licence;
// include/cudnn_frontend/node/scaled_dot_product_flash_attention.h).
#if TARN_HAVE_CUDNN

#include "tarn/cuda/dnn_attention_graph.h"

#include <array>

namespace tarn::cuda {
namespace {

using Sizes = std::array<int64_t, 4>;
using Ref = cudnnBackendDescriptor_t;

Sizes dense(const Sizes& n) {
  return {n[1] * n[2] * n[3], n[2] * n[3], n[3], 1};
}

/// Adds operations; each returns its result, which lives inside the graph unless it is given.
class Builder {
 public:
  explicit Builder(const DnnAttention& attention) : a_(attention) {}

  Ref tensor(int64_t id, cudnnDataType_t type, const Sizes& sizes, const Sizes& strides,
             cudnnBackendAttributeName_t property = CUDNN_ATTR_TENSOR_UNIQUE_ID) {
    DnnDescriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor");
    d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
    d.set(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    d.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, int64_t{16});
    d.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, sizes.data());
    d.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data());
    if (property != CUDNN_ATTR_TENSOR_UNIQUE_ID) {
      const bool yes = true;
      d.set(property, CUDNN_TYPE_BOOLEAN, 1, &yes);
    }
    return keep(std::move(d));
  }
  Ref operand(int64_t id, const Sizes& n, const DnnHeads& step) {
    return tensor(id, data_type(a_.dtype), n, {step.batch, step.head, step.row, 1});
  }
  /// [B, heads, width, rows] of an operand that is [B, heads, rows, width] in memory.
  Ref transposed(int64_t id, const Sizes& n, const DnnHeads& step) {
    return tensor(id, data_type(a_.dtype), {n[0], n[1], n[3], n[2]},
                  {step.batch, step.head, 1, step.row});
  }
  Ref scalar(int64_t id) {
    return tensor(id, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
  }
  Ref hidden(cudnnDataType_t type, const Sizes& sizes, const Sizes& strides) {
    return tensor(kDnnHidden + hidden_++, type, sizes, strides, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
  }
  Ref scores(cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    const Sizes n{a_.batch, a_.heads, a_.queries, a_.keys};
    return hidden(type, n, dense(n));
  }
  Ref rows() {
    const Sizes n{a_.batch, a_.heads, a_.queries, 1};
    return hidden(CUDNN_DATA_FLOAT, n, dense(n));
  }
  Ref rows(int64_t id) {
    const Sizes n{a_.batch, a_.heads, a_.queries, 1};
    return tensor(id, CUDNN_DATA_FLOAT, n, dense(n));
  }

  Ref product(Ref a, Ref b, Ref c) {
    DnnDescriptor mode(CUDNN_BACKEND_MATMUL_DESCRIPTOR, "product");
    mode.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    const Ref how = keep(std::move(mode));
    return add(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "product operation",
               {{CUDNN_ATTR_OPERATION_MATMUL_DESC, how},
                {CUDNN_ATTR_OPERATION_MATMUL_ADESC, a},
                {CUDNN_ATTR_OPERATION_MATMUL_BDESC, b},
                {CUDNN_ATTR_OPERATION_MATMUL_CDESC, c}});
  }

  /// y = mode(x, b), or x where t holds and b elsewhere. `axis`: of an index.
  Ref pointwise(cudnnPointwiseMode_t mode, Ref x, Ref b, Ref y, Ref t = nullptr, int64_t axis = -1,
                cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    DnnDescriptor d(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "pointwise");
    d.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    d.set(CUDNN_ATTR_POINTWISE_MATH_PREC, type);
    if (axis >= 0) d.set(CUDNN_ATTR_POINTWISE_AXIS, axis);
    const Ref how = keep(std::move(d));
    return add(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "pointwise operation",
               {{CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how},
                {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x},
                {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b},
                {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t},
                {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}});
  }

  Ref reduce(cudnnReduceTensorOp_t mode, Ref x, Ref y) {
    DnnDescriptor d(CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "reduction");
    d.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    d.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    const Ref how = keep(std::move(d));
    return add(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "reduction operation",
               {{CUDNN_ATTR_OPERATION_REDUCTION_DESC, how},
                {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x},
                {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y}});
  }

  /// The same memory under other sizes and strides.
  Ref reshape(Ref x, Ref y) {
    return add(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "reshape operation",
               {{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x}, {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y}});
  }

  DnnGraph finish(const DnnTarget& target) {
    return finish_graph(std::move(parts_), std::move(operations_), target);
  }

 private:
  struct Argument {
    cudnnBackendAttributeName_t name;
    Ref value;  // null: not set
  };

  Ref keep(DnnDescriptor d) {
    d.finalize();
    parts_.push_back(std::move(d));
    return parts_.back().handle();
  }
  /// Returns the last argument, which is the result.
  Ref add(cudnnBackendDescriptorType_t type, const char* name,
          std::initializer_list<Argument> arguments) {
    DnnDescriptor d(type, name);
    for (const Argument& argument : arguments) {
      if (argument.value) d.set(argument.name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &argument.value);
    }
    d.finalize();
    operations_.push_back(std::move(d));
    return (arguments.end() - 1)->value;
  }

  const DnnAttention& a_;
  int64_t hidden_ = 0;
  std::vector<DnnDescriptor> parts_, operations_;
};

/// The scores where the query's index is at least the key's, else minus infinity.
Ref mask_causal(Builder& b, Ref scores) {
  constexpr auto kIndex = CUDNN_DATA_INT32;
  constexpr auto kBool = CUDNN_DATA_BOOLEAN;
  const Ref t =
      b.pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, nullptr, b.scores(kIndex), nullptr, 2, kIndex);
  const Ref s =
      b.pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, nullptr, b.scores(kIndex), nullptr, 3, kIndex);
  const Ref attends =
      b.pointwise(CUDNN_POINTWISE_CMP_GE, t, s, b.scores(kBool), nullptr, -1, kBool);
  return b.pointwise(CUDNN_POINTWISE_BINARY_SELECT, scores, b.scalar(kDnnMinusInfinity), b.scores(),
                     attends);
}

void add_forward(Builder& b, const DnnAttention& a) {
  const Ref q = b.operand(kDnnQuery, {a.batch, a.heads, a.queries, a.depth}, a.q);
  const Ref kt = b.transposed(kDnnKey, {a.batch, a.groups, a.keys, a.depth}, a.k);
  const Ref v = b.operand(kDnnValue, {a.batch, a.groups, a.keys, a.width}, a.v);
  const Ref out = b.operand(kDnnOut, {a.batch, a.heads, a.queries, a.width}, a.out);
  Ref scores = b.pointwise(CUDNN_POINTWISE_MUL, b.product(q, kt, b.scores()), b.scalar(kDnnScale),
                           b.scores());
  if (a.causal) scores = mask_causal(b, scores);
  const Ref most = b.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, b.rows());
  const Ref shifted = b.pointwise(CUDNN_POINTWISE_SUB, scores, most, b.scores());
  const Ref exponentials = b.pointwise(CUDNN_POINTWISE_EXP, shifted, nullptr, b.scores());
  const Ref sum = b.reduce(CUDNN_REDUCE_TENSOR_ADD, exponentials, b.rows());
  const Ref log = b.pointwise(CUDNN_POINTWISE_LOG, sum, nullptr, b.rows());
  b.pointwise(CUDNN_POINTWISE_ADD, most, log, b.rows(kDnnLogSumExp));
  const Ref weights =
      b.pointwise(CUDNN_POINTWISE_DIV, exponentials, sum, b.scores(data_type(a.dtype)));
  b.product(weights, v, out);
}

/// With P the weights, dP = gout v^T and delta = sum(gout * out): dS = P (dP - delta) scale,
/// gv = P^T gout, gk = dS^T q, gq = dS k.
void add_backward(Builder& b, const DnnAttention& a) {
  const cudnnDataType_t type = data_type(a.dtype);
  const Sizes key_sizes{a.batch, a.groups, a.keys, a.depth};
  const Sizes value_sizes{a.batch, a.groups, a.keys, a.width};
  const Sizes query_sizes{a.batch, a.heads, a.queries, a.depth};
  const Sizes out_sizes{a.batch, a.heads, a.queries, a.width};
  const Ref q = b.operand(kDnnQuery, query_sizes, a.q);
  const Ref kt = b.transposed(kDnnKey, key_sizes, a.k);
  const Ref vt = b.transposed(kDnnValue, value_sizes, a.v);
  const Ref out = b.operand(kDnnOut, out_sizes, a.out);
  const Ref gout = b.operand(kDnnOutGradient, out_sizes, a.gout);
  const Ref scale = b.scalar(kDnnScale);
  /// The scores or their gradients [B, H, T, S], in halves, as [B, H, S, T].
  const auto turned = [&](Ref scores) {
    return b.reshape(scores,
                     b.hidden(type, {a.batch, a.heads, a.keys, a.queries},
                              {a.heads * a.keys * a.queries, a.keys * a.queries, 1, a.keys}));
  };
  /// to [B, G, S, width] = the products of each head, added over the heads of a group.
  const auto add_product = [&](Ref weights, Ref x, int64_t id, int64_t width,
                               const DnnHeads& step) {
    const Ref to = b.operand(id, {a.batch, a.groups, a.keys, width}, step);
    if (a.heads == a.groups) return b.product(weights, x, to);
    const Sizes n{a.batch, a.heads, a.keys, width};
    return b.reduce(CUDNN_REDUCE_TENSOR_ADD, b.product(weights, x, b.hidden(type, n, dense(n))),
                    to);
  };

  const Ref products = b.pointwise(CUDNN_POINTWISE_MUL, gout, out,
                                   b.hidden(CUDNN_DATA_FLOAT, out_sizes, dense(out_sizes)));
  // A product with one, and delta in memory, are parts of the form that is recognised.
  const Ref delta =
      b.pointwise(CUDNN_POINTWISE_MUL, b.reduce(CUDNN_REDUCE_TENSOR_ADD, products, b.rows()),
                  b.scalar(kDnnOne), b.rows(kDnnDelta));

  const Ref scaled =
      b.pointwise(CUDNN_POINTWISE_MUL, b.product(q, kt, b.scores()), scale, b.scores());
  Ref shifted = b.pointwise(CUDNN_POINTWISE_SUB, scaled, b.rows(kDnnLogSumExp), b.scores());
  if (a.causal) shifted = mask_causal(b, shifted);
  const Ref weights = b.pointwise(CUDNN_POINTWISE_EXP, shifted, nullptr, b.scores());
  add_product(turned(weights), gout, kDnnValueGradient, a.width, a.gv);

  const Ref gweights = b.product(gout, vt, b.scores());
  const Ref centred = b.pointwise(CUDNN_POINTWISE_SUB, gweights, delta, b.scores());
  const Ref weighted = b.pointwise(CUDNN_POINTWISE_MUL, centred, weights, b.scores());
  const Ref gscores = b.pointwise(CUDNN_POINTWISE_MUL, weighted, scale, b.scores(type));
  add_product(turned(gscores), q, kDnnKeyGradient, a.depth, a.gk);

  const Ref k = b.reshape(kt, b.hidden(type, key_sizes, {a.k.batch, a.k.head, a.k.row, 1}));
  const Ref gq = b.operand(kDnnQueryGradient, query_sizes, a.gq);
  if (a.deterministic) {
    b.product(gscores, k, gq);
  } else {
    const Ref sums = b.tensor(kDnnQuerySums, CUDNN_DATA_FLOAT, query_sizes, dense(query_sizes));
    b.pointwise(CUDNN_POINTWISE_IDENTITY, b.product(gscores, k, sums), nullptr, gq);
  }
}

}  // namespace

std::string DnnAttention::describe() const {
  const char* const names[] = {"forward", "backward"};
  return tarn::detail::concat(names[static_cast<int>(pass)], ", ", dtype, ", q=[", batch, ", ",
                              heads, ", ", queries, ", ", depth, "], k=[", batch, ", ", groups,
                              ", ", keys, ", ", depth, "], v=[", batch, ", ", groups, ", ", keys,
                              ", ", width, "]", causal ? ", causal" : "", " on cuda:", device);
}

DnnGraph make_graph(const DnnAttention& attention, const DnnTarget& target) {
  Builder builder(attention);
  if (attention.pass == AttentionPass::kForward) {
    add_forward(builder, attention);
  } else {
    add_backward(builder, attention);
  }
  return builder.finish(target);
}

}  // namespace tarn::cuda

#endif  // TARN_HAVE_CUDNN
