// op_table_order.cpp - rows: running sums, sorting, softmax: what keeps the sizes along a
// dimension.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "op_table.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"

namespace tarn::optable {
namespace {

using List = std::vector<Tensor>;
using Values = std::vector<double>;

void add_running(Table& table) {
  const auto running = [](double start, std::function<double(double, double)> f) {
    return one([=](const std::vector<Host>& in) {
      Host out = in[0];
      for (int64_t p = 0; p < out.numel(); ++p) {
        Shape at = out.index(p);
        const double before = at[1] == 0 ? start : [&] {
          at[1] -= 1;
          return out.v[out.position(at)];
        }();
        out.v[static_cast<size_t>(p)] = f(before, in[0].v[static_cast<size_t>(p)]);
      }
      return out;
    });
  };
  Row row{.name = "cumsum",
          .fn = call1([](const Tensor& x) { return cumsum(x, 1); }),
          .cases = {{{.sizes = {3, 4}}}, {{.sizes = {2, 3, 2, 2}}}},
          .reference = running(0, [](double a, double b) { return a + b; }),
          .empty = {{{.sizes = {0, 3}}}, {{.sizes = {3, 0}}}},
          .integers = true,
          .ulps_half = 2};
  row.nonfinite = true;
  row.large = {{{.sizes = {65, 257}, .low = -0.4, .high = 2}}};
  row.errors = {{"dim", [] { cumsum(zeros({2}), 1); }, "cumsum: dimension out of range; got 1"}};
  table.add(row);
  row.name = "cumprod";
  row.large.clear();
  row.fn = call1([](const Tensor& x) { return cumprod(x, 1); });
  row.reference = running(1, [](double a, double b) { return a * b; });
  row.errors = {{"dim", [] { cumprod(zeros({2}), 1); }, "cumprod: dimension out of range; got 1"}};
  row.u8 = false;
  row.ulps_half = 3;
  table.add(row);
}

// NaN counts as the largest.
bool less(double x, double y) {
  return std::isnan(y) ? !std::isnan(x) : x < y;
}

// Rows of [M, N] sorted along dimension 1: values and positions of the first k.
Reference sorted(int64_t k, bool descending) {
  return [=](const std::vector<Host>& in) {
    const int64_t n = in[0].sizes[1], take = k < 0 ? n : k;
    Host values({in[0].sizes[0], take}), at({in[0].sizes[0], take});
    for (int64_t i = 0; i < in[0].sizes[0]; ++i) {
      std::vector<int64_t> order(static_cast<size_t>(n));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        const double x = in[0].at({i, a}), y = in[0].at({i, b});
        return descending ? less(y, x) : less(x, y);
      });
      for (int64_t j = 0; j < take; ++j) {
        values.at({i, j}) = in[0].at({i, order[static_cast<size_t>(j)]});
        at.at({i, j}) = static_cast<double>(order[static_cast<size_t>(j)]);
      }
    }
    return std::vector<Host>{values, at};
  };
}

void add_sorting(Table& table) {
  const In apart{.sizes = {3, 5}, .distinct = true};
  for (bool descending : {false, true}) {
    Row row{.name = descending ? "sort/descending" : "sort",
            .fn =
                [descending](const List& in) {
                  const auto [v, i] = sort(in[0], 1, descending);
                  return List{v, i};
                },
            .cases = {{apart}},
            .reference = sorted(-1, descending),
            .empty = {{{.sizes = {0, 3}}}, {{.sizes = {3, 0}}}},
            .integers = true};
    row.nonfinite = true;
    row.large = {{{.sizes = {33, 300}, .distinct = true}}};
    table.add(row);
  }
  Row row{.name = "argsort",
          .fn = call1([](const Tensor& x) { return argsort(x, 1); }),
          .cases = {{apart}, {index({3, 6}, 3)}},  // ties keep their order
          .reference = one([](const std::vector<Host>& in) { return sorted(-1, false)(in)[1]; }),
          .gradient = false};
  table.add(row);
  for (bool largest : {true, false}) {
    row = {.name = largest ? "topk" : "topk/smallest",
           .fn =
               [largest](const List& in) {
                 const auto [v, i] = topk(in[0], 2, 1, largest);
                 return List{v, i};
               },
           .cases = {{apart}},
           .reference = sorted(2, largest),
           .empty = {{{.sizes = {0, 3}}}},
           .integers = true};
    row.nonfinite = true;
    row.large = {{{.sizes = {33, 300}, .distinct = true}}};
    row.errors = {{"k", [] { topk(zeros({3}), 4); },
                   "topk: k must be in [0, size of the dimension]; got k=4, x=[3] f32 cpu"}};
    table.add(row);
  }
}

Host softmax_of(const Host& x, int d, bool log) {
  Host out = x;
  for (int64_t p = 0; p < x.numel(); ++p) {
    Shape at = x.index(p);
    Values row;
    for (int64_t i = 0; i < x.sizes[d]; ++i) {
      at[d] = i;
      row.push_back(x.v[x.position(at)]);
    }
    const double top = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (double e : row) sum += std::exp(e - top);
    const double v = x.v[static_cast<size_t>(p)] - top;
    out.v[static_cast<size_t>(p)] = log ? v - std::log(sum) : std::exp(v) / sum;
  }
  return out;
}

void add_softmax(Table& table) {
  for (bool log : {false, true}) {
    for (int d : {1, 0}) {
      const std::string name = std::string(log ? "log_softmax" : "softmax") + (d ? "" : "/first");
      Row row{.name = name,
              .fn = call1(
                  [log, d](const Tensor& x) { return log ? log_softmax(x, d) : softmax(x, d); }),
              .cases = {{{.sizes = {3, 4}, .low = -4, .high = 4}}, {{.sizes = {2, 3, 2, 2}}}},
              .reference =
                  one([log, d](const std::vector<Host>& in) { return softmax_of(in[0], d, log); }),
              .empty = {{{.sizes = {0, 3}}}, {{.sizes = {3, 0}}}}};
      row.nonfinite = true;
      row.large = {{{.sizes = {17, 257}, .low = -4, .high = 4}}, {{.sizes = {20, 9, 8, 7}}}};
      row.errors = {{"integers",
                     [log] {
                       const Tensor x = zeros({2}, {.dtype = DType::kI64});
                       log ? log_softmax(x, 0) : softmax(x, 0);
                     },
                     "x must be floating; got x=[2] i64 cpu; pass a dtype to convert it"},
                    {"dim", [log] { log ? log_softmax(zeros({2}), 1) : softmax(zeros({2}), 1); },
                     "dimension out of range; got 1"}};
      table.add(row);
    }
  }
}

}  // namespace

void add_order_rows(Table& table) {
  add_running(table);
  add_sorting(table);
  add_softmax(table);
}

}  // namespace tarn::optable
