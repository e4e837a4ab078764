// op_table_pool.cpp - rows: pooling.
#include <algorithm>
#include <cmath>
#include <limits>

#include "op_table.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"

namespace tarn::optable {
namespace {

using List = std::vector<Tensor>;

/// The window of output row i: rows of x, of which those outside count as padding.
struct Window {
  int64_t begin, step, count;
};
using Windows = std::function<Window(int64_t i)>;
/// What becomes of the values inside a window, their positions, and the window's full size.
using Pool =
    std::function<double(const std::vector<double>&, const std::vector<int64_t>&, int64_t full)>;

// The last two dimensions are pooled.
Host pooled(const Host& x, int64_t oh, int64_t ow, const Windows& rows, const Windows& cols,
            const Pool& pool) {
  const int n = x.sizes.dim();
  const int64_t h = x.sizes[n - 2], w = x.sizes[n - 1];
  Shape sizes = x.sizes;
  sizes[n - 2] = oh;
  sizes[n - 1] = ow;
  Host out(sizes);
  for (int64_t p = 0; p < out.numel(); ++p) {
    Shape at = out.index(p);
    const Window r = rows(at[n - 2]), c = cols(at[n - 1]);
    std::vector<double> values;
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < r.count; ++i) {
      for (int64_t j = 0; j < c.count; ++j) {
        at[n - 2] = r.begin + i * r.step;
        at[n - 1] = c.begin + j * c.step;
        if (at[n - 2] < 0 || at[n - 2] >= h || at[n - 1] < 0 || at[n - 1] >= w) continue;
        values.push_back(x.v[x.position(at)]);
        positions.push_back(at[n - 2] * w + at[n - 1]);
      }
    }
    out.v[static_cast<size_t>(p)] = pool(values, positions, r.count * c.count);
  }
  return out;
}

// The first maximum; NaN wins.
size_t best_of(const std::vector<double>& v) {
  size_t best = 0;
  for (size_t i = 1; i < v.size() && !std::isnan(v[best]); ++i) {
    if (std::isnan(v[i]) || v[i] > v[best]) best = i;
  }
  return best;
}
double maximum_of(const std::vector<double>& v, const std::vector<int64_t>&, int64_t) {
  return v[best_of(v)];
}
double position_of(const std::vector<double>& v, const std::vector<int64_t>& at, int64_t) {
  return static_cast<double>(at[best_of(v)]);
}
double mean_of(const std::vector<double>& v, double count) {
  double sum = 0;
  for (double e : v) sum += e;
  return sum / count;
}
double mean_inside(const std::vector<double>& v, const std::vector<int64_t>&, int64_t) {
  return mean_of(v, static_cast<double>(v.size()));
}
double mean_padded(const std::vector<double>& v, const std::vector<int64_t>&, int64_t full) {
  return mean_of(v, static_cast<double>(full));
}

Windows sliding(int64_t kernel, int64_t stride, int64_t pad, int64_t dilation = 1) {
  return [=](int64_t i) { return Window{i * stride - pad, dilation, kernel}; };
}
Windows adaptive(int64_t in, int64_t out) {
  return [=](int64_t i) {
    const int64_t begin = i * in / out, end = ((i + 1) * in + out - 1) / out;
    return Window{begin, 1, end - begin};
  };
}

const In kImage{.sizes = {2, 2, 5, 4}, .distinct = true};
const In kSingle{.sizes = {2, 5, 4}, .distinct = true};

Row pool_row(const char* name, std::function<Tensor(const Tensor&)> fn,
             std::function<Host(const Host&)> ref) {
  Row row{.name = name,
          .fn = call1(fn),
          .cases = {{kImage}, {kSingle}},
          .reference = one([ref](const std::vector<Host>& in) { return ref(in[0]); }),
          .empty = {{{.sizes = {0, 2, 5, 4}}}}};
  row.nonfinite = true;
  row.errors = {{"rank",
                 [fn] {
                   fn(zeros({5, 4}));
                 },
                 "x must be [N, C, H, W] or [C, H, W]; got x=[5, 4] f32 cpu"},
                {"integers",
                 [fn] {
                   fn(zeros({1, 5, 4}, {.dtype = DType::kI64}));
                 },
                 "x must be floating; got x="}};
  return row;
}

void add_max(Table& table) {
  Row row = pool_row(
      "max_pool2d", [](const Tensor& x) { return max_pool2d(x, 2); },
      [](const Host& x) {
        return pooled(x, 2, 2, sliding(2, 2, 0), sliding(2, 2, 0), maximum_of);
      });
  row.errors.push_back({"padding",
                        [] {
                          max_pool2d(zeros({1, 4, 4}), 2, 2, 2);
                        },
                        "max_pool2d: padding must be between 0 and half the kernel; got padding=2, "
                        "kernel=2"});
  row.errors.push_back({"kernel",
                        [] {
                          max_pool2d(zeros({1, 2, 2}), 3);
                        },
                        "max_pool2d: the window must fit into the padded image"});
  row.errors.push_back({"zero kernel",
                        [] {
                          max_pool2d(zeros({1, 2, 2}), 0);
                        },
                        "max_pool2d: kernel, stride and dilation must be positive"});
  table.add(row);
  // Rows: (5 + 2 - 3) / 2 + 1 = 3; columns, dilation 2: (4 - 2 - 1) / 1 + 1 = 2.
  table.add(pool_row(
      "max_pool2d/padded_dilated",
      [](const Tensor& x) {
        return max_pool2d(x, {3, 2}, {2, 1}, {1, 0}, {1, 2});
      },
      [](const Host& x) {
        return pooled(x, 3, 2, sliding(3, 2, 1), sliding(2, 1, 0, 2), maximum_of);
      }));
  // Rows: ceil((5 - 2) / 2) + 1 = 3.
  table.add(pool_row(
      "max_pool2d/ceil", [](const Tensor& x) { return max_pool2d(x, 2, 2, 0, 1, true); },
      [](const Host& x) {
        return pooled(x, 3, 2, sliding(2, 2, 0), sliding(2, 2, 0), maximum_of);
      }));
  row = pool_row("max_pool2d_with_indices", {}, {});
  row.fn = [](const List& in) {
    const auto [values, at] = max_pool2d_with_indices(in[0], 3, 1, 1);
    return List{values, at};
  };
  row.reference = [](const std::vector<Host>& in) {
    const Windows w = sliding(3, 1, 1);
    return std::vector<Host>{pooled(in[0], 5, 4, w, w, maximum_of),
                             pooled(in[0], 5, 4, w, w, position_of)};
  };
  row.errors.clear();
  table.add(row);
  table.add(pool_row(
      "adaptive_max_pool2d",
      [](const Tensor& x) {
        return adaptive_max_pool2d(x, {3, 2});
      },
      [](const Host& x) { return pooled(x, 3, 2, adaptive(5, 3), adaptive(4, 2), maximum_of); }));
  row = pool_row("adaptive_max_pool2d_with_indices", {}, {});
  row.fn = [](const List& in) {
    const auto [values, at] = adaptive_max_pool2d_with_indices(in[0], {3, 3});
    return List{values, at};
  };
  row.reference = [](const std::vector<Host>& in) {
    const Windows r = adaptive(5, 3), c = adaptive(4, 3);
    return std::vector<Host>{pooled(in[0], 3, 3, r, c, maximum_of),
                             pooled(in[0], 3, 3, r, c, position_of)};
  };
  row.errors.clear();
  table.add(row);
}

void add_average(Table& table) {
  Row row = pool_row(
      "avg_pool2d",
      [](const Tensor& x) {
        return avg_pool2d(x, {3, 2}, 2, {1, 0});
      },
      [](const Host& x) {
        return pooled(x, 3, 2, sliding(3, 2, 1), sliding(2, 2, 0), mean_padded);
      });
  row.errors.push_back({"divisor",
                        [] {
                          avg_pool2d(zeros({1, 4, 4}), 2, 2, 0, false, true, -1);
                        },
                        "avg_pool2d: divisor_override must be positive, or 0 for none; got -1"});
  table.add(row);
  table.add(pool_row(
      "avg_pool2d/padding_not_counted",
      [](const Tensor& x) {
        return avg_pool2d(x, {3, 2}, 2, {1, 0}, false, false);
      },
      [](const Host& x) {
        return pooled(x, 3, 2, sliding(3, 2, 1), sliding(2, 2, 0), mean_inside);
      }));
  table.add(pool_row(
      "avg_pool2d/divisor", [](const Tensor& x) { return avg_pool2d(x, 2, 2, 0, false, true, 3); },
      [](const Host& x) {
        return pooled(x, 2, 2, sliding(2, 2, 0), sliding(2, 2, 0),
                      [](const std::vector<double>& v, const std::vector<int64_t>&, int64_t) {
                        return mean_of(v, 3);
                      });
      }));
  row = pool_row(
      "adaptive_avg_pool2d",
      [](const Tensor& x) {
        return adaptive_avg_pool2d(x, {3, 2});
      },
      [](const Host& x) { return pooled(x, 3, 2, adaptive(5, 3), adaptive(4, 2), mean_inside); });
  row.errors.push_back({"negative",
                        [] {
                          adaptive_avg_pool2d(zeros({1, 4, 4}), {-1, 2});
                        },
                        "the output size must not be negative; got -1 by 2"});
  row.errors.push_back({"empty",
                        [] {
                          adaptive_avg_pool2d(zeros({1, 0, 4}), 2);
                        },
                        "the image must not be empty; got x="});
  table.add(row);
  table.add(pool_row(
      "adaptive_avg_pool2d/global", [](const Tensor& x) { return adaptive_avg_pool2d(x, 1); },
      [](const Host& x) { return pooled(x, 1, 1, adaptive(5, 1), adaptive(4, 1), mean_inside); }));
}

void add_one_dimensional(Table& table) {
  const auto row = [&](const char* name, std::function<Tensor(const Tensor&)> fn, int64_t out,
                       Windows windows, Pool pool) {
    Row r = pool_row(name, fn, [=](const Host& x) {
      Host wide = x;
      wide.sizes.insert(x.sizes.dim() - 1, 1);
      Host y = pooled(wide, 1, out, sliding(1, 1, 0), windows, pool);
      y.sizes.erase(y.sizes.dim() - 2);
      return y;
    });
    r.cases = {{{.sizes = {2, 2, 6}, .distinct = true}}, {{.sizes = {2, 6}, .distinct = true}}};
    r.empty = {{{.sizes = {0, 2, 6}}}};
    r.errors = {
        {"rank", [fn] { fn(zeros({6})); }, "x must be [N, C, L] or [C, L]; got x=[6] f32 cpu"}};
    table.add(r);
  };
  // (6 + 2 - 3) / 2 + 1 = 3
  row(
      "max_pool1d", [](const Tensor& x) { return max_pool1d(x, 3, 2, 1); }, 3, sliding(3, 2, 1),
      maximum_of);
  row(
      "avg_pool1d", [](const Tensor& x) { return avg_pool1d(x, 3, 2, 1); }, 3, sliding(3, 2, 1),
      mean_padded);
  row(
      "adaptive_avg_pool1d", [](const Tensor& x) { return adaptive_avg_pool1d(x, 4); }, 4,
      adaptive(6, 4), mean_inside);
  row(
      "adaptive_max_pool1d", [](const Tensor& x) { return adaptive_max_pool1d(x, 4); }, 4,
      adaptive(6, 4), maximum_of);
}

}  // namespace

void add_pool_rows(Table& table) {
  add_max(table);
  add_average(table);
  add_one_dimensional(table);
}

}  // namespace tarn::optable
