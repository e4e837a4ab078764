// warp.cpp - warp-level calls: the lanes of a mask meet, exchange values and go on.
//
// Stricter than a GPU: naming a lane that has left or never existed, reading a lane outside the
// mask, and two different calls meeting under one mask are errors, not undefined values.
#include <cstring>

#include "tarn/cuda/emu/block.h"

namespace tarn::emu {

const char* name_of(WarpCall call) {
  switch (call) {
    case WarpCall::kShuffle:
      return "__shfl_sync";
    case WarpCall::kUp:
      return "__shfl_up_sync";
    case WarpCall::kDown:
      return "__shfl_down_sync";
    case WarpCall::kXor:
      return "__shfl_xor_sync";
    case WarpCall::kBallot:
      return "__ballot_sync";
    case WarpCall::kVote:
      return "__any_sync/__all_sync";
    case WarpCall::kSync:
      return "__syncwarp";
    case WarpCall::kMatch:
      return "__match_sync";
    case WarpCall::kReduce:
      return "__reduce_sync";
  }
  return "";
}

namespace {

void check_mask(WarpCall call, unsigned mask, Place place) {
  if (running.current == nullptr) die("%s outside a kernel", name_of(call));
  const Thread& me = *running.current;
  if ((mask >> me.lane & 1) == 0) {
    die("%s %s:%u: lane %u is not in its own mask %08x", name_of(call), place.file, place.line,
        me.lane, mask);
  }
  if (const unsigned missing = mask & ~me.warp->live) {
    die("%s %s:%u: mask %08x names lanes %08x, which have left the kernel or do not exist",
        name_of(call), place.file, place.line, mask, missing);
  }
}

// The meeting that waits for this lane, or a new one.
Meeting& find_meeting(WarpCall call, unsigned mask, Place place) {
  Warp& warp = *running.current->warp;
  Meeting* unused = nullptr;
  for (const auto& meeting : warp.meetings) {
    if (meeting->mask == 0) unused = meeting.get();
    if (meeting->mask != mask || meeting->arrived == mask) continue;
    if (meeting->call != call || !(meeting->place == place)) {
      die("divergent warp calls under mask %08x: %s at %s:%u and %s at %s:%u", mask,
          name_of(meeting->call), meeting->place.file, meeting->place.line, name_of(call),
          place.file, place.line);
    }
    return *meeting;
  }
  if (unused == nullptr) {
    warp.meetings.push_back(std::make_unique<Meeting>());
    unused = warp.meetings.back().get();
  }
  unused->mask = unused->values.mask = mask;
  unused->arrived = 0;
  unused->readers = 0;
  unused->waiting_count = 0;
  unused->call = call;
  unused->place = place;
  return *unused;
}

Meeting& meet(WarpCall call, unsigned mask, const void* in, std::size_t size, Place place) {
  check_mask(call, mask, place);
  Thread& me = *running.current;
  Meeting& meeting = find_meeting(call, mask, place);
  if (size == 4) {
    std::memcpy(meeting.values.bytes[me.lane], in, 4);  // a fixed size compiles to one move
  } else {
    std::memcpy(meeting.values.bytes[me.lane], in, size);
  }
  meeting.arrived |= 1u << me.lane;
  if (meeting.arrived == mask) {
    for (int i = meeting.waiting_count; i-- > 0;) running.ready.push_front(meeting.waiting[i]);
  } else {
    meeting.waiting[meeting.waiting_count++] = &me;
    me.place = place;
    me.meeting = &meeting;
    suspend();
  }
  return meeting;
}

void leave(Meeting& meeting) {
  meeting.readers |= 1u << running.current->lane;
  if (meeting.readers == meeting.mask) meeting.mask = 0;
}

}  // namespace

void warp_exchange(WarpCall call, unsigned mask, const void* in, std::size_t size, LaneValues& out,
                   Place place) {
  const Unseen unseen;
  Meeting& meeting = meet(call, mask, in, size, place);
  out = meeting.values;
  leave(meeting);
}

static void pick(WarpCall call, unsigned mask, const void* in, std::size_t size, int source,
                 void* out, Place place) {
  const Unseen unseen;
  Meeting& meeting = meet(call, mask, in, size, place);
  if (source == kOwnLane) {
    std::memcpy(out, in, size);
  } else if ((mask >> source & 1) == 0) {
    die("%s %s:%u: reads lane %d, which is not in mask %08x", name_of(call), place.file, place.line,
        source, mask);
  } else if (size == 4) {
    std::memcpy(out, meeting.values.bytes[source], 4);
  } else {
    std::memcpy(out, meeting.values.bytes[source], size);
  }
  leave(meeting);
}

void warp_pick(WarpCall call, unsigned mask, const void* in, std::size_t size, int source,
               void* out, Place place) {
  if (call != WarpCall::kSync || running.current == nullptr) {  // only __syncwarp orders memory
    pick(call, mask, in, size, source, out, place);
    return;
  }
  Warp& warp = *running.current->warp;
  char* token = &warp.sync_tokens[warp.sync_phase[running.current->lane] ^= 1];
  tsan_release(token);
  pick(call, mask, in, size, source, out, place);
  tsan_acquire(token);
}

}  // namespace tarn::emu
