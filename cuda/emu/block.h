// block.h - the block that is running: its threads, warps and barrier. Shared by block.cpp (the
// scheduler) and warp.cpp.
#pragma once

#include <memory>
#include <vector>

#include "tarn/cuda/emu/fiber.h"
#include "tarn/cuda/emu/runtime.h"

namespace tarn::emu {

struct Thread;

/// Lanes of one mask meeting in a warp-level call. A free one has mask 0.
struct Meeting {
  unsigned mask = 0, arrived = 0;
  int readers = 0;  // that have taken their result
  WarpCall call{};
  Place place;
  LaneValues values;
  Thread* waiting[32];
  int waiting_count = 0;
};

struct Warp {
  unsigned live = 0;  // lanes that have not left the kernel
  std::vector<std::unique_ptr<Meeting>> meetings;
};

struct Thread {
  Fiber fiber;
  uint3 index;
  unsigned lane = 0;
  Warp* warp = nullptr;
  int stack = kNoStack;
  bool started = false, done = false;
  Place place;                       // of the call it waits in
  const Meeting* meeting = nullptr;  // waits for other lanes; null while started: at a barrier
};

/// First in, first out, but lanes freed by their warp go first: a warp then runs on until it
/// blocks, and its 32 stacks stay in the nearest cache.
class ReadyQueue {
 public:
  void reset(std::size_t threads) {
    std::size_t capacity = 1;
    while (capacity <= threads) capacity *= 2;
    ring_.assign(capacity, nullptr);
    head_ = tail_ = 0;
  }
  void push(Thread* thread) { ring_[tail_++ & (ring_.size() - 1)] = thread; }
  void push_front(Thread* thread) { ring_[--head_ & (ring_.size() - 1)] = thread; }
  Thread* pop() { return head_ == tail_ ? nullptr : ring_[head_++ & (ring_.size() - 1)]; }

 private:
  std::vector<Thread*> ring_;
  std::size_t head_ = 0, tail_ = 0;
};

struct Block {
  Kernel* kernel = nullptr;
  const std::function<void()>* body = nullptr;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  ReadyQueue ready;
  Thread* current = nullptr;
  Fiber main;  // the OS thread's own stack
  unsigned live = 0;
  std::vector<Thread*> at_barrier;
  Place barrier_place;
  int votes[3] = {0, 1, 0};  // by Vote: of the threads at the barrier
  int vote_result[3] = {0, 1, 0};
};

extern Block running;  // one at a time

/// Suspends the current thread until something puts it back into the ready queue.
void suspend();

/// The CUDA name of a warp-level call.
const char* name_of(WarpCall call);

}  // namespace tarn::emu
