// autograd_opinfo_test.cpp - values and gradients of PyTorch's own operator samples.
#include <set>

#include "golden/torch_ops.h"
#include <gtest/gtest.h>

namespace tarn::golden {
namespace {

/// Operators of the golden files that tarn does not have yet, each with all its cases.
const std::set<std::string> kLater = {"norm.nuc"};
/// Single cases that tarn's operators refuse, with the reason; the test checks that they do.
const std::map<std::string, std::string> kErrors = {
    {"nn.functional.avg_pool2d.4", "a negative divisor"},
    {"nn.functional.batch_norm.3", "[0] has no channels"},
    {"nn.functional.batch_norm.4", "[0] has no channels"},
    {"nn.functional.batch_norm.without_cudnn.3", "[0] has no channels"},
    {"nn.functional.batch_norm.without_cudnn.4", "[0] has no channels"},
};
/// Single cases whose values are random: drawn from PyTorch's generator.
const std::set<std::string> kRandom = {"nn.functional.dropout.18",
                                       "nn.functional._scaled_dot_product_attention.1",
                                       "nn.functional._scaled_dot_product_attention.3",
                                       "nn.functional._scaled_dot_product_attention.7",
                                       "nn.functional._scaled_dot_product_attention.9",
                                       "nn.functional._scaled_dot_product_attention.13",
                                       "nn.functional._scaled_dot_product_attention.15"};

/// nn.functional.interpolate(input, size, scale_factor, mode, align_corners).
std::vector<Tensor> interpolate_case(const Case& c) {
  const std::map<std::string, InterpolateMode> modes = {
      {"nearest", InterpolateMode::kNearest},   {"linear", InterpolateMode::kLinear},
      {"bilinear", InterpolateMode::kBilinear}, {"trilinear", InterpolateMode::kTrilinear},
      {"bicubic", InterpolateMode::kBicubic},   {"area", InterpolateMode::kArea}};
  InterpolateOptions options{.size = c.integers(0, "size"),
                             .mode = modes.at(c.text(2, "mode", "nearest")),
                             .align_corners = c.flag(3, "align_corners", false)};
  if (c.given(1, "scale_factor")) options.scale_factor = c.number(1, "scale_factor", 1);
  return {interpolate(c.input(), options)};
}

/// torch_ops(), and what is made of its operators.
OpTable all_ops() {
  OpTable table = torch_ops();
  for (const char* mode : {"nearest", "linear", "bilinear", "trilinear", "bicubic", "area"}) {
    table[std::string("nn.functional.interpolate.") + mode] = interpolate_case;
  }
  table["einsum"] = [](const Case& c) {
    return std::vector{einsum(c.text(0, "equation", ""), c.inputs())};
  };
  return table;
}

class OpInfo : public testing::TestWithParam<const char*> {};

TEST_P(OpInfo, agrees_with_pytorch_in_values_and_gradients) {
  const File file(std::string("ops_") + GetParam());
  const OpTable table = all_ops();
  const Json cases = file.json("cases");
  size_t ran = 0;
  std::map<std::string, int> skipped;
  for (const Json& entry : cases) {
    const Case c(file, entry);
    const auto function = table.find(c.op());
    if (function == table.end()) {
      if (skipped[c.op()] == 0) {
        EXPECT_TRUE(kLater.count(c.op())) << "an operator that nobody knows: " << c.op();
      }
      ++skipped[c.op()];
      continue;
    }
    EXPECT_FALSE(kLater.count(c.op())) << c.op() << " is there now: strike it from the list";
    const std::string name = c.id().substr(c.id().find('/') + 1);
    if (kRandom.count(name)) {
      ++skipped[c.id() + ", random"];
      continue;
    }
    if (const auto refused = kErrors.find(name); refused != kErrors.end()) {
      EXPECT_THROW(function->second(c), Error) << c.id();
      ++skipped[c.id() + ", an error: " + refused->second];
      continue;
    }
    ++ran;
    try {
      check_case(c, function->second);
    } catch (const std::exception& error) {
      ADD_FAILURE() << c.id() << ": " << error.what();
    }
  }
  std::cout << GetParam() << ": " << ran << " of " << cases.size() << " cases ran\n";
  for (const auto& [name, count] : skipped)
    std::cout << "  not run: " << name << " (" << count << ")\n";
}

INSTANTIATE_TEST_SUITE_P(Families, OpInfo,
                         testing::Values("elementwise", "reduce", "matmul", "conv", "pool", "norm",
                                         "shape", "interpolate", "loss"),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace tarn::golden
