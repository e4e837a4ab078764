// op_table_norm.cpp - rows: normalisation layers.
#include <cmath>

#include "op_table.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"

namespace tarn::optable {
namespace {

using List = std::vector<Tensor>;
constexpr double kEps = 1e-5;

struct Moments {
  double mean = 0, var = 0;
};

// x normalised in groups: `group` says to which group an element belongs, `affine` which entry of
// weight and bias applies to it.
Host normalised(const std::vector<Host>& in, std::function<int64_t(const Shape&)> group,
                std::function<int64_t(const Shape&)> affine, size_t weight_at = 1) {
  const Host& x = in[0];
  std::vector<std::vector<double>> members;
  for (int64_t p = 0; p < x.numel(); ++p) {
    const auto g = static_cast<size_t>(group(x.index(p)));
    if (members.size() <= g) members.resize(g + 1);
    members[g].push_back(x.v[static_cast<size_t>(p)]);
  }
  std::vector<Moments> moments;
  for (const auto& m : members) {
    Moments s;
    for (double v : m) s.mean += v / static_cast<double>(m.size());
    for (double v : m) s.var += (v - s.mean) * (v - s.mean) / static_cast<double>(m.size());
    moments.push_back(s);
  }
  Host out = x;
  for (int64_t p = 0; p < x.numel(); ++p) {
    const Shape at = x.index(p);
    const Moments& m = moments[static_cast<size_t>(group(at))];
    const auto a = static_cast<size_t>(affine(at));
    double& v = out.v[static_cast<size_t>(p)];
    v = (v - m.mean) / std::sqrt(m.var + kEps);
    if (in.size() > weight_at) v = v * in[weight_at].v[a] + in[weight_at + 1].v[a];
  }
  return out;
}

int64_t channel(const Shape& at) {
  return at[1];
}

const In kPositive{.sizes = {3}, .low = 0.5, .high = 2, .grad = false};
const In kConstant{.sizes = {3}, .grad = false};

void tune(Row& row) {
  row.rtol = 1e-10;
  row.rtol_f32 = 1e-5;
  row.ulps_half = 3;
  row.nonfinite = true;
}

void add_batch_norm(Table& table) {
  Row row{.name = "batch_norm",
          .fn = call([](const List& in) {
            return batch_norm(in[0], {}, {}, in.size() > 1 ? in[1] : Tensor(),
                              in.size() > 1 ? in[2] : Tensor(), true);
          }),
          .cases = {{{.sizes = {4, 3}}, {.sizes = {3}}, {.sizes = {3}}},
                    {{.sizes = {2, 3, 2, 2}}, {.sizes = {3}}, {.sizes = {3}}},
                    {{.sizes = {2, 3, 3}}}},
          .reference =
              one([](const std::vector<Host>& in) { return normalised(in, channel, channel); }),
          .empty = {{{.sizes = {0, 3, 2, 2}}, {.sizes = {3}}, {.sizes = {3}}}}};
  row.large = {{{.sizes = {8, 33, 9, 9}}, {.sizes = {33}}, {.sizes = {33}}}};
  row.errors = {{"one value",
                 [] {
                   batch_norm(zeros({1, 3}), {}, {}, {}, {}, true);
                 },
                 "training needs more than one value per channel; got x=[1, 3] f32 cpu"},
                {"no statistics",
                 [] {
                   batch_norm(zeros({2, 3}), {}, {});
                 },
                 "evaluation needs running_mean and running_var"},
                {"rank", [] { batch_norm(zeros({3}), {}, {}, {}, {}, true); },
                 "x must be [N, C, ...]; got x=[3] f32 cpu"},
                {"weight",
                 [] {
                   batch_norm(zeros({2, 3}), {}, {}, zeros({2}), {}, true);
                 },
                 "weight must be [C] = [3]; got weight=[2] f32 cpu, x=[2, 3] f32 cpu"},
                {"integers",
                 [] {
                   batch_norm(zeros({2, 3}, {.dtype = DType::kI64}), {}, {}, {}, {}, true);
                 },
                 "x must be floating; got x=[2, 3] i64 cpu"}};
  tune(row);
  table.add(row);
  row = {.name = "batch_norm/evaluation",
         .fn = call([](const List& in) { return batch_norm(in[0], in[1], in[2], in[3], in[4]); }),
         .cases = {{{.sizes = {2, 3, 2, 2}}, kConstant, kPositive, {.sizes = {3}}, {.sizes = {3}}},
                   {{.sizes = {1, 3}}, kConstant, kPositive, {.sizes = {3}}, {.sizes = {3}}}},
         .reference = one([](const std::vector<Host>& in) {
           Host out = in[0];
           for (int64_t p = 0; p < out.numel(); ++p) {
             const auto c = static_cast<size_t>(out.index(p)[1]);
             double& v = out.v[static_cast<size_t>(p)];
             v = (v - in[1].v[c]) / std::sqrt(in[2].v[c] + kEps) * in[3].v[c] + in[4].v[c];
           }
           return out;
         })};
  tune(row);
  table.add(row);
  row = {
      .name = "batch_norm_act",
      .fn = call([](const List& in) {
        return batch_norm_act(in[0], in[3], {}, {}, in[1], in[2], {.training = true, .relu = true});
      }),
      .cases = {{{.sizes = {2, 3, 2, 2}}, {.sizes = {3}}, {.sizes = {3}}, {.sizes = {2, 3, 2, 2}}}},
      .reference = one([](const std::vector<Host>& in) {
        Host out = normalised(in, channel, channel);
        for (size_t i = 0; i < out.v.size(); ++i) {
          const double sum = out.v[i] + in[3].v[i];
          out.v[i] = sum < 0 ? 0 : sum;  // NaN stays
        }
        return out;
      })};
  row.errors = {{"residual",
                 [] {
                   batch_norm_act(zeros({2, 3}), zeros({3}), {}, {}, {}, {}, {.training = true});
                 },
                 "residual must have x's sizes; got x=[2, 3] f32 cpu, residual=[3] f32 cpu"}};
  tune(row);
  table.add(row);
}

// Rows of the last dimension, with weight and bias if there are any.
Host layer_normalised(const std::vector<Host>& in) {
  const Shape s = in[0].sizes;
  const auto row = [s](const Shape& at) {
    int64_t row = 0;
    for (int d = 0; d + 1 < s.dim(); ++d) row = row * s[d] + at[d];
    return row;
  };
  return normalised(in, row, [](const Shape& at) { return at.back(); });
}

Host rms_normalised(const std::vector<Host>& in) {
  Host out = in[0];
  const int64_t d = out.sizes.back();
  for (int64_t r = 0; d > 0 && r < out.numel() / d; ++r) {
    double squares = 0;
    for (int64_t i = 0; i < d; ++i) {
      const double x = in[0].v[static_cast<size_t>(r * d + i)];
      squares += x * x / static_cast<double>(d);
    }
    for (int64_t i = 0; i < d; ++i) {
      double& y = out.v[static_cast<size_t>(r * d + i)];
      y /= std::sqrt(squares + kEps);
      if (in.size() > 1) y *= in[1].v[static_cast<size_t>(i)];
    }
  }
  return out;
}

// {x + residual, the norm of that}; in: x, residual, weights.
Reference of_sum(Host (*norm)(const std::vector<Host>&)) {
  return [norm](const std::vector<Host>& in) {
    std::vector<Host> rest{in[0]};
    for (size_t i = 0; i < in[0].v.size(); ++i) rest[0].v[i] += in[1].v[i];
    const Host sum = rest[0];
    rest.insert(rest.end(), in.begin() + 2, in.end());
    return std::vector<Host>{sum, norm(rest)};
  };
}

void tune_sum(Row& row) {
  tune(row);
  row.ulps_half = 6;  // the sum is rounded before it is normalised, the reference's is not
}

void add_norms_of_sums(Table& table) {
  Row row{.name = "add_layer_norm",
          .fn =
              [](const List& in) {
                const bool affine = in.size() > 2;
                const AddNormResult r =
                    add_layer_norm(in[0], in[1], {in[0].size(-1)}, affine ? in[2] : Tensor(),
                                   affine ? in[3] : Tensor());
                return List{r.sum, r.y};
              },
          .cases = {{{.sizes = {3, 4}}, {.sizes = {3, 4}}, {.sizes = {4}}, {.sizes = {4}}},
                    {{.sizes = {2, 3, 5}}, {.sizes = {2, 3, 5}}}},
          .reference = of_sum(layer_normalised),
          .empty = {{{.sizes = {0, 4}}, {.sizes = {0, 4}}, {.sizes = {4}}, {.sizes = {4}}}}};
  row.large = {{{.sizes = {130, 257}}, {.sizes = {130, 257}}, {.sizes = {257}}, {.sizes = {257}}},
               {{.sizes = {70, 1100}}, {.sizes = {70, 1100}}}};
  row.errors = {{"residual",
                 [] {
                   add_layer_norm(zeros({2, 3}), zeros({3}), {3});
                 },
                 "add_layer_norm: residual must have x's sizes; got x=[2, 3] f32 cpu, "
                 "residual=[3] f32 cpu"},
                {"dtypes",
                 [] {
                   add_layer_norm(zeros({2, 3}), zeros({2, 3}, {.dtype = DType::kF64}), {3});
                 },
                 "add_layer_norm: residual must have x's dtype; got x=[2, 3] f32 cpu, "
                 "residual=[2, 3] f64 cpu"},
                {"weight",
                 [] {
                   add_layer_norm(zeros({2, 3}), zeros({2, 3}), {3}, zeros({2}));
                 },
                 "add_layer_norm: weight must have the normalized sizes [3]; got weight=[2]"}};
  tune_sum(row);
  table.add(row);
  row = {.name = "add_rms_norm",
         .fn =
             [](const List& in) {
               const AddNormResult r =
                   add_rms_norm(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), kEps);
               return List{r.sum, r.y};
             },
         .cases = {{{.sizes = {3, 4}}, {.sizes = {3, 4}}, {.sizes = {4}}},
                   {{.sizes = {2, 3, 5}}, {.sizes = {2, 3, 5}}}},
         .reference = of_sum(rms_normalised),
         .empty = {{{.sizes = {0, 4}}, {.sizes = {0, 4}}, {.sizes = {4}}}}};
  row.large = {{{.sizes = {130, 257}}, {.sizes = {130, 257}}, {.sizes = {257}}}};
  row.errors = {{"residual",
                 [] {
                   add_rms_norm(zeros({2, 3}), zeros({2, 4}));
                 },
                 "add_rms_norm: residual must have x's sizes; got x=[2, 3] f32 cpu, "
                 "residual=[2, 4] f32 cpu"},
                {"weight",
                 [] {
                   add_rms_norm(zeros({2, 3}), zeros({2, 3}), zeros({2}));
                 },
                 "add_rms_norm: weight must be [D] for x [..., D]; got x=[2, 3] f32 cpu"}};
  tune_sum(row);
  row.nonfinite = false;
  table.add(row);
}

void add_row_norms(Table& table) {
  Row row{.name = "layer_norm",
          .fn = call([](const List& in) {
            return layer_norm(in[0], {in[0].size(-1)}, in.size() > 1 ? in[1] : Tensor(),
                              in.size() > 1 ? in[2] : Tensor());
          }),
          .cases = {{{.sizes = {3, 4}}, {.sizes = {4}}, {.sizes = {4}}},
                    {{.sizes = {2, 3, 2, 4}}, {.sizes = {4}}, {.sizes = {4}}},
                    {{.sizes = {2, 5}}}},
          .reference = one(layer_normalised),
          .empty = {{{.sizes = {0, 4}}, {.sizes = {4}}, {.sizes = {4}}}}};
  row.large = {{{.sizes = {130, 257}}, {.sizes = {257}}, {.sizes = {257}}}};
  row.errors = {
      {"sizes",
       [] {
         layer_norm(zeros({2, 3}), {4});
       },
       "layer_norm: x must end in the normalized sizes; got x=[2, 3] f32 cpu, normalized=[4]"},
      {"weight",
       [] {
         layer_norm(zeros({2, 3}), {3}, zeros({2}));
       },
       "layer_norm: weight must have the normalized sizes [3]; got weight=[2] f32 cpu"}};
  tune(row);
  table.add(row);
  row = {.name = "rms_norm",
         .fn = call([](const List& in) {
           return rms_norm(in[0], in.size() > 1 ? in[1] : Tensor(), kEps);
         }),
         .cases = {{{.sizes = {3, 4}}, {.sizes = {4}}}, {{.sizes = {2, 3, 5}}}},
         .reference = one(rms_normalised),
         .empty = {{{.sizes = {0, 4}}, {.sizes = {4}}}, {{.sizes = {3, 0}}, {.sizes = {0}}}}};
  row.large = {{{.sizes = {130, 257}}, {.sizes = {257}}}, {{.sizes = {70, 1100}}}};
  row.errors = {{"weight",
                 [] {
                   rms_norm(zeros({2, 3}), zeros({2}));
                 },
                 "rms_norm: weight must be [D] for x [..., D]; got x=[2, 3] f32 cpu, weight=[2]"},
                {"integers",
                 [] {
                   rms_norm(zeros({2, 3}, {.dtype = DType::kI64}));
                 },
                 "rms_norm: x must be floating; got x=[2, 3] i64 cpu"}};
  tune(row);
  row.nonfinite = false;
  table.add(row);
  add_norms_of_sums(table);
  row = {.name = "group_norm",
         .fn = call([](const List& in) { return group_norm(in[0], 2, in[1], in[2]); }),
         .cases = {{{.sizes = {2, 4, 2, 2}}, {.sizes = {4}}, {.sizes = {4}}},
                   {{.sizes = {2, 4, 3}}, {.sizes = {4}}, {.sizes = {4}}}},
         .reference = one([](const std::vector<Host>& in) {
           return normalised(
               in, [](const Shape& at) { return at[0] * 2 + at[1] / 2; }, channel);
         }),
         .empty = {{{.sizes = {0, 4, 2}}, {.sizes = {4}}, {.sizes = {4}}}}};
  row.errors = {{"groups",
                 [] {
                   group_norm(zeros({2, 3, 2}), 2);
                 },
                 "group_norm: groups must divide the channels; got groups=2"}};
  tune(row);
  table.add(row);
  row = {.name = "instance_norm",
         .fn = call([](const List& in) { return instance_norm(in[0], {}, {}, in[1], in[2]); }),
         .cases = {{{.sizes = {2, 3, 2, 3}}, {.sizes = {3}}, {.sizes = {3}}}},
         .reference = one([](const std::vector<Host>& in) {
           return normalised(
               in, [](const Shape& at) { return at[0] * 3 + at[1]; }, channel);
         })};
  row.errors = {{"one value",
                 [] {
                   instance_norm(zeros({2, 3, 1}));
                 },
                 "needs more than one value per channel; got x=[2, 3, 1] f32 cpu"}};
  tune(row);
  table.add(row);
}

}  // namespace

void add_norm_rows(Table& table) {
  add_batch_norm(table);
  add_row_norms(table);
}

}  // namespace tarn::optable
