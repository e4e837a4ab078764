// flight.h - reads the flight recorders that ranks left behind, and says which rank was missing.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tarn::apps {

/// What the ranks were in when the world's group died, a line each, and who is to blame: those that
/// left no record (they died, hung or have not used the group), else those that are furthest
/// behind.
/// "" if nobody left one.
std::string flight_summary(const std::filesystem::path& folder, const std::vector<int>& ranks);

}  // namespace tarn::apps
