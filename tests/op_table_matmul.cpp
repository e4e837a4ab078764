// op_table_matmul.cpp - rows: matrix products.
#include <cmath>

#include "op_table.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"

namespace tarn::optable {
namespace {

// torch.matmul over nested loops, batch dimensions broadcast.
Host product(const Host& left, const Host& right) {
  Host a = left, b = right;
  if (a.sizes.dim() == 1) a.sizes.insert(0, 1);
  if (b.sizes.dim() == 1) b.sizes.insert(1, 1);
  const int na = a.sizes.dim(), nb = b.sizes.dim();
  const Shape batch_a(a.sizes.data(), static_cast<size_t>(na - 2));
  const Shape batch_b(b.sizes.data(), static_cast<size_t>(nb - 2));
  Shape sizes = broadcast_shapes("reference", batch_a, batch_b);
  sizes.push_back(a.sizes[na - 2]);
  sizes.push_back(b.sizes[nb - 1]);
  Host out(sizes);
  for (int64_t p = 0; p < out.numel(); ++p) {
    const Shape at = out.index(p);
    const auto pick = [&](const Host& h, int64_t row, int64_t col) {
      const int n = h.sizes.dim();
      Shape index = Shape::filled(n, 0);
      for (int d = 0; d + 2 < n; ++d) index[d] = h.sizes[d] == 1 ? 0 : at[d + at.dim() - n];
      index[n - 2] = row;
      index[n - 1] = col;
      return h.v[h.position(index)];
    };
    for (int64_t k = 0; k < a.sizes[na - 1]; ++k) {
      out.v[static_cast<size_t>(p)] += pick(a, at[at.dim() - 2], k) * pick(b, k, at[at.dim() - 1]);
    }
  }
  if (left.sizes.dim() == 1) out.sizes.erase(out.sizes.dim() - 2);
  if (right.sizes.dim() == 1) out.sizes.erase(out.sizes.dim() - 1);
  return out;
}

Host transposed(const Host& x) {
  Host out({x.sizes[1], x.sizes[0]});
  for (int64_t i = 0; i < x.sizes[0]; ++i) {
    for (int64_t j = 0; j < x.sizes[1]; ++j) out.at({j, i}) = x.at({i, j});
  }
  return out;
}

Row product_row(const char* name, Tensor (*fn)(const Tensor&, const Tensor&),
                std::vector<std::pair<Shape, Shape>> shapes,
                std::vector<std::pair<Shape, Shape>> empty, std::vector<Error> errors) {
  Row row{.name = name,
          .fn = call2(fn),
          .cases = {},
          .reference = one([](const std::vector<Host>& in) { return product(in[0], in[1]); }),
          .errors = std::move(errors)};
  for (const auto& [a, b] : shapes) row.cases.push_back({{.sizes = a}, {.sizes = b}});
  for (const auto& [a, b] : empty) row.empty.push_back({{.sizes = a}, {.sizes = b}});
  row.integers = true;
  row.nonfinite = true;
  row.ulps_half = 2;  // the f32 sums may run in another order
  row.rtol_f32 = 1e-6;
  return row;
}

void add_products(Table& table) {
  Row large = product_row("matmul/large", matmul, {{{2, 3}, {3, 2}}}, {}, {});
  large.large = {{{.sizes = {65, 70}}, {.sizes = {70, 131}}},
                 {{.sizes = {3, 40, 33}}, {.sizes = {3, 33, 50}}},
                 {{.sizes = {129, 200}}, {.sizes = {200}}}};
  table.add(large);
  table.add(product_row(
      "matmul", matmul,
      {{{3}, {3}},
       {{3}, {3, 2}},
       {{2, 3}, {3}},
       {{2, 3}, {3, 4}},
       {{1, 3}, {3, 1}},
       {{2, 2, 3}, {3, 2}},
       {{2, 1, 2, 3}, {3, 3, 2}},
       {{2, 2, 3}, {2, 3, 2}},
       {{3}, {2, 3, 2}},
       {{2, 2, 3}, {3}}},
      {{{0, 3}, {3, 2}}, {{2, 0}, {0, 3}}, {{2, 3}, {3, 0}}, {{0, 2, 3}, {3, 2}}, {{0}, {0}}},
      {{"inner",
        [] {
          matmul(zeros({32, 784}), zeros({100, 784}));
        },
        "matmul: inner sizes must match; got a=[32, 784] f32 cpu, b=[100, 784] f32 cpu (784 vs "
        "100); did you mean b.t()?"},
       {"scalar", [] { matmul(zeros({}), zeros({2})); },
        "matmul: needs at least 1 dimension on both sides"},
       {"dtypes",
        [] {
          matmul(zeros({2, 2}), zeros({2, 2}, {.dtype = DType::kF64}));
        },
        "matmul: both sides must have one dtype, floating or integer; got a=[2, 2] f32 cpu, "
        "b=[2, 2] f64 cpu"},
       {"batches",
        [] {
          matmul(zeros({2, 2, 2}), zeros({3, 2, 2}));
        },
        "matmul: shapes do not broadcast"},
       {"undefined",
        [] {
          matmul(zeros({2, 2}), Tensor());
        },
        "matmul: b must be a tensor"}}));
  table.add(product_row("mm", mm, {{{2, 3}, {3, 4}}}, {{{0, 3}, {3, 2}}},
                        {{"rank",
                          [] {
                            mm(zeros({2, 2, 2}), zeros({2, 2}));
                          },
                          "mm: both sides must be matrices; got a=[2, 2, 2] f32 cpu"},
                         {"undefined",
                          [] {
                            mm(Tensor(), zeros({2, 2}));
                          },
                          "mm: a must be a tensor"}}));
  table.add(product_row("bmm", bmm, {{{2, 3, 4}, {2, 4, 2}}}, {{{0, 2, 3}, {0, 3, 2}}},
                        {{"batches",
                          [] {
                            bmm(zeros({2, 2, 2}), zeros({3, 2, 2}));
                          },
                          "bmm: both sides must be 3-d with equal batches"},
                         {"undefined",
                          [] {
                            bmm(zeros({2, 2, 2}), Tensor());
                          },
                          "bmm: b must be a tensor"}}));
}

void add_addmm(Table& table) {
  Row row{.name = "addmm",
          .fn = call3([](const Tensor& c, const Tensor& a, const Tensor& b) {
            return addmm(c, a, b, 0.5, 2);
          }),
          .cases = {{{.sizes = {2, 4}}, {.sizes = {2, 3}}, {.sizes = {3, 4}}},
                    {{.sizes = {4}}, {.sizes = {2, 3}}, {.sizes = {3, 4}}},
                    {{.sizes = {}}, {.sizes = {2, 3}}, {.sizes = {3, 4}}}},
          .reference = one([](const std::vector<Host>& in) {
            Host out = product(in[1], in[2]);
            for (int64_t i = 0; i < out.numel(); ++i) {
              const Shape at = out.index(i);
              const Host& c = in[0];
              const double add = c.sizes.dim() == 2   ? c.at({at[0], at[1]})
                                 : c.sizes.dim() == 1 ? c.at({at[1]})
                                                      : c.v[0];
              double& v = out.v[static_cast<size_t>(i)];
              v = 2 * v + 0.5 * add;
            }
            return out;
          }),
          .empty = {{{.sizes = {2, 3}}, {.sizes = {2, 0}}, {.sizes = {0, 3}}},
                    {{.sizes = {3}}, {.sizes = {0, 2}}, {.sizes = {2, 3}}}}};
  row.ulps_half = 3;
  row.nonfinite = true;
  row.large = {{{.sizes = {131}}, {.sizes = {65, 70}}, {.sizes = {70, 131}}}};
  row.errors = {{"added tensor",
                 [] {
                   addmm(zeros({3}), zeros({2, 2}), zeros({2, 2}));
                 },
                 "addmm: "},
                {"rank",
                 [] {
                   addmm(zeros({2}), zeros({2}), zeros({2, 2}));
                 },
                 "addmm: a and b must be matrices"}};
  table.add(row);
}

void add_linear(Table& table) {
  Row row{.name = "linear",
          .fn = call([](const std::vector<Tensor>& in) {
            return linear(in[0], in[1], in.size() > 2 ? in[2] : Tensor());
          }),
          .cases = {{{.sizes = {4, 3}}, {.sizes = {2, 3}}, {.sizes = {2}}},
                    {{.sizes = {2, 2, 3}}, {.sizes = {2, 3}}, {.sizes = {2}}},
                    {{.sizes = {3}}, {.sizes = {2, 3}}, {.sizes = {2}}},
                    {{.sizes = {4, 3}}, {.sizes = {2, 3}}}},
          .reference = one([](const std::vector<Host>& in) {
            Host out = product(in[0], transposed(in[1]));
            for (int64_t i = 0; in.size() > 2 && i < out.numel(); ++i) {
              out.v[static_cast<size_t>(i)] += in[2].v[static_cast<size_t>(out.index(i).back())];
            }
            return out;
          }),
          .empty = {{{.sizes = {0, 3}}, {.sizes = {2, 3}}, {.sizes = {2}}},
                    {{.sizes = {2, 0}}, {.sizes = {3, 0}}, {.sizes = {3}}},
                    {{.sizes = {2, 3}}, {.sizes = {0, 3}}, {.sizes = {0}}}}};
  row.ulps_half = 2;
  row.rtol_f32 = 1e-6;
  row.nonfinite = true;
  row.large = {{{.sizes = {130, 65}}, {.sizes = {70, 65}}, {.sizes = {70}}}};
  row.errors = {
      {"inner",
       [] {
         linear(zeros({4, 3}), zeros({2, 4}));
       },
       "linear: x [..., K] and weight [N, K] must share K; got x=[4, 3] f32 cpu, weight=[2, 4]"},
      {"bias",
       [] {
         linear(zeros({4, 3}), zeros({2, 3}), zeros({3}));
       },
       "linear: bias must be [2] f32; got [3] f32 cpu"},
      {"dtype",
       [] {
         linear(zeros({4, 3}), zeros({2, 3}, {.dtype = DType::kF64}));
       },
       "linear: x and weight must have one floating dtype"}};
  table.add(row);
  row.name = "linear_gelu";
  row.fn = call([](const std::vector<Tensor>& in) {
    return linear_gelu(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), in.size() > 2);
  });
  row.reference = one([product_of = row.reference](const std::vector<Host>& in) {
    Host out = product_of(in)[0];
    for (double& x : out.v) {
      const double inner = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
      x = in.size() > 2 ? 0.5 * x * (1 + std::tanh(inner)) : x * 0.5 * std::erfc(-x / std::sqrt(2));
    }
    return out;
  });
  row.rtol = 1e-10;
  row.rtol_f32 = 3e-6;
  row.ulps_half = 4;
  row.nonfinite = false;
  row.errors = {};
  table.add(row);
}

}  // namespace

void add_matmul_rows(Table& table) {
  add_products(table);
  add_addmm(table);
  add_linear(table);
}

}  // namespace tarn::optable
