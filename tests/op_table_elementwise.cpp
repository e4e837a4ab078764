// op_table_elementwise.cpp - rows: arithmetic and functions of one tensor.
#include <cmath>

#include "op_table.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"

namespace tarn::optable {
namespace {

double sign_of(double x) {
  return (x > 0) - (x < 0);  // 0 for NaN
}
double python_mod(double a, double b) {
  const double r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

// The shapes every unary row is run on; 4-d for channels_last.
std::vector<Case> unary_cases(const In& like) {
  std::vector<Case> cases;
  for (const Shape& sizes : {Shape{7}, Shape{}, Shape{2, 3, 2, 2}}) {
    In in = like;
    in.sizes = sizes;
    cases.push_back({in});
  }
  return cases;
}

Row unary_row(const char* name, Tensor (*fn)(const Tensor&), double (*ref)(double), In range) {
  Row row{.name = name, .fn = call1(fn), .cases = unary_cases(range), .reference = each1(ref)};
  row.empty = {{{.sizes = {0}}}, {{.sizes = {2, 0, 3}}}};
  row.large = {{range}, {range}};
  row.large[0][0].sizes = {5003};
  row.large[1][0].sizes = {257, 263};  // more than one thread's worth
  row.errors = {{"undefined", [fn] { fn(Tensor()); }, "x must be a tensor; got an undefined one"}};
  row.special = true;
  row.integers = true;
  return row;
}

struct Unary {
  const char* name;
  Tensor (*fn)(const Tensor&);
  double (*ref)(double);
  double low = -2, high = 2;
  std::vector<double> avoid{};
};

#define FN(f) static_cast<Tensor (*)(const Tensor&)>(f)

void add_smooth(Table& table) {
  const std::vector<Unary> list = {
      {"square", FN(square), [](double x) { return x * x; }},
      {"sqrt", FN(sqrt), [](double x) { return std::sqrt(x); }, 0.2, 4},
      {"rsqrt", FN(rsqrt), [](double x) { return 1 / std::sqrt(x); }, 0.6, 4},
      {"reciprocal", FN(reciprocal), [](double x) { return 1 / x; }, 0.6, 3},
      {"exp", FN(exp), [](double x) { return std::exp(x); }},
      {"exp2", FN(exp2), [](double x) { return std::exp2(x); }},
      {"expm1", FN(expm1), [](double x) { return std::expm1(x); }},
      {"log", FN(log), [](double x) { return std::log(x); }, 0.6, 4},
      {"log2", FN(log2), [](double x) { return std::log2(x); }, 0.6, 4},
      {"log10", FN(log10), [](double x) { return std::log10(x); }, 0.6, 4},
      {"log1p", FN(log1p), [](double x) { return std::log1p(x); }, -0.45, 3},
      {"sin", FN(sin), [](double x) { return std::sin(x); }, -4, 4},
      {"cos", FN(cos), [](double x) { return std::cos(x); }, -4, 4},
      {"tan", FN(tan), [](double x) { return std::tan(x); }, -1.2, 1.2},
      {"asin", FN(asin), [](double x) { return std::asin(x); }, -0.9, 0.9},
      {"acos", FN(acos), [](double x) { return std::acos(x); }, -0.9, 0.9},
      {"atan", FN(atan), [](double x) { return std::atan(x); }, -3, 3},
      {"sinh", FN(sinh), [](double x) { return std::sinh(x); }},
      {"cosh", FN(cosh), [](double x) { return std::cosh(x); }},
      {"tanh", FN(tanh), [](double x) { return std::tanh(x); }},
      {"asinh", FN(asinh), [](double x) { return std::asinh(x); }, -3, 3},
      {"acosh", FN(acosh), [](double x) { return std::acosh(x); }, 1.55, 4},
      {"atanh", FN(atanh), [](double x) { return std::atanh(x); }, -0.9, 0.9},
      {"erf", FN(erf), [](double x) { return std::erf(x); }},
      {"erfc", FN(erfc), [](double x) { return std::erfc(x); }},
  };
  for (const Unary& u : list) {
    table.add(unary_row(u.name, u.fn, u.ref, {.low = u.low, .high = u.high, .avoid = u.avoid}));
  }
}

void add_piecewise(Table& table) {
  const std::vector<double> half_steps = {-2.5, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 2.5};
  const std::vector<Unary> list = {
      {"neg", FN(neg), [](double x) { return -x; }},
      {"abs", FN(abs), [](double x) { return std::abs(x); }, -2, 2, {0}},
      {"sign", FN(sign), sign_of, -2, 2, {0}},
      {"floor", FN(floor), [](double x) { return std::floor(x); }, -2.4, 2.4, half_steps},
      {"ceil", FN(ceil), [](double x) { return std::ceil(x); }, -2.4, 2.4, half_steps},
      {"trunc", FN(trunc), [](double x) { return std::trunc(x); }, -2.4, 2.4, half_steps},
      {"round", FN(round), [](double x) { return std::nearbyint(x); }, -2.4, 2.4, half_steps},
      {"frac", FN(frac), [](double x) { return x - std::trunc(x); }, -2.4, 2.4, half_steps},
  };
  for (const Unary& u : list) {
    Row row = unary_row(u.name, u.fn, u.ref, {.low = u.low, .high = u.high, .avoid = u.avoid});
    row.integers = row.name == "neg";  // the others avoid the integers
    row.u8 = row.name != "neg";
    row.second = row.name == "neg" || row.name == "abs" || row.name == "frac";
    table.add(row);
  }
}

// Broadcasting in every direction.
std::vector<Case> binary_cases(const In& a, const In& b) {
  const std::vector<std::pair<Shape, Shape>> shapes = {
      {{3, 4}, {3, 4}}, {{3, 4}, {4}}, {{2, 1, 3}, {4, 1}},
      {{}, {2, 3}},     {{1}, {}},     {{2, 3, 2, 2}, {2, 3, 2, 2}}};
  std::vector<Case> cases;
  for (const auto& [sa, sb] : shapes) {
    In x = a, y = b;
    x.sizes = sa;
    y.sizes = sb;
    cases.push_back({x, y});
  }
  return cases;
}

using Binary = Tensor (*)(const Tensor&, const Tensor&);

Row binary_row(const char* name, std::function<Tensor(const Tensor&, const Tensor&)> fn,
               std::function<double(double, double)> ref, In a = {}, In b = {}) {
  Row row{.name = name,
          .fn = call2(fn),
          .cases = binary_cases(a, b),
          .reference = each2(ref),
          .empty = {{{.sizes = {0}}, {.sizes = {1}}}, {{.sizes = {2, 0}}, {.sizes = {2, 1}}}}};
  const std::vector<std::pair<Shape, Shape>> large = {
      {{261, 257}, {261, 257}}, {{33, 131}, {131}}, {{3, 1, 70}, {33, 1}}};
  for (const auto& [sa, sb] : large) {
    row.large.push_back({a, b});
    row.large.back()[0].sizes = sa;
    row.large.back()[1].sizes = sb;
  }
  row.errors = {{"shapes",
                 [fn] {
                   fn(zeros({4, 3}), zeros({4}));
                 },
                 "shapes do not broadcast; got a=[4, 3], b=[4] (dimension 1: 3 vs 4)"},
                {"undefined", [fn] { fn(zeros({2}), Tensor()); },
                 "b must be a tensor; got an undefined one"}};
  row.special = true;
  row.integers = true;
  return row;
}

void add_binary(Table& table) {
  const In positive{.low = 0.6, .high = 3}, divisor{.low = -3, .high = 3, .avoid = {0, -0.5, 0.5}};
  Row row = binary_row(
      "add", [](const Tensor& a, const Tensor& b) { return add(a, b); },
      [](double a, double b) { return a + b; });
  table.add(row);
  row.name = "add/alpha";
  row.fn = call2([](const Tensor& a, const Tensor& b) { return add(a, b, 3); });
  row.reference = each2([](double a, double b) { return a + 3 * b; });
  row.ulps_half = 2;  // alpha * b rounds first
  row.errors = {{"fraction of integers",
                 [] {
                   const Tensor x = ones({2}, {.dtype = DType::kI64});
                   add(x, x, 0.5);
                 },
                 "add: alpha must be a whole number for integer tensors; got 0.5"},
                {"undefined", [] { add(ones({2}), Tensor(), 2); }, "add: b must be a tensor"}};
  table.add(row);
  row = binary_row(
      "sub", [](const Tensor& a, const Tensor& b) { return sub(a, b); },
      [](double a, double b) { return a - b; });
  row.u8 = false;
  table.add(row);
  row.name = "sub/alpha";
  row.ulps_half = 2;
  row.fn = call2([](const Tensor& a, const Tensor& b) { return sub(a, b, 2); });
  row.reference = each2([](double a, double b) { return a - 2 * b; });
  table.add(row);
  table.add(binary_row(
      "mul", [](const Tensor& a, const Tensor& b) { return mul(a, b); },
      [](double a, double b) { return a * b; }));
  table.add(binary_row(
      "div", [](const Tensor& a, const Tensor& b) { return div(a, b); },
      [](double a, double b) { return a / b; }, {}, divisor));
  table.add(binary_row("atan2", Binary(atan2), [](double y, double x) { return std::atan2(y, x); },
                       {.avoid = {0}}, {.avoid = {0}}));
  row = binary_row(
      "pow", [](const Tensor& a, const Tensor& b) { return pow(a, b); },
      [](double a, double b) { return std::pow(a, b); }, positive, {.low = 0.6, .high = 3.4});
  row.rtol_f32 = 4e-6;
  row.ulps_half = 1;
  table.add(row);
  row = binary_row(
      "pow/negative_exponents", [](const Tensor& a, const Tensor& b) { return pow(a, b); },
      [](double a, double b) { return std::pow(a, b); }, positive, {.low = -3, .high = -0.6});
  row.integers = row.special = false;
  row.rtol_f32 = 4e-6;
  table.add(row);
}

void add_remainders(Table& table) {
  const In any{.low = -7, .high = 7, .distinct = true};
  const In divisor{.low = -3, .high = 3, .avoid = {0, -0.5, 0.5}};
  const std::vector<std::tuple<const char*, Binary, std::function<double(double, double)>>> list = {
      {"floor_divide", floor_divide,
       [](double a, double b) { return std::floor((a - python_mod(a, b)) / b + 0.5); }},
      {"trunc_divide", trunc_divide, [](double a, double b) { return std::trunc(a / b); }},
      {"remainder", remainder, python_mod},
      {"fmod", fmod, [](double a, double b) { return std::fmod(a, b); }}};
  for (const auto& [name, fn, ref] : list) {
    Row row = binary_row(name, fn, ref, any, divisor);
    row.special = false;  // tests/core_elementwise_test.cpp has their edges
    row.u8 = false;
    row.second = std::string(name) == "remainder" || std::string(name) == "fmod";
    row.rtol_f32 = 2e-5;  // a - n * b cancels
    row.halves = false;   // a jump may fall between f32 and a half
    row.errors.push_back(
        {"division by zero",
         [fn = fn] {
           fn(tensor({1, 2}, {.dtype = DType::kI64}), tensor({1, 0}, {.dtype = DType::kI64}));
         },
         "integer division by zero"});
    table.add(row);
  }
}

void add_extrema(Table& table) {
  const auto larger = [](double a, double b) {
    return std::isnan(a) || std::isnan(b) ? std::nan("") : std::max(a, b);
  };
  const auto smaller = [](double a, double b) {
    return std::isnan(a) || std::isnan(b) ? std::nan("") : std::min(a, b);
  };
  table.add(binary_row("maximum", Binary(maximum), larger));
  table.add(binary_row("minimum", Binary(minimum), smaller));
}

void add_scalar_row(Table& table, const char* name, std::function<Tensor(const Tensor&)> fn,
                    std::function<double(double)> ref, In range = {}, bool u8 = true) {
  Row row{.name = name, .fn = call1(fn), .cases = unary_cases(range), .reference = each1(ref)};
  row.empty = {{{.sizes = {0, 3}}}};
  row.special = true;
  row.integers = true;
  row.u8 = u8;
  table.add(row);
}

void add_with_scalars(Table& table) {
  const In positive{.low = 0.6, .high = 3};
  add_scalar_row(
      table, "add/scalar", [](const Tensor& x) { return x + 3; }, [](double x) { return x + 3; });
  add_scalar_row(
      table, "add/fraction", [](const Tensor& x) { return 0.5 + x; },
      [](double x) { return x + 0.5; });
  add_scalar_row(
      table, "sub/scalar", [](const Tensor& x) { return x - 3; }, [](double x) { return x - 3; },
      {}, false);
  add_scalar_row(
      table, "sub/fraction", [](const Tensor& x) { return x - 0.5; },
      [](double x) { return x - 0.5; });
  add_scalar_row(
      table, "rsub", [](const Tensor& x) { return 3 - x; }, [](double x) { return 3 - x; });
  add_scalar_row(
      table, "mul/scalar", [](const Tensor& x) { return 3 * x; }, [](double x) { return x * 3; });
  add_scalar_row(
      table, "div/scalar", [](const Tensor& x) { return x / 3; }, [](double x) { return x / 3; });
  add_scalar_row(
      table, "operator_div/scalar_first", [](const Tensor& x) { return 3 / x; },
      [](double x) { return 3 / x; }, positive);
  add_scalar_row(
      table, "pow/square", [](const Tensor& x) { return pow(x, 2); },
      [](double x) { return x * x; });
  add_scalar_row(
      table, "pow/first", [](const Tensor& x) { return pow(x, 1); }, [](double x) { return x; });
  add_scalar_row(
      table, "pow/cube", [](const Tensor& x) { return pow(x, 3); },
      [](double x) { return std::pow(x, 3); });
  add_scalar_row(
      table, "pow/root", [](const Tensor& x) { return pow(x, 0.5); },
      [](double x) { return std::pow(x, 0.5); }, positive);
  add_scalar_row(
      table, "pow/scalar_base", [](const Tensor& x) { return pow(2, x); },
      [](double x) { return std::pow(2, x); }, positive);
}

Row ternary_row(const char* name, TensorFunction fn, Reference ref, In third = {}) {
  const std::vector<std::array<Shape, 3>> shapes = {
      {Shape{3, 4}, Shape{3, 4}, Shape{3, 4}},
      {Shape{4}, Shape{3, 1}, Shape{3, 4}},
      {Shape{}, Shape{2}, Shape{}},
      {Shape{2, 3, 2, 2}, Shape{2, 3, 2, 2}, Shape{3, 1, 1}}};
  Row row{.name = name, .fn = fn, .cases = {}, .reference = ref};
  for (const auto& s : shapes) {
    third.sizes = s[2];
    row.cases.push_back({{.sizes = s[0]}, {.sizes = s[1]}, third});
  }
  row.empty = {{{.sizes = {0, 4}}, {.sizes = {4}}, {.sizes = {1}}}};
  row.errors = {{"undefined",
                 [fn] {
                   fn({ones({2}), ones({2}), Tensor()});
                 },
                 "c must be a tensor; got an undefined one"}};
  return row;
}

void add_composed(Table& table) {
  Row lerp_row = binary_row(
      "lerp", [](const Tensor& a, const Tensor& b) { return lerp(a, b, 0.3); },
      [](double a, double b) { return a + 0.3 * (b - a); });
  lerp_row.integers = lerp_row.special = false;
  lerp_row.errors.clear();
  table.add(lerp_row);
  lerp_row.name = "lerp/nearer_the_end";
  lerp_row.fn = call2([](const Tensor& a, const Tensor& b) { return lerp(a, b, 0.7); });
  lerp_row.reference = each2([](double a, double b) { return a + 0.7 * (b - a); });
  table.add(lerp_row);
  table.add(ternary_row("addcmul", call3([](const Tensor& x, const Tensor& a, const Tensor& b) {
                          return addcmul(x, a, b, 0.5);
                        }),
                        each3([](double x, double a, double b) { return x + 0.5 * a * b; })));
  table.add(ternary_row("addcdiv", call3([](const Tensor& x, const Tensor& a, const Tensor& b) {
                          return addcdiv(x, a, b, 0.5);
                        }),
                        each3([](double x, double a, double b) { return x + 0.5 * a / b; }),
                        {.low = 0.6, .high = 3}));
}

// x is cloned first: a leaf cannot be written while recording.
Row in_place_row(const char* name, std::function<void(Tensor&, const Tensor&)> write,
                 std::function<double(double, double)> ref, In b = {}) {
  Row row{.name = name,
          .fn = call2([write](const Tensor& x, const Tensor& y) {
            Tensor out = x.clone();
            write(out, y);
            return out;
          }),
          .cases = {},
          .reference = each2(ref)};
  const std::vector<std::pair<Shape, Shape>> shapes = {
      {{3, 4}, {3, 4}}, {{3, 4}, {4}}, {{2, 3}, {}}, {{2, 3, 2, 2}, {3, 1, 1}}};
  for (const auto& [sa, sb] : shapes) {
    b.sizes = sb;
    row.cases.push_back({{.sizes = sa}, b});
  }
  row.empty = {{{.sizes = {0, 4}}, {.sizes = {4}}}};
  row.errors = {{"result larger than x",
                 [write] {
                   Tensor x = zeros({1, 3});
                   write(x, zeros({2, 3}));
                 },
                 "the result must have the tensor's sizes; got [1, 3], result [2, 3]"},
                {"expanded target",
                 [write] {
                   Tensor x = zeros({1, 3}).expand({2, 3});
                   write(x, ones({2, 3}));
                 },
                 "elements share memory (an expanded tensor?)"}};
  row.integers = true;
  return row;
}

void add_in_place(Table& table) {
  table.add(in_place_row(
      "add_", [](Tensor& x, const Tensor& y) { x.add_(y); },
      [](double a, double b) { return a + b; }));
  Row row = in_place_row(
      "add_/alpha", [](Tensor& x, const Tensor& y) { x.add_(y, 2); },
      [](double a, double b) { return a + 2 * b; });
  row.ulps_half = 2;
  table.add(row);
  row.name = "sub_/alpha";
  row.fn = in_place_row("", [](Tensor& x, const Tensor& y) { x.sub_(y, 3); }, {}).fn;
  row.reference = each2([](double a, double b) { return a - 3 * b; });
  row.u8 = false;
  table.add(row);
  row = in_place_row(
      "sub_", [](Tensor& x, const Tensor& y) { x.sub_(y); },
      [](double a, double b) { return a - b; });
  row.u8 = false;
  table.add(row);
  row = in_place_row(
      "mul_", [](Tensor& x, const Tensor& y) { x.mul_(y); },
      [](double a, double b) { return a * b; });
  row.errors.push_back({"integers times fractions",
                        [] {
                          Tensor x = zeros({2}, {.dtype = DType::kI64});
                          x.mul_(ones({2}));
                        },
                        "the result is f32 and cannot be stored in place"});
  table.add(row);
  row = in_place_row(
      "div_", [](Tensor& x, const Tensor& y) { x.div_(y); },
      [](double a, double b) { return a / b; }, {.low = 0.6, .high = 3});
  row.integers = false;  // a quotient of integers is not one
  table.add(row);
  table.add(in_place_row(
      "copy_", [](Tensor& x, const Tensor& y) { copy_(x, y); },
      [](double, double b) { return b; }));
}

}  // namespace

void add_elementwise_rows(Table& table) {
  add_smooth(table);
  add_piecewise(table);
  add_binary(table);
  add_remainders(table);
  add_extrema(table);
  add_with_scalars(table);
  add_composed(table);
  add_in_place(table);
}

}  // namespace tarn::optable
