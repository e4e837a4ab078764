// flight.cpp - reads flight recorders; their form stands in dist/recorder.h.
#include "tarn/apps/run/flight.h"

#include <algorithm>
#include <fstream>
#include <optional>
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

std::optional<Last> read_last(const std::filesystem::path& folder, int rank) {
  std::ifstream in(folder / ("flight-world-rank-" + std::to_string(rank) + ".txt"));
  std::string line;
  if (!std::getline(in, line)) return {};
  Last last{.rank = rank};
  while (std::getline(in, line)) {
    std::istringstream fields(line);
    Last l{.rank = rank};
    fields >> l.number >> l.state >> l.start_ms >> l.end_ms;
    std::getline(fields >> std::ws, l.operation);
    if (l.state != "queued") last = l;
  }
  return last;
}

}  // namespace

std::string flight_summary(const std::filesystem::path& folder, const std::vector<int>& ranks) {
  std::vector<Last> known;
  std::vector<int> silent;
  for (int rank : ranks) {
    if (auto last = read_last(folder, rank)) {
      known.push_back(std::move(*last));
    } else {
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
      if (l.number == least) guilty.push_back(l.rank);
    }
  }
  if (!silent.empty()) text += "  " + dist::ranks_text(silent) + ": no record\n";
  if (!guilty.empty()) text += "  missing: " + dist::ranks_text(guilty) + "\n";
  return text;
}

}  // namespace tarn::apps
