// tasks.h - independent pieces of work, taken in turn by the threads of parallel_for.
#pragma once

#include <atomic>
#include <cstdint>

#include "tarn/core/parallel.h"

namespace tarn::cpu {

/// Threads that parallel_tasks would use here: one inside another parallel region.
inline int64_t task_threads() {
  return in_parallel() ? 1 : num_threads();
}

/// Runs f(i) for i in [0, n), each once, in any order and on any thread. Unlike parallel_for the
/// pieces are handed out one by one, so that uneven pieces or a busy core cost little.
template <typename F>
void parallel_tasks(int64_t n, F&& f) {
  const int64_t threads = n < task_threads() ? n : task_threads();
  if (threads <= 1) {
    for (int64_t i = 0; i < n; ++i) f(i);
    return;
  }
  std::atomic<int64_t> next{0};
  parallel_for(threads, 1, [&](int64_t, int64_t) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) f(i);
  });
}

}  // namespace tarn::cpu
