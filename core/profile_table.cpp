// profile_table.cpp - a profile's events, added up by operation.
#include <algorithm>
#include <functional>
#include <iomanip>
#include <map>
#include <sstream>
#include <tuple>

#include "tarn/core/error.h"
#include "tarn/core/memory_report.h"
#include "tarn/core/profiler.h"

namespace tarn {
namespace {

std::string sizes_text(const Profile& p, int32_t index) {
  if (index < 0) return "";
  std::ostringstream out;
  for (const Shape& sizes : p.sizes[static_cast<size_t>(index)]) {
    out << (out.tellp() > 0 ? " " : "") << sizes;
  }
  return out.str();
}

using Before = std::function<bool(const ProfileRow&, const ProfileRow&)>;

Before order_by(const std::string& column) {
  const auto by = [](double (*value)(const ProfileRow&)) -> Before {
    return [value](const ProfileRow& a, const ProfileRow& b) { return value(a) > value(b); };
  };
  if (column == "self") return by([](const ProfileRow& r) { return r.self_s; });
  if (column == "total") return by([](const ProfileRow& r) { return r.total_s; });
  if (column == "calls")
    return by([](const ProfileRow& r) { return static_cast<double>(r.calls); });
  if (column == "mean") {
    return by([](const ProfileRow& r) { return r.total_s / static_cast<double>(r.calls); });
  }
  if (column == "bytes") return by([](const ProfileRow& r) { return r.bytes; });
  if (column == "flops") return by([](const ProfileRow& r) { return r.flops; });
  if (column == "memory") return by([](const ProfileRow& r) { return r.allocated; });
  TARN_CHECK_AS(ValueError, column == "name", "Profiler: no column '", column,
                "'; expected self, total, calls, mean, bytes, flops, memory or name");
  return [](const ProfileRow& a, const ProfileRow& b) { return a.name < b.name; };
}

std::string fixed(double value, int digits) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(digits) << value;
  return out.str();
}

}  // namespace

std::vector<ProfileRow> Profiler::rows(const ProfileTableOptions& options) const {
  const Before before = order_by(options.sort_by);
  const Profile& p = profile_;
  const bool marked = !p.steps.empty();
  std::map<std::tuple<std::string, OpKind, std::string>, ProfileRow> found;
  for (const ProfileEvent& e : p.events) {
    const bool module = e.kind == OpKind::kModule || e.kind == OpKind::kRange;
    if (module != options.modules) continue;
    if (marked && (e.start < p.steps.front().start || e.start >= p.steps.back().end)) continue;
    const std::string sizes = options.by_shape ? sizes_text(p, e.sizes) : "";
    ProfileRow& row = found[{e.name, e.kind, sizes}];
    row.sizes = sizes;
    ++row.calls;
    row.self_s += static_cast<double>(e.self) * 1e-9;
    if (!e.nested) row.total_s += static_cast<double>(e.end - e.start) * 1e-9;
    row.bytes += e.bytes;
    row.flops += e.flops;
    row.allocated += static_cast<double>(e.allocated);
  }
  std::vector<ProfileRow> rows;
  for (auto& [key, row] : found) {
    row.name = std::get<0>(key) + (std::get<1>(key) == OpKind::kBackward ? " backward" : "");
    rows.push_back(std::move(row));
  }
  std::stable_sort(rows.begin(), rows.end(), before);
  return rows;
}

std::string Profiler::table(const ProfileTableOptions& options) const {
  const std::vector<ProfileRow> all = rows(options);
  const Profile& p = profile_;
  const double steps = std::max<double>(1, static_cast<double>(p.steps.size()));
  const double wall =
      static_cast<double>(p.steps.empty() ? p.end - p.start
                                          : p.steps.back().end - p.steps.front().start) *
      1e-9 / steps;
  double self = 0, flops = 0;
  size_t width = 9;
  for (const ProfileRow& row : all) {
    self += row.self_s / steps;
    flops += row.flops / steps;
    width = std::max(width, row.name.size());
  }
  std::ostringstream out;
  const auto line = [&](const std::string& name, std::initializer_list<std::string> cells,
                        const std::string& last) {
    out << std::left << std::setw(static_cast<int>(width)) << name << std::right;
    for (const std::string& cell : cells) out << std::setw(11) << cell;
    out << (last.empty() ? "" : "  ") << last << "\n";
  };
  line(options.modules ? "module" : "operation",
       {"self ms", "self %", "total ms", "calls", "mean us", "moved", "GFLOP", "GFLOP/s", "kept"},
       options.by_shape ? "sizes" : "");
  const size_t limit = options.limit > 0 ? static_cast<size_t>(options.limit) : all.size();
  const size_t shown = std::min(limit, all.size());
  for (size_t i = 0; i < shown; ++i) {
    const ProfileRow& r = all[i];
    line(r.name,
         {fixed(r.self_s * 1e3 / steps, 3), fixed(self > 0 ? r.self_s / steps / self * 100 : 0, 1),
          fixed(r.total_s * 1e3 / steps, 3), fixed(static_cast<double>(r.calls) / steps, 1),
          fixed(r.total_s * 1e6 / static_cast<double>(r.calls), 1),
          detail::format_bytes(static_cast<int64_t>(r.bytes / steps)),
          fixed(r.flops * 1e-9 / steps, 3), r.flops > 0 ? fixed(r.flops * 1e-9 / r.self_s, 1) : "",
          detail::format_bytes(static_cast<int64_t>(r.allocated / steps))},
         r.sizes);
  }
  if (shown < all.size()) out << "(" << all.size() - shown << " more)\n";
  out << (p.steps.empty() ? "in all: " : "mean of " + std::to_string(p.steps.size()) + " steps: ")
      << fixed(wall * 1e3, 3) << " ms, " << fixed(self * 1e3, 3) << " of them in these, "
      << fixed(flops * 1e-9, 3) << " GFLOP, " << fixed(flops * 1e-9 / wall, 1) << " GFLOP/s\n";
  if (p.left_out > 0) out << p.left_out << " events were left out (max_events)\n";
  return out.str();
}

}  // namespace tarn
