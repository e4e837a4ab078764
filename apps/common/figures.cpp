// figures.cpp - reading metrics.jsonl again.
#include "tarn/apps/common/figures.h"

#include <cmath>
#include <fstream>
#include <system_error>

#include <nlohmann/json.hpp>

#include "tarn/core/error.h"

namespace tarn::apps {

double figure(const nlohmann::json& line, const char* key) {
  const auto& value = line.at(key);
  return value.is_null() ? std::nan("") : value.get<double>();
}

void read_metrics(const std::filesystem::path& metrics,
                  const std::function<bool(const nlohmann::json&)>& add) {
  std::ifstream in(metrics);
  if (!in) return;
  uint64_t kept = 0;  // bytes
  int64_t number = 1;
  for (std::string line; std::getline(in, line) && !in.eof(); ++number) {
    try {
      if (!add(nlohmann::json::parse(line))) break;
    } catch (const nlohmann::json::exception& e) {
      detail::fail<FileError>("resume: line ", number, " of ", metrics.string(),
                              " is damaged; remove it to go on: ", e.what());
    }
    kept += line.size() + 1;
  }
  std::error_code error;
  std::filesystem::resize_file(metrics, kept, error);
  TARN_CHECK_AS(FileError, !error, "resume: cannot cut ", metrics.string(), " to ", kept,
                " bytes: ", error.message());
}

}  // namespace tarn::apps
