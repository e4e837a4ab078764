// op_table_activation.cpp - rows: activation functions.
#include <cmath>

#include "op_table.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"

namespace tarn::optable {
namespace {

double sigmoid_of(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}
double softplus_of(double x) {
  return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}
// x * f, with the limit 0 where x is -inf and f vanishes.
double gated(double x, double f) {
  return f == 0 && std::isinf(x) ? std::nan("") : x * f;
}
double clamp_of(double x, double low, double high) {
  return x < low ? low : x > high ? high : x;
}
double tanh_gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

using Fn = std::function<Tensor(const Tensor&)>;
using Ref = std::function<double(double)>;

Row activation(const char* name, Fn fn, Ref ref, std::vector<double> kinks = {}) {
  Row row{.name = name, .fn = call1(fn), .cases = {}, .reference = each1(ref)};
  for (const Shape& sizes : {Shape{9}, Shape{}, Shape{2, 3, 2, 2}}) {
    row.cases.push_back({{.sizes = sizes, .low = -4, .high = 4, .avoid = kinks}});
  }
  row.empty = {{{.sizes = {0}}}, {{.sizes = {3, 0}}}};
  row.large = {{{.sizes = {257, 263}, .low = -4, .high = 4, .avoid = kinks}}};
  row.special = true;
  row.rtol_f32 = 3e-6;
  row.errors = {{"undefined", [fn] { fn(Tensor()); }, "x must be a tensor; got an undefined one"}};
  return row;
}

#define FN(f) Fn(static_cast<Tensor (*)(const Tensor&)>(f))

void add_plain(Table& table) {
  table.add(activation("sigmoid", FN(sigmoid), sigmoid_of));
  table.add(activation("logsigmoid", FN(logsigmoid), [](double x) { return -softplus_of(-x); }));
  table.add(activation("relu", FN(relu), [](double x) { return x < 0 ? 0 : x; }, {0}));
  table.add(activation("relu6", FN(relu6), [](double x) { return clamp_of(x, 0, 6); }, {0, 6}));
  table.add(activation("selu", FN(selu),
                       [](double x) {
                         const double y = x > 0 ? x : 1.6732632423543772 * std::expm1(x);
                         return 1.0507009873554805 * y;
                       },
                       {0}));
  table.add(
      activation("softsign", FN(softsign), [](double x) { return x / (1 + std::abs(x)); }, {0}));
  Row shrink = activation("tanhshrink", FN(tanhshrink), [](double x) { return x - std::tanh(x); });
  shrink.rtol = 1e-11;     // cancels for small x
  shrink.special = false;  // x - tanh(x) itself rounds to 0 there
  table.add(shrink);
  table.add(activation("hardsigmoid", FN(hardsigmoid),
                       [](double x) { return clamp_of(x + 3, 0, 6) / 6; }, {-3, 3}));
  // At -inf the products below are inf * 0; see the special row of each in core's tests.
  Row silu_row = activation("silu", FN(silu), [](double x) { return x * sigmoid_of(x); });
  silu_row.special = false;
  table.add(silu_row);
  Row mish_row =
      activation("mish", FN(mish), [](double x) { return x * std::tanh(softplus_of(x)); });
  mish_row.special = false;
  table.add(mish_row);
  Row hardswish_row =
      activation("hardswish", FN(hardswish),
                 [](double x) { return gated(x, clamp_of(x + 3, 0, 6) / 6); }, {-3, 3});
  hardswish_row.special = false;
  table.add(hardswish_row);
}

void add_parametric(Table& table) {
  Row row = activation(
      "gelu", [](const Tensor& x) { return gelu(x); },
      [](double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); });
  row.special = false;
  table.add(row);
  row = activation(
      "gelu/tanh", [](const Tensor& x) { return gelu(x, true); }, tanh_gelu);
  row.special = false;
  row.rtol_f32 = 1e-5;  // 1 + tanh cancels
  table.add(row);
  table.add(activation(
      "leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.1); },
      [](double x) { return x > 0 ? x : 0.1 * x; }, {0}));
  table.add(activation(
      "elu", [](const Tensor& x) { return elu(x, 1.5); },
      [](double x) { return x > 0 ? x : 1.5 * std::expm1(x); }, {0}));
  row = activation(
      "celu", [](const Tensor& x) { return celu(x, 1.5); },
      [](double x) { return x > 0 ? x : 1.5 * std::expm1(x / 1.5); }, {0});
  row.errors.push_back({"alpha 0", [] { celu(zeros({2}), 0); }, "celu: alpha must not be 0"});
  table.add(row);
  table.add(activation(
      "softplus", [](const Tensor& x) { return softplus(x); },
      [](double x) { return x > 20 ? x : softplus_of(x); }));
  table.add(activation(
      "softplus/beta", [](const Tensor& x) { return softplus(x, 2, 3); },
      [](double x) { return 2 * x > 3 ? x : softplus_of(2 * x) / 2; }, {1.5}));
  table.add(activation(
      "hardtanh", [](const Tensor& x) { return hardtanh(x, -1, 2); },
      [](double x) { return clamp_of(x, -1, 2); }, {-1, 2}));
  table.add(activation(
      "hardshrink", [](const Tensor& x) { return hardshrink(x); },
      [](double x) { return x >= -0.5 && x <= 0.5 ? 0 : x; }, {-0.5, 0.5}));
  row = activation(
      "softshrink", [](const Tensor& x) { return softshrink(x); },
      [](double x) {
        return x > 0.5 ? x - 0.5 : x < -0.5 ? x + 0.5 : std::isnan(x) ? x : 0;
      },
      {-0.5, 0.5});
  row.errors.push_back({"negative lambda", [] { softshrink(zeros({2}), -1); },
                        "softshrink: lambda must not be negative; got -1"});
  table.add(row);
  table.add(activation(
      "threshold", [](const Tensor& x) { return threshold(x, 0.3, -1); },
      [](double x) { return x <= 0.3 ? -1 : x; }, {0.3}));
}

void add_clamps(Table& table) {
  table.add(activation(
      "clamp", [](const Tensor& x) { return clamp(x, -1, 1.5); },
      [](double x) { return clamp_of(x, -1, 1.5); }, {-1, 1.5}));
  Row row = activation(
      "clamp_min", [](const Tensor& x) { return clamp_min(x, -1); },
      [](double x) { return x < -1 ? -1 : x; }, {-1});
  table.add(row);
  row = activation(
      "clamp_max", [](const Tensor& x) { return clamp_max(x, 1); },
      [](double x) { return x > 1 ? 1 : x; }, {1});
  table.add(row);
  row = activation(
      "clamp/whole_bounds", [](const Tensor& x) { return clamp(x, -1, 2); },
      [](double x) { return clamp_of(x, -1, 2); });
  row.integers = true;
  row.gradient = false;  // integers sit on the kinks
  table.add(row);
  row = activation(
      "clamp/fractions", [](const Tensor& x) { return clamp(x, -0.5, 1.5); },
      [](double x) { return clamp_of(x, -0.5, 1.5); }, {-0.5, 1.5});
  row.integers = true;  // which become f32
  table.add(row);
}

}  // namespace

void add_activation_rows(Table& table) {
  add_plain(table);
  add_parametric(table);
  add_clamps(table);
}

}  // namespace tarn::optable
