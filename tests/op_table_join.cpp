// op_table_join.cpp - rows: joining, taking apart, padding, repeating, order.
#include "op_table.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"

namespace tarn::optable {
namespace {

using List = std::vector<Tensor>;

// Each element of the result comes from one place of the first input, or is `fill` where `source`
// says so with a negative entry.
Reference moved(std::function<Shape(const Shape&)> sizes,
                std::function<Shape(const Shape& index, const Shape& x_sizes)> source,
                double fill = 0) {
  return one([=](const std::vector<Host>& in) {
    Host out(sizes(in[0].sizes), fill);
    for (int64_t p = 0; p < out.numel(); ++p) {
      const Shape at = source(out.index(p), in[0].sizes);
      bool inside = true;
      for (int64_t i : at) inside &= i >= 0;
      if (inside) out.v[static_cast<size_t>(p)] = in[0].v[in[0].position(at)];
    }
    return out;
  });
}
Shape same(const Shape& s) {
  return s;
}

// The part [begin, end) along dimension d.
Host part(const Host& x, int d, int64_t begin, int64_t end) {
  Shape sizes = x.sizes;
  sizes[d] = end - begin;
  Host out(sizes);
  for (int64_t p = 0; p < out.numel(); ++p) {
    Shape at = out.index(p);
    at[d] += begin;
    out.v[static_cast<size_t>(p)] = x.v[x.position(at)];
  }
  return out;
}

Host joined(const std::vector<Host>& in, int d) {
  Shape sizes = in[0].sizes;
  sizes[d] = 0;
  for (const Host& x : in) sizes[d] += x.sizes[d];
  Host out(sizes);
  int64_t begin = 0;
  for (const Host& x : in) {
    for (int64_t p = 0; p < x.numel(); ++p) {
      Shape at = x.index(p);
      at[d] += begin;
      out.v[out.position(at)] = x.v[static_cast<size_t>(p)];
    }
    begin += x.sizes[d];
  }
  return out;
}

void add_joining(Table& table) {
  Row row{
      .name = "cat",
      .fn = call([](const List& in) { return cat(in, 1); }),
      .cases = {{{.sizes = {2, 3}}, {.sizes = {2, 1}}, {.sizes = {2, 2}}},
                {{.sizes = {2, 3, 2, 2}}, {.sizes = {2, 1, 2, 2}}}},
      .reference = one([](const std::vector<Host>& in) { return joined(in, 1); }),
      .empty = {{{.sizes = {2, 0}}, {.sizes = {2, 2}}}, {{.sizes = {0, 1}}, {.sizes = {0, 2}}}}};
  row.integers = true;
  row.errors = {
      {"none", [] { cat(List{}); }, "cat: at least one tensor is needed; got none"},
      {"undefined",
       [] {
         cat(List{zeros({2}), Tensor()});
       },
       "cat: tensor 1 is undefined"},
      {"0-d",
       [] {
         cat(List{zeros({}), zeros({})});
       },
       "cat: 0-d tensors cannot be joined"},
      {"sizes",
       [] {
         cat(List{zeros({2, 3}), zeros({3, 3})}, 1);
       },
       "cat: sizes must match outside dimension 1; got tensor 0=[2, 3] f32 cpu, tensor 1=[3, 3]"}};
  table.add(row);
  row = {.name = "stack",
         .fn = call([](const List& in) { return stack(in, 1); }),
         .cases = {{{.sizes = {2, 3}}, {.sizes = {2, 3}}}, {{.sizes = {2}}, {.sizes = {2}}}},
         .reference = one([](const std::vector<Host>& in) {
           std::vector<Host> wide = in;
           for (Host& x : wide) x.sizes.insert(1, 1);
           return joined(wide, 1);
         }),
         .empty = {{{.sizes = {0, 3}}, {.sizes = {0, 3}}}}};
  row.errors = {{"sizes",
                 [] {
                   stack({zeros({2, 3}), zeros({3, 3})});
                 },
                 "stack: "},
                {"none", [] { stack({}); }, "stack: "}};
  table.add(row);
}

void add_splitting(Table& table) {
  const auto row = [&](const char* name, TensorFunction fn, std::vector<int64_t> cuts,
                       std::vector<Error> errors) {
    Row r{.name = name,
          .fn = fn,
          .cases = {{{.sizes = {2, 5}}}, {{.sizes = {2, 5, 2, 2}}}},
          .reference =
              [cuts](const std::vector<Host>& in) {
                std::vector<Host> out;
                for (size_t i = 0; i + 1 < cuts.size(); ++i) {
                  out.push_back(part(in[0], 1, cuts[i], cuts[i + 1]));
                }
                return out;
              },
          .empty = {{{.sizes = {0, 5}}}},
          .errors = std::move(errors)};
    table.add(r);
  };
  row("split", [](const List& in) { return split(in[0], 2, 1); }, {0, 2, 4, 5},
      {{"size", [] { split(zeros({4}), 0); }, "split: "}});
  row("split/sizes",
      [](const List& in) {
        return split(in[0], std::vector<int64_t>{1, 4}, 1);
      },
      {0, 1, 5},
      {{"sum",
        [] {
          split(zeros({4}), std::vector<int64_t>{1, 2});
        },
        "split: "}});
  row("chunk", [](const List& in) { return chunk(in[0], 2, 1); }, {0, 3, 5},
      {{"count", [] { chunk(zeros({4}), 0); }, "chunk: "}});
  Row unbind_row{.name = "unbind",
                 .fn = [](const List& in) { return unbind(in[0], 1); },
                 .cases = {{{.sizes = {2, 3}}}, {{.sizes = {2, 3, 2}}}},
                 .reference =
                     [](const std::vector<Host>& in) {
                       std::vector<Host> out;
                       for (int64_t i = 0; i < in[0].sizes[1]; ++i) {
                         out.push_back(part(in[0], 1, i, i + 1));
                         out.back().sizes.erase(1);
                       }
                       return out;
                     }};
  table.add(unbind_row);
}

void add_padding(Table& table) {
  // Padded by 1 before and 2 after in the last dimension, 1 before in the one before it.
  const auto grown = [](const Shape& s) {
    Shape out = s;
    out[s.dim() - 1] += 3;
    out[s.dim() - 2] += 1;
    return out;
  };
  using Map = int64_t (*)(int64_t i, int64_t n);
  const auto row = [&](const char* name, PadMode mode, Map map, double value) {
    Row r{.name = name,
          .fn = call1([=](const Tensor& x) {
            return pad(x, {1, 2, 1, 0}, mode, value);
          }),
          .cases = {{{.sizes = {2, 3}}}, {{.sizes = {2, 2, 2, 4}}}},
          .reference = moved(
              grown,
              [map](const Shape& index, const Shape& s) {
                Shape at = index;
                for (int d = s.dim() - 2; d < s.dim(); ++d) {
                  at[d] = map(index[d] - 1, s[d]);
                }
                return at;
              },
              value)};
    r.errors = {{"pairs",
                 [mode] {
                   pad(zeros({2, 3}), {1}, mode);
                 },
                 "pad: pads come in pairs {before, after} from the last dimension on; got [1]"}};
    table.add(r);
  };
  row(
      "pad", PadMode::kConstant,
      [](int64_t i, int64_t n) { return i < 0 || i >= n ? int64_t{-1} : i; }, 2.5);
  row(
      "pad/reflect", PadMode::kReflect,
      [](int64_t i, int64_t n) { return i < 0    ? -i
                                        : i >= n ? 2 * (n - 1) - i
                                                 : i; }, 0);
  row(
      "pad/replicate", PadMode::kReplicate,
      [](int64_t i, int64_t n) { return std::min(std::max<int64_t>(i, 0), n - 1); }, 0);
  row(
      "pad/circular", PadMode::kCircular, [](int64_t i, int64_t n) { return (i + n) % n; }, 0);
  Row cut{.name = "pad/cuts",
          .fn = call1([](const Tensor& x) {
            return pad(x, {-1, 1});
          }),
          .cases = {{{.sizes = {2, 3}}}},
          .reference = moved(same, [](const Shape& i, const Shape& s) {
            return Shape{i[0], i[1] + 1 < s[1] ? i[1] + 1 : -1};
          })};
  cut.errors = {{"too much",
                 [] {
                   pad(zeros({2, 3}), {-2, -2});
                 },
                 "pad: cuts more than there is; got pads [-2, -2] for x=[2, 3] f32 cpu"}};
  table.add(cut);
}

void add_repeating(Table& table) {
  Row row{.name = "repeat",
          .fn = call1([](const Tensor& x) {
            return repeat(x, {2, 1, 3});
          }),
          .cases = {{{.sizes = {2, 3}}}},
          .reference = moved(
              [](const Shape& s) {
                return Shape{2, s[0], 3 * s[1]};
              },
              [](const Shape& i, const Shape& s) {
                return Shape{i[1], i[2] % s[1]};
              }),
          .empty = {{{.sizes = {0, 3}}}}};
  row.errors = {{"fewer",
                 [] {
                   repeat(zeros({2, 3}), {2});
                 },
                 "repeat: "},
                {"negative", [] { repeat(zeros({2}), {-1}); }, "repeat: "}};
  table.add(row);
  row = {.name = "repeat_interleave",
         .fn = call1([](const Tensor& x) { return repeat_interleave(x, 3, 1); }),
         .cases = {{{.sizes = {2, 3}}}},
         .reference = moved(
             [](const Shape& s) {
               return Shape{s[0], 3 * s[1]};
             },
             [](const Shape& i, const Shape&) {
               return Shape{i[0], i[1] / 3};
             }),
         .empty = {{{.sizes = {0, 3}}}}};
  row.errors = {{"negative", [] { repeat_interleave(zeros({2}), -1, 0); }, "repeat_interleave: "}};
  table.add(row);
}

void add_order(Table& table) {
  Row row{.name = "triu",
          .fn = call1([](const Tensor& x) { return triu(x, 1); }),
          .cases = {{{.sizes = {3, 4}}}, {{.sizes = {2, 3, 3}}}},
          .reference = moved(same,
                             [](const Shape& i, const Shape&) {
                               Shape at = i;
                               const int n = i.dim();
                               if (i[n - 1] < i[n - 2] + 1) at[0] = -1;
                               return at;
                             }),
          .empty = {{{.sizes = {0, 3}}}}};
  row.errors = {{"rank", [] { triu(zeros({3})); },
                 "triu: x must have at least 2 dimensions; got [3] f32 cpu"}};
  table.add(row);
  row.name = "tril";
  row.fn = call1([](const Tensor& x) { return tril(x, 0); });
  row.reference = moved(same, [](const Shape& i, const Shape&) {
    Shape at = i;
    const int n = i.dim();
    if (i[n - 1] > i[n - 2]) at[0] = -1;
    return at;
  });
  row.errors = {{"rank", [] { tril(zeros({3})); },
                 "tril: x must have at least 2 dimensions; got [3] f32 cpu"}};
  table.add(row);
  row = {.name = "flip",
         .fn = call1([](const Tensor& x) {
           return flip(x, {0, -1});
         }),
         .cases = {{{.sizes = {2, 3}}}, {{.sizes = {2, 3, 4}}}},
         .reference = moved(same,
                            [](const Shape& i, const Shape& s) {
                              Shape at = i;
                              for (int d : {0, s.dim() - 1}) at[d] = s[d] - 1 - i[d];
                              return at;
                            }),
         .empty = {{{.sizes = {0, 3}}}}};
  row.errors = {{"twice",
                 [] {
                   flip(zeros({2, 3}), {0, -2});
                 },
                 "flip: dimension 0 is named twice in [0, -2]"}};
  table.add(row);
  row = {.name = "roll",
         .fn = call1([](const Tensor& x) {
           return roll(x, {1, -2}, {0, 1});
         }),
         .cases = {{{.sizes = {3, 4}}}, {{.sizes = {1, 3}}}},
         .reference = moved(same,
                            [](const Shape& i, const Shape& s) {
                              return Shape{(i[0] - 1 + s[0]) % s[0], (i[1] + 2) % s[1]};
                            }),
         .empty = {{{.sizes = {0, 3}}}}};
  row.errors = {{"counts", [] { roll(zeros({2, 3}), {1}, {0, 1}); }, "roll: "}};
  table.add(row);
  row = {.name = "one_hot",
         .fn = call1([](const Tensor& i) { return one_hot(i, 4); }),
         .cases = {{index({2, 3}, 4)}, {index({}, 4)}},
         .reference = one([](const std::vector<Host>& in) {
           Shape sizes = in[0].sizes;
           sizes.push_back(4);
           Host out(sizes);
           for (int64_t p = 0; p < in[0].numel(); ++p) {
             out.v[static_cast<size_t>(4 * p +
                                       static_cast<int64_t>(in[0].v[static_cast<size_t>(p)]))] = 1;
           }
           return out;
         }),
         .empty = {{index({0}, 4)}},
         .gradient = false};
  row.errors = {{"classes", [] { one_hot(zeros({2}, {.dtype = DType::kI64}), 0); },
                 "one_hot: the number of classes must be positive"},
                {"range",
                 [] {
                   one_hot(tensor({0, 4}, {.dtype = DType::kI64}), 4);
                 },
                 "one_hot: index 4 at position 1"}};
  table.add(row);
}

}  // namespace

void add_join_rows(Table& table) {
  add_joining(table);
  add_splitting(table);
  add_padding(table);
  add_repeating(table);
  add_order(table);
}

}  // namespace tarn::optable
