// parallel.cpp - the thread pool behind parallel_for.
#include "tarn/core/parallel.h"

#include <atomic>
#include <exception>

#include <omp.h>

#include "tarn/core/error.h"

namespace tarn {
namespace {
std::atomic<int> configured_threads{0};
thread_local bool inside_parallel = false;
}  // namespace

int num_threads() {
  const int n = configured_threads.load(std::memory_order_relaxed);
  if (__builtin_expect(n > 0, 1)) return n;
  const int detected = omp_get_max_threads();
  configured_threads.store(detected, std::memory_order_relaxed);
  return detected;
}

void set_num_threads(int threads) {
  TARN_CHECK_AS(ValueError, threads > 0, "set_num_threads: at least 1; got ", threads);
  configured_threads.store(threads, std::memory_order_relaxed);
  omp_set_num_threads(threads);
}

void detail::adopt_thread_count() {
  // OpenMP's own number is a thread's: one that was not there when it was set has the machine's.
  if (inside_parallel) return;
  const int wanted = num_threads();
  if (__builtin_expect(omp_get_max_threads() != wanted, 0)) omp_set_num_threads(wanted);
}

bool in_parallel() {
  return inside_parallel;
}

void detail::parallel_run(int64_t n, int chunks, void (*body)(void*, int64_t, int64_t),
                          void* context) {
  std::exception_ptr error;
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
  const int64_t step = (n + chunks - 1) / chunks;
#pragma omp parallel for num_threads(chunks) schedule(static, 1)
  for (int c = 0; c < chunks; ++c) {
    const int64_t begin = c * step;
    const int64_t end = begin + step < n ? begin + step : n;
    if (begin >= end) continue;
    inside_parallel = true;
    try {
      body(context, begin, end);
    } catch (...) {
      if (!failed.test_and_set()) error = std::current_exception();
    }
    inside_parallel = false;
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace tarn
