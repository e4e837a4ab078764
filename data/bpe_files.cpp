// bpe_files.cpp - GPT-2's vocab.json and merges.txt, read and written.
#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "tarn/core/error.h"
#include "tarn/core/file.h"
#include "tarn/data/bpe.h"
#include "tarn/data/bpe_bytes.h"
#include "tarn/data/vocab.h"

namespace tarn::data {
namespace {

// Lines "a b", after a first line "#version: 0.2" that may be missing.
std::vector<Bpe::Merge> read_merges(const std::string& path) {
  const std::string text = read_file("bpe", path);
  std::vector<Bpe::Merge> merges;
  size_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line(text.data() + at, end - at);
    at = end + 1;
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const size_t space = line.find(' ');
    const bool two = space != std::string_view::npos && space > 0 && space + 1 < line.size() &&
                     line.find(' ', space + 1) == std::string_view::npos;
    TARN_CHECK_AS(FileError, two, "bpe: ", path, ": line ", number,
                  " must be two tokens with a space between them; got '", line, "'");
    merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return merges;
}

detail::Vocab read_vocab(const std::string& path) {
  const std::string text = read_file("bpe", path);
  try {
    return nlohmann::json::parse(text).get<detail::Vocab>();
  } catch (const nlohmann::json::exception& e) {
    tarn::detail::fail<FileError>("bpe: ", path,
                                  " must be a JSON object of tokens and ids: ", e.what());
  }
}

}  // namespace

std::unique_ptr<Bpe> Bpe::load(const std::string& vocab_json, const std::string& merges_txt) {
  const std::vector<std::string> by_id =
      detail::tokens_by_id("bpe", vocab_json, read_vocab(vocab_json));
  const auto merges = read_merges(merges_txt);
  const size_t learned = 256 + merges.size();
  TARN_CHECK_AS(FileError, by_id.size() >= learned, "bpe: ", vocab_json, " has ", by_id.size(),
                " tokens, but 256 bytes and the ", merges.size(), " merges of ", merges_txt,
                " make ", learned, ": the files are not of one vocabulary");
  std::unique_ptr<Bpe> bpe;
  try {
    const std::vector<std::string> specials(by_id.begin() + static_cast<int64_t>(learned),
                                            by_id.end());
    bpe = std::make_unique<Bpe>(merges, specials);
  } catch (const ValueError& e) {
    tarn::detail::fail<FileError>(e.what(), " (in ", merges_txt, ")");
  }
  for (size_t id = 0; id < learned; ++id) {
    const std::string expected = detail::printable(bpe->pieces_[id]);
    TARN_CHECK_AS(FileError, by_id[id] == expected, "bpe: token ", id, " is '", by_id[id], "' in ",
                  vocab_json, " and '", expected, "' by ", merges_txt,
                  ": the files are not of one vocabulary");
  }
  return bpe;
}

std::unique_ptr<Bpe> Bpe::load(const std::string& folder) {
  namespace fs = std::filesystem;
  TARN_CHECK_AS(FileError, is_folder(folder), "bpe: no folder ", folder,
                "; it should hold GPT-2's vocab.json and merges.txt");
  for (const auto& [vocab, merges] :
       {std::pair{"vocab.json", "merges.txt"}, std::pair{"encoder.json", "vocab.bpe"}}) {
    const std::string v = (fs::path(folder) / vocab).string();
    const std::string m = (fs::path(folder) / merges).string();
    if (is_there(v) && is_there(m)) return load(v, m);
  }
  tarn::detail::fail<FileError>(
      "bpe: ", folder, " must hold vocab.json and merges.txt (or encoder.json and vocab.bpe)");
}

void Bpe::save(const std::string& folder) const {
  nlohmann::ordered_json vocab = nlohmann::ordered_json::object();
  const size_t learned = pieces_.size() - specials_.size();
  for (size_t id = 0; id < pieces_.size(); ++id) {
    vocab[id < learned ? detail::printable(pieces_[id]) : pieces_[id]] = id;
  }
  OutputFile vocab_file("bpe", folder + "/vocab.json");
  vocab_file.write(vocab.dump());
  vocab_file.commit();
  OutputFile merges_file("bpe", folder + "/merges.txt");
  merges_file.write("#version: 0.2\n");
  for (const auto& [left, right] : merges_) merges_file.write(left + " " + right + "\n");
  merges_file.commit();
}

std::string Bpe::json() const {
  return nlohmann::json{{"kind", "bpe"}, {"merges", merges_}, {"specials", specials_}}.dump();
}

}  // namespace tarn::data
