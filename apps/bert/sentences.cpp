// sentences.cpp - reading texts, and batches of them through the model.
#include "tarn/apps/bert/sentences.h"

#include <algorithm>
#include <iostream>
#include <limits>
#include <numeric>
#include <sstream>

#include <unistd.h>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/factory.h"
#include "tarn/core/file.h"

namespace tarn::apps {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

std::vector<std::string> lines_of(std::istream& in) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with('\r')) line.pop_back();
    lines.push_back(std::move(line));
  }
  return lines;
}

// The sentences at order[first, last) as one batch, padded to the longest: vectors [n, size].
Tensor run_batch(SentenceModel& model, const std::vector<Sentence>& sentences,
                 std::span<const size_t> order) {
  size_t longest = 0;
  for (const size_t i : order) longest = std::max(longest, sentences[i].ids.size());
  std::vector<int64_t> ids, mask;
  for (const size_t i : order) {
    ids.insert(ids.end(), sentences[i].ids.begin(), sentences[i].ids.end());
    mask.insert(mask.end(), sentences[i].ids.size(), 1);
    ids.resize(ids.size() + longest - sentences[i].ids.size(), model.words->padding());
    mask.resize(ids.size(), 0);
  }
  const Device device = model.bert->embeddings.word_embeddings.weight.device();
  const Shape sizes{static_cast<int64_t>(order.size()), static_cast<int64_t>(longest)};
  return model.bert->sentence_vectors(from_vector(ids, sizes, device),
                                      from_vector(mask, sizes, device), model.options);
}

}  // namespace

std::vector<std::string> read_texts(const BertSettings& s) {
  if (!s.texts.empty()) return s.texts;
  if (!s.input.empty() && s.input != "-") {
    std::istringstream in(read_file("tarn-bert", s.input));
    return lines_of(in);
  }
  if (s.input.empty() && isatty(STDIN_FILENO)) {
    throw UsageError(
        "no text; pass some as arguments, --input FILE, or a text a line to standard "
        "input");
  }
  return lines_of(std::cin);
}

std::vector<Sentence> tokenize(const SentenceModel& model, const std::vector<std::string>& texts) {
  std::vector<Sentence> sentences;
  for (const std::string& text : texts) {
    std::vector<int32_t> ids = model.words->encode_sentence(text, kNoLimit);
    const auto length = static_cast<int64_t>(ids.size());
    if (length > model.max_length) {
      const int32_t end = ids.back();
      ids.resize(static_cast<size_t>(model.max_length));
      ids.back() = end;
    }
    sentences.push_back({text, std::move(ids), length});
  }
  return sentences;
}

std::string cut_note(const std::vector<Sentence>& sentences, int64_t max_length) {
  const auto cut = [&](const Sentence& s) { return s.length > max_length; };
  const auto first = std::find_if(sentences.begin(), sentences.end(), cut);
  if (first == sentences.end()) return "";
  const auto count = std::count_if(first, sentences.end(), cut);
  return detail::concat(count, " of ", sentences.size(), sentences.size() == 1 ? " text" : " texts",
                        count == 1 ? " is" : " are", " longer than ", max_length, " tokens and ",
                        count == 1 ? "was" : "were", " cut, the first: text ",
                        first - sentences.begin() + 1, " (", first->length, " tokens)");
}

Tensor sentence_vectors(SentenceModel& model, const std::vector<Sentence>& sentences,
                        int64_t batch_size) {
  const InferenceModeGuard inference;
  const auto count = sentences.size();
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return sentences[a].ids.size() < sentences[b].ids.size();
  });
  Tensor vectors = empty({static_cast<int64_t>(count), model.bert->options().size});
  const auto step = static_cast<size_t>(batch_size);
  for (size_t at = 0; at < count; at += step) {
    const auto batch = std::span(order).subspan(at, std::min(step, count - at));
    const Tensor part = run_batch(model, sentences, batch).to(kCPU);
    for (size_t i = 0; i < batch.size(); ++i) {
      vectors[static_cast<int64_t>(batch[i])].copy_(part[static_cast<int64_t>(i)]);
    }
  }
  return vectors;
}

}  // namespace tarn::apps
