// bpe.cpp - encoding by merges in the order in which they were learned.
#include "tarn/data/bpe.h"

#include <queue>
#include <tuple>

#include "tarn/core/error.h"
#include "tarn/data/bpe_bytes.h"

namespace tarn::data {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

std::string bytes_of(const std::string& text) {
  auto bytes = detail::unprintable(text);
  TARN_CHECK_AS(ValueError, bytes && !bytes->empty(), "bpe: '", text,
                "' is no token: every character must stand for one byte");
  return *bytes;
}

}  // namespace

Bpe::Bpe(const std::vector<Merge>& merges, const std::vector<std::string>& specials)
    : merges_(merges), specials_(specials) {
  std::unordered_map<std::string, int32_t> ids;
  for (const uint8_t byte : detail::bytes_in_id_order()) {
    byte_ids_[byte] = static_cast<int32_t>(pieces_.size());
    ids.emplace(pieces_.emplace_back(1, static_cast<char>(byte)), byte_ids_[byte]);
  }
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string left = bytes_of(merges[rank].first), right = bytes_of(merges[rank].second);
    const auto l = ids.find(left), r = ids.find(right);
    TARN_CHECK_AS(ValueError, l != ids.end() && r != ids.end(), "bpe: merge ", rank, " joins '",
                  merges[rank].first, "' and '", merges[rank].second, "', but no merge before it ",
                  "makes '", l == ids.end() ? merges[rank].first : merges[rank].second, "'");
    const auto id = static_cast<int32_t>(pieces_.size());
    joined_.emplace(pair_key(l->second, r->second), Joined{static_cast<int32_t>(rank), id});
    TARN_CHECK_AS(ValueError, ids.emplace(left + right, id).second, "bpe: merge ", rank, " makes '",
                  merges[rank].first, merges[rank].second, "', which is there already");
    pieces_.push_back(left + right);
  }
  for (const std::string& special : specials) {
    if (special == "<|endoftext|>") end_of_text_ = static_cast<int32_t>(pieces_.size());
    pieces_.push_back(special);
  }
}

const Bpe::Joined* Bpe::find(int32_t left, int32_t right) const {
  const auto found = joined_.find(pair_key(left, right));
  return found == joined_.end() ? nullptr : &found->second;
}

// Merges lowest rank first, leftmost first, with a queue of candidate pairs: n log n for a piece of
// n bytes. A candidate is void if one of its tokens has changed since.
void Bpe::encode_piece(std::string_view piece, std::vector<int32_t>& ids) const {
  struct Token {
    int32_t id, next,
        previous;  // next, previous: -1 at the ends; id -1: merged into the one before
  };
  struct Candidate {
    int32_t rank, at, left, right, id;
    bool operator>(const Candidate& b) const { return std::tie(rank, at) > std::tie(b.rank, b.at); }
  };
  const auto n = static_cast<int32_t>(piece.size());
  std::vector<Token> tokens(piece.size());
  const auto token = [&](int32_t i) -> Token& { return tokens[static_cast<size_t>(i)]; };
  for (int32_t i = 0; i < n; ++i) {
    token(i) = {byte_ids_[static_cast<uint8_t>(piece[static_cast<size_t>(i)])],
                i + 1 < n ? i + 1 : -1, i - 1};
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto consider = [&](int32_t at) {
    if (at < 0 || token(at).next < 0) return;
    const int32_t left = token(at).id, right = token(token(at).next).id;
    if (const Joined* j = find(left, right)) queue.push({j->rank, at, left, right, j->id});
  };
  for (int32_t i = 0; i + 1 < n; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    Token& left = token(c.at);
    if (left.id != c.left || left.next < 0 || token(left.next).id != c.right) continue;
    Token& right = token(left.next);
    left.id = c.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) token(left.next).previous = c.at;
    consider(left.previous);
    consider(c.at);
  }
  for (int32_t i = 0; i >= 0; i = token(i).next) ids.push_back(token(i).id);
}

std::vector<int32_t> Bpe::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  // Words repeat: each is merged once. The range of its first ids in the result is the cache.
  std::unordered_map<std::string_view, std::pair<size_t, size_t>> seen;
  split_gpt2(text, [&](std::string_view piece) {
    const auto [found, fresh] = seen.try_emplace(piece, ids.size(), 0);
    if (fresh) {
      encode_piece(piece, ids);
      found->second.second = ids.size();
      return;
    }
    for (size_t i = found->second.first; i < found->second.second; ++i) ids.push_back(ids[i]);
  });
  return ids;
}

std::string Bpe::piece(int32_t id) const {
  check_id(id);
  return pieces_[static_cast<size_t>(id)];
}

}  // namespace tarn::data
