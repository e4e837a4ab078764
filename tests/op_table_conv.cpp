// op_table_conv.cpp - rows: convolutions, against seven nested loops.
#include "op_table.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"

namespace tarn::optable {
namespace {

using Options = Conv2dOptions;

// Visits every product of a convolution: f(n, k, oh, ow, c, h, w, weight index).
template <class F>
void walk(const Shape& x, const Shape& weight, const Shape& y, const Options& o, F f) {
  const int64_t per_group = weight[0] / o.groups;
  for (int64_t n = 0; n < y[0]; ++n) {
    for (int64_t k = 0; k < y[1]; ++k) {
      for (int64_t i = 0; i < y[2]; ++i) {
        for (int64_t j = 0; j < y[3]; ++j) {
          for (int64_t c = 0; c < weight[1]; ++c) {
            for (int64_t r = 0; r < weight[2]; ++r) {
              for (int64_t s = 0; s < weight[3]; ++s) {
                const int64_t h = i * o.stride_h - o.pad_h + r * o.dilation_h;
                const int64_t w = j * o.stride_w - o.pad_w + s * o.dilation_w;
                if (h < 0 || h >= x[2] || w < 0 || w >= x[3]) continue;
                const int64_t channel = k / per_group * weight[1] + c;
                f(Shape{n, channel, h, w}, Shape{k, c, r, s}, Shape{n, k, i, j});
              }
            }
          }
        }
      }
    }
  }
}

int64_t out_size(int64_t in, int64_t pad, int64_t dilation, int64_t kernel, int64_t stride) {
  return (in + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
}

void add_bias(Host& y, const std::vector<Host>& in) {
  for (int64_t i = 0; in.size() > 2 && i < y.numel(); ++i) {
    y.v[static_cast<size_t>(i)] += in[2].v[static_cast<size_t>(y.index(i)[1])];
  }
}

Host convolve(const std::vector<Host>& in, const Options& o) {
  const Shape &x = in[0].sizes, &w = in[1].sizes;
  Host y({x[0], w[0], out_size(x[2], o.pad_h, o.dilation_h, w[2], o.stride_h),
          out_size(x[3], o.pad_w, o.dilation_w, w[3], o.stride_w)});
  walk(x, w, y.sizes, o, [&](const Shape& xi, const Shape& wi, const Shape& yi) {
    y.v[y.position(yi)] += in[0].v[in[0].position(xi)] * in[1].v[in[1].position(wi)];
  });
  add_bias(y, in);
  return y;
}

// The transpose: x plays the part of the convolution's result.
Host convolve_transposed(const std::vector<Host>& in, const Options& o, int64_t extra) {
  const Shape &x = in[0].sizes, &w = in[1].sizes;
  Host y({x[0], w[1] * o.groups,
          (x[2] - 1) * o.stride_h - 2 * o.pad_h + o.dilation_h * (w[2] - 1) + extra + 1,
          (x[3] - 1) * o.stride_w - 2 * o.pad_w + o.dilation_w * (w[3] - 1) + extra + 1});
  walk(y.sizes, w, x, o, [&](const Shape& yi, const Shape& wi, const Shape& xi) {
    y.v[y.position(yi)] += in[0].v[in[0].position(xi)] * in[1].v[in[1].position(wi)];
  });
  add_bias(y, in);
  return y;
}

Tensor third(const std::vector<Tensor>& in) {
  return in.size() > 2 ? in[2] : Tensor();
}

Row conv_row(const char* name, const Shape& x, const Shape& w, bool bias, const Options& o) {
  Row row{
      .name = name,
      .fn = call([o](const std::vector<Tensor>& in) { return conv2d(in[0], in[1], third(in), o); }),
      .cases = {{{.sizes = x}, {.sizes = w}}},
      .reference = one([o](const std::vector<Host>& in) { return convolve(in, o); })};
  if (bias) row.cases[0].push_back({.sizes = {w[0]}});
  Case empty = row.cases[0];
  empty[0].sizes[0] = 0;
  row.empty = {empty};
  row.rtol_f32 = 2e-6;
  row.ulps_half = 2;
  return row;
}

void add_conv2d(Table& table) {
  Row row = conv_row("conv2d", {2, 3, 4, 5}, {2, 3, 3, 3}, true, {.pad_h = 1, .pad_w = 1});
  row.errors = {
      {"channels",
       [] {
         conv2d(zeros({8, 3, 32, 32}), zeros({64, 16, 3, 3}));
       },
       "conv2d: input channels must equal weight.size(1)*groups; got x=[8, 3, 32, 32], "
       "weight=[64, 16, 3, 3], groups=1 (3 vs 16)"},
      {"rank",
       [] {
         conv2d(zeros({3, 3}), zeros({4, 3, 3, 3}));
       },
       "conv2d: x must be [N, C, H, W] and weight [K, C/groups, R, S]"},
      {"kernel too large",
       [] {
         conv2d(zeros({1, 1, 2, 2}), zeros({1, 1, 3, 3}));
       },
       "conv2d: the kernel must fit into the padded input; got x=[1, 1, 2, 2]"},
      {"groups",
       [] {
         conv2d(zeros({1, 4, 4, 4}), zeros({3, 2, 1, 1}), {}, {.groups = 2});
       },
       "conv2d: output channels must be divisible by groups; got weight=[3, 2, 1, 1], groups=2"},
      {"stride",
       [] {
         conv2d(zeros({1, 1, 4, 4}), zeros({1, 1, 1, 1}), {}, {.stride_h = 0});
       },
       "conv2d: stride and dilation must be positive; got stride=[0, 1]"},
      {"padding",
       [] {
         conv2d(zeros({1, 1, 4, 4}), zeros({1, 1, 1, 1}), {}, {.pad_w = -1});
       },
       "conv2d: padding must not be negative; got [0, -1]"},
      {"no groups",
       [] {
         conv2d(zeros({1, 1, 4, 4}), zeros({1, 1, 1, 1}), {}, {.groups = 0});
       },
       "conv2d: groups must be positive; got 0"},
      {"empty kernel",
       [] {
         conv2d(zeros({1, 1, 4, 4}), zeros({1, 1, 0, 1}));
       },
       "conv2d: the kernel must not be empty"},
      {"bias",
       [] {
         conv2d(zeros({1, 1, 4, 4}), zeros({2, 1, 1, 1}), zeros({3}));
       },
       "conv2d: bias must be [2] f32; got [3] f32 cpu"},
      {"dtype",
       [] {
         conv2d(zeros({1, 1, 4, 4}), zeros({2, 1, 1, 1}, {.dtype = DType::kF64}));
       },
       "conv2d: x and weight must have one floating dtype"},
      {"undefined",
       [] {
         conv2d(Tensor(), zeros({2, 1, 1, 1}));
       },
       "conv2d: x must be a tensor; got an undefined one"}};
  row.large = {{{.sizes = {1, 16, 14, 14}}, {.sizes = {17, 16, 3, 3}}, {.sizes = {17}}}};
  table.add(row);
  table.add(conv_row("conv2d/no_bias", {2, 2, 3, 3}, {3, 2, 2, 2}, false, {}));
  row = conv_row("conv2d/pointwise", {2, 3, 3, 2}, {4, 3, 1, 1}, true, {});
  row.large = {{{.sizes = {2, 33, 9, 9}}, {.sizes = {40, 33, 1, 1}}, {.sizes = {40}}}};
  table.add(row);
  row = conv_row("conv2d/strided", {1, 2, 5, 6}, {3, 2, 3, 2}, true,
                 {.stride_h = 2, .stride_w = 3, .pad_h = 1});
  row.large = {{{.sizes = {1, 16, 15, 17}}, {.sizes = {17, 16, 3, 2}}, {.sizes = {17}}}};
  table.add(row);
  table.add(conv_row("conv2d/dilated", {1, 2, 5, 5}, {2, 2, 2, 3}, false,
                     {.pad_w = 1, .dilation_h = 3, .dilation_w = 2}));
  table.add(conv_row("conv2d/grouped", {2, 4, 3, 3}, {6, 2, 2, 2}, true, {.groups = 2}));
  row = conv_row("conv2d/depthwise", {2, 3, 4, 4}, {3, 1, 3, 3}, true,
                 {.pad_h = 1, .pad_w = 1, .groups = 3});
  table.add(row);
  row = conv_row("conv2d/unbatched", {1, 2, 4, 4}, {2, 2, 3, 3}, true, {});
  row.fn = call([](const std::vector<Tensor>& in) {
    return unsqueeze(conv2d(squeeze(in[0], 0), in[1], in[2]), 0);
  });
  row.empty.clear();
  table.add(row);
}

/// A row as an image of height 1.
Host flat(Host h) {
  h.sizes.insert(2, 1);
  return h;
}

void add_conv1d(Table& table) {
  const Options o{.stride_w = 2, .pad_w = 1};
  Row row{
      .name = "conv1d",
      .fn = call([o](const std::vector<Tensor>& in) { return conv1d(in[0], in[1], third(in), o); }),
      .cases = {{{.sizes = {2, 3, 6}}, {.sizes = {4, 3, 3}}, {.sizes = {4}}}},
      .reference = one([o](const std::vector<Host>& in) {
        Host y = convolve({flat(in[0]), flat(in[1]), in[2]}, o);
        y.sizes.erase(2);
        return y;
      }),
      .empty = {{{.sizes = {0, 3, 6}}, {.sizes = {4, 3, 3}}, {.sizes = {4}}}}};
  row.ulps_half = 2;
  row.errors = {{"rank",
                 [] {
                   conv1d(zeros({2, 3, 4, 4}), zeros({4, 3, 3}));
                 },
                 "conv1d: x must be [N, C, L] or [C, L] and weight [K, C/groups, S]"},
                {"undefined",
                 [] {
                   conv1d(Tensor(), zeros({4, 3, 3}));
                 },
                 "conv1d: x must be a tensor"}};
  table.add(row);
}

Row transposed_row(const char* name, const Shape& x, const Shape& w, const Options& o,
                   int64_t extra) {
  Row row = conv_row(name, x, w, false, o);
  row.fn = call([o, extra](const std::vector<Tensor>& in) {
    return conv_transpose2d(in[0], in[1], third(in), o, extra, extra);
  });
  row.reference =
      one([o, extra](const std::vector<Host>& in) { return convolve_transposed(in, o, extra); });
  for (Case* c : {&row.cases[0], &row.empty[0]}) c->push_back({.sizes = {w[1] * o.groups}});
  row.ulps_half = 3;  // the bias is added to the rounded product
  return row;
}

void add_transposed(Table& table) {
  Row row = transposed_row("conv_transpose2d", {2, 3, 3, 2}, {3, 2, 3, 3},
                           {.stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1}, 1);
  row.errors = {{"channels",
                 [] {
                   conv_transpose2d(zeros({1, 3, 2, 2}), zeros({4, 2, 3, 3}));
                 },
                 "conv_transpose2d: x must be [N, C, H, W] and weight [C, K/groups, R, S]"},
                {"output padding",
                 [] {
                   conv_transpose2d(zeros({1, 3, 2, 2}), zeros({3, 2, 3, 3}), {}, {}, 1, 0);
                 },
                 "conv_transpose2d: output padding must be at least 0 and smaller than stride or "
                 "dilation; got "
                 "[1, 0]"}};
  table.add(row);
  table.add(transposed_row("conv_transpose2d/grouped", {1, 4, 2, 3}, {4, 1, 2, 2},
                           {.dilation_h = 2, .groups = 2}, 0));
}

void add_transposed_1d(Table& table) {
  const Options o{.stride_w = 2, .pad_w = 1};
  Row row{.name = "conv_transpose1d",
          .fn = call([o](const std::vector<Tensor>& in) {
            return conv_transpose1d(in[0], in[1], third(in), o);
          }),
          .cases = {{{.sizes = {2, 3, 4}}, {.sizes = {3, 2, 3}}, {.sizes = {2}}}},
          .reference = one([o](const std::vector<Host>& in) {
            Host y = convolve_transposed({flat(in[0]), flat(in[1]), in[2]}, o, 0);
            y.sizes.erase(2);
            return y;
          }),
          .empty = {{{.sizes = {0, 3, 4}}, {.sizes = {3, 2, 3}}, {.sizes = {2}}}}};
  row.ulps_half = 3;
  row.errors = {{"rank",
                 [] {
                   conv_transpose1d(zeros({2, 3, 4, 4}), zeros({3, 4, 3}));
                 },
                 "conv_transpose1d: x must be [N, C, L] or [C, L]"},
                {"undefined",
                 [] {
                   conv_transpose1d(Tensor(), zeros({3, 4, 3}));
                 },
                 "conv_transpose1d: x must be a tensor"}};
  table.add(row);
}

}  // namespace

void add_conv_rows(Table& table) {
  add_conv2d(table);
  add_conv1d(table);
  add_transposed(table);
  add_transposed_1d(table);
}

}  // namespace tarn::optable
