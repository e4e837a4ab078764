// thread_sanitizer.h - what the emulator tells ThreadSanitizer, so that it sees device threads and
// the order that barriers give them. Does nothing in other builds.
//
// The emulator itself is compiled without instrumentation (TARN_EMU_TSAN says that the kernels are
// with it): its scheduling must not order what a GPU would not. Blocks take turns on three OS
// threads, every device thread is a fibre of ThreadSanitizer's own, and nothing orders a block and
// the two after it, so races between blocks show as well as races within one.
#pragma once

#if defined(TARN_EMU_TSAN)
#include <sanitizer/tsan_interface.h>

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
}
#endif

namespace tarn::emu {

#if defined(TARN_EMU_TSAN)
constexpr int kCrews = 3;

inline void tsan_release(void* token) {
  __tsan_release(token);
}
inline void tsan_acquire(void* token) {
  __tsan_acquire(token);
}

/// While alive, the library functions that the emulator calls on a fibre are not looked at.
class Unseen {
 public:
  Unseen() {
    AnnotateIgnoreReadsBegin("", 0);
    AnnotateIgnoreWritesBegin("", 0);
    AnnotateIgnoreSyncBegin("", 0);
  }
  ~Unseen() {
    AnnotateIgnoreSyncEnd("", 0);
    AnnotateIgnoreWritesEnd("", 0);
    AnnotateIgnoreReadsEnd("", 0);
  }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
};
#else
constexpr int kCrews = 1;

inline void tsan_release(void*) {}
inline void tsan_acquire(void*) {}

class Unseen {
 public:
  ~Unseen() {}
};
#endif

}  // namespace tarn::emu
