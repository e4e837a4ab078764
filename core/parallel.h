// parallel.h - parallel_for over OpenMP's one pool of threads (oneDNN runs on the same).
#pragma once

#include <cstdint>
#include <type_traits>

namespace tarn {

/// Threads that kernels use: OMP_NUM_THREADS or the number of cores, until set.
int num_threads();
void set_num_threads(int threads);
/// True inside a parallel_for body; nested calls run in the calling thread.
bool in_parallel();

namespace detail {
/// Runs body(context, begin, end) on `chunks` equal parts of [0, n).
void parallel_run(int64_t n, int chunks, void (*body)(void*, int64_t, int64_t), void* context);
/// Before a call of a library that uses OpenMP: gives this thread what set_num_threads() said.
void adopt_thread_count();
}  // namespace detail

/// Calls f(begin, end) on disjoint parts that cover [0, n), each of at least `grain` items where n
/// allows it. Results must not depend on where the cuts fall. An exception reaches the caller.
template <class F>
void parallel_for(int64_t n, int64_t grain, F&& f) {
  if (n <= 0) return;
  const int64_t most = grain > 0 ? n / grain : n;
  if (most <= 1 || num_threads() == 1 || in_parallel()) {
    f(int64_t{0}, n);
    return;
  }
  const int64_t threads = num_threads();
  auto body = [](void* context, int64_t begin, int64_t end) {
    (*static_cast<std::remove_reference_t<F>*>(context))(begin, end);
  };
  detail::parallel_run(n, static_cast<int>(most < threads ? most : threads), body,
                       const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace tarn
