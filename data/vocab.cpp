// vocab.cpp - tokens by their ids.
#include "tarn/data/vocab.h"

#include "tarn/core/error.h"

namespace tarn::data::detail {

std::vector<std::string> tokens_by_id(const char* op, const std::string& path, const Vocab& vocab) {
  std::vector<std::string> tokens(vocab.size());
  std::vector<bool> seen(vocab.size());
  for (const auto& [token, id] : vocab) {
    const auto at = static_cast<size_t>(id);
    TARN_CHECK_AS(FileError, id >= 0 && at < tokens.size() && !seen[at], op, ": ", path,
                  ": the ids must be 0 to ", tokens.size() - 1, ", each once; '", token, "' has ",
                  id);
    tokens[at] = token;
    seen[at] = true;
  }
  return tokens;
}

}  // namespace tarn::data::detail
