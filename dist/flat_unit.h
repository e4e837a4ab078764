// flat_unit.h - FlatUnit: parameters in one buffer, of which each rank owns a piece.
//
//        0             chunk           2 chunk          3 chunk
//   flat [ a a a a a a a | a a b b b b c c | c - - - - - - - ]      (- is padding)
//        '-- of rank 0 --'-- of rank 1 ----'-- of rank 2 ----'
//
// The module's parameters are views of the buffer. A rank's shard of a parameter is what its piece
// holds of it: a run of elements, often none. Parameters begin at multiples of 64 bytes, so that
// kernels see them as if each had memory of its own, and so do the pieces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tarn/core/tensor_dict.h"
#include "tarn/dist/group.h"

namespace tarn::dist {

/// Where part of something begins, and how long it is.
struct Span {
  int64_t begin = 0, count = 0;
};

/// Parameters of one dtype on one device. Not thread-safe.
class FlatUnit {
 public:
  struct Member {
    std::string name;
    Tensor param;        ///< the module's
    Tensor shard;        ///< [n]: what this rank owns of it, with a version of its own
    int64_t offset = 0;  ///< of the parameter in the buffer, in elements
  };

  /// Moves the parameters to a buffer: they keep their values and stay the same tensors. sharded:
  /// the shards get memory of their own, and the buffer none until it is gathered.
  FlatUnit(ProcessGroup& group, const TensorDict& parameters, bool sharded);
  FlatUnit(const FlatUnit&) = delete;
  FlatUnit& operator=(const FlatUnit&) = delete;

  const std::vector<Member>& members() const { return members_; }
  /// Whether its parameters required a gradient when it was made: all of them do, or none.
  bool trained() const { return members_[0].shard.requires_grad(); }
  /// False once somebody gave a parameter other memory, as by converting its module.
  bool holds(const Member& member) const { return member.param.storage() == flat_.storage(); }
  /// Elements of a rank's piece.
  int64_t chunk() const { return chunk_; }
  int64_t numel() const { return flat_.numel(); }
  DType dtype() const { return flat_.dtype(); }
  Device device() const { return flat_.device(); }
  /// What rank `rank` owns of a member, in elements of the parameter.
  Span owned(const Member& member, int rank) const;
  /// The part of a buffer of this unit's numel() that belongs to a member, in its sizes.
  static Tensor part_of(const Tensor& buffer, const Member& member);
  /// The part of a piece (of chunk() elements) that belongs to this rank's shard of a member.
  Tensor shard_of(const Tensor& piece, const Member& member) const;

  /// Gives everyone everyone's shards: starts at once, is there when wait_gathered has returned.
  /// Nothing where the buffer is whole already, or on its way.
  void start_gather();
  void wait_gathered();
  /// The shards were written to: what was gathered no longer counts, and is given back.
  void shards_changed();
  /// Gives the buffer's memory back, if this unit is sharded. What is on its way is waited for.
  void release();
  /// Brings what somebody wrote to the parameters since they were gathered to the shards. Returns
  /// whether there was something.
  bool take_written();

 private:
  Tensor piece() const;
  Storage::WhyAway why_away() const;

  ProcessGroup& group_;
  bool sharded_;
  std::vector<Member> members_;
  int64_t chunk_ = 0;
  Tensor flat_;      // [W * chunk]
  Tensor own_;       // [chunk], sharded: memory of the shards
  Tensor arriving_;  // sharded: the buffer on its way, in memory that becomes flat_'s
  WorkPtr work_;
  Storage::WhyAway why_away_;  // of a parameter whose memory was given back
  bool whole_ = true;          // the buffer holds what the shards hold
  uint32_t seen_ = 0;          // flat_'s version when it last held what the shards hold
};

}  // namespace tarn::dist
