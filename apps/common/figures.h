// figures.h - what the reports of all trainers share: series of a run's figures, and reading
// metrics.jsonl again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tarn/apps/common/plot.h"

namespace tarn::apps {

/// One member of every element as a series over `x`, another member.
template <class T, class X>
Series series_of(const std::vector<T>& figures, const char* name, int color, X T::*x,
                 double T::*y) {
  Series s{.name = name, .color = color};
  for (const T& f : figures) {
    s.x.push_back(static_cast<double>(f.*x));
    s.y.push_back(f.*y);
  }
  return s;
}

/// A number of a line; NaN where the file has null, which stands for what is not finite.
double figure(const nlohmann::json& line, const char* key);

/// Hands every line of a metrics file to `add`, in order, until `add` returns false; that line and
/// what follows it are cut off the file. A last line without its end was being written when the run
/// died, and is cut off too. Throws FileError that names a damaged line. No file: nothing.
void read_metrics(const std::filesystem::path& metrics,
                  const std::function<bool(const nlohmann::json&)>& add);

}  // namespace tarn::apps
