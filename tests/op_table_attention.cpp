// op_table_attention.cpp - rows: scaled dot product attention.
#include <cmath>
#include <limits>
#include <optional>

#include "op_table.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"

namespace tarn::optable {
namespace {

using List = std::vector<Tensor>;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr uint64_t kSeed = 11;  // every call draws the same numbers: dropout is a function

struct Setup {
  bool causal = false;
  double dropout = 0;
  std::optional<double> scale{};
  bool gqa = false;
};

AttentionOptions options(const Setup& s, const Tensor& mask, Generator& generator) {
  return {.mask = mask,
          .causal = s.causal,
          .dropout = s.dropout,
          .scale = s.scale,
          .enable_gqa = s.gqa,
          .generator = &generator};
}

/// The factors that dropout multiplies probabilities of these sizes with.
std::vector<double> factors(const Shape& sizes, double p) {
  Generator generator(kSeed);
  return dropout(tarn::ones(sizes, {.dtype = DType::kF64}), p, true, &generator)
      .to_vector<double>();
}

/// q, k, v [B, H, T, D] (k and v: G heads), optional mask: by the definition.
Host attend(const Host& q, const Host& k, const Host& v, const Host* mask, bool mask_is_bool,
            const Setup& setup) {
  const int64_t batch = q.sizes[0], heads = q.sizes[1], queries = q.sizes[2], depth = q.sizes[3];
  const int64_t group = k.sizes[1] > 0 ? heads / k.sizes[1] : 1;
  const int64_t keys = k.sizes[2], width = v.sizes[3];
  const double scale = setup.scale.value_or(1 / std::sqrt(static_cast<double>(depth)));
  const std::vector<double> kept = setup.dropout > 0
                                       ? factors({batch, heads, queries, keys}, setup.dropout)
                                       : std::vector<double>();
  Host out({batch, heads, queries, width});
  for (int64_t row = 0; row < batch * heads * queries; ++row) {
    const int64_t b = row / queries / heads, h = row / queries % heads, t = row % queries;
    std::vector<double> score(static_cast<size_t>(keys));
    double max = -kInf, sum = 0;
    for (int64_t s = 0; s < keys; ++s) {
      double& x = score[static_cast<size_t>(s)];
      for (int64_t d = 0; d < depth; ++d) x += q.at({b, h, t, d}) * k.at({b, h / group, s, d});
      x *= scale;
      if (mask != nullptr) {
        Shape at{b, h, t, s}, mine;
        for (int d = 4 - mask->sizes.dim(); d < 4; ++d) {
          mine.push_back(mask->sizes[d - 4 + mask->sizes.dim()] == 1 ? 0 : at[d]);
        }
        const double m = mask->v[mask->position(mine)];
        x = mask_is_bool ? (m != 0 ? x : -kInf) : x + m;
      }
      if (setup.causal && s > t) x = -kInf;
      max = std::max(max, x);
    }
    if (max == -kInf) continue;  // nothing to attend to: 0
    for (double& x : score) sum += x = std::exp(x - max);
    for (int64_t s = 0; s < keys; ++s) {
      double weight = score[static_cast<size_t>(s)] / sum;
      if (!kept.empty()) weight *= kept[static_cast<size_t>(row * keys + s)];
      for (int64_t e = 0; e < width; ++e) {
        out.at({b, h, t, e}) += weight * v.at({b, h / group, s, e});
      }
    }
  }
  return out;
}

/// A row whose cases are {q, k, v} or {q, k, v, mask}.
Row attention_row(const char* name, const Setup& setup, std::vector<Case> cases,
                  bool mask_is_bool = true) {
  Row row{.name = name,
          .fn = call([setup](const List& in) {
            Generator generator(kSeed);
            return scaled_dot_product_attention(
                in[0], in[1], in[2], options(setup, in.size() > 3 ? in[3] : Tensor(), generator));
          }),
          .cases = std::move(cases),
          .reference = one([setup, mask_is_bool](const std::vector<Host>& in) {
            return attend(in[0], in[1], in[2], in.size() > 3 ? &in[3] : nullptr, mask_is_bool,
                          setup);
          })};
  row.rtol = 1e-11;
  row.rtol_f32 = 5e-6;
  row.ulps_half = 2;
  return row;
}

Case qkv(Shape q, Shape k, Shape v) {
  return {{.sizes = q}, {.sizes = k}, {.sizes = v}};
}
Case masked(Shape q, Shape k, Shape v, In m) {
  return {{.sizes = q}, {.sizes = k}, {.sizes = v}, m};
}

std::vector<Error> attention_errors() {
  const auto error = [](const char* what, std::function<void()> call, const char* text) {
    return Error{what, std::move(call), text};
  };
  const auto sdpa = [](Shape q, Shape k, Shape v, Tensor mask = {}, double dropout = 0) {
    scaled_dot_product_attention(optable::zeros(q), optable::zeros(k), optable::zeros(v),
                                 {.mask = mask, .dropout = dropout});
  };
  return {
      error(
          "depth",
          [=] {
            sdpa({1, 2, 3, 4}, {1, 2, 3, 5}, {1, 2, 3, 4});
          },
          "k must be [B, H, S, D] and v [B, H, S, E] for q [B, H, T, D]; got q=[1, 2, 3, 4]"),
      error(
          "rank",
          [=] {
            sdpa({1, 2, 3, 4}, {2, 3, 4}, {2, 3, 4});
          },
          "q, k and v must be [B, H, T, D]; got q=[1, 2, 3, 4] f32 cpu, k=[2, 3, 4]"),
      error(
          "heads",
          [=] {
            sdpa({1, 4, 3, 4}, {1, 2, 3, 4}, {1, 2, 3, 4});
          },
          "must have equally many heads; got q=[1, 4, 3, 4] f32 cpu, k=[1, 2, 3, 4] f32 cpu; "
          "pass enable_gqa = true"),
      error(
          "groups",
          [] {
            scaled_dot_product_attention(zeros({1, 3, 1, 2}), zeros({1, 2, 1, 2}),
                                         zeros({1, 2, 1, 2}), {.enable_gqa = true});
          },
          "the heads of q must be a multiple of those of k"),
      error(
          "mask",
          [=] {
            sdpa({1, 2, 3, 4}, {1, 2, 5, 4}, {1, 2, 5, 4}, zeros({5, 3}));
          },
          "mask must broadcast to [B, H, T, S] = [1, 2, 3, 5]; got mask=[5, 3] f32 cpu"),
      error(
          "mask dtype",
          [=] {
            sdpa({1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}, zeros({1, 1}, {.dtype = DType::kI64}));
          },
          "mask must be bool (true attends) or floating"),
      error(
          "dropout",
          [=] {
            sdpa({1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}, {}, 1.5);
          },
          "p must be in [0, 1]; got 1.5"),
      error(
          "dtypes",
          [] {
            scaled_dot_product_attention(zeros({1, 1, 1, 1}, {.dtype = DType::kF64}),
                                         zeros({1, 1, 1, 1}), zeros({1, 1, 1, 1}));
          },
          "q, k and v must be floating and of one dtype; got q=[1, 1, 1, 1] f64 cpu"),
      error(
          "undefined",
          [] {
            scaled_dot_product_attention({}, zeros({1, 1}), zeros({1, 1}));
          },
          "q must be a tensor")};
}

void add_packed_row(Table& table) {
  Row row{.name = "scaled_dot_product_attention_qkv",
          .fn = call1([](const Tensor& x) {
            Generator generator(kSeed);
            return scaled_dot_product_attention_qkv(
                x, 2, options({.causal = true, .dropout = 0.3}, {}, generator));
          }),
          .cases = {{{.sizes = {2, 3, 6}}}, {{.sizes = {1, 2, 18}}}},
          .reference = one([](const std::vector<Host>& in) {
            const int64_t batch = in[0].sizes[0], time = in[0].sizes[1], d = in[0].sizes[2] / 6;
            std::vector<Host> parts(3, Host({batch, 2, time, d}));
            for (int64_t i = 0; i < in[0].numel(); ++i) {
              const Shape at = in[0].index(i);
              parts[static_cast<size_t>(at[2] / (2 * d))].at(
                  {at[0], at[2] / d % 2, at[1], at[2] % d}) = in[0].v[static_cast<size_t>(i)];
            }
            const Host y = attend(parts[0], parts[1], parts[2], nullptr, true,
                                  {.causal = true, .dropout = 0.3});
            Host out({batch, time, 2 * d});
            for (int64_t i = 0; i < out.numel(); ++i) {
              const Shape at = out.index(i);
              out.v[static_cast<size_t>(i)] = y.at({at[0], at[2] / d, at[1], at[2] % d});
            }
            return out;
          }),
          .large = {{{.sizes = {2, 130, 60}}}},
          .empty = {{{.sizes = {0, 3, 12}}}, {{.sizes = {2, 0, 12}}}}};
  row.errors = {
      {"sizes",
       [] {
         scaled_dot_product_attention_qkv(zeros({2, 3, 10}), 2);
       },
       "qkv must be [B, T, 3 * heads * D]; got qkv=[2, 3, 10] f32 cpu, heads=2"},
      {"heads",
       [] {
         scaled_dot_product_attention_qkv(zeros({2, 3, 12}), 0);
       },
       "heads=0"},
      {"undefined", [] { scaled_dot_product_attention_qkv({}, 1); }, "qkv must be a tensor"}};
  row.rtol = 1e-11;
  row.rtol_f32 = 5e-6;
  row.ulps_half = 2;
  table.add(row);
}

}  // namespace

void add_attention_rows(Table& table) {
  const Shape s{2, 2, 3, 4};
  const Shape t{1, 2, 3, 2};  // few elements: the gradient checks take time under emulation
  Row row = attention_row("scaled_dot_product_attention", {},
                          {qkv(s, s, s), qkv({1, 2, 2, 3}, {1, 2, 5, 3}, {1, 2, 5, 4})});
  row.empty = {qkv({0, 2, 3, 4}, {0, 2, 3, 4}, {0, 2, 3, 4}),
               qkv({1, 2, 0, 4}, {1, 2, 3, 4}, {1, 2, 3, 4}),
               qkv({1, 2, 3, 4}, {1, 2, 0, 4}, {1, 2, 0, 5})};
  row.large = {qkv({1, 2, 70, 40}, {1, 2, 600, 40}, {1, 2, 600, 72}),
               qkv({2, 1, 150, 20}, {2, 1, 37, 20}, {2, 1, 37, 5})};
  row.errors = attention_errors();
  table.add(row);
  row = attention_row("scaled_dot_product_attention/causal", {.causal = true, .scale = 0.7},
                      {qkv(s, s, s), qkv({1, 1, 4, 2}, {1, 1, 2, 2}, {1, 1, 2, 3}),
                       qkv({1, 1, 2, 2}, {1, 1, 5, 2}, {1, 1, 5, 2})});
  row.large = {qkv({1, 2, 300, 17}, {1, 2, 300, 17}, {1, 2, 300, 17})};
  table.add(row);
  table.add(attention_row("scaled_dot_product_attention/bool_mask", {},
                          {masked(t, t, t, mask({3, 3})), masked(t, t, t, mask({1, 1, 1, 3})),
                           masked(t, t, t, mask({1, 2, 3, 3}))}));
  // The first row of scores is masked throughout and must give 0.
  row = attention_row("scaled_dot_product_attention/dead_row", {}, {qkv(t, t, t)});
  row.fn = call3([](const Tensor& q, const Tensor& k, const Tensor& v) {
    return scaled_dot_product_attention(
        q, k, v, {.mask = arange(3).view({3, 1}).to(DType::kBool).to(q.device())});
  });
  row.reference = one([](const std::vector<Host>& in) {
    const Host mask({3, 1}, {0, 1, 1});
    return attend(in[0], in[1], in[2], &mask, true, {});
  });
  table.add(row);
  table.add(attention_row("scaled_dot_product_attention/additive_mask", {},
                          {masked(t, t, t, {.sizes = {3, 3}, .grad = false}),
                           masked(t, t, t, {.sizes = {1, 1, 3, 1}, .grad = false})},
                          false));
  table.add(attention_row("scaled_dot_product_attention/trained_mask", {},
                          {masked(t, t, t, {.sizes = {2, 3, 3}})}, false));
  row = attention_row("scaled_dot_product_attention/dropout", {.causal = true, .dropout = 0.4},
                      {qkv(t, t, t), qkv({1, 2, 3, 2}, {1, 2, 7, 2}, {1, 2, 7, 3})});
  row.large = {qkv({1, 2, 60, 8}, {1, 2, 301, 8}, {1, 2, 301, 8})};
  table.add(row);
  row = attention_row("scaled_dot_product_attention/grouped", {.causal = true, .gqa = true},
                      {qkv({1, 4, 2, 2}, {1, 2, 2, 2}, {1, 2, 2, 3}),
                       qkv({1, 3, 2, 4}, {1, 1, 4, 4}, {1, 1, 4, 4})});
  row.large = {qkv({1, 6, 90, 16}, {1, 2, 90, 16}, {1, 2, 90, 16})};
  table.add(row);
  add_packed_row(table);
}

}  // namespace tarn::optable
