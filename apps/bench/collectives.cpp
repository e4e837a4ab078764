// collectives.cpp - times collectives over message sizes.
#include "tarn/apps/bench/collectives.h"

#include <algorithm>
#include <vector>

#include "tarn/apps/bench/filter.h"
#include "tarn/apps/bench/timing.h"
#include "tarn/core/backend.h"
#include "tarn/core/factory.h"
#include "tarn/core/views.h"

namespace tarn::bench {
namespace {

// One kind of collective: how to call it on n floats per rank (or in all), and what it must give.
struct Kind {
  const char* name;
  bool whole;  // the large tensor is W parts of n / W floats
  double bus;  // bus bytes per byte, for W ranks
  std::function<dist::WorkPtr(dist::ProcessGroup&, const Tensor& large, const Tensor& part)> call;
  std::function<double(int rank, int size)>
      result;  // every value of `large` (or `part`) afterwards
  bool result_in_part = false;
};

std::vector<Kind> kinds(int size) {
  using dist::ProcessGroup;
  const double w = size, share = (w - 1) / w, sum = w * (w + 1) / 2;
  return {
      {"all_reduce", false, 2 * share,
       [](ProcessGroup& g, const Tensor& x, const Tensor&) { return g.all_reduce(x); },
       [sum](int, int) { return sum; }},
      {"broadcast", false, 1,
       [](ProcessGroup& g, const Tensor& x, const Tensor&) { return g.broadcast(x, 0); },
       [](int, int) { return 1.0; }},
      {"all_gather", true, share,
       [](ProcessGroup& g, const Tensor& x, const Tensor& p) { return g.all_gather(x, p); },
       [](int, int) { return -1.0; }},
      {"reduce_scatter", true, share,
       [](ProcessGroup& g, const Tensor& x, const Tensor& p) { return g.reduce_scatter(p, x); },
       [sum](int, int) { return sum; }, true},
      {"all_to_all", true, share,
       [](ProcessGroup& g, const Tensor& x, const Tensor&) { return g.all_to_all(x, x.clone()); },
       [](int, int) { return -1.0; }},
  };
}

void check(const Kind& kind, const dist::ProcessGroup& g, const Tensor& large, const Tensor& part) {
  const Tensor out = (kind.result_in_part ? part : large).to(kCPU);
  const double wanted = kind.result(g.rank(), g.size());
  const float* data = out.data<float>();
  const int64_t n = out.numel(), each = std::max<int64_t>(1, n / g.size());
  for (int64_t i : {int64_t{0}, n / 2, n - 1}) {
    // -1: the parts hold the numbers of the ranks that they came from.
    const double value = wanted < 0 ? 1.0 + static_cast<double>(i / each) : wanted;
    TARN_CHECK(data[i] == value, "bench: ", kind.name, " of ", n, " floats gave ", data[i], " at ",
               i, " on rank ", g.rank(), "; expected ", value);
  }
}

double slowest(dist::ProcessGroup& g, double seconds) {
  const Tensor t = full({1}, seconds, {.dtype = DType::kF64});
  g.all_reduce(t, dist::ReduceOp::kMax)->wait();
  return t.item();
}

CollectiveResult measure(dist::ProcessGroup& g, const Kind& kind, int64_t bytes, Device device) {
  const int64_t W = g.size();
  int64_t n = std::max<int64_t>(1, bytes / 4);
  if (kind.whole) n = std::max<int64_t>(1, n / W) * W;
  const Tensor large = full({n}, g.rank() + 1.0, {.device = device});
  const Tensor part = full({std::max<int64_t>(1, n / W)}, g.rank() + 1.0, {.device = device});
  kind.call(g, large, part)->wait();
  check(kind, g, large, part);
  const int loops =
      static_cast<int>(std::clamp<int64_t>(100'000'000 / std::max<int64_t>(bytes, 1), 5, 200));
  std::vector<double> times;
  for (int sample = 0; sample < 5; ++sample) {
    g.barrier()->wait();
    const double start = now_s();
    for (int i = 0; i < loops; ++i) kind.call(g, large, part)->wait();
    synchronize(device);  // waits for a GPU do not keep the host
    times.push_back(slowest(g, (now_s() - start) / loops));
  }
  CollectiveResult r{.name = kind.name, .bytes = n * 4, .seconds = median(times)};
  r.algbw = static_cast<double>(r.bytes) / r.seconds / 1e9;
  r.busbw = r.algbw * kind.bus;
  return r;
}

}  // namespace

std::vector<std::string> collective_names() {
  std::vector<std::string> names;
  for (const Kind& kind : kinds(1)) names.push_back(kind.name);
  return names;
}

void bench_collectives(dist::ProcessGroup& group, const CollectiveSettings& s,
                       const std::function<void(const CollectiveResult&)>& report) {
  for (const Kind& kind : kinds(group.size())) {
    if (!matches(kind.name, s.filter)) continue;
    for (int64_t bytes = s.min_bytes;; bytes = std::min(bytes * 8, s.max_bytes)) {
      const CollectiveResult r = measure(group, kind, bytes, s.device);
      if (group.rank() == 0) report(r);
      if (bytes >= s.max_bytes) break;
    }
  }
}

}  // namespace tarn::bench
