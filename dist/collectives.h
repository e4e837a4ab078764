// collectives.h - every collective, in terms of messages between two ranks.
//
// Note [Rank order]
// A sum of floats depends on its order. The usual ring starts each chunk at another rank, so the
// result of an element depends on where in the message it stands, and with it on the sizes of DDP's
// buckets. Here the owner of a chunk gets that chunk from every rank and adds in rank order; then
// it sends the result to all. This moves the same bytes as the ring, 2 (W-1)/W per element and
// rank, in two steps instead of 2 (W-1), and the halves are rounded once. What it costs is W-1 open
// connections per rank.
//
// Note [First message]
// The first message between two ranks of a collective carries a fixed header (operation, dtype,
// number, sizes) and, if it fits, the data. A rank that called something else is found out before
// any data moves, and the receiver never gets more bytes than it has room for, which Gloo would
// answer by ending the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tarn/dist/channel.h"
#include "tarn/dist/collective.h"
#include "tarn/dist/pack.h"

namespace tarn::dist {

/// Payload that travels with the header; above it, data goes in messages of its own.
inline constexpr size_t kInlineBytes = 32 * 1024;

/// What every first message starts with.
struct Header {
  uint32_t magic = 0x7461726e;  // "tarn"
  CollectiveKind kind = CollectiveKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  uint8_t dtype = 0;
  uint8_t step = 0;
  int64_t root = -1;
  uint64_t sequence = 0;
  uint64_t total = 0;  // bytes of the whole, where all ranks must agree
  uint64_t bytes = 0;  // bytes of this message

  /// "all_reduce #5 of 40 bytes f32 (sum)".
  std::string describe() const;
  /// For a store, and back; of a wrong number of bytes: a header that check() refuses.
  std::string bytes_of() const;
  static Header from_bytes(const std::string& bytes);
  /// Throws PeerError, in the words of the rank that received `theirs` from `peer`.
  void check(const Header& theirs, int peer) const;
};
static_assert(sizeof(Header) == 40);
/// What all ranks of a collective must agree on.
Header header_of(const Collective& c, uint64_t sequence);

/// Runs collectives over one channel. Not thread-safe.
class Collectives {
 public:
  Collectives(Channel& channel, int rank, int size);
  /// Runs one to its end. Throws what Transfer::wait throws, and PeerError for a rank that called
  /// something else.
  void run(const Collective& c, uint64_t sequence, Clock::time_point deadline);

 private:
  struct Block {
    std::byte* data = nullptr;
    size_t bytes = 0;
    bool active = false;  // a message goes even if it has no bytes
  };
  using Blocks = std::vector<Block>;  // one per rank

  void all_reduce(const Collective& c);
  void reduce(const Collective& c);
  void broadcast(const Collective& c);
  void all_gather(const Collective& c);
  void reduce_scatter(const Collective& c);
  void all_to_all(const Collective& c);
  void gather(const Collective& c);
  void scatter(const Collective& c);

  void exchange(const Blocks& out, const Blocks& in);
  void synchronize();
  void agree_on_sizes(const Blocks& chunks);
  void fold_chunks(const Collective& c, const Blocks& chunks, std::byte* mine, bool share);
  void fold_received(const Collective& c, const std::byte* own, const std::byte* others,
                     size_t stride, std::byte* out, size_t bytes);
  Blocks blocks() const { return Blocks(static_cast<size_t>(size_)); }
  Block& at(Blocks& blocks, int rank) const { return blocks[static_cast<size_t>(rank)]; }
  uint64_t slot(uint64_t step) const { return (header_.sequence << 20) | step; }
  std::byte* scratch(std::vector<std::byte>& buffer, size_t bytes) const;
  bool is_me(int rank) const { return rank == rank_; }

  Channel& channel_;
  int rank_, size_;
  Header header_;  // of the collective that runs
  uint64_t step_ = 0;
  Clock::time_point deadline_{};
  std::vector<std::byte> first_out_, first_in_, work_;
};

}  // namespace tarn::dist
