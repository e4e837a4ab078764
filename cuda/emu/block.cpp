// block.cpp - runs a grid: one block at a time, its threads as fibres of one OS thread.
//
// A thread that never waits costs a plain call: the next one starts on the same stack. Only a
// thread that reaches a barrier or a warp-level call keeps its stack and is switched away from.
#include "tarn/cuda/emu/block.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>

extern "C" {
uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
}

namespace tarn::emu {

unsigned current_lane;
Block running;

namespace {

constexpr std::size_t kOverrunBytes = 64;  // watched behind dynamic shared memory
constexpr unsigned char kOverrunPattern = 0xCA;

// Which arrays of device functions a kernel uses is learnt from its first launches.
constexpr unsigned kLearningLaunches = 8, kLearningBlocks = 2;

// ThreadSanitizer needs a fibre for every thread, one that is never thrown away.
constexpr bool kKeepFibers = kCrews > 1;

char launched, finished;  // for ThreadSanitizer: what orders a kernel and the host

thread_local bool runs_kernel = false;

std::mt19937& random_order() {
  static unsigned seed = settings().seed;
  static std::mt19937 generator(seed);
  if (seed != settings().seed) generator.seed(seed = settings().seed);
  return generator;
}

char* dynamic_buffer() {
  return running.crew->dynamic_shared();
}

void make_current(Thread* thread) {
  running.current = thread;
  threadIdx = thread->index;
  current_lane = thread->lane;
}

// "32 threads from (0,0,0) on wait in __syncthreads at file:line", one line per place.
[[noreturn]] void report_deadlock() {
  struct Group {
    const Thread* first;
    int count;
  };
  std::vector<Group> groups;
  int waiting = 0;
  for (const Thread& t : running.crew->threads) {
    if (t.done || !t.started) continue;
    ++waiting;
    const auto same = std::find_if(groups.begin(), groups.end(), [&t](const Group& group) {
      const Thread& other = *group.first;
      return other.meeting == t.meeting && other.place.line == t.place.line &&
             other.place.file == t.place.file;
    });
    if (same != groups.end()) {
      ++same->count;
    } else {
      groups.push_back({&t, 1});
    }
  }
  std::string text;
  for (const Group& group : groups) {
    const Thread& t = *group.first;
    char line[512];
    std::snprintf(line, sizeof line, "\n  %d from (%u,%u,%u) on wait in %s at %s:%u", group.count,
                  t.index.x, t.index.y, t.index.z,
                  t.meeting != nullptr ? name_of(t.meeting->call) : "__syncthreads", t.place.file,
                  t.place.line);
    text += line;
    if (t.meeting == nullptr) continue;
    std::snprintf(line, sizeof line, " (mask %08x, arrived %08x)", t.meeting->mask,
                  t.meeting->arrived);
    text += line;
  }
  running.current = nullptr;
  die("deadlock in block (%u,%u,%u): %d threads wait for ever:%s", blockIdx.x, blockIdx.y,
      blockIdx.z, waiting, text.c_str());
}

void run_threads();

// Continues with `next` (null: the OS thread's own stack), giving it a stack if it has none.
void switch_to(Fiber& from, Thread* next, bool ends) {
  if (next == nullptr) {
    running.current = nullptr;
    switch_fiber(from, running.crew->main, ends);
    return;
  }
  const bool starts = !next->started;
  next->started = true;
  if (starts && !(kKeepFibers && next->fiber->size != 0)) {
    next->stack = acquire_stack();
    prepare_fiber(*next->fiber, next->stack, run_threads);
  }
  make_current(next);
  switch_fiber(from, *next->fiber, ends);
}

void release_barrier() {
  running.crew->barrier_phase ^= 1;
  for (int i = 0; i < 3; ++i) running.vote_result[i] = running.votes[i];
  running.votes[0] = running.votes[2] = 0;
  running.votes[1] = 1;
  std::vector<Thread*>& waiting = running.at_barrier;
  if (settings().order == 1) std::reverse(waiting.begin(), waiting.end());
  if (settings().order >= 2) {
    std::shuffle(waiting.begin(), waiting.end(), random_order());
  }
  for (Thread* thread : waiting) running.ready.push(thread);
  waiting.clear();
}

void leave_kernel(Thread& thread) {
  thread.done = true;
  --running.live;
  thread.warp->live &= ~(1u << thread.lane);
  if (!running.at_barrier.empty() && running.at_barrier.size() == running.live) {
    die("left the kernel while the other threads wait at __syncthreads %s:%u",
        running.barrier_place.file, running.barrier_place.line);
  }
}

void run_body() {
  tsan_acquire(&launched);
  tsan_acquire(&running.crew->begun);
  (*running.body)();
  tsan_release(&running.crew->ended);
  tsan_release(&finished);
}

// Entry of every fibre: runs its thread, then threads that have not started yet.
void run_threads() {
  enter_fiber(running.crew->main);
  for (;;) {
    run_body();
    const Unseen unseen;
    Thread* me = running.current;
    leave_kernel(*me);
    Thread* next = running.ready.pop();
    if (kKeepFibers) {
      switch_to(*me->fiber, next, false);  // comes back as a thread of another block
      continue;
    }
    if (next == nullptr || next->started) {
      release_stack(me->stack);
      switch_to(*me->fiber, next, true);
    }
    next->started = true;
    next->stack = me->stack;
    next->fiber->bottom = me->fiber->bottom;
    next->fiber->size = me->fiber->size;
    make_current(next);
  }
}

// Puts all threads at the start of the kernel and into the ready queue.
void start_block(const std::vector<unsigned>& order) {
  for (Thread& thread : running.crew->threads) thread.started = thread.done = false;
  const std::size_t threads = running.crew->threads.size();
  for (std::size_t w = 0; w < running.crew->warps.size(); ++w) {
    const std::size_t lanes = std::min<std::size_t>(32, threads - w * 32);
    running.crew->warps[w].live = lanes == 32 ? ~0u : (1u << lanes) - 1;
  }
  for (unsigned i : order) running.ready.push(&running.crew->threads[i]);
  running.live = static_cast<unsigned>(threads);
}

// 0..count-1 in the order that the settings ask for.
void make_order(std::vector<unsigned>& order, std::size_t count) {
  order.resize(count);
  std::iota(order.begin(), order.end(), 0u);
  if (settings().order == 1) std::reverse(order.begin(), order.end());
  if (settings().order >= 2) std::shuffle(order.begin(), order.end(), random_order());
}

void prepare_dynamic_shared(std::size_t bytes) {
  ASAN_UNPOISON_MEMORY_REGION(dynamic_buffer(), bytes + kOverrunBytes);
  std::memset(dynamic_buffer(), 0xff, bytes);
  std::memset(dynamic_buffer() + bytes, kOverrunPattern, kOverrunBytes);
  ASAN_POISON_MEMORY_REGION(dynamic_buffer() + bytes, kMaxDynamicShared + 1024 - bytes);
}

void check_dynamic_shared(std::size_t bytes) {
  ASAN_UNPOISON_MEMORY_REGION(dynamic_buffer() + bytes, kOverrunBytes);
  for (std::size_t i = 0; i < kOverrunBytes; ++i) {
    if (static_cast<unsigned char>(dynamic_buffer()[bytes + i]) == kOverrunPattern) continue;
    die("block (%u,%u,%u) wrote byte %zu of %zu bytes of dynamic shared memory", blockIdx.x,
        blockIdx.y, blockIdx.z, bytes + i, bytes);
  }
}

void run_block(Kernel& kernel, std::size_t dynamic_bytes, const std::vector<unsigned>& order,
               bool learn) {
  poison_shared_arrays(kernel, learn);
  prepare_dynamic_shared(dynamic_bytes);
  start_block(order);
  running.crew->main.bottom = nullptr;
  runs_kernel = true;
  switch_to(running.crew->main, running.ready.pop(), false);
  if (running.live != 0) report_deadlock();
  check_dynamic_shared(dynamic_bytes);
  if (learn) learn_shared_arrays(kernel);
  runs_kernel = false;
}

}  // namespace

void* dynamic_shared() {
  return dynamic_buffer();
}

const char* running_thread() {
  if (!runs_kernel) return "";
  static char text[1024];
  const char* name = running.kernel->name.c_str();
  if (running.current == nullptr) {
    std::snprintf(text, sizeof text, "kernel %s", name);
  } else {
    std::snprintf(text, sizeof text, "kernel %s, block (%u,%u,%u), thread (%u,%u,%u)", name,
                  blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
  }
  return text;
}

void suspend() {
  Thread* me = running.current;
  Thread* next = running.ready.pop();
  if (next == nullptr) report_deadlock();
  if (next == me) {
    make_current(me);
  } else {
    switch_to(*me->fiber, next, false);
  }
}

namespace {

void wait_at_barrier(Place place) {
  const Unseen unseen;
  Thread& me = *running.current;
  if (running.at_barrier.empty()) {
    running.barrier_place = place;
  } else if (!(running.barrier_place == place)) {
    die("divergent __syncthreads: this thread is at %s:%u, others wait at %s:%u", place.file,
        place.line, running.barrier_place.file, running.barrier_place.line);
  }
  if (running.live != running.crew->threads.size()) {
    die("__syncthreads %s:%u after %zu threads of the block have left the kernel", place.file,
        place.line, running.crew->threads.size() - running.live);
  }
  running.at_barrier.push_back(&me);
  me.place = place;
  me.meeting = nullptr;
  if (running.at_barrier.size() == running.live) release_barrier();
  suspend();
}

}  // namespace

void barrier(Place place) {
  if (running.current == nullptr) die("__syncthreads outside a kernel");
  char* token = &running.crew->barrier_tokens[running.crew->barrier_phase];
  tsan_release(token);
  wait_at_barrier(place);
  tsan_acquire(token);
}

void fence() {
  static char token;
  tsan_acquire(&token);
  tsan_release(&token);
}

int barrier_vote(int predicate, Vote vote, Place place) {
  running.votes[0] += predicate != 0;
  running.votes[1] &= predicate != 0;
  running.votes[2] |= predicate != 0;
  barrier(place);
  return running.vote_result[static_cast<int>(vote)];
}

void run_grid(Kernel& kernel, dim3 grid, dim3 block, std::size_t dynamic_bytes,
              const std::function<void()>& body) {
  running.kernel = &kernel;
  running.body = &body;
  blockDim = block;
  gridDim = grid;
  static std::vector<unsigned> threads, blocks;
  const std::size_t count = std::size_t{grid.x} * grid.y * grid.z;
  {
    const Unseen unseen;
    make_order(threads, std::size_t{block.x} * block.y * block.z);
    if (settings().order >= 2) make_order(blocks, count);
  }
  tsan_release(&launched);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t k = settings().order == 0   ? i
                          : settings().order == 1 ? count - 1 - i
                                                  : blocks[i];
    blockIdx = {static_cast<unsigned>(k % grid.x), static_cast<unsigned>(k / grid.x % grid.y),
                static_cast<unsigned>(k / grid.x / grid.y)};
    running.crew = &crew(i);
    {
      const Unseen unseen;
      running.crew->shape(block);
    }
    const bool learn = kernel.launches < kLearningLaunches && i < kLearningBlocks;
    running.crew->perform([&] { run_block(kernel, dynamic_bytes, threads, learn); });
  }
  tsan_acquire(&finished);
  ++kernel.launches;
}

}  // namespace tarn::emu
