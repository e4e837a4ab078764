// torch_ops.h - PyTorch's operators, by the names its database has, in terms of tarn's.
#pragma once

#include <cmath>

#include "torch_layers.h"

namespace tarn::golden {

inline void add_elementwise_ops(OpTable& table) {
  using Unary = Tensor (*)(const Tensor&);
  const std::vector<std::pair<const char*, Unary>> unary = {{"exp", exp},
                                                            {"log", log},
                                                            {"sqrt", sqrt},
                                                            {"rsqrt", rsqrt},
                                                            {"erf", erf},
                                                            {"tanh", tanh},
                                                            {"sigmoid", sigmoid},
                                                            {"nn.functional.relu", relu},
                                                            {"nn.functional.silu", silu},
                                                            {"nn.functional.silu.complex", silu}};
  for (const auto& [name, function] : unary) {
    table[name] = [function](const Case& c) { return std::vector{function(c.input())}; };
  }
  using Binary = Tensor (*)(const Tensor&, const Tensor&);
  const std::vector<std::pair<const char*, Binary>> binary = {{"mul", mul},
                                                              {"div.no_rounding_mode", div},
                                                              {"div.trunc_rounding", trunc_divide},
                                                              {"div.floor_rounding", floor_divide},
                                                              {"pow", pow}};
  for (const auto& [name, function] : binary) {
    table[name] = [function](const Case& c) {
      return std::vector{function(c.input(), c.tensor(0, "other"))};
    };
  }
  table["add"] = [](const Case& c) {
    return std::vector{add(c.input(), c.tensor(0, "other"), c.number(-1, "alpha", 1))};
  };
  table["sub"] = [](const Case& c) {
    return std::vector{sub(c.input(), c.tensor(0, "other"), c.number(-1, "alpha", 1))};
  };
  table["nn.functional.gelu"] = [](const Case& c) {
    return std::vector{gelu(c.input(), c.text(-1, "approximate", "none") == "tanh")};
  };
  table["nn.functional.dropout"] = [](const Case& c) {
    return std::vector{dropout(c.input(), c.number(-1, "p", 0.5), c.flag(-1, "training", true))};
  };
  table["clamp"] = [](const Case& c) {  // by tensors: no ties in the data
    Tensor x = c.input();
    if (c.given(0, "min")) x = maximum(x, c.tensor(0, "min"));
    if (c.given(1, "max")) x = minimum(x, c.tensor(1, "max"));
    return std::vector{x};
  };
  table["where"] = [](const Case& c) {
    return std::vector{where(c.tensor(0, "condition"), c.input(), c.tensor(1, "other"))};
  };
  table["masked_fill"] = [](const Case& c) {
    const Tensor x = c.input(), mask = c.tensor(0, "mask");
    return std::vector{c.is_tensor(1, "value") ? where(mask, c.tensor(1, "value"), x)
                                               : masked_fill(x, mask, c.number(1, "value", 0))};
  };
}

inline void add_matmul_ops(OpTable& table) {
  using Binary = Tensor (*)(const Tensor&, const Tensor&);
  const std::vector<std::pair<const char*, Binary>> binary = {
      {"matmul", matmul}, {"mm", mm}, {"bmm", bmm}};
  for (const auto& [name, function] : binary) {
    table[name] = [function](const Case& c) {
      return std::vector{function(c.input(), c.tensor(0, "other"))};
    };
  }
  for (const char* name : {"addmm", "addmm.decomposed"}) {
    table[name] = [](const Case& c) {
      return std::vector{addmm(c.input(), c.tensor(0, "mat1"), c.tensor(1, "mat2"),
                               c.number(-1, "beta", 1), c.number(-1, "alpha", 1))};
    };
  }
  table["nn.functional.linear"] = [](const Case& c) {
    return std::vector{linear(c.input(), c.tensor(0, "weight"), c.tensor(1, "bias"))};
  };
}

/// stride, padding, dilation and groups of a convolution over `dims` dimensions. "same" (stride 1)
/// pads by dilation * (kernel - 1) in all, the odd one behind: here on both sides, see trimmed().
inline Conv2dOptions conv_options(const Case& c, int dims) {
  const auto pair = [&](const char* keyword, int64_t absent) {
    std::vector<int64_t> v = c.integers(-1, keyword, dims);
    if (v.empty()) v.assign(static_cast<size_t>(dims), absent);
    if (dims == 1) v.insert(v.begin(), absent);
    return v;
  };
  const auto stride = pair("stride", 1), dilation = pair("dilation", 1);
  std::vector<int64_t> pad{0, 0};
  if (!c.value(-1, "padding").is_string()) pad = pair("padding", 0);
  if (c.text(-1, "padding", "") == "same") {
    const Shape weight = c.tensor(0, "weight").sizes();
    for (int i = 2 - dims; i < 2; ++i) {
      const auto at = static_cast<size_t>(i);
      pad[at] = (dilation[at] * (weight[weight.dim() - 2 + i] - 1) + 1) / 2;
    }
  }
  return {.stride_h = stride[0],
          .stride_w = stride[1],
          .pad_h = pad[0],
          .pad_w = pad[1],
          .dilation_h = dilation[0],
          .dilation_w = dilation[1],
          .groups = c.integer(-1, "groups", 1)};
}

/// Drops what padding an odd total on both sides has given too much in front.
inline Tensor trimmed(const Case& c, Tensor y, int dims) {
  if (c.text(-1, "padding", "") != "same") return y;
  const Tensor x = c.input();
  for (int d = x.dim() - dims; d < x.dim(); ++d) {
    if (y.size(d) > x.size(d)) y = narrow(y, d, 1, x.size(d));
  }
  return y;
}

inline void add_conv_ops(OpTable& table) {
  table["nn.functional.conv2d"] = [](const Case& c) {
    const Tensor y =
        conv2d(c.input(), c.tensor(0, "weight"), c.tensor(1, "bias"), conv_options(c, 2));
    return std::vector{trimmed(c, y, 2)};
  };
  table["nn.functional.conv1d"] = [](const Case& c) {
    const Tensor y =
        conv1d(c.input(), c.tensor(0, "weight"), c.tensor(1, "bias"), conv_options(c, 1));
    return std::vector{trimmed(c, y, 1)};
  };
  table["nn.functional.conv_transpose2d"] = [](const Case& c) {
    std::vector<int64_t> extra = c.integers(-1, "output_padding", 2);
    if (extra.empty()) extra = {0, 0};
    return std::vector{conv_transpose2d(c.input(), c.tensor(0, "weight"), c.tensor(1, "bias"),
                                        conv_options(c, 2), extra[0], extra[1])};
  };
}

inline void add_shape_ops(OpTable& table) {
  table["reshape"] = [](const Case& c) {
    return std::vector{reshape(c.input(), c.integers(0, "shape"))};
  };
  table["permute"] = [](const Case& c) {
    return std::vector{permute(c.input(), c.integers(0, "dims"))};
  };
  table["transpose"] = [](const Case& c) {
    return std::vector{transpose(c.input(), c.integer(0, "dim0", 0), c.integer(1, "dim1", 0))};
  };
  table["cat"] = [](const Case& c) { return std::vector{cat(c.inputs(), c.integer(0, "dim", 0))}; };
  table["split"] = [](const Case& c) {
    return split(c.input(), c.integer(0, "split_size", 0), c.integer(1, "dim", 0));
  };
  table["split.list_args"] = [](const Case& c) {
    return split(c.input(), c.integers(0, "split_size"), c.integer(1, "dim", 0));
  };
  using Triangle = Tensor (*)(const Tensor&, int64_t);
  for (const auto& [name, function] :
       std::vector<std::pair<const char*, Triangle>>{{"tril", tril}, {"triu", triu}}) {
    table[name] = [function](const Case& c) {
      return std::vector{function(c.input(), c.integer(0, "diagonal", 0))};
    };
  }
  const std::vector<std::pair<const char*, PadMode>> modes = {{"constant", PadMode::kConstant},
                                                              {"reflect", PadMode::kReflect},
                                                              {"replicate", PadMode::kReplicate},
                                                              {"circular", PadMode::kCircular}};
  for (const auto& [name, mode] : modes) {
    table[std::string("nn.functional.pad.") + name] = [mode](const Case& c) {
      return std::vector{pad(c.input(), c.integers(0, "pad"), mode, c.number(2, "value", 0))};
    };
  }
}

inline void add_index_ops(OpTable& table) {
  table["gather"] = [](const Case& c) {
    return std::vector{gather(c.input(), c.integer(0, "dim", 0), c.tensor(1, "index"))};
  };
  table["index_select"] = [](const Case& c) {
    return std::vector{index_select(c.input(), c.integer(0, "dim", 0), c.tensor(1, "index"))};
  };
  table["scatter_add"] = [](const Case& c) {
    return std::vector{
        scatter_add(c.input(), c.integer(0, "dim", 0), c.tensor(1, "index"), c.tensor(2, "src"))};
  };
  table["nn.functional.embedding"] = [](const Case& c) {
    return std::vector{embedding(c.input(), c.tensor(0, "input"))};
  };
}

/// The weights as a tensor, which PyTorch returns beside the result and differentiates as well.
inline Tensor attention_weights(const Tensor& q, const Tensor& k, bool causal) {
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  Tensor scores = matmul(q, transpose(k, -2, -1)) * scale;
  if (causal) {
    const Tensor past = tril(ones({q.size(-2), k.size(-2)}, {.dtype = q.dtype()}));
    scores = masked_fill(scores, eq(past, Scalar(0)), -INFINITY);
  }
  return softmax(scores, -1);
}

inline void add_attention_ops(OpTable& table) {
  table["nn.functional._scaled_dot_product_attention"] = [](const Case& c) {
    const Tensor q = c.input(), k = c.tensor(0, "key"), v = c.tensor(1, "value");
    const bool causal = c.flag(-1, "is_causal", false);
    std::vector outs{scaled_dot_product_attention(
        q, k, v, {.mask = c.tensor(2, "attn_mask"), .causal = causal})};
    outs.push_back(attention_weights(q, k, causal));
    return outs;
  };
}

inline void add_reduce_ops(OpTable& table) {
  using Moments = Tensor (*)(const Tensor&, const Shape&, bool, std::optional<DType>);
  for (const auto& [name, function] :
       std::vector<std::pair<const char*, Moments>>{{"sum", sum}, {"mean", mean}}) {
    table[name] = [function](const Case& c) {
      return std::vector{function(c.input(), c.integers(0, "dim"), c.flag(1, "keepdim", false),
                                  c.dtype(-1, "dtype"))};
    };
  }
  table["amax"] = [](const Case& c) {
    return std::vector{amax(c.input(), c.integers(0, "dim"), c.flag(1, "keepdim", false))};
  };
  table["argmax"] = [](const Case& c) {
    std::optional<int64_t> dim;
    if (c.given(0, "dim")) dim = c.integer(0, "dim", 0);
    return std::vector{argmax(c.input(), dim, c.flag(1, "keepdim", false))};
  };
  table["var"] = [](const Case& c) {
    const bool unbiased = c.value(0, "unbiased").is_boolean() ? c.flag(0, "unbiased", true)
                                                              : c.flag(-1, "unbiased", true);
    const Shape dims = c.value(0, "dim").is_boolean() ? Shape() : Shape(c.integers(0, "dim"));
    return std::vector{var(c.input(), dims, c.number(-1, "correction", unbiased ? 1 : 0),
                           c.flag(-1, "keepdim", false))};
  };
  table["logsumexp"] = [](const Case& c) {
    return std::vector{logsumexp(c.input(), c.integers(0, "dim"), c.flag(1, "keepdim", false))};
  };
  for (const char* name : {"norm", "norm.fro", "norm.inf"}) {
    table[name] = [](const Case& c) {
      const double p = c.value(0, "p").is_string() ? 2 : c.number(0, "p", 2);
      return std::vector{norm(c.input(), p, c.integers(1, "dim"), c.flag(2, "keepdim", false))};
    };
  }
  table["cumsum"] = [](const Case& c) {
    return std::vector{cumsum(c.input(), c.integer(0, "dim", 0), c.dtype(-1, "dtype"))};
  };
  table["topk"] = [](const Case& c) {
    const auto [values, indices] =
        topk(c.input(), c.integer(0, "k", 1), c.integer(1, "dim", -1), c.flag(2, "largest", true));
    return std::vector{values, indices};
  };
  for (const char* name : {"softmax", "softmax.with_dtype"}) {
    table[name] = [](const Case& c) {
      return std::vector{softmax(c.input(), c.integer(0, "dim", 0), c.dtype(-1, "dtype"))};
    };
  }
  for (const char* name : {"log_softmax", "log_softmax.dtype"}) {
    table[name] = [](const Case& c) {
      return std::vector{log_softmax(c.input(), c.integer(0, "dim", 0), c.dtype(-1, "dtype"))};
    };
  }
}

/// Every operator of PyTorch that tarn has.
inline OpTable torch_ops() {
  OpTable table;
  add_elementwise_ops(table);
  add_matmul_ops(table);
  add_conv_ops(table);
  add_shape_ops(table);
  add_index_ops(table);
  add_reduce_ops(table);
  add_attention_ops(table);
  add_layer_ops(table);
  return table;
}

}  // namespace tarn::golden
