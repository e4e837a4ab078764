// emu_warp.h - block barriers and warp-level functions of the device language.
#pragma once

#include <cstring>

#include "tarn/cuda/emu/kernel_api.h"

inline void __syncthreads(tarn::emu::Place place = tarn::emu::Place::current()) {
  tarn::emu::barrier(place);
}
inline int __syncthreads_count(int p, tarn::emu::Place place = tarn::emu::Place::current()) {
  return tarn::emu::barrier_vote(p, tarn::emu::Vote::kCount, place);
}
inline int __syncthreads_and(int p, tarn::emu::Place place = tarn::emu::Place::current()) {
  return tarn::emu::barrier_vote(p, tarn::emu::Vote::kAnd, place);
}
inline int __syncthreads_or(int p, tarn::emu::Place place = tarn::emu::Place::current()) {
  return tarn::emu::barrier_vote(p, tarn::emu::Vote::kOr, place);
}

inline void __threadfence() {
  tarn::emu::fence();
}
inline void __threadfence_block() {
  tarn::emu::fence();
}
inline void __threadfence_system() {
  tarn::emu::fence();
}
inline void __nanosleep(unsigned) {}

inline void __syncwarp(unsigned mask = ~0u, tarn::emu::Place place = tarn::emu::Place::current()) {
  int in = 0, out = 0;
  tarn::emu::warp_pick(tarn::emu::WarpCall::kSync, mask, &in, sizeof in, tarn::emu::kOwnLane, &out,
                       place);
}

namespace tarn::emu {

template <class T>
T shuffle(WarpCall call, unsigned mask, T value, int source, Place place) {
  static_assert(sizeof(T) <= kLaneBytes);
  T out;
  warp_pick(call, mask, &value, sizeof value, source, &out, place);
  return out;
}

inline int segment_of(int lane, int width) {
  return lane & ~(width - 1);
}

// Calls fold(acc, value) for every lane of the mask, in lane order.
template <class T, class Fold>
T fold_lanes(WarpCall call, unsigned mask, T value, T acc, Place place, Fold fold) {
  LaneValues lanes;
  warp_exchange(call, mask, &value, sizeof value, lanes, place);
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    T other;
    std::memcpy(&other, lanes.bytes[lane], sizeof other);
    acc = fold(acc, other, lane);
  }
  return acc;
}

inline unsigned ballot(WarpCall call, unsigned mask, bool predicate, Place place) {
  return fold_lanes(call, mask, unsigned{predicate}, 0u, place,
                    [](unsigned acc, unsigned p, int lane) { return acc | p << lane; });
}

}  // namespace tarn::emu

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              tarn::emu::Place place = tarn::emu::Place::current()) {
  const int lane = static_cast<int>(tarn::emu::current_lane);
  return tarn::emu::shuffle(tarn::emu::WarpCall::kShuffle, mask, value,
                            tarn::emu::segment_of(lane, width) + (source & (width - 1)), place);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32,
                  tarn::emu::Place place = tarn::emu::Place::current()) {
  const int lane = static_cast<int>(tarn::emu::current_lane), source = lane ^ bits;
  const bool outside = tarn::emu::segment_of(source, width) > tarn::emu::segment_of(lane, width);
  return tarn::emu::shuffle(tarn::emu::WarpCall::kXor, mask, value,
                            outside ? tarn::emu::kOwnLane : source, place);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   tarn::emu::Place place = tarn::emu::Place::current()) {
  const int lane = static_cast<int>(tarn::emu::current_lane);
  const int source = lane + static_cast<int>(delta);
  const bool outside = tarn::emu::segment_of(source, width) != tarn::emu::segment_of(lane, width);
  return tarn::emu::shuffle(tarn::emu::WarpCall::kDown, mask, value,
                            outside ? tarn::emu::kOwnLane : source, place);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 tarn::emu::Place place = tarn::emu::Place::current()) {
  const int lane = static_cast<int>(tarn::emu::current_lane);
  const int source = lane - static_cast<int>(delta);
  const bool outside = source < tarn::emu::segment_of(lane, width);
  return tarn::emu::shuffle(tarn::emu::WarpCall::kUp, mask, value,
                            outside ? tarn::emu::kOwnLane : source, place);
}

inline unsigned __ballot_sync(unsigned mask, int p,
                              tarn::emu::Place place = tarn::emu::Place::current()) {
  return tarn::emu::ballot(tarn::emu::WarpCall::kBallot, mask, p != 0, place);
}
inline int __any_sync(unsigned mask, int p, tarn::emu::Place place = tarn::emu::Place::current()) {
  return tarn::emu::ballot(tarn::emu::WarpCall::kVote, mask, p != 0, place) != 0;
}
inline int __all_sync(unsigned mask, int p, tarn::emu::Place place = tarn::emu::Place::current()) {
  return tarn::emu::ballot(tarn::emu::WarpCall::kVote, mask, p == 0, place) == 0;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value,
                          tarn::emu::Place place = tarn::emu::Place::current()) {
  tarn::emu::LaneValues lanes;
  tarn::emu::warp_exchange(tarn::emu::WarpCall::kMatch, mask, &value, sizeof value, lanes, place);
  unsigned same = 0;
  for (int lane = 0; lane < 32; ++lane) {
    const bool in_mask = (mask >> lane & 1) != 0;
    if (in_mask && std::memcmp(lanes.bytes[lane], &value, sizeof value) == 0) same |= 1u << lane;
  }
  return same;
}
template <class T>
unsigned __match_all_sync(unsigned mask, T value, int* predicate,
                          tarn::emu::Place place = tarn::emu::Place::current()) {
  *predicate = __match_any_sync(mask, value, place) == mask;
  return *predicate ? mask : 0;
}

#define TARN_EMU_REDUCE(name, expression)                                                        \
  template <class T>                                                                             \
  T name(unsigned mask, T value, tarn::emu::Place place = tarn::emu::Place::current()) {         \
    static_assert(sizeof(T) == 4 && std::is_integral_v<T>, "defined for int and unsigned only"); \
    bool first = true;                                                                           \
    return tarn::emu::fold_lanes(tarn::emu::WarpCall::kReduce, mask, value, T{}, place,          \
                                 [&first](T a, T b, int) -> T {                                  \
                                   if (std::exchange(first, false)) return b;                    \
                                   return expression;                                            \
                                 });                                                             \
  }
TARN_EMU_REDUCE(__reduce_add_sync, T(unsigned(a) + unsigned(b)))
TARN_EMU_REDUCE(__reduce_min_sync, b < a ? b : a)
TARN_EMU_REDUCE(__reduce_max_sync, a < b ? b : a)
TARN_EMU_REDUCE(__reduce_and_sync, T(a& b))
TARN_EMU_REDUCE(__reduce_or_sync, T(a | b))
TARN_EMU_REDUCE(__reduce_xor_sync, T(a ^ b))
#undef TARN_EMU_REDUCE
