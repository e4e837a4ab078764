// op_table_shape.cpp - rows: views, copies and casts.
#include "op_table.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"

namespace tarn::optable {
namespace {

// The reference of a view: where each element of the result comes from.
Reference from(std::function<Shape(const Shape&)> sizes,
               std::function<Shape(const Shape& index, const Shape& x_sizes)> source) {
  return one([=](const std::vector<Host>& in) {
    Host out(sizes(in[0].sizes));
    for (int64_t i = 0; i < out.numel(); ++i) {
      out.v[static_cast<size_t>(i)] = in[0].v[in[0].position(source(out.index(i), in[0].sizes))];
    }
    return out;
  });
}
// ... that keeps the elements' order.
Reference as_sizes(std::function<Shape(const Shape&)> sizes) {
  return one([=](const std::vector<Host>& in) { return Host(sizes(in[0].sizes), in[0].v); });
}

Row view_row(const char* name, std::function<Tensor(const Tensor&)> fn, std::vector<Shape> shapes,
             Reference ref, std::vector<Error> errors = {}, std::vector<Shape> empty = {}) {
  Row row{.name = name, .fn = call1(fn), .cases = {}, .reference = ref, .errors = errors};
  for (const Shape& s : shapes) row.cases.push_back({{.sizes = s}});
  for (const Shape& s : empty) row.empty.push_back({{.sizes = s}});
  row.nonfinite = true;
  row.rtol = row.rtol_f32 = 0;
  row.ulps_half = 0;
  return row;
}

Shape swapped(Shape s, int a, int b) {
  std::swap(s[a], s[b]);
  return s;
}
Shape without(Shape s, int d) {
  s.erase(d);
  return s;
}
Shape with(Shape s, int d, int64_t v) {
  s.insert(d, v);
  return s;
}

void add_reshaping(Table& table) {
  const auto to_rows = [](const Shape& s) { return Shape{s[0] * s[1], s[2]}; };
  Row row = view_row("view",
                     [](const Tensor& x) {
                       return view(x, {x.size(0) * x.size(1), -1});
                     },
                     {{2, 3, 4}}, as_sizes(to_rows),
                     {{"count",
                       [] {
                         view(zeros({2, 3}), {4});
                       },
                       "view: sizes must hold exactly 6 elements; got [4]"},
                      {"strides",
                       [] {
                         view(zeros({2, 3}).t(), {6});
                       },
                       "view: sizes [6] cannot be shown over a tensor of sizes [3, 2] and strides "
                       "[1, 3] without a copy; use reshape"},
                      {"two unknown",
                       [] {
                         view(zeros({2, 3}), {-1, -1});
                       },
                       "view: only one size may be -1; got [-1, -1]"}});
  row.layouts = false;
  table.add(row);
  table.add(view_row("reshape",
                     [](const Tensor& x) {
                       return reshape(x, {-1, x.size(2)});
                     },
                     {{2, 3, 4}}, as_sizes(to_rows),
                     {{"count",
                       [] {
                         reshape(zeros({2, 3}), {-1, 4});
                       },
                       "reshape: sizes must hold exactly 6 elements; got [-1, 4]"},
                      {"negative",
                       [] {
                         reshape(zeros({2, 3}), {-2, 3});
                       },
                       "reshape: sizes must not be negative; got [-2, 3]"}},
                     {{0, 3, 4}}));
  table.add(view_row("flatten", [](const Tensor& x) { return flatten(x, 1); },
                     {{2, 3, 4}, {2, 3, 2, 2}, {2, 3}}, as_sizes([](const Shape& s) {
                       return Shape{s[0], s[0] ? s.numel() / s[0] : 12};
                     }),
                     {{"order",
                       [] {
                         flatten(zeros({2, 3}), 1, 0);
                       },
                       "flatten: start must not come after end; got 1 and 0"}},
                     {{0, 3, 4}}));
  table.add(view_row(
      "flatten/scalar", [](const Tensor& x) { return flatten(x); }, {{}},
      as_sizes([](const Shape&) { return Shape{1}; })));
  table.add(view_row(
      "unsqueeze", [](const Tensor& x) { return unsqueeze(x, 1); }, {{2, 3}, {3}, {2, 3, 4}},
      as_sizes([](const Shape& s) { return with(s, 1, 1); }),
      {{"dim", [] { unsqueeze(zeros({2}), 3); }, "unsqueeze: dimension out of range; got 3"}},
      {{0, 2}}));
  table.add(view_row(
      "unsqueeze/last", [](const Tensor& x) { return unsqueeze(x, -1); }, {{2, 3}, {}},
      as_sizes([](const Shape& s) { return with(s, s.dim(), 1); })));
  table.add(view_row("squeeze", [](const Tensor& x) { return squeeze(x); },
                     {{2, 1, 3, 1}, {1, 1}, {}}, as_sizes([](const Shape& s) {
                       Shape kept;
                       for (int64_t v : s) {
                         if (v != 1) kept.push_back(v);
                       }
                       return kept;
                     }),
                     {}, {{1, 0}}));
  table.add(view_row(
      "squeeze/dim", [](const Tensor& x) { return squeeze(x, 1); }, {{2, 1, 3}, {2, 3}},
      as_sizes([](const Shape& s) { return s[1] == 1 ? without(s, 1) : s; }),
      {{"dim", [] { squeeze(zeros({2}), 1); }, "squeeze: dimension out of range; got 1"}}));
}

void add_rearranging(Table& table) {
  table.add(view_row("transpose", [](const Tensor& x) { return transpose(x, 0, -1); },
                     {{2, 3}, {2, 3, 4}, {2, 3, 2, 4}},
                     from([](const Shape& s) { return swapped(s, 0, s.dim() - 1); },
                          [](const Shape& i, const Shape&) { return swapped(i, 0, i.dim() - 1); }),
                     {{"dim",
                       [] {
                         transpose(zeros({2, 3}), 0, 2);
                       },
                       "transpose: dimension out of range; got 2 for a tensor with 2 dimensions "
                       "(expected -2 to 1)"}},
                     {{0, 3}}));
  table.add(view_row("t", [](const Tensor& x) { return t(x); }, {{2, 3}},
                     from([](const Shape& s) { return swapped(s, 0, 1); },
                          [](const Shape& i, const Shape&) { return swapped(i, 0, 1); }),
                     {{"3-d",
                       [] {
                         t(zeros({2, 3, 4}));
                       },
                       "t: at most 2 dimensions; got [2, 3, 4] f32 cpu; use transpose(a, b)"}}));
  table.add(view_row(
      "t/vector", [](const Tensor& x) { return t(x); }, {{3}, {}},
      as_sizes([](const Shape& s) { return s; })));
  table.add(view_row("permute",
                     [](const Tensor& x) {
                       return permute(x, {2, 0, -2});
                     },
                     {{2, 3, 4}},
                     from(
                         [](const Shape& s) {
                           return Shape{s[2], s[0], s[1]};
                         },
                         [](const Shape& i, const Shape&) {
                           return Shape{i[1], i[2], i[0]};
                         }),
                     {{"count",
                       [] {
                         permute(zeros({2, 3}), {0});
                       },
                       "permute: one entry per dimension; got [0] for [2, 3] f32 cpu"},
                      {"twice",
                       [] {
                         permute(zeros({2, 3}), {0, -2});
                       },
                       "permute: dimension 0 is named twice; got [0, -2]"}},
                     {{2, 0, 4}}));
  const auto stretched = from(
      [](const Shape& s) {
        return Shape{2, 3, s[1]};
      },
      [](const Shape& i, const Shape&) {
        return Shape{0, i[2]};
      });
  table.add(view_row("expand",
                     [](const Tensor& x) {
                       return expand(x, {2, 3, -1});
                     },
                     {{1, 4}}, stretched,
                     {{"size",
                       [] {
                         expand(zeros({2, 3}), {4, 3});
                       },
                       "expand: only sizes of 1 can be stretched; got [4, 3] for [2, 3] f32 cpu "
                       "(dimension 0: 2 to 4)"},
                      {"fewer",
                       [] {
                         expand(zeros({2, 3}), {3});
                       },
                       "expand: at least as many sizes as the tensor has; got [3]"},
                      {"new unknown",
                       [] {
                         expand(zeros({2}), {-1, 2});
                       },
                       "expand: a new leading size must be given; got [-1, 2]"}},
                     {{1, 0}}));
  table.add(view_row("broadcast_to",
                     [](const Tensor& x) {
                       return broadcast_to(x, {2, 3, x.size(1)});
                     },
                     {{1, 4}}, stretched, {}, {{1, 0}}));
}

void add_parts(Table& table) {
  table.add(view_row("select", [](const Tensor& x) { return select(x, 1, -1); },
                     {{2, 3}, {2, 3, 2, 2}},
                     from([](const Shape& s) { return without(s, 1); },
                          [](const Shape& i, const Shape& s) { return with(i, 1, s[1] - 1); }),
                     {{"index",
                       [] {
                         select(zeros({2, 3}), 1, 3);
                       },
                       "select: index 3 is out of range for dimension 1 of size 3"},
                      {"scalar", [] { select(zeros({}), 0, 0); },
                       "select: a 0-d tensor has nothing to select from"}},
                     {{0, 3}}));
  table.add(view_row(
      "slice", [](const Tensor& x) { return slice(x, -1, 1, 100, 2); }, {{6}, {2, 5}, {2, 3, 2, 4}},
      from(
          [](const Shape& s) {
            Shape out = s;
            out[s.dim() - 1] = s.back() / 2;
            return out;
          },
          [](const Shape& i, const Shape&) {
            Shape at = i;
            at[i.dim() - 1] = 1 + 2 * i.back();
            return at;
          }),
      {{"step", [] { slice(zeros({4}), 0, 0, 4, 0); }, "slice: step must be positive; got 0"},
       {"scalar", [] { slice(zeros({}), 0, 0, 1); }, "slice: a 0-d tensor has nothing to slice"}},
      {{2, 0}}));
  table.add(
      view_row("narrow", [](const Tensor& x) { return narrow(x, 0, 1, 2); }, {{4}, {3, 2}},
               from(
                   [](const Shape& s) {
                     Shape out = s;
                     out[0] = 2;
                     return out;
                   },
                   [](const Shape& i, const Shape&) {
                     Shape at = i;
                     at[0] += 1;
                     return at;
                   }),
               {{"range", [] { narrow(zeros({4}), 0, 3, 2); },
                 "narrow: the range must lie in dimension 0 of size 4; got start=3, length=2"},
                {"length", [] { narrow(zeros({4}), 0, 1, INT64_MAX); },
                 "narrow: the range must lie in dimension 0 of size 4"}},
               {{3, 0}}));
  table.add(
      view_row("diagonal", [](const Tensor& x) { return diagonal(x, 1, -2, -1); },
               {{3, 3}, {2, 3, 4}, {4, 2}},
               from(
                   [](const Shape& s) {
                     const int n = s.dim();
                     Shape out;
                     for (int d = 0; d + 2 < n; ++d) out.push_back(s[d]);
                     out.push_back(std::min(s[n - 2], s[n - 1] - 1));
                     return out;
                   },
                   [](const Shape& i, const Shape&) { return with(i, i.dim(), i.back() + 1); }),
               {{"dims",
                 [] {
                   diagonal(zeros({2, 2}), 0, 1, 1);
                 },
                 "diagonal: needs two different dimensions; got 1 and 1"}},
               {{0, 3}}));
}

void add_copies(Table& table) {
  const auto same = as_sizes([](const Shape& s) { return s; });
  const std::vector<Shape> shapes = {{3, 4}, {}, {2, 3, 2, 2}};
  table.add(view_row(
      "contiguous", [](const Tensor& x) { return contiguous(x); }, shapes, same,
      {{"undefined", [] { contiguous(Tensor()); }, "contiguous: x must be a tensor"}}, {{0, 3}}));
  table.add(view_row("contiguous/channels_last",
                     [](const Tensor& x) { return contiguous(x, MemoryFormat::kChannelsLast); },
                     {{2, 3, 2, 2}}, same,
                     {{"rank",
                       [] {
                         contiguous(zeros({2, 3}).t(), MemoryFormat::kChannelsLast);
                       },
                       "channels_last: needs 4 dimensions [N, C, H, W]; got [3, 2]"}},
                     {{0, 3, 2, 2}}));
  table.add(
      view_row("clone", [](const Tensor& x) { return clone(x); }, shapes, same, {}, {{0, 3}}));
  Row row = view_row("to", [](const Tensor& x) { return to(x, DType::kF64); }, shapes, same,
                     {{"undefined", [] { to(Tensor(), DType::kF64); }, "to: x must be a tensor"}},
                     {{0, 3}});
  row.integers = true;
  table.add(row);
  table.add(view_row("to/device", [](const Tensor& x) { return to(x, kCPU); }, shapes, same,
                     {{"undefined", [] { to(Tensor(), kCPU); }, "to: x must be a tensor"}}));
  // The gradient of expand: sums over what was stretched.
  row =
      view_row("sum_to_size",
               [](const Tensor& x) {
                 return sum_to_size(x, {3, 1});
               },
               {{3, 4}, {2, 3, 2}}, one([](const std::vector<Host>& in) {
                 Host out({3, 1});
                 for (int64_t i = 0; i < in[0].numel(); ++i) {
                   const Shape at = in[0].index(i);
                   out.v[static_cast<size_t>(at[at.dim() - 2])] += in[0].v[static_cast<size_t>(i)];
                 }
                 return out;
               }),
               {{"sizes",
                 [] {
                   sum_to_size(zeros({2, 3}), {2});
                 },
                 "sum_to_size: sizes must broadcast to the tensor's; got [2] for [2, 3] f32 cpu"}},
               {{3, 0}});
  row.rtol = 1e-14;
  row.rtol_f32 = 1e-6;
  row.ulps_half = 1;
  table.add(row);
}

}  // namespace

void add_shape_rows(Table& table) {
  add_reshaping(table);
  add_rearranging(table);
  add_parts(table);
  add_copies(table);
  table.exempt("unary_backward", "the rows of the unary operations run it, gradient and second");
  for (const char* name : {"interpolate", "pixel_shuffle", "pixel_unshuffle"}) {
    table.exempt(name, "autograd_interpolate_test.cpp, and torch's samples for interpolate");
  }
  for (const char* name : {"einsum", "cosine_similarity"}) {
    table.exempt(name, "autograd_einsum_test.cpp, and torch's samples for einsum");
  }
}

}  // namespace tarn::optable
