// cuda_emu_copy_test.cpp - copies of pageable memory by the emulator while the stream is held up.
#include <atomic>
#include <chrono>
#include <thread>

#include "tarn/cuda/emu/runtime.h"
#include "tarn/tests/cuda_emu_tools.h"

namespace {

using namespace tarn::emu_test;
namespace emu = tarn::emu;

/// Work is eager, and a host function that another thread runs keeps a stream busy.
class EmuCopy : public testing::Test {
 protected:
  EmuCopy() {
    for (cudaStream_t* s : {&stream_, &other_}) {
      EXPECT_CUDA(cudaStreamCreateWithFlags(s, cudaStreamNonBlocking));
    }
    busy_ = std::thread([this] {
      const auto spin = [](void* self) {
        auto* test = static_cast<EmuCopy*>(self);
        test->started_ = true;
        while (test->held_) std::this_thread::yield();
      };
      EXPECT_CUDA(cudaLaunchHostFunc(stream_, spin, this));
    });
    while (!started_) std::this_thread::yield();
  }
  ~EmuCopy() override {
    busy_.join();
    for (cudaStream_t s : {stream_, other_}) EXPECT_CUDA(cudaStreamDestroy(s));
  }

  /// Once a copy is queued on the stream, something outside is waited for as well: calls that need
  /// not wait for the stream now return.
  void let_calls_return() {
    for (bool queued = false; !queued; std::this_thread::yield()) {
      const emu::Lock lock = emu::lock_runtime();
      queued = !emu::stream_of(stream_)->queue.empty();
      if (queued) emu::expect_outside(outside_);
    }
    EXPECT_CUDA(cudaMemsetAsync(scratch_.get(), 0, 16, other_));  // its end makes them look
  }
  void let_stream_go_on() {
    {
      const emu::Lock lock = emu::lock_runtime();
      emu::complete_outside(outside_);
    }
    held_ = false;
  }

  SettingsGuard guard_;
  emu::Event outside_;
  const DeviceArray<float> scratch_{4};
  cudaStream_t stream_ = nullptr, other_ = nullptr;

 private:
  std::atomic<bool> started_{false}, held_{true};
  std::thread busy_;
};

TEST_F(EmuCopy, a_pageable_source_may_change_when_the_call_has_returned) {
  const DeviceArray<float> data(4);
  float pageable[4] = {1, 2, 3, 4};
  std::thread outside([&] { let_calls_return(); });
  EXPECT_CUDA(cudaMemcpyAsync(data.get(), pageable, 16, cudaMemcpyHostToDevice, stream_));
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);  // the copy has not run
  pageable[0] = 9;
  outside.join();
  let_stream_go_on();
  EXPECT_CUDA(cudaStreamSynchronize(stream_));
  EXPECT_EQ(data.values()[0], 1.0f);
}

TEST_F(EmuCopy, a_pageable_destination_is_complete_when_the_call_has_returned) {
  const DeviceArray<float> data(std::vector<float>{1, 2, 3, 4});
  float back[4] = {};
  std::thread outside([&] {
    let_calls_return();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // time to return too early
    let_stream_go_on();
  });
  EXPECT_CUDA(cudaMemcpyAsync(back, data.get(), 16, cudaMemcpyDeviceToHost, stream_));
  EXPECT_EQ(back[0], 1.0f);
  outside.join();
}

}  // namespace
