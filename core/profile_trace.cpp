// profile_trace.cpp - Chrome's trace format, as the profiler of PyTorch writes it.
//
// Lanes: the threads with their operations, one of steps ("ProfilerStep#N"), and a counter of
// memory for each device. Arrows lead from an operation to its backward. Times are microseconds
// since baseTimeNanoseconds: absolute ones have more digits than a double holds.
#include <map>
#include <sstream>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "tarn/core/file.h"
#include "tarn/core/profiler.h"

namespace tarn {
namespace {

constexpr int kStepLane = 1;  // threads follow

/// A JSON string. Control characters are left out, and what is not UTF-8 is replaced.
std::string quoted(std::string_view text) {
  std::string clean;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) clean += c;
  }
  return nlohmann::json(clean).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class TraceWriter {
 public:
  TraceWriter(const Profile& profile, std::ostream& out)
      : p_(profile), out_(out), base_(profile.start), pid_(::getpid()) {
    for (const ProfileStep& step : p_.steps) base_ = std::min(base_, step.start);
  }

  void write() {
    out_ << R"({"schemaVersion":1,"displayTimeUnit":"ms","baseTimeNanoseconds":)" << base_
         << ",\"traceEvents\":[";
    lanes();
    for (const ProfileStep& step : p_.steps) {
      head("X", "ProfilerStep#" + std::to_string(step.number), kStepLane, step.start)
          << R"(,"cat":"user_annotation","dur":)" << time(step.end - step.start) << "}";
    }
    for (const ProfileEvent& e : p_.events) operation(e);
    arrows();
    for (const ProfileMemory& m : p_.memory) memory(m);
    out_ << "\n]}\n";
  }

 private:
  static int lane(int thread) { return kStepLane + 1 + thread; }

  static std::string time(int64_t ns) {
    if (ns < 0) ns = 0;
    std::string part = std::to_string(ns % 1000);
    part.insert(0, 3 - part.size(), '0');
    return std::to_string(ns / 1000) + "." + part;
  }

  /// What all events begin with; the caller goes on with a comma and ends with a brace.
  std::ostream& head(const char* phase, std::string_view name, int tid, int64_t at) {
    out_ << (first_ ? "\n" : ",\n");
    first_ = false;
    return out_ << R"({"ph":")" << phase << R"(","name":)" << quoted(name) << R"(,"pid":)" << pid_
                << R"(,"tid":)" << tid << R"(,"ts":)" << time(at - base_);
  }

  void name_lane(const char* what, int tid, const std::string& name, int order) {
    head("M", what, tid, base_) << R"(,"args":{"name":)" << quoted(name) << "}}";
    head("M", "thread_sort_index", tid, base_) << R"(,"args":{"sort_index":)" << order << "}}";
  }

  void lanes() {
    head("M", "process_name", kStepLane, base_) << R"(,"args":{"name":"tarn"}})";
    name_lane("thread_name", kStepLane, "steps", 0);
    for (int t = 0; t < p_.threads; ++t) {
      name_lane("thread_name", lane(t), "thread " + std::to_string(t), t + 1);
    }
  }

  void operation(const ProfileEvent& e) {
    const bool annotation = e.kind == OpKind::kRange || e.kind == OpKind::kModule;
    const std::string name = std::string(e.name) + (e.kind == OpKind::kBackward ? " backward" : "");
    head("X", name, lane(e.thread), e.start)
        << R"(,"cat":")" << (annotation ? "user_annotation" : "cpu_op") << R"(","dur":)"
        << time(e.end - e.start);
    if (annotation) {
      out_ << "}";
      return;
    }
    out_ << R"(,"args":{"Bytes":)" << static_cast<int64_t>(e.bytes) << R"(,"FLOPs":)"
         << static_cast<int64_t>(e.flops);
    if (e.recorded != 0) out_ << R"(,"Sequence number":)" << e.recorded;
    if (e.sizes >= 0) {
      out_ << R"(,"Input Dims":[)";
      const char* comma = "";
      for (const Shape& sizes : p_.sizes[static_cast<size_t>(e.sizes)]) {
        out_ << comma << "[";
        for (int d = 0; d < sizes.dim(); ++d) out_ << (d ? "," : "") << sizes[d];
        out_ << "]";
        comma = ",";
      }
      out_ << "]";
    }
    out_ << "}}";
  }

  void arrows() {
    std::map<uint64_t, const ProfileEvent*> forward;
    for (const ProfileEvent& e : p_.events) {
      if (e.kind == OpKind::kForward && e.recorded != 0) forward[e.recorded] = &e;
    }
    for (const ProfileEvent& e : p_.events) {
      if (e.kind != OpKind::kBackward) continue;
      const auto found = forward.find(e.recorded);
      if (found == forward.end()) continue;
      const ProfileEvent& from = *found->second;
      const auto tail = [&] { out_ << R"(,"cat":"fwdbwd","id":)" << e.recorded; };
      head("s", "fwdbwd", lane(from.thread), from.start);
      tail();
      out_ << "}";
      head("f", "fwdbwd", lane(e.thread), e.start);
      tail();
      out_ << R"(,"bp":"e"})";
    }
  }

  void memory(const ProfileMemory& m) {
    const int type = m.device.is_cpu() ? 0 : 1, index = m.device.is_cpu() ? -1 : m.device.index;
    head("i", "[memory]", lane(m.thread), m.time)
        << R"(,"s":"t","args":{"Device Type":)" << type << R"(,"Device Id":)" << index
        << R"(,"Addr":)" << reinterpret_cast<uintptr_t>(m.ptr) << R"(,"Bytes":)" << m.bytes
        << R"(,"Total Allocated":)" << m.total << "}}";
    head("C", "memory of " + m.device.str(), kStepLane, m.time)
        << R"(,"args":{"allocated":)" << m.total << "}}";
  }

  const Profile& p_;
  std::ostream& out_;
  int64_t base_;
  int pid_;
  bool first_ = true;
};

}  // namespace

void Profiler::write_trace(std::ostream& out) const {
  TraceWriter(profile_, out).write();
}

void Profiler::save_trace(const std::string& path) const {
  std::ostringstream text;
  write_trace(text);
  OutputFile file("Profiler", path);
  file.write(text.str());
  file.commit();
}

}  // namespace tarn
