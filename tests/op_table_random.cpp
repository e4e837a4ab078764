// op_table_random.cpp - rows: dropout, and the errors of random tensors. What the numbers are is
// the business of the tests of core/random.
#include "op_table.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"

namespace tarn::optable {
namespace {

constexpr uint64_t kSeed = 7;  // every call draws the same numbers, so that dropout is a function

using Drop = Tensor (*)(const Tensor&, double, bool, Generator*);

Row dropout_row(const char* name, Drop fn, std::vector<Shape> shapes) {
  const auto drop = [fn](const Tensor& x) {
    Generator generator(kSeed);
    return fn(x, 0.4, true, &generator);
  };
  Row row{.name = name, .fn = call1(drop), .cases = {}};
  // The same mask is seen on ones.
  row.reference = one([drop](const std::vector<Host>& in) {
    const std::vector<double> kept =
        drop(tarn::ones(in[0].sizes, {.dtype = DType::kF64})).to_vector<double>();
    Host out = in[0];
    for (size_t i = 0; i < kept.size(); ++i) {
      out.v[i] = kept[i] == 0 ? 0 : in[0].v[i] / 0.6;
    }
    return out;
  });
  for (const Shape& s : shapes) row.cases.push_back({{.sizes = s}});
  row.errors = {{"p",
                 [fn] {
                   fn(zeros({2, 2, 2}), 1.5, true, nullptr);
                 },
                 "p must be in [0, 1]; got 1.5"},
                {"undefined", [fn] { fn(Tensor(), 0.5, true, nullptr); }, "x must be a tensor"}};
  row.ulps_half = 2;
  return row;
}

Row errors_only(const char* name, std::vector<Error> errors) {
  return {.name = name, .fn = {}, .cases = {}, .errors = std::move(errors)};
}

}  // namespace

void add_random_rows(Table& table) {
  Row row = dropout_row("dropout", dropout, {{3, 4}, {2, 3, 2, 2}, {}});
  row.empty = {{{.sizes = {0, 3}}}};
  row.channels_last = false;  // draws follow memory there
  table.add(row);
  const auto drop_and_add = [](const Tensor& x, const Tensor& residual) {
    Generator generator(kSeed);
    return dropout_add(x, residual, 0.4, true, &generator);
  };
  const Reference dropped = row.reference;
  row = {.name = "dropout_add",
         .fn = call2(drop_and_add),
         .cases = {{{.sizes = {3, 4}}, {.sizes = {3, 4}}}, {{.sizes = {2, 3, 5}}, {.sizes = {5}}}},
         .reference =
             [dropped](const std::vector<Host>& in) {
               std::vector<Host> out = dropped({in[0]});
               const size_t repeat = in[1].v.size();
               for (size_t i = 0; i < out[0].v.size(); ++i) out[0].v[i] += in[1].v[i % repeat];
               return out;
             },
         .empty = {{{.sizes = {0, 3}}, {.sizes = {0, 3}}}}};
  row.large = {{{.sizes = {100, 103}}, {.sizes = {100, 103}}}};
  row.ulps_half = 4;
  row.channels_last = false;
  row.errors = {{"p", [] { dropout_add(optable::zeros({2}), optable::zeros({2}), -1); },
                 "dropout_add: p must be in [0, 1]; got -1"},
                {"residual", [] { dropout_add(optable::zeros({2}), Tensor()); },
                 "dropout_add: residual must be a tensor"}};
  table.add(row);
  row = dropout_row("dropout2d", dropout2d, {{2, 3, 2, 2}});
  row.errors.push_back({"rank",
                        [] {
                          dropout2d(zeros({2, 3}));
                        },
                        "dropout2d: x must be [N, C, ...]; got [2, 3] f32 cpu"});
  table.add(row);

  const TensorOptions whole{.dtype = DType::kI64};
  table.add(
      errors_only("rand", {{"integers", [=] { rand({2}, whole); }, "dtype must be floating"}}));
  table.add(
      errors_only("randn", {{"integers", [=] { randn({2}, whole); }, "dtype must be floating"}}));
  table.add(errors_only("rand_like", {{"integers", [=] { rand_like(optable::zeros({2}, whole)); },
                                       "dtype must be floating"}}));
  table.add(errors_only("randn_like", {{"integers", [=] { randn_like(optable::zeros({2}, whole)); },
                                        "dtype must be floating"}}));
  table.add(errors_only("randint",
                        {{"range", [] { randint(3, 3, {2}); }, "randint: low must be below high"},
                         {"dtype", [] { randint(0, 300, {2}, {.dtype = DType::kU8}); },
                          "randint: u8 holds integers from 0 to 255; got low=0, high=300"},
                         {"bool", [] { randint(0, 2, {2}, {.dtype = DType::kBool}); },
                          "randint: bool holds no integers; use bernoulli"}}));
  table.add(errors_only("randint_like",
                        {{"range", [=] { randint_like(optable::zeros({2}, whole), 3, 3); },
                          "randint: low must be below high"}}));
  table.add(errors_only("randperm",
                        {{"negative", [] { randperm(-1); }, "randperm: n must not be negative"},
                         {"dtype", [] { randperm(300, {.dtype = DType::kU8}); },
                          "randperm: u8 does not hold all of 0..299"}}));
  table.add(errors_only(
      "bernoulli", {{"undefined", [] { bernoulli(Tensor()); }, "bernoulli: p must be a tensor"}}));
  table.add(errors_only(
      "multinomial",
      {{"count", [] { multinomial(ones({3}), 4); },
        "multinomial: cannot draw 4 without replacement from 3 indices of positive weight"},
       {"negative",
        [] {
          multinomial(tensor({1, -1}), 1);
        },
        "multinomial: weights must be finite and not negative; got -1 at position 1"},
       {"rank",
        [] {
          multinomial(ones({1, 1, 1}), 1);
        },
        "multinomial: weights must be [n] or [rows, n]"}}));
  table.add(errors_only("uniform_", {{"bounds",
                                      [] {
                                        Tensor x = zeros({2});
                                        uniform_(x, 1, 0);
                                      },
                                      "uniform_: low must not exceed high, and both be finite"}}));
  table.add(errors_only("normal_", {{"stddev",
                                     [] {
                                       Tensor x = zeros({2});
                                       normal_(x, 0, -1);
                                     },
                                     "normal_: stddev must not be negative; got -1"}}));
  table.add(errors_only("bernoulli_", {{"p",
                                        [] {
                                          Tensor x = zeros({2});
                                          bernoulli_(x, 2);
                                        },
                                        "p must be in [0, 1]; got 2"}}));
}

}  // namespace tarn::optable
