// 23_when_a_rank_dies.cpp - no wait without a limit, and every error says who, where and what.
#include <chrono>
#include <cstdio>
#include <thread>

#include "tarn/apps/tour/wrapped.h"
#include "tarn/core/factory.h"
#include "tarn/dist/local_group.h"

using namespace tarn;
using namespace std::chrono_literals;

// Runs three ranks, of which rank 1 does something else at the second step.
void show(const char* title, const std::function<void(dist::ProcessGroup&)>& fault) {
  std::printf("%s\n", title);
  const auto start = std::chrono::steady_clock::now();
  try {
    dist::run_local(3,
                    [&](dist::ProcessGroup& group) {
                      const Tensor x = ones({1000});
                      group.all_reduce(x)->wait();
                      if (group.rank() == 1) return fault(group);
                      group.all_reduce(x)->wait();
                    },
                    {.timeout = 300ms, .start_timeout = 300ms});
  } catch (const dist::DistError& error) {
    std::printf("  %s\n", wrapped(error.what(), 2, 94).c_str());
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("  after %.1f s\n\n", took.count());
}

int main() {
  show("A rank leaves:", [](dist::ProcessGroup&) {});
  show("A rank hangs:", [](dist::ProcessGroup&) { std::this_thread::sleep_for(600ms); });
  show("A rank calls something else:",
       [](dist::ProcessGroup& group) { group.broadcast(ones({1000}), 0)->wait(); });
  show("A rank has another size:",
       [](dist::ProcessGroup& group) { group.all_reduce(ones({999}))->wait(); });
  return 0;
}
