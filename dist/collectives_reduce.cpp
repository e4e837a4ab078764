// collectives_reduce.cpp - the collectives that reduce; see Note [Rank order] in collectives.h.
#include <algorithm>
#include <cstring>

#include "tarn/dist/collectives.h"
#include "tarn/dist/reduce.h"

namespace tarn::dist {
namespace {

// At most so many parts, so that a huge message does not become thousands of small ones.
constexpr size_t kMostSegments = 64;
// Parts that a rank has room for, of all ranks together: where many send, less depth is needed to
// keep it busy.
constexpr size_t kMostRoom = 8;

size_t segment_bytes(const Pipeline& pipeline, size_t chunk) {
  const auto whole_lines = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
  const size_t least = (chunk + kMostSegments - 1) / kMostSegments;
  return std::min(std::max(pipeline.segment, whole_lines(least)), whole_lines(chunk));
}

DType dtype_of_collective(const Collective& c) {
  return (c.inputs.empty() ? c.outputs : c.inputs)[0].dtype();
}

}  // namespace

// out = the fold, in rank order, of `own` and the other ranks' `others + r * stride`.
void Collectives::fold_received(const Collective& c, const std::byte* own, const std::byte* others,
                                size_t stride, std::byte* out, size_t bytes) {
  std::vector<const void*> inputs(static_cast<size_t>(size_));
  for (size_t r = 0; r < inputs.size(); ++r) {
    inputs[r] = is_me(static_cast<int>(r)) ? own : others + r * stride;
  }
  const DType dtype = dtype_of_collective(c);
  fold(c.op, dtype, inputs, out, static_cast<int64_t>(bytes) / item_size(dtype));
}

void Collectives::all_reduce(const Collective& c) {
  const Packed data(c.inputs, true);
  const size_t n = static_cast<size_t>(size_), bytes = data.bytes();
  Blocks out = blocks();
  if (bytes <= kInlineBytes) {
    // Everybody gets everything and adds for itself: one step.
    std::byte* received = scratch(work_, n * bytes);
    Blocks in = blocks();
    for (size_t r = 0; r < n; ++r) {
      out[r] = {data.data(), bytes, true};
      in[r] = {is_me(static_cast<int>(r)) ? data.data() : received + r * bytes, bytes, true};
    }
    exchange(out, in);
    if (bytes > 0) fold_received(c, data.data(), received, bytes, data.data(), bytes);
  } else {
    const size_t item = static_cast<size_t>(item_size(dtype_of_collective(c)));
    const size_t count = bytes / item;
    const auto bound = [&](size_t r) { return count * r / n * item; };
    for (size_t r = 0; r < n; ++r) out[r] = {data.data() + bound(r), bound(r + 1) - bound(r), true};
    synchronize();
    fold_chunks(c, out, at(out, rank_).data, true);
  }
  data.unpack();
}

void Collectives::reduce_scatter(const Collective& c) {
  const size_t n = static_cast<size_t>(size_);
  const Packed mine(c.outputs, false);
  std::vector<Packed> xs;
  Blocks chunks = blocks();
  size_t most = mine.bytes();
  for (size_t r = 0; r < n; ++r) {
    std::vector<Tensor> some;
    for (size_t i = r; i < c.inputs.size(); i += n) some.push_back(c.inputs[i]);
    xs.emplace_back(std::move(some), true);
    chunks[r] = {xs[r].data(), xs[r].bytes(), true};
    most = std::max(most, chunks[r].bytes);
  }
  // Ranks must see the same sizes of all chunks, and then decide alike.
  if (most <= kInlineBytes) {
    const size_t bytes = mine.bytes();
    std::byte* received = scratch(work_, n * bytes);
    Blocks in = blocks();
    for (size_t r = 0; r < n; ++r) in[r] = {received + r * bytes, bytes, true};
    at(in, rank_).data = at(chunks, rank_).data;
    exchange(chunks, in);
    if (bytes > 0) {
      fold_received(c, at(chunks, rank_).data, received, bytes, mine.data(), bytes);
    }
  } else {
    agree_on_sizes(chunks);
    fold_chunks(c, chunks, mine.data(), false);
  }
  mine.unpack();
}

// Parts that differ between ranks may have one sum: then the rest of a longer one would be missing.
void Collectives::agree_on_sizes(const Blocks& chunks) {
  const size_t n = chunks.size();
  std::vector<uint64_t> all(n * n);
  const auto row = [&](size_t r) { return all.data() + r * n; };
  const size_t me = static_cast<size_t>(rank_);
  for (size_t r = 0; r < n; ++r) row(me)[r] = chunks[r].bytes;
  const auto block = [&](size_t r) {
    return Block{reinterpret_cast<std::byte*>(row(r)), n * sizeof(uint64_t), true};
  };
  Blocks out = blocks(), in = blocks();
  for (size_t r = 0; r < n; ++r) {
    out[r] = block(me);
    in[r] = block(r);
  }
  exchange(out, in);
  for (size_t r = 0; r < n; ++r) {
    for (size_t part = 0; part < n; ++part) {
      if (row(r)[part] == row(me)[part]) continue;
      throw PeerError(
          static_cast<int>(r),
          tarn::detail::concat("rank ", r, " called ", header_.describe(), " with ", row(r)[part],
                               " bytes for rank ", part, ", but this rank with ", row(me)[part]));
    }
  }
}

// Every rank folds its own chunk into `mine`; share: then everybody gets all results, in place.
void Collectives::fold_chunks(const Collective& c, const Blocks& chunks, std::byte* mine,
                              bool share) {
  size_t most = 0;
  for (const Block& b : chunks) most = std::max(most, b.bytes);
  const size_t n = static_cast<size_t>(size_);
  const Pipeline pipeline = channel_.pipeline();
  const size_t segment = segment_bytes(pipeline, most);
  const size_t rounds = (most + segment - 1) / segment;
  const uint64_t there = step_, back = step_ + rounds;
  const auto piece = [&](size_t r, size_t s) -> Block {
    const size_t begin = std::min(s * segment, chunks[r].bytes);
    return {chunks[r].data + begin, std::min(segment, chunks[r].bytes - begin), true};
  };

  std::vector<TransferPtr> sends, results;
  for (size_t s = 0; s < rounds; ++s) {
    for (size_t r = 0; r < n; ++r) {
      const Block p = piece(r, s);
      const int peer = static_cast<int>(r);
      if (is_me(peer) || p.bytes == 0) continue;
      sends.push_back(channel_.send(peer, slot(there + s), p.data, p.bytes));
      // The result comes into the memory that was sent: its owner answers only after all of it
      // came.
      if (share) results.push_back(channel_.receive(peer, slot(back + s), p.data, p.bytes));
    }
  }
  // Sets of buffers in a ring: one is added while the others fill.
  const size_t depth = std::clamp<size_t>(kMostRoom / n, 2, pipeline.depth);
  std::byte* room = scratch(work_, depth * n * segment);
  std::vector<std::vector<TransferPtr>> arrivals(depth);
  const auto room_of = [&](size_t s, size_t r) { return room + (s % depth * n + r) * segment; };
  const size_t me = static_cast<size_t>(rank_);
  const auto listen = [&](size_t s) {
    const Block p = s < rounds ? piece(me, s) : Block{};
    for (size_t r = 0; r < n && p.bytes > 0; ++r) {
      if (is_me(static_cast<int>(r))) continue;
      arrivals[s % depth].push_back(
          channel_.receive(static_cast<int>(r), slot(there + s), room_of(s, r), p.bytes));
    }
  };
  for (size_t s = 0; s + 1 < depth; ++s) listen(s);
  for (size_t s = 0; s < rounds; ++s) {
    listen(s + depth - 1);
    for (const TransferPtr& transfer : arrivals[s % depth]) transfer->wait(deadline_);
    arrivals[s % depth].clear();
    const Block p = piece(me, s);
    if (p.bytes == 0) break;
    std::byte* out = mine + s * segment;
    fold_received(c, p.data, room_of(s, 0), segment, out, p.bytes);
    for (size_t r = 0; share && r < n; ++r) {
      const int peer = static_cast<int>(r);
      if (!is_me(peer)) sends.push_back(channel_.send(peer, slot(back + s), out, p.bytes));
    }
  }
  for (const TransferPtr& transfer : results) transfer->wait(deadline_);
  for (const TransferPtr& transfer : sends) transfer->wait(deadline_);
}

// The root gets segment after segment from all.
void Collectives::reduce(const Collective& c) {
  constexpr size_t kPiece = 1024 * 1024;
  const Packed data(c.inputs, true);
  const size_t n = static_cast<size_t>(size_);
  size_t begin = 0;
  do {
    const size_t bytes = std::min(kPiece, data.bytes() - begin);
    std::byte* own = data.data() + begin;
    Blocks out = blocks(), in = blocks();
    at(out, c.root) = {own, bytes, true};
    std::byte* received = is_me(c.root) ? scratch(work_, n * bytes) : nullptr;
    for (size_t r = 0; is_me(c.root) && r < n; ++r) in[r] = {received + r * bytes, bytes, true};
    if (is_me(c.root)) at(in, rank_).data = own;
    exchange(out, in);
    if (is_me(c.root) && bytes > 0) fold_received(c, own, received, bytes, own, bytes);
    begin += bytes;
  } while (begin < data.bytes());
  if (is_me(c.root)) data.unpack();
}

}  // namespace tarn::dist
