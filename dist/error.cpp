// error.cpp - errors between ranks, in words.
#include "tarn/dist/error.h"

#include <algorithm>

namespace tarn::dist {

std::string list_text(const std::vector<std::string>& names) {
  constexpr size_t kMost = 10;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > kMost) text += " and " + std::to_string(names.size() - kMost) + " more";
  return text;
}

std::string duration_text(Millis time) {
  const int64_t ms = time.count();
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}

Millis time_left(Clock::time_point deadline) {
  return std::max(Millis(0), std::chrono::ceil<Millis>(deadline - Clock::now()));
}

void rethrow_with(const std::string& where) {
  try {
    throw;
  } catch (const TimeoutError& error) {
    throw TimeoutError(where + error.what());
  } catch (const PeerError& error) {
    throw PeerError(error.peer(), where + error.what());
  } catch (const std::exception& error) {
    throw DistError(where + error.what());
  }
}

std::string ended_earlier(const std::string& reason) {
  return "the group ended earlier (" + reason + "); make a new one";
}

}  // namespace tarn::dist
