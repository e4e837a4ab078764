// op_table_reduce.cpp - rows: reductions.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "op_table.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"

namespace tarn::optable {
namespace {

using List = std::vector<Tensor>;
using Values = std::vector<double>;

constexpr double kInf = std::numeric_limits<double>::infinity();

// Folds the elements along dims (empty: all) with f; keepdim keeps them with size 1.
Reference folded(Shape dims, bool keepdim, std::function<double(const Values&)> f) {
  return one([=](const std::vector<Host>& in) {
    const Shape& s = in[0].sizes;
    bool gone[kMaxDims] = {};
    for (int d = 0; d < s.dim(); ++d) {
      gone[d] = dims.empty() || dims.contains(d) || dims.contains(d - s.dim());
    }
    Shape kept = s, dropped;
    for (int d = 0; d < s.dim(); ++d) {
      if (gone[d]) kept[d] = 1;
      if (!gone[d]) dropped.push_back(s[d]);
    }
    Host out(kept);
    std::vector<Values> groups(out.v.size());
    for (int64_t p = 0; p < in[0].numel(); ++p) {
      Shape at = in[0].index(p);
      for (int d = 0; d < s.dim(); ++d) {
        if (gone[d]) at[d] = 0;
      }
      groups[out.position(at)].push_back(in[0].v[static_cast<size_t>(p)]);
    }
    for (size_t g = 0; g < groups.size(); ++g) out.v[g] = f(groups[g]);
    return keepdim ? out : Host(dropped, out.v);
  });
}

double sum_of(const Values& v) {
  return std::accumulate(v.begin(), v.end(), 0.0);
}
double mean_of(const Values& v) {
  return sum_of(v) / static_cast<double>(v.size());
}
double prod_of(const Values& v) {
  return std::accumulate(v.begin(), v.end(), 1.0, std::multiplies<>());
}
double max_of(const Values& v) {
  return std::accumulate(v.begin(), v.end(), -kInf,
                         [](double a, double b) { return std::isnan(a) || b < a ? a : b; });
}
double min_of(const Values& v) {
  return -max_of([&] {
    Values w = v;
    for (double& e : w) e = -e;
    return w;
  }());
}
// Position of the first element equal to `value`, which may be NaN.
double first_of(const Values& v, double value) {
  const auto same = [value](double e) {
    return e == value || (std::isnan(e) && std::isnan(value));
  };
  return static_cast<double>(std::find_if(v.begin(), v.end(), same) - v.begin());
}
double variance_of(const Values& v, double correction) {
  const double mean = mean_of(v);
  double sum = 0;
  for (double e : v) sum += (e - mean) * (e - mean);
  return sum / std::max(static_cast<double>(v.size()) - correction, 0.0);
}
double norm_of(const Values& v, double p) {
  Values terms;
  for (double e : v) {
    terms.push_back(p == 0 ? e != 0 : std::isinf(p) ? std::abs(e) : std::pow(std::abs(e), p));
  }
  if (p == kInf) return max_of(terms);
  if (p == -kInf) return min_of(terms);
  return p == 0 ? sum_of(terms) : std::pow(sum_of(terms), 1 / p);
}

struct Over {
  const char* variant;
  Shape dims;
  bool keepdim;
};
const std::vector<Over>& overs() {
  static const std::vector<Over> list = {{"", {}, false},
                                         {"/last", {-1}, false},
                                         {"/first_kept", {0}, true},
                                         {"/several", {0, -1}, false}};
  return list;
}

using Reduce = std::function<Tensor(const Tensor&, const Shape&, bool)>;

// One row per choice of dimensions.
std::vector<Row> reduce_rows(const std::string& name, Reduce fn,
                             std::function<double(const Values&)> f, In like = {}) {
  std::vector<Row> rows;
  for (const Over& o : overs()) {
    Row row{.name = name + o.variant,
            .fn = call1([fn, o](const Tensor& x) { return fn(x, o.dims, o.keepdim); }),
            .cases = {},
            .reference = folded(o.dims, o.keepdim, f)};
    for (const Shape& s : {Shape{3, 4}, Shape{2, 3, 4}, Shape{2, 3, 2, 2}}) {
      In in = like;
      in.sizes = s;
      row.cases.push_back({in});
    }
    if (o.dims.empty()) {
      In in = like;
      row.cases.push_back({in});  // 0-d
      row.errors = {{"undefined", [fn] { fn(Tensor(), {}, false); }, "x must be a tensor"},
                    {"dim",
                     [fn] {
                       fn(zeros({2, 3}), {2}, false);
                     },
                     "dimension out of range; got 2"},
                    {"twice",
                     [fn] {
                       fn(zeros({2, 3}), {0, -2}, false);
                     },
                     "a dimension may be listed only once; got dims=[0, -2] (0 twice)"}};
    }
    row.empty = {{{.sizes = {0, 3}}}, {{.sizes = {3, 0}}}};
    row.large = {{like}, {like}};
    row.large[0][0].sizes = {130, 257};
    row.large[1][0].sizes = {9, 33, 70};
    row.ulps_half = 2;
    row.nonfinite = true;
    rows.push_back(row);
  }
  return rows;
}

void add_sums(Table& table) {
  const Reduce sum_of_dims = [](const Tensor& x, const Shape& d, bool k) { return sum(x, d, k); };
  for (Row row : reduce_rows("sum", sum_of_dims, sum_of, {.low = -0.4, .high = 2})) {
    row.integers = true;
    table.add(row);
  }
  const Reduce mean_of_dims = [](const Tensor& x, const Shape& d, bool k) { return mean(x, d, k); };
  for (Row row : reduce_rows("mean", mean_of_dims, mean_of, {.low = -0.4, .high = 2})) {
    if (row.name == "mean") {
      row.errors.push_back({"integers", [] { mean(zeros({2}, {.dtype = DType::kI64})); },
                            "mean: x must be floating; got x=[2] i64 cpu; pass a floating dtype"});
    }
    table.add(row);
  }
  const Reduce prod_of_dims = [](const Tensor& x, const Shape& d, bool k) { return prod(x, d, k); };
  for (Row row : reduce_rows("prod", prod_of_dims, prod_of, {.low = 0.5, .high = 1.5})) {
    row.ulps_half = 3;
    row.large.clear();  // products of that many leave f32's range
    table.add(row);
  }
  // A zero among the factors: the gradient is the product of the others.
  Row row{.name = "prod/zero",
          .fn = call1([](const Tensor& x) {
            return prod(mul(x, tarn::tensor({1, 0, 1}, {.dtype = x.dtype(), .device = x.device()})),
                        {-1});
          }),
          .cases = {{{.sizes = {2, 3}}}},
          .reference = one([](const std::vector<Host>& in) { return Host({in[0].sizes[0]}); })};
  table.add(row);
}

void add_extrema(Table& table) {
  const In apart{.distinct = true};
  for (bool largest : {true, false}) {
    const char* name = largest ? "amax" : "amin";
    const Reduce extreme = [largest](const Tensor& x, const Shape& d, bool k) {
      return largest ? amax(x, d, k) : amin(x, d, k);
    };
    for (Row row : reduce_rows(name, extreme, largest ? max_of : min_of, apart)) {
      row.integers = true;
      row.empty.clear();  // nothing to choose from is an error
      if (row.name == name) {
        row.errors.push_back({"nothing",
                              [largest] {
                                largest ? amax(zeros({0, 2})) : amin(zeros({0, 2}));
                              },
                              "there must be something to choose from; got x=[0, 2] f32 cpu"});
      }
      table.add(row);
    }
    // {values, indices} along one dimension.
    const char* both = largest ? "max" : "min";
    const auto pick = [largest](const Tensor& x) {
      const auto [values, at] = largest ? max(x, 1, true) : min(x, 1, true);
      return List{values, at};
    };
    Row row{.name = both,
            .fn = [pick](const List& in) { return pick(in[0]); },
            .cases = {{{.sizes = {3, 4}, .distinct = true}},
                      {{.sizes = {2, 3, 2, 2}, .distinct = true}}},
            .reference =
                [largest](const std::vector<Host>& in) {
                  const auto f = largest ? max_of : min_of;
                  Host values = folded({1}, true, f)(in)[0];
                  Host at =
                      folded({1}, true, [f](const Values& v) { return first_of(v, f(v)); })(in)[0];
                  return std::vector<Host>{values, at};
                },
            .empty = {{{.sizes = {0, 3}}}}};
    row.integers = true;
    row.nonfinite = true;
    row.large = {{{.sizes = {65, 257}, .distinct = true}}};
    table.add(row);
    table.add({.name = std::string(both) + "/all",
               .fn = call1([largest](const Tensor& x) { return largest ? max(x) : min(x); }),
               .cases = {{{.sizes = {3, 4}, .distinct = true}}},
               .reference = folded({}, false, largest ? max_of : min_of)});
    const std::string arg = largest ? "argmax" : "argmin";
    const auto position = [largest](const Values& v) {
      const double best = largest ? max_of(v) : min_of(v);
      return first_of(v, best);
    };
    row = {.name = arg,
           .fn = call1([largest](const Tensor& x) { return largest ? argmax(x) : argmin(x); }),
           .cases = {{{.sizes = {3, 4}, .distinct = true}}, {index({2, 5}, 3)}},
           .reference = folded({}, false, position),
           .gradient = false};
    row.nonfinite = true;
    row.large = {{{.sizes = {65, 257}, .distinct = true}}};
    table.add(row);
    row.name = arg + "/dim";
    row.fn = call1([largest](const Tensor& x) { return largest ? argmax(x, 1) : argmin(x, 1); });
    row.reference = folded({1}, false, position);
    row.empty = {{{.sizes = {0, 3}}}};
    table.add(row);
  }
}

void add_truths(Table& table) {
  const std::vector<std::tuple<const char*, Reduce, bool>> list = {
      {"any", [](const Tensor& x, const Shape& d, bool k) { return any(x, d, k); }, true},
      {"all", [](const Tensor& x, const Shape& d, bool k) { return all(x, d, k); }, false}};
  for (const auto& [name, fn, is_any] : list) {
    for (Row row : reduce_rows(name, fn, [is_any = is_any](const Values& v) {
           const auto set = [](double e) { return e != 0; };
           const bool yes =
               is_any ? std::any_of(v.begin(), v.end(), set) : std::all_of(v.begin(), v.end(), set);
           return yes ? 1.0 : 0.0;
         })) {
      for (Case& c : row.cases) c = {index(c[0].sizes, 2)};
      for (Case& c : row.empty) c = {index(c[0].sizes, 2)};
      for (Case& c : row.large) c = {index(c[0].sizes, 2)};
      row.gradient = false;
      table.add(row);
    }
  }
}

void add_moments(Table& table) {
  const Reduce var_of_dims = [](const Tensor& x, const Shape& d, bool k) {
    return var(x, d, 1, k);
  };
  for (Row row :
       reduce_rows("var", var_of_dims, [](const Values& v) { return variance_of(v, 1); })) {
    if (row.name == "var") row.cases.pop_back();  // of one value it is NaN
    row.rtol = 1e-11;
    table.add(row);
  }
  const Reduce stddev_of_dims = [](const Tensor& x, const Shape& d, bool k) {
    return stddev(x, d, 0, k);
  };
  for (Row row : reduce_rows("stddev", stddev_of_dims,
                             [](const Values& v) { return std::sqrt(variance_of(v, 0)); },
                             {.distinct = true})) {
    if (row.name == "stddev") row.cases.pop_back();
    row.rtol = 1e-11;
    table.add(row);
  }
  Row row{.name = "var_mean",
          .fn =
              [](const List& in) {
                const auto [v, m] = var_mean(in[0], {1}, 1, true);
                return List{v, m};
              },
          .cases = {{{.sizes = {3, 4}}}, {{.sizes = {2, 3, 2, 2}}}},
          .reference =
              [](const std::vector<Host>& in) {
                return std::vector<Host>{
                    folded({1}, true, [](const Values& v) { return variance_of(v, 1); })(in)[0],
                    folded({1}, true, mean_of)(in)[0]};
              },
          .rtol = 1e-11,
          .ulps_half = 2};
  row.errors = {{"integers", [] { var_mean(zeros({2}, {.dtype = DType::kI64})); },
                 "x must be floating; got x=[2] i64 cpu"}};
  table.add(row);
}

void add_norms(Table& table) {
  for (double p : {2.0, 1.0, 3.0, 0.5, kInf, -kInf, 0.0}) {
    const std::string name = p == 2 ? "norm" : "norm/p" + std::to_string(p).substr(0, 4);
    const Reduce norm_p = [p](const Tensor& x, const Shape& d, bool k) { return norm(x, p, d, k); };
    const auto reference = [p](const Values& v) { return norm_of(v, p); };
    const In apart{.low = 0.2, .high = 2.2, .distinct = true};
    for (Row row : reduce_rows(name, norm_p, reference, apart)) {
      if (row.name != name && p != 2) continue;  // all dimensions' choices for p = 2 only
      if (p == -kInf || p == kInf) row.empty.clear();
      if (p < 0 || p == 0.5) row.empty.clear();
      if (p != 2) row.errors.clear();
      row.second = p != 0 && !std::isinf(p);
      row.rtol_f32 = 5e-6;
      row.ulps_half = 3;
      table.add(row);
    }
  }
}

void add_logsumexp(Table& table) {
  const Reduce logsumexp_of_dims = [](const Tensor& x, const Shape& d, bool k) {
    return logsumexp(x, d, k);
  };
  for (Row row : reduce_rows("logsumexp", logsumexp_of_dims, [](const Values& v) {
         const double top = v.empty() ? 0 : max_of(v);
         if (std::isinf(top)) return top;
         double sum = 0;
         for (double e : v) sum += std::exp(e - top);
         return top + std::log(sum);
       })) {
    table.add(row);
  }
}

}  // namespace

void add_reduce_rows(Table& table) {
  add_logsumexp(table);
  add_sums(table);
  add_extrema(table);
  add_truths(table);
  add_moments(table);
  add_norms(table);
}

}  // namespace tarn::optable
