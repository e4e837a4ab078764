// flat_unit.cpp - parameters in one buffer, of which each rank owns a piece.
#include "tarn/dist/flat_unit.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn::dist {
namespace {

constexpr int64_t kAlignment = 64;  // bytes
int64_t aligned(int64_t numel, DType dtype) {
  const int64_t unit = std::max<int64_t>(1, kAlignment / item_size(dtype));
  return (numel + unit - 1) / unit * unit;
}

// A tensor over part of a buffer. Not made as a view: parameters and gradients are written in
// place.
Tensor over(const Tensor& buffer, int64_t offset, const Shape& sizes) {
  return Tensor(buffer.storage(), sizes, contiguous_strides(sizes),
                buffer.storage_offset() + offset, buffer.dtype());
}

// The same memory under a version of its own, which keeps it alive.
Tensor with_own_version(const Tensor& buffer, int64_t offset, int64_t count) {
  const Ref<Storage> whole = buffer.storage();
  char* at = static_cast<char*>(buffer.data()) + offset * item_size(buffer.dtype());
  const size_t bytes = static_cast<size_t>(count * item_size(buffer.dtype()));
  return Tensor(Storage::wrap(at, bytes, buffer.device(), [whole] {}), {count}, {1}, 0,
                buffer.dtype());
}

}  // namespace

FlatUnit::FlatUnit(ProcessGroup& group, const TensorDict& parameters, bool sharded)
    : group_(group), sharded_(sharded) {
  const MemoryTagGuard tag(MemoryTag::kParameters);
  const Tensor& first = parameters.begin()->second;
  int64_t numel = 0;
  for (const auto& [name, param] : parameters) {
    members_.push_back({name, param, {}, numel});
    numel = aligned(numel + param.numel(), param.dtype());
  }
  chunk_ = aligned((numel + group.size() - 1) / group.size(), first.dtype());
  flat_ = zeros({chunk_ * group.size()}, {.dtype = first.dtype(), .device = first.device()});
  for (const Member& m : members_) {
    const Tensor place = part_of(flat_, m);
    raw::copy_(place, m.param);
    raw::set_data(m.param, place);
  }
  if (sharded_) own_ = raw::narrow(flat_, 0, group.rank() * chunk_, chunk_).clone();
  for (Member& m : members_) {
    const Span mine = owned(m, group.rank());
    const Tensor& memory = sharded_ ? own_ : flat_;
    const int64_t base = sharded_ ? group.rank() * chunk_ : 0;
    const int64_t at = mine.count > 0 ? m.offset + mine.begin - base : 0;
    m.shard = with_own_version(memory, at, mine.count);
    m.shard.set_requires_grad(m.param.requires_grad());
  }
  seen_ = flat_.version();
  if (sharded_) {
    why_away_ = why_away();
    release();
  }
}

// The parameters may outlive this object.
Storage::WhyAway FlatUnit::why_away() const {
  std::vector<std::pair<int64_t, std::string>> names;
  for (const Member& m : members_) names.emplace_back(m.offset, m.name);
  return [names = std::make_shared<const decltype(names)>(std::move(names))](int64_t offset) {
    const auto next = std::find_if(names->begin() + 1, names->end(),
                                   [&](const auto& name) { return name.first > offset; });
    return "ZeRO stage 3: " + std::prev(next)->second +
           " is sharded, and its whole is not in memory now; call the module as a function, or "
           "read it inside zero.gathered()";
  };
}

Span FlatUnit::owned(const Member& member, int rank) const {
  const int64_t end = member.offset + member.param.numel();
  const int64_t from = std::max(member.offset, rank * chunk_);
  const int64_t to = std::min(end, (rank + 1) * chunk_);
  return to > from ? Span{from - member.offset, to - from} : Span{};
}

Tensor FlatUnit::part_of(const Tensor& buffer, const Member& member) {
  return over(buffer, member.offset, member.param.sizes());
}

Tensor FlatUnit::shard_of(const Tensor& piece, const Member& member) const {
  const Span mine = owned(member, group_.rank());
  const int64_t at = mine.count > 0 ? member.offset + mine.begin - group_.rank() * chunk_ : 0;
  return over(piece, at, {mine.count});
}

// What this rank gives to the others.
Tensor FlatUnit::piece() const {
  return sharded_ ? own_ : over(flat_, group_.rank() * chunk_, {chunk_});
}

void FlatUnit::start_gather() {
  if (whole_ || work_) return;
  if (sharded_) {
    const MemoryTagGuard tag(MemoryTag::kParameters);
    arriving_ = empty(flat_.sizes(), {.dtype = flat_.dtype(), .device = flat_.device()});
  }
  work_ = group_.all_gather(sharded_ ? arriving_ : flat_, piece());
}

void FlatUnit::wait_gathered() {
  if (!work_) return;
  std::exchange(work_, nullptr)->wait();
  if (sharded_) flat_.storage()->adopt(*arriving_.storage());
  arriving_ = Tensor();
  whole_ = true;
  seen_ = flat_.version();
}

void FlatUnit::shards_changed() {
  whole_ = false;
  if (!sharded_) return;
  // The next gather fills the buffer through other memory, which its version does not see.
  flat_.bump_version();
  release();
}

void FlatUnit::release() {
  if (!sharded_) return;
  wait_gathered();
  whole_ = false;
  flat_.storage()->drop_memory(why_away_);
}

bool FlatUnit::take_written() {
  if (!whole_ || flat_.version() == seen_) return false;
  seen_ = flat_.version();
  if (sharded_) raw::copy_(own_, over(flat_, group_.rank() * chunk_, {chunk_}));
  for (const Member& m : members_) m.shard.bump_version();
  return true;
}

}  // namespace tarn::dist
