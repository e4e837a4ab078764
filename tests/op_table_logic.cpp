// op_table_logic.cpp - rows: comparisons, logic, selection by a mask.
#include <cmath>

#include "op_table.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"

namespace tarn::optable {
namespace {

using Binary = Tensor (*)(const Tensor&, const Tensor&);
using WithScalar = Tensor (*)(const Tensor&, const Scalar&);

// Whole numbers, so that equality happens; 0 is among them.
Row bool_row(const char* name, TensorFunction fn, Reference ref, size_t inputs) {
  Row row{.name = name, .fn = fn, .cases = {}, .reference = ref, .gradient = false};
  const In few = index({}, 3);
  const std::vector<std::pair<Shape, Shape>> shapes = {
      {{3, 4}, {3, 4}}, {{3, 4}, {4}}, {{2, 1, 3}, {4, 1}}, {{}, {}}, {{2, 3, 2, 2}, {2, 3, 2, 2}}};
  for (const auto& [a, b] : shapes) {
    In x = few, y = few;
    x.sizes = a;
    y.sizes = b;
    row.cases.push_back(inputs == 2 ? Case{x, y} : Case{x});
  }
  row.empty = {inputs == 2 ? Case{index({0}, 3), index({1}, 3)} : Case{index({0, 2}, 3)}};
  row.special = true;
  return row;
}

void add_comparisons(Table& table) {
  struct Compare {
    const char* name;
    Binary fn;
    WithScalar with_scalar;
    bool (*ref)(double, double);
  };
  const std::vector<Compare> list = {{"eq", eq, eq, [](double a, double b) { return a == b; }},
                                     {"ne", ne, ne, [](double a, double b) { return a != b; }},
                                     {"lt", lt, lt, [](double a, double b) { return a < b; }},
                                     {"le", le, le, [](double a, double b) { return a <= b; }},
                                     {"gt", gt, gt, [](double a, double b) { return a > b; }},
                                     {"ge", ge, ge, [](double a, double b) { return a >= b; }}};
  for (const Compare& c : list) {
    Row row =
        bool_row(c.name, call2(c.fn),
                 each2([ref = c.ref](double a, double b) { return ref(a, b) ? 1.0 : 0.0; }), 2);
    row.errors = {{"shapes", [fn = c.fn] { fn(zeros({2}), zeros({3})); },
                   "shapes do not broadcast; got a=[2], b=[3]"}};
    table.add(row);
    table.add(bool_row((std::string(c.name) + "/scalar").c_str(),
                       call1([fn = c.with_scalar](const Tensor& x) { return fn(x, 1); }),
                       each1([ref = c.ref](double x) { return ref(x, 1) ? 1.0 : 0.0; }), 1));
  }
}

void add_logic(Table& table) {
  const auto logic = [&](const char* name, Binary fn, bool (*ref)(bool, bool)) {
    table.add(bool_row(name, call2(fn),
                       each2([ref](double a, double b) { return ref(a != 0, b != 0) ? 1.0 : 0.0; }),
                       2));
  };
  logic("logical_and", logical_and, [](bool a, bool b) { return a && b; });
  logic("logical_or", logical_or, [](bool a, bool b) { return a || b; });
  logic("logical_xor", logical_xor, [](bool a, bool b) { return a != b; });
  const auto bits = [&](const char* name, Binary fn, int64_t (*ref)(int64_t, int64_t)) {
    Row row = bool_row(
        name, call2(fn), each2([ref](double a, double b) {
          return static_cast<double>(ref(static_cast<int64_t>(a), static_cast<int64_t>(b)));
        }),
        2);
    row.special = false;
    row.errors = {{"floating", [fn] { fn(zeros({2}), zeros({2})); },
                   "the dtype must be integer or bool; got f32"}};
    table.add(row);
  };
  bits("bitwise_and", bitwise_and, [](int64_t a, int64_t b) { return a & b; });
  bits("bitwise_or", bitwise_or, [](int64_t a, int64_t b) { return a | b; });
  bits("bitwise_xor", bitwise_xor, [](int64_t a, int64_t b) { return a ^ b; });
  const auto test = [&](const char* name, Tensor (*fn)(const Tensor&), double (*ref)(double),
                        bool special) {
    Row row = bool_row(name, call1(fn), each1(ref), 1);
    row.special = special;
    table.add(row);
  };
  test(
      "logical_not", logical_not, [](double x) { return x == 0 ? 1.0 : 0.0; }, true);
  test(
      "bitwise_not", bitwise_not, [](double x) { return -x - 1; }, false);
  test(
      "isnan", isnan, [](double x) { return std::isnan(x) ? 1.0 : 0.0; }, true);
  test(
      "isinf", isinf, [](double x) { return std::isinf(x) ? 1.0 : 0.0; }, true);
  test(
      "isfinite", isfinite, [](double x) { return std::isfinite(x) ? 1.0 : 0.0; }, true);
}

void add_selection(Table& table) {
  Row row{
      .name = "where",
      .fn = call3([](const Tensor& c, const Tensor& a, const Tensor& b) { return where(c, a, b); }),
      .cases = {{mask({3, 4}), {.sizes = {3, 4}}, {.sizes = {3, 4}}},
                {mask({4}), {.sizes = {3, 1}}, {.sizes = {}}},
                {mask({2, 3, 2, 2}), {.sizes = {2, 3, 2, 2}}, {.sizes = {3, 1, 1}}},
                {mask({}), {.sizes = {}}, {.sizes = {2}}}},
      .reference = each3([](double c, double a, double b) { return c != 0 ? a : b; }),
      .empty = {{mask({0}), {.sizes = {1}}, {.sizes = {0}}}}};
  row.errors = {
      {"condition not bool", [] { where(zeros({2}), zeros({2}), zeros({2})); },
       "where: the condition must be bool; got [2] f32 cpu"},
      {"shapes", [] { where(zeros({2}, {.dtype = DType::kBool}), zeros({3}), zeros({3})); },
       "where: shapes do not broadcast"}};
  table.add(row);
  row = {.name = "masked_fill",
         .fn = call2([](const Tensor& x, const Tensor& m) { return masked_fill(x, m, -1.5); }),
         .cases = {{{.sizes = {3, 4}}, mask({3, 4})},
                   {{.sizes = {2, 3, 2, 2}}, mask({3, 1, 1})},
                   {{.sizes = {}}, mask({})}},
         .reference = each2([](double x, double m) { return m != 0 ? -1.5 : x; }),
         .empty = {{{.sizes = {0, 2}}, mask({2})}}};
  row.errors = {{"mask not bool", [] { masked_fill(zeros({2}), zeros({2}), 0); },
                 "masked_fill: the mask must be bool; got [2] f32 cpu"},
                {"shapes", [] { masked_fill(zeros({2}), zeros({3}, {.dtype = DType::kBool}), 0); },
                 "masked_fill: shapes do not broadcast"}};
  table.add(row);
  const auto as_tensor = [](bool v) { return scalar_tensor(v, {.dtype = DType::kBool}); };
  row = bool_row("equal", call2([as_tensor](const Tensor& a, const Tensor& b) {
                   return as_tensor(equal(a, b) && equal(a, a.clone()) && !equal(a + 1, a));
                 }),
                 one([](const std::vector<Host>& in) {
                   return Host({}, {in[0].sizes == in[1].sizes && in[0].v == in[1].v ? 1.0 : 0.0});
                 }),
                 2);
  row.special = false;
  row.empty.clear();
  row.errors = {{"undefined", [] { equal(zeros({2}), Tensor()); }, "equal: b must be a tensor"}};
  table.add(row);
  row.name = "allclose";
  row.errors = {
      {"undefined", [] { allclose(Tensor(), zeros({2})); }, "allclose: a must be a tensor"}};
  row.fn = call2([as_tensor](const Tensor& a, const Tensor& b) {
    const Tensor x = a.to(DType::kF64);
    const Tensor nan = x * std::nan("");
    return as_tensor(allclose(x, b.to(DType::kF64)) && allclose(x, x * (1 + 1e-6)) &&
                     !allclose(x + 1, x) && !allclose(nan, nan) &&
                     allclose(nan, nan, 1e-5, 1e-8, true));
  });
  table.add(row);
}

}  // namespace

void add_logic_rows(Table& table) {
  add_comparisons(table);
  add_logic(table);
  add_selection(table);
}

}  // namespace tarn::optable
