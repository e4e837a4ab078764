// fiber.cpp - stacks that device threads run on, and the switch between them.
#include "tarn/cuda/emu/fiber.h"

#include <vector>

#include <sys/mman.h>

#include "tarn/cuda/emu/runtime.h"
#include "tarn/cuda/emu/thread_sanitizer.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#if !TARN_EMU_USE_UCONTEXT
// Saves the callee-saved registers and the stack pointer, then continues on the other stack. The
// return address goes through a register: a plain ret would always be mispredicted.
extern "C" void tarn_emu_switch(void** save, void* to);
asm(R"(
.text
.globl tarn_emu_switch
.hidden tarn_emu_switch
.type tarn_emu_switch,@function
.p2align 4
tarn_emu_switch:
  .cfi_startproc
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %r8
  jmp *%r8
  .cfi_endproc
.size tarn_emu_switch, .-tarn_emu_switch
)");
#endif

namespace tarn::emu {

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(TARN_EMU_TSAN) || TARN_EMU_USE_UCONTEXT
constexpr std::size_t kStackBytes = 256 << 10;  // instrumented frames are large
#else
constexpr std::size_t kStackBytes = 64 << 10;
#endif
constexpr std::size_t kGuardBytes = 4096;

std::vector<char*> stacks;  // lowest usable byte of each
std::vector<int> free_stacks;

}  // namespace

int acquire_stack() {
  if (!free_stacks.empty()) {
    const int stack = free_stacks.back();
    free_stacks.pop_back();
    return stack;
  }
  void* memory = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) die("no memory for the stack of a device thread");
  mprotect(memory, kGuardBytes, PROT_NONE);
  stacks.push_back(static_cast<char*>(memory) + kGuardBytes);
  return static_cast<int>(stacks.size()) - 1;
}

void release_stack(int stack) {
  free_stacks.push_back(stack);
}

void prepare_fiber(Fiber& fiber, int stack, void (*entry)()) {
  char* bottom = stacks[static_cast<std::size_t>(stack)];
  // Staggered tops: 32 stacks of a warp at equal offsets would fight for the same cache sets.
  const std::size_t size = kStackBytes - static_cast<std::size_t>(stack % 16) * 256;
  fiber.bottom = bottom;
  fiber.size = size;
  fiber.fake_stack = nullptr;
#if defined(TARN_EMU_TSAN)
  fiber.tsan = __tsan_create_fiber(0);
#endif
  ASAN_UNPOISON_MEMORY_REGION(bottom, size);  // frames that never returned
#if TARN_EMU_USE_UCONTEXT
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = bottom;
  fiber.context.uc_stack.ss_size = size;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
#else
  void** top = reinterpret_cast<void**>(bottom + size);
  *--top = nullptr;  // where a return address would be: keeps the stack aligned as after a call
  *--top = reinterpret_cast<void*>(entry);
  for (int saved_register = 0; saved_register < 6; ++saved_register) *--top = nullptr;
  fiber.stack_pointer = top;
#endif
}

void switch_fiber(Fiber& from, Fiber& to, [[maybe_unused]] bool ends) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(ends ? nullptr : &from.fake_stack, to.bottom, to.size);
#endif
#if defined(TARN_EMU_TSAN)
  __tsan_switch_to_fiber(to.tsan, __tsan_switch_to_fiber_no_sync);
#endif
#if TARN_EMU_USE_UCONTEXT
  swapcontext(&from.context, &to.context);
#else
  tarn_emu_switch(&from.stack_pointer, to.stack_pointer);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

void enter_fiber([[maybe_unused]] Fiber& main) {
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom = nullptr;
  std::size_t size = 0;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
  if (main.bottom == nullptr) {
    main.bottom = bottom;
    main.size = size;
  }
#endif
}

}  // namespace tarn::emu
