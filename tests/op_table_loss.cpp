// op_table_loss.cpp - rows: losses.
#include <algorithm>
#include <cmath>

#include "op_table.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"

namespace tarn::optable {
namespace {

using List = std::vector<Tensor>;

Host reduced(const Host& loss, Reduction reduction) {
  double sum = 0;
  for (double v : loss.v) sum += v;
  switch (reduction) {
    case Reduction::kNone:
      return loss;
    case Reduction::kSum:
      return Host({}, {sum});
    case Reduction::kMean:
      return Host({}, {sum / static_cast<double>(loss.numel())});
    case Reduction::kBatchMean:
      return Host({}, {sum / static_cast<double>(loss.sizes[0])});
  }
  return loss;
}

const char* name_of(Reduction r) {
  return r == Reduction::kNone ? "/none" : r == Reduction::kSum ? "/sum" : "";
}

using Loss = std::function<Tensor(const Tensor&, const Tensor&, Reduction)>;

// Elementwise losses of x and target, under every reduction.
void add_pair(Table& table, const std::string& name, Loss fn,
              std::function<double(double, double)> f, In x = {}, In target = {},
              std::vector<Error> errors = {}) {
  for (Reduction r : {Reduction::kMean, Reduction::kNone, Reduction::kSum}) {
    Row row{.name = name + name_of(r),
            .fn = call2([fn, r](const Tensor& a, const Tensor& b) { return fn(a, b, r); }),
            .cases = {},
            .reference = one([f, r](const std::vector<Host>& in) {
              Host loss = in[0];
              for (size_t i = 0; i < loss.v.size(); ++i) loss.v[i] = f(in[0].v[i], in[1].v[i]);
              return reduced(loss, r);
            })};
    for (const Shape& s : {Shape{3, 4}, Shape{5}, Shape{2, 3, 2, 2}}) {
      x.sizes = target.sizes = s;
      row.cases.push_back({x, target});
    }
    x.sizes = target.sizes = {0, 3};
    row.empty = {{x, target}};
    // The first wants probabilities; the second takes -inf from -inf, as PyTorch does.
    row.nonfinite = name != "binary_cross_entropy" && name != "binary_cross_entropy_with_logits";
    x.sizes = target.sizes = {66, 131};
    row.large = {{x, target}};
    row.ulps_half = 4;  // composed: each step rounds
    row.errors = errors;
    row.errors.push_back(
        {"sizes",
         [fn, r] {
           fn(zeros({3}), zeros({3, 1}), r);
         },
         name == "kl_div"
             ? "kl_div: "
             : "x and target must have the same sizes; got x=[3] f32 cpu, target=[3, 1]"});
    table.add(row);
  }
}

void add_regression(Table& table) {
  // Apart, so that |x - target| stays away from 0 and 1.
  const In low{.low = -0.9, .high = -0.5}, high{.low = 0, .high = 0.3};
  const In far{.low = 1, .high = 3};
  add_pair(
      table, "mse_loss",
      [](const Tensor& x, const Tensor& t, Reduction r) { return mse_loss(x, t, r); },
      [](double x, double t) { return (x - t) * (x - t); });
  add_pair(
      table, "l1_loss",
      [](const Tensor& x, const Tensor& t, Reduction r) { return l1_loss(x, t, r); },
      [](double x, double t) { return std::abs(x - t); }, low, high);
  const auto smooth = [](double d, double beta) {
    return d < beta ? d * d / (2 * beta) : d - beta / 2;
  };
  add_pair(
      table, "smooth_l1_loss",
      [](const Tensor& x, const Tensor& t, Reduction r) { return smooth_l1_loss(x, t, r, 1.3); },
      [smooth](double x, double t) { return smooth(std::abs(x - t), 1.3); }, low, high,
      {{"beta", [] { smooth_l1_loss(zeros({2}), zeros({2}), Reduction::kMean, -1); },
        "smooth_l1_loss: beta must not be negative; got -1"}});
  add_pair(
      table, "smooth_l1_loss/far",
      [](const Tensor& x, const Tensor& t, Reduction r) { return smooth_l1_loss(x, t, r, 0.4); },
      [smooth](double x, double t) { return smooth(std::abs(x - t), 0.4); }, low, far);
  const auto huber = [](double d, double delta) {
    return d <= delta ? d * d / 2 : delta * (d - delta / 2);
  };
  add_pair(
      table, "huber_loss",
      [](const Tensor& x, const Tensor& t, Reduction r) { return huber_loss(x, t, r, 1.3); },
      [huber](double x, double t) { return huber(std::abs(x - t), 1.3); }, low, high,
      {{"delta", [] { huber_loss(zeros({2}), zeros({2}), Reduction::kMean, 0); },
        "huber_loss: delta must be positive; got 0"}});
  add_pair(
      table, "huber_loss/far",
      [](const Tensor& x, const Tensor& t, Reduction r) { return huber_loss(x, t, r, 0.4); },
      [huber](double x, double t) { return huber(std::abs(x - t), 0.4); }, low, far);
}

void add_probabilities(Table& table) {
  const In inside{.low = 0.1, .high = 0.9};
  add_pair(
      table, "binary_cross_entropy",
      [](const Tensor& x, const Tensor& t, Reduction r) {
        return binary_cross_entropy(x, t, {}, r);
      },
      [](double x, double t) { return -(t * std::log(x) + (1 - t) * std::log(1 - x)); }, inside,
      inside,
      {{"range", [] { binary_cross_entropy(tensor({1.5}), tensor({1})); },
        "binary_cross_entropy: every x must be in [0, 1]"}});
  const auto softplus = [](double v) {
    return v > 0 ? v + std::log1p(std::exp(-v)) : std::log1p(std::exp(v));
  };
  add_pair(
      table, "binary_cross_entropy_with_logits",
      [](const Tensor& x, const Tensor& t, Reduction r) {
        return binary_cross_entropy_with_logits(x, t, {}, {}, r);
      },
      [softplus](double x, double t) { return t * softplus(-x) + (1 - t) * softplus(x); },
      {.low = -3, .high = 3, .avoid = {0}}, inside);
  add_pair(
      table, "kl_div",
      [](const Tensor& x, const Tensor& t, Reduction r) { return kl_div(x, t, r); },
      [](double x, double t) { return t * (std::log(t) - x); }, {.low = -3, .high = -0.5}, inside);
  add_pair(
      table, "kl_div/log_target",
      [](const Tensor& x, const Tensor& t, Reduction r) { return kl_div(x, t, r, true); },
      [](double x, double t) { return std::exp(t) * (t - x); });
  Row row{
      .name = "binary_cross_entropy_with_logits/weights",
      .fn = call([](const List& in) {
        return binary_cross_entropy_with_logits(in[0], in[1], in[2], in[3], Reduction::kSum);
      }),
      .cases = {{{.sizes = {3, 4}, .avoid = {0}},
                 {.sizes = {3, 4}, .low = 0.1, .high = 0.9, .grad = false},
                 {.sizes = {4}, .low = 0.5, .high = 2, .grad = false},
                 {.sizes = {3, 1}, .low = 0.5, .high = 2, .grad = false}}},
      .reference = one([softplus](const std::vector<Host>& in) {
        double sum = 0;
        for (int64_t i = 0; i < 3; ++i) {
          for (int64_t j = 0; j < 4; ++j) {
            const double x = in[0].at({i, j}), t = in[1].at({i, j});
            sum += in[2].at({j}) * (in[3].at({i, 0}) * t * softplus(-x) + (1 - t) * softplus(x));
          }
        }
        return Host({}, {sum});
      }),
      .rtol_f32 = 5e-6,
      .ulps_half = 4};
  table.add(row);
}

// logits [N, C] or [N, C, d]: log softmax over dimension 1 (or x as it is for nll_loss).
Host label_loss(const std::vector<Host>& in, bool softmax, int64_t ignore, double smoothing,
                Reduction reduction) {
  const Host& x = in[0];
  const int64_t classes = x.sizes[1];
  Host loss(in[1].sizes);
  double sum = 0, total = 0;
  for (int64_t p = 0; p < in[1].numel(); ++p) {
    Shape at = in[1].index(p);
    at.insert(1, 0);
    std::vector<double> logp;
    for (int64_t c = 0; c < classes; ++c) {
      at[1] = c;
      logp.push_back(x.v[x.position(at)]);
    }
    const double top = *std::max_element(logp.begin(), logp.end());
    double denominator = 0;
    for (double v : logp) denominator += std::exp(v - top);
    for (double& v : logp) v = softmax ? v - top - std::log(denominator) : v;
    const auto t = static_cast<int64_t>(in[1].v[static_cast<size_t>(p)]);
    if (t == ignore) continue;
    const auto weight = [&](int64_t c) {
      return in.size() > 2 ? in[2].v[static_cast<size_t>(c)] : 1.0;
    };
    double v = -(1 - smoothing) * weight(t) * logp[static_cast<size_t>(t)];
    for (int64_t c = 0; smoothing > 0 && c < classes; ++c) {
      v -= smoothing / static_cast<double>(classes) * weight(c) * logp[static_cast<size_t>(c)];
    }
    loss.v[static_cast<size_t>(p)] = v;
    sum += v;
    total += weight(t);
  }
  if (reduction == Reduction::kNone) return loss;
  return Host({}, {reduction == Reduction::kSum ? sum : sum / total});
}

void add_labels(Table& table) {
  const In weight{.sizes = {4}, .low = 0.5, .high = 2, .grad = false};
  const std::vector<Case> cases = {{{.sizes = {5, 4}}, index({5}, 4)},
                                   {{.sizes = {5, 4}}, index({5}, 4), weight},
                                   {{.sizes = {2, 4, 3}}, index({2, 3}, 4), weight}};
  const auto row = [&](const std::string& name, bool softmax, CrossEntropyOptions o) {
    Row r{.name = name + name_of(o.reduction),
          .fn = call([=](const List& in) {
            const Tensor w = in.size() > 2 ? in[2] : Tensor();
            return softmax ? cross_entropy(in[0], in[1], w, o)
                           : nll_loss(in[0], in[1], w, o.ignore_index, o.reduction);
          }),
          .cases = cases,
          .reference = one([=](const std::vector<Host>& in) {
            return label_loss(in, softmax, o.ignore_index, o.label_smoothing, o.reduction);
          }),
          .rtol_f32 = 5e-6,
          .ulps_half = 4};
    r.empty = {{{.sizes = {0, 4}}, index({0}, 4)}};
    r.large = {{{.sizes = {130, 257}}, index({130}, 257)}};
    r.nonfinite = true;
    const auto fn = [=](const Tensor& x, const Tensor& t) {
      return softmax ? cross_entropy(x, t) : nll_loss(x, t);
    };
    const auto labels = [](std::initializer_list<double> v) {
      return tensor(v, {.dtype = DType::kI64});
    };
    r.errors = {{"label",
                 [=] {
                   fn(zeros({2, 3}), labels({0, 3}));
                 },
                 "targets must be in [0, 3) or equal ignore_index=-100; got 3 at position"},
                {"negative",
                 [=] {
                   fn(zeros({2, 3}), labels({-1, 0}));
                 },
                 "got -1 at position"},
                {"sizes",
                 [=] {
                   fn(zeros({2, 3}), labels({0, 1, 2}));
                 },
                 "target"}};
    table.add(r);
  };
  for (Reduction r : {Reduction::kMean, Reduction::kSum, Reduction::kNone}) {
    row("cross_entropy", true, {.reduction = r});
    row("cross_entropy/smoothed", true, {.label_smoothing = 0.2, .reduction = r});
    row("cross_entropy/ignored", true, {.ignore_index = 1, .reduction = r});
    row("nll_loss", false, {.reduction = r});
  }
  Row soft{.name = "cross_entropy/probabilities",
           .fn = call2([](const Tensor& x, const Tensor& t) { return cross_entropy(x, t); }),
           .cases = {{{.sizes = {3, 4}}, {.sizes = {3, 4}, .low = 0.1, .high = 0.9}}},
           .reference = one([](const std::vector<Host>& in) {
             double sum = 0;
             for (int64_t i = 0; i < 3; ++i) {
               double z = 0;
               for (int64_t c = 0; c < 4; ++c) z += std::exp(in[0].at({i, c}));
               for (int64_t c = 0; c < 4; ++c) {
                 sum -= in[1].at({i, c}) * (in[0].at({i, c}) - std::log(z));
               }
             }
             return Host({}, {sum / 3});
           }),
           .rtol_f32 = 5e-6,
           .ulps_half = 4};
  table.add(soft);
}

}  // namespace

void add_loss_rows(Table& table) {
  add_regression(table);
  add_probabilities(table);
  add_labels(table);
}

}  // namespace tarn::optable
