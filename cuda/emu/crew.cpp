// crew.cpp - the threads and stacks that a block runs on, and the OS thread behind them.
#include <cstdlib>
#include <thread>

#include "tarn/cuda/emu/block.h"

namespace tarn::emu {

void Crew::shape(dim3 block) {
  const unsigned count = block.x * block.y * block.z;
  if (threads.size() == count && block.x == shape_.x && block.y == shape_.y) return;
  shape_ = block;
  while (fibers.size() < count) fibers.emplace_back();
  threads = std::vector<Thread>(count);
  warps = std::vector<Warp>((count + 31) / 32);
  for (unsigned i = 0; i < count; ++i) {
    Thread& thread = threads[i];
    thread.fiber = &fibers[i];
    thread.index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
    thread.lane = i % 32;
    thread.warp = &warps[i / 32];
  }
}

char* Crew::dynamic_shared() {
  if (dynamic_ == nullptr) {
    dynamic_ = static_cast<char*>(std::aligned_alloc(1024, kMaxDynamicShared + 1024));
  }
  return dynamic_;
}

Crew& crew(std::size_t turn) {
  static Crew* crews = new Crew[kCrews];  // their OS threads never end
  return crews[turn % kCrews];
}

bool watches_races() {
  return kCrews > 1;
}

#if !defined(TARN_EMU_TSAN)

void Crew::perform(const std::function<void()>& work) {
  work();
}

#else

// Not a condition variable: ThreadSanitizer would take it as an order between blocks. It does not
// see an atomic of a file that is not instrumented.
void Crew::perform(const std::function<void()>& work) {
  if (!has_thread_) {
    has_thread_ = true;
    std::thread([this] {
      main.tsan = __tsan_get_current_fiber();
      for (;;) {
        busy_.wait(0);
        tsan_acquire(&ended);
        tsan_release(&begun);
        {
          const Unseen unseen;
          (*work_)();
        }
        busy_ = 0;
        busy_.notify_one();
      }
    }).detach();
  }
  work_ = &work;
  busy_ = 1;
  busy_.notify_one();
  busy_.wait(1);
}

#endif

}  // namespace tarn::emu
