// flight.cpp - reads flight recorders; their form stands in dist/recorder.h.
#include "tarn/apps/run/flight.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "tarn/apps/common/text.h"
#include "tarn/dist/store.h"

namespace tarn::apps {
namespace {

// The last collective that a rank had started.
struct Last {
  int rank = 0;
  long long number = 0, start_ms = 0, end_ms = 0;
  std::string state = {}, operation = {};
};

// What the ranks of one group left: by rank of the run, which the file's name ends with.
struct Flight {
  int size = 0;  // of the group
  std::map<int, Last> ranks;
};

void read_file(const std::filesystem::path& path, int rank, Flight& flight) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) return;
  const size_t of = line.find(" of ");
  if (of != std::string::npos) flight.size = std::atoi(line.c_str() + of + 4);
  Last last{.rank = rank};
  while (std::getline(in, line)) {
    std::istringstream fields(line);
    Last l{.rank = rank};
    fields >> l.number >> l.state >> l.start_ms >> l.end_ms;
    std::getline(fields >> std::ws, l.operation);
    if (l.state != "queued") last = l;
  }
  flight.ranks[rank] = last;
}

// Of the group in which most ranks failed.
Flight read_flight(const std::filesystem::path& folder) {
  std::map<std::string, Flight> groups;
  const std::string mark = "-rank-";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const size_t at = name.rfind(mark);
    if (!name.starts_with("flight-") || at == std::string::npos) continue;
    const int rank = std::atoi(name.c_str() + at + mark.size());
    read_file(entry.path(), rank, groups[name.substr(0, at)]);
  }
  Flight most;
  for (auto& [name, flight] : groups) {
    if (flight.ranks.size() > most.ranks.size()) most = std::move(flight);
  }
  return most;
}

}  // namespace

std::string flight_summary(const std::filesystem::path& folder, const std::vector<int>& ranks) {
  const Flight flight = read_flight(folder);
  std::vector<Last> known;
  std::vector<int> silent;
  const bool all = flight.size == static_cast<int>(ranks.size());
  for (int rank : ranks) {
    const auto found = flight.ranks.find(rank);
    if (found != flight.ranks.end()) {
      known.push_back(found->second);
    } else if (all) {
      silent.push_back(rank);
    }
  }
  if (known.empty()) return "";
  std::string text;
  long long least = known[0].number, most = known[0].number;
  for (const Last& l : known) {
    text += "  rank " + std::to_string(l.rank) + ": ";
    if (l.number == 0) {
      text += "no collective yet\n";
    } else {
      const double seconds = static_cast<double>(l.end_ms - l.start_ms) / 1000;
      text += l.state + " " + l.operation +
              (l.end_ms > 0 ? format(" after %.1f s\n", seconds) : std::string("\n"));
    }
    least = std::min(least, l.number);
    most = std::max(most, l.number);
  }
  std::vector<int> guilty = silent;
  if (guilty.empty() && least < most) {
    for (const Last& l : known) {
      // One that failed there had come, and waited for another.
      if (l.number == least && l.state != "failed") guilty.push_back(l.rank);
    }
  }
  if (!silent.empty()) text += "  " + dist::ranks_text(silent) + ": no record\n";
  if (!guilty.empty()) text += "  missing: " + dist::ranks_text(guilty) + "\n";
  return text;
}

}  // namespace tarn::apps
