// recorder.cpp - the last collectives of a group.
#include "tarn/dist/recorder.h"

#include <cctype>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tarn/dist/environment.h"

namespace tarn::dist {
namespace {

int64_t now_ms() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

const char* state_name(FlightRecorder::State state) {
  constexpr const char* kNames[] = {"queued", "running", "done", "failed"};
  return kNames[static_cast<int>(state)];
}

}  // namespace

void FlightRecorder::queued(uint64_t number, std::string operation) {
  const std::lock_guard lock(mutex_);
  if (entries_.size() == kMost) entries_.pop_front();
  entries_.push_back({number, State::kQueued, 0, 0, std::move(operation)});
}

void FlightRecorder::changed(uint64_t number, State state) {
  const std::lock_guard lock(mutex_);
  // Numbers follow each other, so an entry's place follows from its number.
  if (entries_.empty() || number < entries_.front().number) return;
  const uint64_t at = number - entries_.front().number;
  if (at >= entries_.size()) return;
  Entry& e = entries_[at];
  e.state = state;
  (state == State::kRunning ? e.start_ms : e.end_ms) = now_ms();
}

std::string FlightRecorder::text() const {
  const std::lock_guard lock(mutex_);
  std::ostringstream out;
  for (const Entry& e : entries_) {
    out << e.number << '\t' << state_name(e.state) << '\t' << e.start_ms << '\t' << e.end_ms << '\t'
        << e.operation << '\n';
  }
  return out.str();
}

void FlightRecorder::write(const std::string& group, int rank, int size,
                           const std::string& reason) const {
  const char* folder = std::getenv("TARN_FLIGHT_DIR");
  if (!folder) return;
  std::string name = group;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '-';
  }
  std::ofstream out(std::filesystem::path(folder) /
                    ("flight-" + name + "-rank-" + std::to_string(launched_rank(rank)) + ".txt"));
  out << "group " << group << ", rank " << rank << " of " << size << ": " << reason << '\n'
      << text();
}

}  // namespace tarn::dist
