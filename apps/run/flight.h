// flight.h - reads the flight recorders that ranks left behind, and says which rank was missing.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tarn::apps {

/// What the ranks were in when their group died, a line each, and who is to blame: those that left
/// no record (they died or hung), else those that are furthest behind. Of several groups, that in
/// which most ranks failed. ranks: those of this host; one without a record is missing only if they
/// are all of the group. "" if nobody left one.
std::string flight_summary(const std::filesystem::path& folder, const std::vector<int>& ranks);

}  // namespace tarn::apps
