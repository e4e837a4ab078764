// filter.h - the choice of what is measured by a part of its name.
#pragma once

#include <string>
#include <vector>

#include "tarn/apps/common/options.h"

namespace tarn::bench {

inline bool matches(const std::string& name, const std::string& filter) {
  return name.find(filter) != std::string::npos;
}

/// Throws UsageError that lists the names, each of which is a `what`, if none contains the filter.
inline void check_filter(const std::string& filter, const std::string& what,
                         const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) {
    if (matches(name, filter)) return;
    list += (list.empty() ? "" : ", ") + name;
  }
  throw apps::UsageError("--filter " + filter + ": no " + what + " matches; there are " + list);
}

}  // namespace tarn::bench
