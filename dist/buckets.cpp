// buckets.cpp - gradients that travel together.
#include "tarn/dist/buckets.h"

#include <algorithm>
#include <cstdint>

#include "tarn/dist/error.h"

namespace tarn::dist {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

}  // namespace

void BucketCaps::check(const char* who) const {
  TARN_CHECK_AS(ValueError, bucket_cap_mb > 0 && first_bucket_mb > 0 && last_bucket_mb >= 0, who,
                ": bucket sizes must be above 0 MiB; got bucket_cap_mb=", bucket_cap_mb,
                ", first_bucket_mb=", first_bucket_mb, ", last_bucket_mb=", last_bucket_mb);
}

// The last bucket is not cut again by the limit of those in the middle: several messages would
// leave at the end.
std::vector<std::vector<size_t>> plan_buckets(const std::vector<Tensor>& params,
                                              const std::vector<size_t>& order,
                                              const BucketCaps& caps) {
  struct Open {
    DType dtype;
    size_t bucket;
    int64_t bytes;
    bool last;
  };
  const auto bytes_of = [&](size_t i) { return params[i].numel() * item_size(params[i].dtype()); };
  double all = 0;
  for (size_t i : order) all += static_cast<double>(bytes_of(i));
  const double first_cap = caps.first_bucket_mb * kMiB;
  const double later_cap = std::min(caps.bucket_cap_mb * kMiB, std::max(first_cap, all / 8));
  size_t tail = order.size();
  for (double left = caps.last_bucket_mb * kMiB; tail > 0; --tail) {
    left -= static_cast<double>(bytes_of(order[tail - 1]));
    if (left < 0) break;
  }
  std::vector<Open> open;
  std::vector<std::vector<size_t>> buckets;
  for (size_t place = 0; place < order.size(); ++place) {
    const size_t i = order[place];
    const DType dtype = params[i].dtype();
    const int64_t bytes = bytes_of(i);
    auto at =
        std::find_if(open.begin(), open.end(), [&](const Open& o) { return o.dtype == dtype; });
    if (at == open.end()) at = open.insert(open.end(), {dtype, SIZE_MAX, 0, false});
    const bool first = at->bucket == 0;
    const bool last = place >= tail && tail > 0;
    const double cap = first ? first_cap : later_cap;
    const bool full = !last && at->bytes > 0 && static_cast<double>(at->bytes + bytes) > cap;
    if (at->bucket == SIZE_MAX || full || last != at->last) {
      *at = {dtype, buckets.size(), 0, last};
      buckets.push_back({});
    }
    at->bytes += bytes;
    buckets[at->bucket].push_back(i);
  }
  return buckets;
}

std::string missing_text(const char* who, const std::vector<std::string>& names, size_t all,
                         int rank) {
  return std::string(who) + ": " + std::to_string(names.size()) + " of " + std::to_string(all) +
         " parameters got no gradient in this backward on rank " + std::to_string(rank) + ": " +
         list_text(names);
}

std::string second_text(const char* who, const std::string& name, int rank) {
  return std::string(who) + ": " + name + " got a second gradient in one backward on rank " +
         std::to_string(rank) +
         " when its first was sent already; call backward outside of hooks, or set overlap = false";
}

}  // namespace tarn::dist
