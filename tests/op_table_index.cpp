// op_table_index.cpp - rows: picking and writing by index.
#include "op_table.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"

namespace tarn::optable {
namespace {

using List = std::vector<Tensor>;

int64_t whole(double v) {
  return static_cast<int64_t>(v);
}
// The index of an element with dimension d replaced.
Shape replaced(Shape index, int d, int64_t value) {
  index[d] = value;
  return index;
}
Shape sized(Shape sizes, int d, int64_t n) {
  sizes[d] = n;
  return sizes;
}

Tensor ints(std::initializer_list<double> values, const Shape& sizes) {
  return optable::tensor(values, sizes, {.dtype = DType::kI64});
}
std::vector<Error> range_errors(std::function<void(const Tensor& index)> call) {
  return {{"too large",
           [call] {
             call(ints({0, 4}, {2}));
           },
           "index 4 at position 1 is out of range for dimension 1 of size 4"},
          {"negative",
           [call] {
             call(ints({-1, 0}, {2}));
           },
           "index -1 at position 0"},
          {"floating", [call] { call(zeros({2})); },
           "index must be i64 or i32; got index=[2] f32 cpu"}};
}

// Indices of which no two are equal: where one place is written twice the last value stays, but the
// gradient goes to all.
In once(Shape sizes, int64_t end) {
  In in = index(sizes, end);
  in.distinct = true;
  return in;
}

void add_picking(Table& table) {
  Row row{.name = "index_select",
          .fn = call2([](const Tensor& x, const Tensor& i) { return index_select(x, 1, i); }),
          .cases = {{{.sizes = {3, 4}}, index({5}, 4)},
                    {{.sizes = {2, 3, 2, 2}}, index({2}, 3)},
                    {{.sizes = {2, 4}}, index({}, 4)}},
          .reference = one([](const std::vector<Host>& in) {
            Host out(sized(in[0].sizes, 1, in[1].numel()));
            for (int64_t p = 0; p < out.numel(); ++p) {
              const Shape at = out.index(p);
              const int64_t from = whole(in[1].v[static_cast<size_t>(at[1])]);
              out.v[static_cast<size_t>(p)] = in[0].v[in[0].position(replaced(at, 1, from))];
            }
            return out;
          }),
          .empty = {{{.sizes = {0, 4}}, index({2}, 4)}, {{.sizes = {3, 4}}, index({0}, 4)}}};
  row.large = {{{.sizes = {50, 257}}, index({300}, 257)}};
  row.errors = range_errors([](const Tensor& i) { index_select(zeros({3, 4}), 1, i); });
  row.errors.push_back({"rank",
                        [] {
                          index_select(zeros({3, 4}), 0, ints({0, 0}, {1, 2}));
                        },
                        "index_select: index must be 1-d; got index=[1, 2] i64 cpu"});
  table.add(row);
  const auto gathered = [](const std::vector<Host>& in) {
    Host out(in[1].sizes);
    for (int64_t p = 0; p < out.numel(); ++p) {
      const int64_t from = whole(in[1].v[static_cast<size_t>(p)]);
      out.v[static_cast<size_t>(p)] = in[0].v[in[0].position(replaced(out.index(p), 1, from))];
    }
    return out;
  };
  row = {.name = "gather",
         .fn = call2([](const Tensor& x, const Tensor& i) { return gather(x, 1, i); }),
         .cases = {{{.sizes = {3, 4}}, index({2, 5}, 4)},
                   {{.sizes = {2, 3, 2, 2}}, index({2, 2, 2, 1}, 3)}},
         .reference = one(gathered),
         .empty = {{{.sizes = {0, 4}}, index({0, 2}, 4)}, {{.sizes = {3, 4}}, index({3, 0}, 4)}}};
  row.errors = {{"rank",
                 [] {
                   gather(zeros({3, 4}), 1, ints({0}, {1}));
                 },
                 "gather: index must have as many dimensions as x"},
                {"size",
                 [] {
                   gather(zeros({1, 4}), 1, ints({0, 0}, {2, 1}));
                 },
                 "gather: index must not be larger than x outside dimension 1"},
                {"range",
                 [] {
                   gather(zeros({1, 4}), 1, ints({0, 7}, {1, 2}));
                 },
                 "gather: index 7 at position [0, 1] is out of range for dimension 1 of size 4"}};
  table.add(row);
  row = {.name = "take_along_dim",
         .fn = call2([](const Tensor& x, const Tensor& i) { return take_along_dim(x, i, 1); }),
         .cases = {{{.sizes = {3, 4}}, index({3, 2}, 4)}, {{.sizes = {3, 4}}, index({3, 1}, 4)}},
         .reference = one(gathered)};
  row.errors = {{"rank",
                 [] {
                   take_along_dim(zeros({3, 4}), ints({0}, {1}), 1);
                 },
                 "take_along_dim: index must have as many dimensions as x"}};
  table.add(row);
  row = {.name = "embedding",
         .fn = call2([](const Tensor& w, const Tensor& i) { return embedding(w, i); }),
         .cases = {{{.sizes = {5, 3}}, index({2, 3}, 5)}, {{.sizes = {4, 2}}, index({}, 4)}},
         .reference = one([](const std::vector<Host>& in) {
           Shape sizes = in[1].sizes;
           sizes.push_back(in[0].sizes[1]);
           Host out(sizes);
           for (int64_t p = 0; p < out.numel(); ++p) {
             const int64_t row = whole(in[1].v[static_cast<size_t>(p / in[0].sizes[1])]);
             out.v[static_cast<size_t>(p)] = in[0].at({row, p % in[0].sizes[1]});
           }
           return out;
         }),
         .empty = {{{.sizes = {5, 3}}, index({0}, 5)}, {{.sizes = {5, 0}}, index({2}, 5)}}};
  row.large = {{{.sizes = {257, 65}}, index({40, 7}, 257)}};
  row.errors = {{"rank", [] { embedding(zeros({3}), ints({0}, {1})); },
                 "embedding: weight must be [V, D]; got weight=[3] f32 cpu"},
                {"range",
                 [] {
                   embedding(zeros({3, 2}), ints({0, 3}, {2}));
                 },
                 "embedding: index 3 at position 1 is out of range for dimension 0 of size 3"},
                {"padding",
                 [] {
                   embedding(zeros({3, 2}), ints({0}, {1}), 3);
                 },
                 "embedding: padding_idx must be a row of weight=[3, 2] f32 cpu, or -1"}};
  table.add(row);
}

void add_masks(Table& table) {
  Row row{.name = "masked_select",
          .fn = call2([](const Tensor& x, const Tensor& m) { return masked_select(x, m); }),
          .cases = {{{.sizes = {3, 4}}, mask({3, 4})}, {{.sizes = {3, 1}}, mask({4})}},
          .reference = one([](const std::vector<Host>& in) {
            const Shape sizes = broadcast_shapes("reference", in[0].sizes, in[1].sizes);
            std::vector<double> kept;
            for (int64_t i = 0; i < sizes[0]; ++i) {
              for (int64_t j = 0; j < sizes[1]; ++j) {
                const bool one_row = in[1].sizes.dim() == 1;
                if ((one_row ? in[1].at({j}) : in[1].at({i, j})) == 0) continue;
                kept.push_back(in[0].at({i, in[0].sizes[1] == 1 ? 0 : j}));
              }
            }
            return Host({static_cast<int64_t>(kept.size())}, kept);
          })};
  row.errors = {{"mask not bool", [] { masked_select(zeros({2}), zeros({2})); },
                 "masked_select: mask must be bool; got mask=[2] f32 cpu"}};
  table.add(row);
  row = {.name = "nonzero",
         .fn = call1([](const Tensor& x) { return nonzero(x); }),
         .cases = {{index({3, 4}, 2)}, {mask({5})}},
         .reference = one([](const std::vector<Host>& in) {
           const int64_t n = in[0].sizes.dim();
           std::vector<double> found;
           for (int64_t p = 0; p < in[0].numel(); ++p) {
             if (in[0].v[static_cast<size_t>(p)] == 0) continue;
             for (int64_t i : in[0].index(p)) found.push_back(static_cast<double>(i));
           }
           return Host({static_cast<int64_t>(found.size()) / n, n}, found);
         }),
         .empty = {{index({0, 2}, 2)}},
         .gradient = false};
  table.add(row);
}

void add_advanced(Table& table) {
  Row row{.name = "index",
          .fn = call([](const List& in) {
            return index(in[0], {in[1], in[2]});
          }),
          .cases = {{{.sizes = {3, 4}}, index({2, 1}, 3), index({5}, 4)}},
          .reference = one([](const std::vector<Host>& in) {
            Host out({2, 5});
            for (int64_t i = 0; i < 2; ++i) {
              for (int64_t j = 0; j < 5; ++j) {
                out.at({i, j}) = in[0].at({whole(in[1].at({i, 0})), whole(in[2].at({j}))});
              }
            }
            return out;
          })};
  row.errors = {{"range",
                 [] {
                   index(zeros({3, 4}), {ints({3}, {1})});
                 },
                 "index: index 3 at position 0 is out of range for dimension 0 of size 3"}};
  table.add(row);
  row = {.name = "index/second_dimension",
         .fn = call([](const List& in) {
           return index(in[0], {Tensor(), in[1]});
         }),
         .cases = {{{.sizes = {3, 4}}, index({2}, 4)}},
         .reference = one([](const std::vector<Host>& in) {
           Host out({3, 2});
           for (int64_t i = 0; i < 3; ++i) {
             for (int64_t j = 0; j < 2; ++j) out.at({i, j}) = in[0].at({i, whole(in[1].at({j}))});
           }
           return out;
         })};
  table.add(row);
  for (bool accumulate : {false, true}) {
    row = {.name = accumulate ? "index_put/accumulate" : "index_put",
           .fn = call([accumulate](const List& in) {
             return index_put(in[0], {in[1], in[2]}, in[3], accumulate);
           }),
           .cases = {{{.sizes = {3, 4}}, index({4}, 3), once({4}, 4), {.sizes = {4}}},
                     {{.sizes = {3, 4}}, index({4}, 3), once({4}, 4), {.sizes = {}}}},
           .reference = one([accumulate](const std::vector<Host>& in) {
             Host out = in[0];
             for (int64_t n = 0; n < 4; ++n) {
               double& cell = out.at({whole(in[1].at({n})), whole(in[2].at({n}))});
               const double v = in[3].sizes.dim() == 0 ? in[3].v[0] : in[3].at({n});
               cell = accumulate ? cell + v : v;
             }
             return out;
           }),
           .ulps_half = accumulate ? 4.0 : 0.0};
    table.add(row);
    row.name = accumulate ? "index_put_/accumulate" : "index_put_";
    row.fn = call([accumulate](const List& in) {
      Tensor x = in[0].clone();
      return index_put_(x, {in[1], in[2]}, in[3], accumulate);
    });
    table.add(row);
  }
}

// Rows x, index [n], src along dimension 1, as a new tensor and in place.
void add_writing(Table& table, const char* name,
                 std::function<Tensor(const Tensor&, const Tensor&, const Tensor&)> fn,
                 std::function<Tensor(Tensor&, const Tensor&, const Tensor&)> in_place,
                 std::function<double(double old, double src)> rule) {
  Row row{.name = name,
          .fn = call3(fn),
          .cases = {{{.sizes = {3, 4}}, once({3}, 4), {.sizes = {3, 3}}},
                    {{.sizes = {2, 3, 2, 2}}, once({2}, 3), {.sizes = {2, 2, 2, 2}}}},
          .reference = one([rule](const std::vector<Host>& in) {
            Host out = in[0];
            for (int64_t p = 0; p < in[2].numel(); ++p) {
              const Shape at = in[2].index(p);
              const int64_t to = whole(in[1].v[static_cast<size_t>(at[1])]);
              double& cell = out.v[out.position(replaced(at, 1, to))];
              cell = rule(cell, in[2].v[static_cast<size_t>(p)]);
            }
            return out;
          }),
          .empty = {{{.sizes = {3, 4}}, index({0}, 4), {.sizes = {3, 0}}},
                    {{.sizes = {0, 4}}, index({2}, 4), {.sizes = {0, 2}}}}};
  row.ulps_half = 4;  // several sums may meet in one place
  row.errors = {{"range",
                 [fn] {
                   fn(zeros({3, 4}), ints({0, 4}, {2}), zeros({3, 2}));
                 },
                 "index 4 at position 1 is out of range for dimension 1 of size 4"},
                {"src",
                 [fn] {
                   fn(zeros({3, 4}), ints({0, 1}, {2}), zeros({3, 3}));
                 },
                 "src must have x's sizes with index.size(0) at dimension 1; got x=[3, 4]"},
                {"dtype",
                 [fn] {
                   fn(zeros({3, 4}), ints({0}, {1}), zeros({3, 1}, {.dtype = DType::kF64}));
                 },
                 "x and src must have one dtype; got x=[3, 4] f32 cpu, src=[3, 1] f64 cpu"}};
  if (row.name == "index_add") {
    row.cases.push_back({{.sizes = {3, 4}}, index({7}, 4), {.sizes = {3, 7}}});
  }
  table.add(row);
  row.name += "_";
  row.fn = call3([in_place](const Tensor& x, const Tensor& i, const Tensor& src) {
    Tensor out = x.clone();
    return in_place(out, i, src);
  });
  row.errors.clear();
  table.add(row);
}

void add_writes(Table& table) {
  add_writing(
      table, "index_add",
      [](const Tensor& x, const Tensor& i, const Tensor& s) { return index_add(x, 1, i, s, 2); },
      [](Tensor& x, const Tensor& i, const Tensor& s) { return index_add_(x, 1, i, s, 2); },
      [](double old, double src) { return old + 2 * src; });
  add_writing(
      table, "index_copy",
      [](const Tensor& x, const Tensor& i, const Tensor& s) { return index_copy(x, 1, i, s); },
      [](Tensor& x, const Tensor& i, const Tensor& s) { return index_copy_(x, 1, i, s); },
      [](double, double src) { return src; });
  Row row{.name = "index_fill",
          .fn = call2([](const Tensor& x, const Tensor& i) { return index_fill(x, 1, i, 1.5); }),
          .cases = {{{.sizes = {3, 4}}, index({2}, 4)}},
          .reference = one([](const std::vector<Host>& in) {
            Host out = in[0];
            for (int64_t i = 0; i < in[0].sizes[0]; ++i) {
              for (double at : in[1].v) out.at({i, whole(at)}) = 1.5;
            }
            return out;
          }),
          .empty = {{{.sizes = {0, 4}}, index({2}, 4)}}};
  row.errors = range_errors([](const Tensor& i) { index_fill(zeros({3, 4}), 1, i, 0); });
  table.add(row);
}

// x[index[i][j]][j] op= src[i][j].
Row scatter_row(const char* name, TensorFunction fn, std::function<double(double, double)> rule) {
  Row row{.name = name,
          .fn = fn,
          .cases = {{{.sizes = {3, 4}}, once({2, 4}, 3), {.sizes = {4, 4}}},
                    {{.sizes = {3}}, once({2}, 3), {.sizes = {2}}}},
          .reference = one([rule](const std::vector<Host>& in) {
            Host out = in[0];
            for (int64_t p = 0; p < in[1].numel(); ++p) {
              const Shape at = in[1].index(p);
              double& cell =
                  out.v[out.position(replaced(at, 0, whole(in[1].v[static_cast<size_t>(p)])))];
              cell = rule(cell, in[2].v[in[2].position(at)]);
            }
            return out;
          }),
          .empty = {{{.sizes = {3, 4}}, index({0, 4}, 3), {.sizes = {0, 4}}}}};
  row.ulps_half = 4;
  return row;
}

void add_scatter(Table& table) {
  const auto set = [](double, double src) { return src; };
  const auto add = [](double old, double src) { return old + src; };
  const auto constant = [](double, double) { return 1.5; };
  Row row = scatter_row("scatter", call3([](const Tensor& x, const Tensor& i, const Tensor& s) {
                          return scatter(x, 0, i, s);
                        }),
                        set);
  row.errors = {
      {"range",
       [] {
         scatter(zeros({3, 4}), 0, ints({3}, {1, 1}), zeros({1, 1}));
       },
       "scatter: index 3 at position [0, 0] is out of range for dimension 0 of size 3"},
      {"rank",
       [] {
         scatter(zeros({3, 4}), 0, ints({0}, {1}), zeros({1, 1}));
       },
       "scatter: index must have as many dimensions as"},
      {"dtype",
       [] {
         scatter(zeros({3, 4}), 0, ints({0}, {1, 1}), zeros({1, 1}, {.dtype = DType::kF64}));
       },
       "scatter: x and src must have one dtype"}};
  table.add(row);
  table.add(scatter_row("scatter_", call3([](const Tensor& x, const Tensor& i, const Tensor& s) {
                          Tensor out = x.clone();
                          return scatter_(out, 0, i, s);
                        }),
                        set));
  table.add(scatter_row("scatter/value", call3([](const Tensor& x, const Tensor& i, const Tensor&) {
                          return scatter(x, 0, i, 1.5);
                        }),
                        constant));
  table.add(scatter_row("scatter_/value",
                        call3([](const Tensor& x, const Tensor& i, const Tensor&) {
                          Tensor out = x.clone();
                          return scatter_(out, 0, i, 1.5);
                        }),
                        constant));
  table.add(scatter_row("scatter_add", call3([](const Tensor& x, const Tensor& i, const Tensor& s) {
                          return scatter_add(x, 0, i, s);
                        }),
                        add));
  table.add(scatter_row("scatter_add_",
                        call3([](const Tensor& x, const Tensor& i, const Tensor& s) {
                          Tensor out = x.clone();
                          return scatter_add_(out, 0, i, s);
                        }),
                        add));
}

}  // namespace

void add_index_rows(Table& table) {
  add_picking(table);
  add_masks(table);
  add_advanced(table);
  add_writes(table);
  add_scatter(table);
}

}  // namespace tarn::optable
