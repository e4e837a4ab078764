// collectives.cpp - the header, the exchange of blocks, and the collectives that do not reduce.
#include "tarn/dist/collectives.h"

#include <cstring>
#include <sstream>

namespace tarn::dist {
namespace {

using Kind = CollectiveKind;
constexpr size_t kFirst = sizeof(Header) + kInlineBytes;

// Sizes that may differ between ranks: only each pair has to agree.
bool uneven(Kind kind) {
  return kind == Kind::kAllGather || kind == Kind::kAllToAll || kind == Kind::kGather ||
         kind == Kind::kScatter;
}

std::vector<Packed> pack_each(const std::vector<Tensor>& tensors, size_t groups, bool fill) {
  // tensor i of rank r stands at i * groups + r
  std::vector<Packed> packed;
  for (size_t r = 0; r < groups && !tensors.empty(); ++r) {
    std::vector<Tensor> some;
    for (size_t i = r; i < tensors.size(); i += groups) some.push_back(tensors[i]);
    packed.emplace_back(std::move(some), fill);
  }
  return packed;
}

}  // namespace

std::string Header::describe() const {
  std::ostringstream text;
  text << kind_name(kind);
  if (kind != Kind::kSend && kind != Kind::kReceive) text << " #" << sequence;
  if (kind == Kind::kBarrier) return text.str();
  text << " of " << (total > 0 ? total : bytes) << " bytes "
       << dtype_name(static_cast<DType>(dtype));
  const bool reduces =
      kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
  if (reduces) text << " (" << op_name(op) << ")";
  if (root >= 0 && kind != Kind::kSend) text << " (root " << root << ")";
  return text.str();
}

std::string Header::bytes_of() const {
  return {reinterpret_cast<const char*>(this), sizeof *this};
}

Header Header::from_bytes(const std::string& bytes) {
  Header header{.magic = 0};
  if (bytes.size() == sizeof header) std::memcpy(&header, bytes.data(), sizeof header);
  return header;
}

void Header::check(const Header& theirs, int peer) const {
  if (theirs.magic == magic && theirs.kind == kind && theirs.op == op && theirs.dtype == dtype &&
      theirs.root == root && theirs.sequence == sequence && theirs.total == total &&
      theirs.bytes == bytes && theirs.step == step) {
    return;
  }
  if (theirs.magic != magic || theirs.kind > Kind::kReceive || theirs.dtype >= kNumDTypes ||
      theirs.op > ReduceOp::kBitOr) {
    throw PeerError(peer, "rank " + std::to_string(peer) + " sent bytes that are no header");
  }
  throw PeerError(peer, "rank " + std::to_string(peer) + " called " + theirs.describe() +
                            ", but this rank " + describe());
}

Collectives::Collectives(Channel& channel, int rank, int size)
    : channel_(channel), rank_(rank), size_(size) {}

std::byte* Collectives::scratch(std::vector<std::byte>& buffer, size_t bytes) const {
  if (buffer.size() < bytes) buffer = std::vector<std::byte>(bytes);
  return buffer.data();
}

Header header_of(const Collective& c, uint64_t sequence) {
  Header header{.kind = c.kind, .op = c.op, .root = c.root, .sequence = sequence};
  const auto& tensors = c.inputs.empty() ? c.outputs : c.inputs;
  if (!tensors.empty()) header.dtype = static_cast<uint8_t>(tensors[0].dtype());
  if (!uneven(c.kind)) header.total = static_cast<uint64_t>(c.bytes());
  return header;
}

void Collectives::run(const Collective& c, uint64_t sequence, Clock::time_point deadline) {
  header_ = header_of(c, sequence);
  step_ = 0;
  deadline_ = deadline;
  switch (c.kind) {
    case Kind::kAllReduce:
      return all_reduce(c);
    case Kind::kReduce:
      return reduce(c);
    case Kind::kBroadcast:
      return broadcast(c);
    case Kind::kAllGather:
      return all_gather(c);
    case Kind::kReduceScatter:
      return reduce_scatter(c);
    case Kind::kAllToAll:
      return all_to_all(c);
    case Kind::kGather:
      return gather(c);
    case Kind::kScatter:
      return scatter(c);
    case Kind::kBarrier:
      return synchronize();
    case Kind::kSend:
    case Kind::kReceive:
      break;  // point_to_point.h
  }
}

// Sends out[r] to and receives in[r] from every rank r where they are active; all at once.
void Collectives::exchange(const Blocks& out, const Blocks& in) {
  const uint64_t first = slot(step_), rest = slot(step_ + 1);
  header_.step = static_cast<uint8_t>(step_);
  step_ += 2;
  const size_t n = static_cast<size_t>(size_);
  std::byte* outgoing = scratch(first_out_, n * kFirst);
  std::byte* incoming = scratch(first_in_, n * kFirst);

  std::vector<TransferPtr> arrivals(n), departures;
  for (size_t r = 0; r < n; ++r) {
    if (in[r].active && !is_me(static_cast<int>(r))) {
      arrivals[r] = channel_.receive(static_cast<int>(r), first, incoming + r * kFirst, kFirst);
    }
  }
  for (size_t r = 0; r < n; ++r) {
    const Block& b = out[r];
    if (!b.active) continue;
    if (is_me(static_cast<int>(r))) {
      if (in[r].data != b.data && b.bytes > 0) std::memcpy(in[r].data, b.data, b.bytes);
      continue;
    }
    Header header = header_;
    header.bytes = b.bytes;
    std::byte* message = outgoing + r * kFirst;
    std::memcpy(message, &header, sizeof header);
    const bool fits = b.bytes <= kInlineBytes;
    if (fits && b.bytes > 0) std::memcpy(message + sizeof header, b.data, b.bytes);
    const int to = static_cast<int>(r);
    departures.push_back(channel_.send(to, first, message, sizeof header + (fits ? b.bytes : 0)));
    if (!fits) departures.push_back(channel_.send(to, rest, b.data, b.bytes));
  }
  std::vector<TransferPtr> large;
  for (size_t r = 0; r < n; ++r) {
    if (!arrivals[r]) continue;
    const int from = static_cast<int>(r);
    arrivals[r]->wait(deadline_);
    Header theirs, mine = header_;
    std::memcpy(&theirs, incoming + r * kFirst, sizeof theirs);
    mine.bytes = in[r].bytes;
    mine.check(theirs, from);
    if (in[r].bytes > kInlineBytes) {
      large.push_back(channel_.receive(from, rest, in[r].data, in[r].bytes));
    } else if (in[r].bytes > 0) {
      std::memcpy(in[r].data, incoming + r * kFirst + sizeof theirs, in[r].bytes);
    }
  }
  for (const TransferPtr& transfer : large) transfer->wait(deadline_);
  for (const TransferPtr& transfer : departures) transfer->wait(deadline_);
}

// Headers alone, between all: returns when every rank is in this collective, and agrees.
void Collectives::synchronize() {
  Blocks all = blocks();
  for (Block& b : all) b.active = true;
  exchange(all, all);
}

// A binomial tree: in round k, ranks below 2^k (counted from root) pass on to those 2^k further.
void Collectives::broadcast(const Collective& c) {
  const Packed data(c.inputs, is_me(c.root));
  const Block block{data.data(), data.bytes(), true};
  const int place = (rank_ - c.root + size_) % size_;
  const auto rank_at = [&](int p) { return (p + c.root) % size_; };
  int reach = 1;
  while (reach <= place) reach *= 2;
  const uint64_t start = step_;
  if (place > 0) {
    Blocks in = blocks();
    at(in, rank_at(place - reach / 2)) = block;
    exchange(blocks(), in);
  }
  step_ = start;  // each pair of ranks meets once, so one slot serves all
  Blocks out = blocks();
  for (; place + reach < size_; reach *= 2) at(out, rank_at(place + reach)) = block;
  exchange(out, blocks());
  if (place > 0) data.unpack();
}

void Collectives::all_gather(const Collective& c) {
  const Packed mine(c.inputs, true);
  const auto outs = pack_each(c.outputs, static_cast<size_t>(size_), false);
  Blocks out = blocks(), in = blocks();
  for (size_t r = 0; r < outs.size(); ++r) {
    out[r] = {mine.data(), mine.bytes(), true};
    in[r] = {outs[r].data(), outs[r].bytes(), true};
  }
  exchange(out, in);
  for (const Packed& p : outs) p.unpack();
}

void Collectives::all_to_all(const Collective& c) {
  const auto xs = pack_each(c.inputs, static_cast<size_t>(size_), true);
  const auto outs = pack_each(c.outputs, static_cast<size_t>(size_), false);
  Blocks out = blocks(), in = blocks();
  for (size_t r = 0; r < outs.size(); ++r) {
    out[r] = {xs[r].data(), xs[r].bytes(), true};
    in[r] = {outs[r].data(), outs[r].bytes(), true};
  }
  exchange(out, in);
  for (const Packed& p : outs) p.unpack();
}

void Collectives::gather(const Collective& c) {
  const Packed mine(c.inputs, true);
  const auto outs = pack_each(c.outputs, static_cast<size_t>(size_), false);
  Blocks out = blocks(), in = blocks();
  at(out, c.root) = {mine.data(), mine.bytes(), true};
  for (size_t r = 0; r < outs.size(); ++r) in[r] = {outs[r].data(), outs[r].bytes(), true};
  exchange(out, in);
  for (const Packed& p : outs) p.unpack();
}

void Collectives::scatter(const Collective& c) {
  const Packed mine(c.outputs, false);
  const auto xs = pack_each(c.inputs, static_cast<size_t>(size_), true);
  Blocks out = blocks(), in = blocks();
  at(in, c.root) = {mine.data(), mine.bytes(), true};
  for (size_t r = 0; r < xs.size(); ++r) out[r] = {xs[r].data(), xs[r].bytes(), true};
  exchange(out, in);
  mine.unpack();
}

}  // namespace tarn::dist
