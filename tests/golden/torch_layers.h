// torch_layers.h - PyTorch's pools, norms and losses in terms of tarn's; part of torch_ops.h.
#pragma once

#include "op_case.h"

namespace tarn::golden {

using OpTable = std::map<std::string, OpFunction>;

/// A pair of sizes given as one integer, a list of one or two, or not at all.
inline Size2 size2(const Case& c, int position, const char* keyword, int64_t absent) {
  const std::vector<int64_t> v = c.integers(position, keyword, 2);
  return v.empty() ? Size2(absent) : Size2(v[0], v[1]);
}

inline void add_pool_ops(OpTable& table) {
  table["nn.functional.max_pool2d"] = [](const Case& c) {
    const auto [values, indices] = max_pool2d_with_indices(
        c.input(), size2(c, 0, "kernel_size", 1), size2(c, 1, "stride", 0),
        size2(c, 2, "padding", 0), size2(c, 3, "dilation", 1), c.flag(4, "ceil_mode", false));
    if (!c.flag(5, "return_indices", false)) return std::vector{values};
    return std::vector{values, indices};
  };
  table["nn.functional.avg_pool2d"] = [](const Case& c) {
    return std::vector{
        avg_pool2d(c.input(), size2(c, 0, "kernel_size", 1), size2(c, 1, "stride", 0),
                   size2(c, 2, "padding", 0), c.flag(3, "ceil_mode", false),
                   c.flag(4, "count_include_pad", true), c.integer(5, "divisor_override", 0))};
  };
  table["nn.functional.adaptive_avg_pool2d"] = [](const Case& c) {
    const Tensor x = c.input();
    Size2 size(x.size(-2), x.size(-1));  // None keeps a size
    const Json& v = c.value(0, "output_size");
    if (v.is_number()) size = Size2(v.get<int64_t>());
    if (v.is_array() && !v[0].is_null()) size.h = v[0].get<int64_t>();
    if (v.is_array() && !v[1].is_null()) size.w = v[1].get<int64_t>();
    return std::vector{adaptive_avg_pool2d(x, size)};
  };
}

inline void add_norm_ops(OpTable& table) {
  for (const char* name : {"nn.functional.batch_norm", "nn.functional.batch_norm.without_cudnn"}) {
    table[name] = [](const Case& c) {
      return std::vector{batch_norm(c.input(), c.tensor(0, "running_mean"),
                                    c.tensor(1, "running_var"), c.tensor(2, "weight"),
                                    c.tensor(3, "bias"), c.flag(-1, "training", false),
                                    c.number(-1, "momentum", 0.1), c.number(-1, "eps", 1e-5))};
    };
  }
  table["nn.functional.layer_norm"] = [](const Case& c) {
    return std::vector{layer_norm(c.input(), c.integers(0, "normalized_shape"),
                                  c.tensor(1, "weight"), c.tensor(2, "bias"),
                                  c.number(-1, "eps", 1e-5))};
  };
  table["nn.functional.group_norm"] = [](const Case& c) {
    return std::vector{group_norm(c.input(), c.integer(0, "num_groups", 1), c.tensor(-1, "weight"),
                                  c.tensor(-1, "bias"), c.number(-1, "eps", 1e-5))};
  };
}

inline Reduction reduction(const Case& c) {
  const std::string name = c.text(-1, "reduction", "mean");
  return name == "mean" ? Reduction::kMean : name == "sum" ? Reduction::kSum : Reduction::kNone;
}

inline void add_loss_ops(OpTable& table) {
  table["nn.functional.cross_entropy"] = [](const Case& c) {
    return std::vector{cross_entropy(c.input(), c.tensor(0, "target"), c.tensor(-1, "weight"),
                                     {.ignore_index = c.integer(-1, "ignore_index", -100),
                                      .label_smoothing = c.number(-1, "label_smoothing", 0),
                                      .reduction = reduction(c)})};
  };
  table["nn.functional.nll_loss"] = [](const Case& c) {
    return std::vector{nll_loss(c.input(), c.tensor(0, "target"), c.tensor(-1, "weight"),
                                c.integer(-1, "ignore_index", -100), reduction(c))};
  };
  table["nn.functional.mse_loss"] = [](const Case& c) {
    return std::vector{mse_loss(c.input(), c.tensor(0, "target"), reduction(c))};
  };
  table["nn.functional.binary_cross_entropy_with_logits"] = [](const Case& c) {
    return std::vector{binary_cross_entropy_with_logits(c.input(), c.tensor(0, "target"),
                                                        c.tensor(-1, "weight"),
                                                        c.tensor(-1, "pos_weight"), reduction(c))};
  };
}

inline void add_layer_ops(OpTable& table) {
  add_pool_ops(table);
  add_norm_ops(table);
  add_loss_ops(table);
}

}  // namespace tarn::golden
