// bpe_train.cpp - learning merges: count pairs once, then only what a merge changes.
#include <algorithm>
#include <queue>
#include <tuple>
#include <unordered_set>

#include "tarn/core/error.h"
#include "tarn/data/bpe.h"
#include "tarn/data/bpe_bytes.h"

namespace tarn::data {
namespace {

using Pair = std::pair<int32_t, int32_t>;

struct PairHash {
  size_t operator()(const Pair& p) const {
    return (static_cast<uint64_t>(p.first) << 32 | static_cast<uint32_t>(p.second)) *
               0x9E3779B97F4A7C15u >>
           20;
  }
};

// A piece of the text, as tokens, and how often it occurs.
struct Word {
  std::vector<int32_t> tokens;
  int64_t count = 0;
};

class Trainer {
 public:
  explicit Trainer(std::string_view text) {
    const auto order = detail::bytes_in_id_order();
    int32_t ids[256];
    for (size_t i = 0; i < 256; ++i) {
      ids[order[i]] = static_cast<int32_t>(i);
      pieces_.emplace_back(1, static_cast<char>(order[i]));
    }
    std::unordered_map<std::string_view, size_t> index;
    split_gpt2(text, [&](std::string_view piece) {
      const auto [found, fresh] = index.try_emplace(piece, words_.size());
      if (fresh) {
        Word& word = words_.emplace_back();
        for (const char c : piece) word.tokens.push_back(ids[static_cast<uint8_t>(c)]);
      }
      ++words_[found->second].count;
    });
    for (size_t w = 0; w < words_.size(); ++w) {
      count_pairs(w, 1);
      note_pairs(w);
    }
    for (const auto& [pair, count] : counts_) queue_.push({count, pair});
  }

  // One more token. Returns false if no pair occurs twice.
  bool learn() {
    while (!queue_.empty()) {
      const Entry best = queue_.top();
      queue_.pop();
      const int64_t now = counts_[best.pair];
      if (now != best.count) {  // counted before other merges took some away
        if (now > 1) queue_.push({now, best.pair});
        continue;
      }
      if (now < 2) return false;
      merge(best.pair);
      return true;
    }
    return false;
  }

  std::vector<Bpe::Merge> merges() const { return merges_; }

 private:
  struct Entry {
    int64_t count;
    Pair pair;
    bool operator<(const Entry& b) const {
      return std::tie(count, b.pair) < std::tie(b.count, pair);
    }
  };

  void count_pairs(size_t w, int sign) {
    const Word& word = words_[w];
    for (size_t i = 0; i + 1 < word.tokens.size(); ++i) {
      counts_[{word.tokens[i], word.tokens[i + 1]}] += sign * word.count;
    }
  }
  void note_pairs(size_t w) {
    const auto& tokens = words_[w].tokens;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) where_[{tokens[i], tokens[i + 1]}].insert(w);
  }

  void merge(const Pair pair) {
    const auto id = static_cast<int32_t>(pieces_.size());
    const std::string left = pieces_[static_cast<size_t>(pair.first)];
    const std::string right = pieces_[static_cast<size_t>(pair.second)];
    merges_.emplace_back(detail::printable(left), detail::printable(right));
    pieces_.push_back(left + right);
    const auto words = std::move(where_[pair]);
    where_.erase(pair);
    std::unordered_set<Pair, PairHash> grown;
    for (const size_t w : words) {
      count_pairs(w, -1);
      auto& tokens = words_[w].tokens;
      size_t to = 0;
      for (size_t i = 0; i < tokens.size(); ++i) {
        const bool both =
            i + 1 < tokens.size() && tokens[i] == pair.first && tokens[i + 1] == pair.second;
        tokens[to++] = both ? id : tokens[i];
        i += both;
      }
      tokens.resize(to);
      count_pairs(w, 1);
      for (size_t i = 0; i + 1 < to; ++i) {
        if (tokens[i] != id && tokens[i + 1] != id) continue;
        const Pair fresh{tokens[i], tokens[i + 1]};
        where_[fresh].insert(w);
        grown.insert(fresh);
      }
    }
    for (const Pair& p : grown) queue_.push({counts_[p], p});
  }

  std::vector<Word> words_;
  std::vector<std::string> pieces_;
  std::vector<Bpe::Merge> merges_;
  std::unordered_map<Pair, int64_t, PairHash> counts_;
  std::unordered_map<Pair, std::unordered_set<size_t>, PairHash> where_;
  std::priority_queue<Entry> queue_;
};

}  // namespace

std::unique_ptr<Bpe> train_bpe(std::string_view text, int64_t vocab_size) {
  TARN_CHECK_AS(ValueError, vocab_size >= 257,
                "train_bpe: the vocabulary needs 256 bytes and <|endoftext|>, 257 tokens; got ",
                vocab_size);
  Trainer trainer(text);
  for (int64_t size = 257; size < vocab_size && trainer.learn(); ++size) {
  }
  return std::make_unique<Bpe>(trainer.merges());
}

}  // namespace tarn::data
