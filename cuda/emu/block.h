// block.h - the block that is running: its threads, warps and barrier. Shared by block.cpp (the
// scheduler) and warp.cpp.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "tarn/cuda/emu/fiber.h"
#include "tarn/cuda/emu/runtime.h"
#include "tarn/cuda/emu/thread_sanitizer.h"

namespace tarn::emu {

struct Thread;

/// Lanes of one mask meeting in a warp-level call. A free one has mask 0.
struct Meeting {
  unsigned mask = 0, arrived = 0;
  unsigned readers = 0;  // lanes that have taken their result
  WarpCall call{};
  Place place;
  LaneValues values;
  Thread* waiting[32];
  int waiting_count = 0;
};

struct Warp {
  unsigned live = 0;  // lanes that have not left the kernel
  std::vector<std::unique_ptr<Meeting>> meetings;
  char sync_tokens[2];                // for ThreadSanitizer: of __syncwarp, alternating
  unsigned char sync_phase[32] = {};  // by lane
};

struct Thread {
  Fiber* fiber = nullptr;
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
  void push(Thread* thread) { ring_[tail_++ & (kCapacity - 1)] = thread; }
  void push_front(Thread* thread) { ring_[--head_ & (kCapacity - 1)] = thread; }
  Thread* pop() { return head_ == tail_ ? nullptr : ring_[head_++ & (kCapacity - 1)]; }

 private:
  static constexpr std::size_t kCapacity = 2048;  // a block has at most 1024 threads
  std::vector<Thread*> ring_ = std::vector<Thread*>(kCapacity);
  std::size_t head_ = 0, tail_ = 0;
};

/// The threads of one block and what they run on. With ThreadSanitizer there are several crews,
/// each on an OS thread of its own; else there is one, on the thread that launches.
class Crew {
 public:
  /// Makes threads and warps for blocks of this shape.
  void shape(dim3 block);
  char* dynamic_shared();
  void perform(const std::function<void()>& work);

  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::deque<Fiber> fibers;  // by linear thread index
  Fiber main;                // the OS thread's own stack
  // For ThreadSanitizer: what orders blocks of this crew, and the barrier's two alternating ones.
  char begun = 0, ended = 0, barrier_tokens[2] = {};
  unsigned barrier_phase = 0;

 private:
  dim3 shape_;
  char* dynamic_ = nullptr;
  // For ThreadSanitizer: what its OS thread has to do, and 1 until that is done.
  const std::function<void()>* work_ = nullptr;
  std::atomic<int> busy_ = 0;
  bool has_thread_ = false;
};

Crew& crew(std::size_t turn);

struct Block {
  Kernel* kernel = nullptr;
  const std::function<void()>* body = nullptr;
  Crew* crew = nullptr;
  ReadyQueue ready;
  Thread* current = nullptr;
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
