// fiber.h - stacks that device threads run on, and the switch between them.
//
// On x86-64 a switch is a dozen instructions (about 3 ns); elsewhere, or with TARN_EMU_UCONTEXT, it
// is swapcontext (over 1 us: two system calls).
#pragma once

#include <cstddef>

#if !defined(__x86_64__) || defined(TARN_EMU_UCONTEXT)
#include <ucontext.h>
#define TARN_EMU_USE_UCONTEXT 1
#endif

namespace tarn::emu {

/// An execution that can be suspended: a device thread's, or the OS thread's own (which has no
/// stack of the pool).
struct Fiber {
#if TARN_EMU_USE_UCONTEXT
  ucontext_t context;
#else
  void* stack_pointer = nullptr;
#endif
  const void* bottom = nullptr;  // of its stack, for AddressSanitizer
  std::size_t size = 0;
  void* fake_stack = nullptr;
  void* tsan = nullptr;  // ThreadSanitizer's fibre
};

constexpr int kNoStack = -1;

/// Takes a stack from the pool or gives it back.
int acquire_stack();
void release_stack(int stack);

/// Makes `fiber` start `entry` on `stack` when it is first switched to. `entry` never returns.
void prepare_fiber(Fiber& fiber, int stack, void (*entry)());

/// Suspends `from` and resumes `to`. With `ends`, `from` never runs again.
void switch_fiber(Fiber& from, Fiber& to, bool ends = false);

/// First call in an entry function. `main` learns its bounds from the first fiber it starts.
void enter_fiber(Fiber& main);

}  // namespace tarn::emu
