// vocab.h - vocabularies as Hugging Face's files hold them: tokens and their ids. Internal to
// data/.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tarn::data::detail {

using Vocab = std::map<std::string, int64_t>;

/// The tokens in the order of their ids. Throws FileError "OP: PATH: ..." unless the ids are 0, 1,
/// 2 and so on, each once.
std::vector<std::string> tokens_by_id(const char* op, const std::string& path, const Vocab& vocab);

}  // namespace tarn::data::detail
