// cuda_emu_stream_test.cu - streams, events and graphs of the emulator: lazy work shows missing
// synchronisation, and calls that CUDA forbids fail with CUDA's codes.
#include <cmath>
#include <thread>

#include "tarn/cuda/rt.h"
#include "tarn/tests/cuda_emu_tools.h"

namespace {

using namespace tarn::emu_test;

__global__ void set(float* out, float value) {
  out[threadIdx.x] = value;
}
__global__ void add(float* out, const float* in) {
  out[threadIdx.x] += in[threadIdx.x];
}

class EmuStream : public testing::Test {
 protected:
  EmuStream() {  // eager, until a test says otherwise
    for (cudaStream_t* s : {&first_, &second_}) {
      EXPECT_CUDA(cudaStreamCreateWithFlags(s, cudaStreamNonBlocking));
    }
    EXPECT_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  ~EmuStream() override {
    EXPECT_CUDA(cudaEventDestroy(event_));
    for (cudaStream_t s : {first_, second_}) EXPECT_CUDA(cudaStreamDestroy(s));
    cudaGetLastError();
  }

  template <class... P, class... A>
  cudaError_t run(cudaStream_t stream, void (*kernel)(P...), A... arguments) {
    const auto config = shape(1, 4, 0, stream);
    return cudaLaunchKernelEx(&config, kernel, arguments...);
  }

  // The first value, read without waiting for anybody.
  float peek(const DeviceArray<float>& data) {
    const tarn::emu::Settings saved = tarn::emu::settings();
    float* pinned = nullptr;
    cudaStream_t third = nullptr;
    EXPECT_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&pinned), 4, 0));
    EXPECT_CUDA(cudaStreamCreateWithFlags(&third, cudaStreamNonBlocking));
    tarn::emu::settings().lazy = false;
    EXPECT_CUDA(cudaMemcpyAsync(pinned, data.get(), 4, cudaMemcpyDeviceToHost, third));
    const float value = *pinned;
    tarn::emu::settings() = saved;
    EXPECT_CUDA(cudaStreamDestroy(third));
    EXPECT_CUDA(cudaFreeHost(pinned));
    return value;
  }

  SettingsGuard guard_;
  cudaStream_t first_ = nullptr, second_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

TEST_F(EmuStream, lazy_work_runs_when_something_synchronises) {
  const DeviceArray<float> data(4);
  tarn::emu::settings().lazy = true;
  EXPECT_CUDA(run(first_, set, data.get(), 1.0f));
  EXPECT_EQ(cudaStreamQuery(second_), cudaSuccess);
  EXPECT_TRUE(std::isnan(peek(data)));
  EXPECT_CUDA(cudaStreamSynchronize(first_));
  EXPECT_EQ(peek(data), 1.0f);
  EXPECT_CUDA(run(first_, set, data.get(), 2.0f));
  EXPECT_EQ(cudaStreamQuery(first_), cudaErrorNotReady);  // and the query makes it advance
  EXPECT_EQ(cudaStreamQuery(first_), cudaSuccess);
  EXPECT_EQ(peek(data), 2.0f);
}

// second: data = 1 + (first's 10). Without the event the order is open, and some seed shows it.
TEST_F(EmuStream, a_missing_event_wait_shows_in_lazy_mode) {
  tarn::emu::settings().lazy = true;
  for (const bool waits : {true, false}) {
    int wrong = 0;
    for (int trial = 0; trial < 20; ++trial) {
      const DeviceArray<float> in(4), out(std::vector<float>{1, 1, 1, 1});
      EXPECT_CUDA(run(first_, set, in.get(), 10.0f));
      EXPECT_CUDA(cudaEventRecord(event_, first_));
      if (waits) {
        EXPECT_CUDA(cudaStreamWaitEvent(second_, event_, 0));
      }
      EXPECT_CUDA(run(second_, add, out.get(), static_cast<const float*>(in.get())));
      EXPECT_CUDA(cudaStreamSynchronize(second_));
      wrong += out.values()[0] != 11.0f;
      EXPECT_CUDA(cudaDeviceSynchronize());
    }
    if (waits) {
      EXPECT_EQ(wrong, 0);
    } else {
      EXPECT_GT(wrong, 2);
    }
  }
}

TEST_F(EmuStream, the_legacy_stream_is_ordered_with_blocking_streams) {
  tarn::emu::settings().lazy = true;
  cudaStream_t blocking = nullptr;
  EXPECT_CUDA(cudaStreamCreate(&blocking));
  for (int trial = 0; trial < 10; ++trial) {
    const DeviceArray<float> a(4), b(std::vector<float>(4, 0));
    EXPECT_CUDA(run(blocking, set, a.get(), 3.0f));
    EXPECT_CUDA(run(nullptr, add, b.get(), static_cast<const float*>(a.get())));
    EXPECT_CUDA(run(blocking, add, b.get(), static_cast<const float*>(b.get())));
    EXPECT_CUDA(cudaStreamSynchronize(blocking));
    EXPECT_EQ(peek(b), 6.0f);
  }
  EXPECT_CUDA(cudaStreamDestroy(blocking));
}

TEST_F(EmuStream, pageable_copies_wait_and_pinned_ones_do_not) {
  tarn::emu::settings().lazy = true;
  const DeviceArray<float> data(4);
  float pageable[4] = {1, 2, 3, 4};
  EXPECT_CUDA(cudaMemcpyAsync(data.get(), pageable, 16, cudaMemcpyHostToDevice, first_));
  pageable[0] = 9;  // was copied before the call returned
  float back[4] = {};
  EXPECT_CUDA(cudaMemcpyAsync(back, data.get(), 16, cudaMemcpyDeviceToHost, first_));
  EXPECT_EQ(back[0], 1.0f);
  float* pinned = nullptr;
  EXPECT_CUDA(cudaMallocHost(reinterpret_cast<void**>(&pinned), 16));
  pinned[0] = 5;
  EXPECT_CUDA(cudaMemcpyAsync(data.get(), pinned, 16, cudaMemcpyHostToDevice, first_));
  pinned[0] = 7;  // too early: the copy has not run
  EXPECT_CUDA(cudaStreamSynchronize(first_));
  EXPECT_EQ(peek(data), 7.0f);
  EXPECT_CUDA(cudaFreeHost(pinned));
}

TEST_F(EmuStream, host_functions_run_in_order_and_must_not_call_cuda) {
  tarn::emu::settings().lazy = true;
  static cudaError_t seen;
  seen = cudaErrorUnknown;
  EXPECT_CUDA(cudaLaunchHostFunc(
      first_, [](void*) { seen = cudaStreamQuery(nullptr); }, nullptr));
  EXPECT_EQ(seen, cudaErrorUnknown);
  EXPECT_CUDA(cudaStreamSynchronize(first_));
  EXPECT_EQ(seen, cudaErrorNotPermitted);
}

TEST_F(EmuStream, events_measure_time_and_know_what_they_cannot) {
  cudaEvent_t begin = nullptr, end = nullptr;
  EXPECT_CUDA(cudaEventCreate(&begin));
  EXPECT_CUDA(cudaEventCreate(&end));
  float ms = -1;
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin, end), cudaErrorInvalidResourceHandle);
  EXPECT_CUDA(cudaEventRecord(begin, first_));
  EXPECT_CUDA(cudaEventRecord(end, first_));
  EXPECT_CUDA(cudaEventRecord(event_, first_));
  EXPECT_CUDA(cudaEventElapsedTime(&ms, begin, end));
  EXPECT_GE(ms, 0);
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin, event_), cudaErrorInvalidResourceHandle);
  tarn::emu::settings().lazy = true;
  EXPECT_CUDA(cudaEventRecord(end, first_));
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin, end), cudaErrorNotReady);
  EXPECT_CUDA(cudaEventSynchronize(end));
  EXPECT_EQ(cudaEventQuery(end), cudaSuccess);
  EXPECT_CUDA(cudaEventDestroy(begin));
  EXPECT_CUDA(cudaEventDestroy(end));
}

TEST_F(EmuStream, a_destroyed_stream_is_an_invalid_handle) {
  cudaStream_t gone = nullptr;
  EXPECT_CUDA(cudaStreamCreateWithPriority(&gone, cudaStreamNonBlocking, -1));
  EXPECT_CUDA(cudaStreamDestroy(gone));
  EXPECT_EQ(cudaStreamSynchronize(gone), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamDestroy(gone), cudaErrorInvalidResourceHandle);
}

TEST_F(EmuStream, host_threads_launch_at_the_same_time) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      cudaStream_t stream = nullptr;
      EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      const DeviceArray<float> sum(std::vector<float>(4, 0)), one(std::vector<float>(4, 1));
      for (int i = 0; i < 50; ++i) {
        const auto config = shape(1, 4, 0, stream);
        EXPECT_CUDA(cudaLaunchKernelEx(&config, add, sum.get(), one.get()));
      }
      EXPECT_CUDA(cudaStreamSynchronize(stream));
      EXPECT_EQ(sum.values()[3], 50.0f);
      EXPECT_CUDA(cudaStreamDestroy(stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- capture

TEST_F(EmuStream, a_graph_with_a_fork_is_replayed) {
  const DeviceArray<float> a(4), b(4);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  EXPECT_CUDA(cudaStreamBeginCapture(first_, cudaStreamCaptureModeGlobal));
  EXPECT_CUDA(run(first_, set, a.get(), 1.0f));
  EXPECT_CUDA(cudaEventRecord(event_, first_));
  EXPECT_CUDA(cudaStreamWaitEvent(second_, event_, 0));  // joins the capture
  EXPECT_CUDA(run(second_, set, b.get(), 2.0f));
  EXPECT_CUDA(cudaEventRecord(event_, second_));
  EXPECT_CUDA(cudaStreamWaitEvent(first_, event_, 0));
  EXPECT_CUDA(run(first_, add, a.get(), static_cast<const float*>(b.get())));
  EXPECT_CUDA(cudaStreamEndCapture(first_, &graph));
  std::size_t nodes = 0;
  EXPECT_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 3u);
  EXPECT_TRUE(std::isnan(peek(a)));  // recorded, not run
  EXPECT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  for (int i = 0; i < 2; ++i) {
    EXPECT_CUDA(cudaGraphLaunch(executable, first_));
    EXPECT_CUDA(cudaStreamSynchronize(first_));
    EXPECT_EQ(peek(a), 3.0f);
  }
  EXPECT_CUDA(cudaGraphExecDestroy(executable));
}

TEST_F(EmuStream, calls_that_synchronise_invalidate_a_capture) {
  const auto code_of = [&](auto call) {
    EXPECT_CUDA(cudaStreamBeginCapture(first_, cudaStreamCaptureModeGlobal));
    const cudaError_t code = call();
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    return code;
  };
  const DeviceArray<float> data(4);
  void* memory = nullptr;
  const auto unsupported = cudaErrorStreamCaptureUnsupported;
  EXPECT_EQ(code_of([&] { return cudaMalloc(&memory, 16); }), unsupported);
  EXPECT_EQ(code_of([&] { return cudaFree(data.get()); }), unsupported);
  EXPECT_EQ(code_of([&] { return cudaDeviceSynchronize(); }), unsupported);
  EXPECT_EQ(code_of([&] { return cudaStreamSynchronize(first_); }), unsupported);
  EXPECT_EQ(code_of([&] {
              EXPECT_CUDA(cudaEventRecord(event_, first_));
              EXPECT_EQ(cudaEventQuery(event_), cudaErrorCapturedEvent);
              return cudaEventSynchronize(event_);
            }),
            cudaErrorCapturedEvent);
  EXPECT_EQ(code_of([&] {
              cudaEvent_t outside = nullptr;
              EXPECT_CUDA(cudaEventCreate(&outside));
              EXPECT_CUDA(cudaEventRecord(outside, second_));
              const cudaError_t code = cudaStreamWaitEvent(first_, outside, 0);
              EXPECT_CUDA(cudaEventDestroy(outside));
              return code;
            }),
            cudaErrorStreamCaptureIsolation);
}

TEST_F(EmuStream, no_mode_lets_the_device_be_waited_for_while_it_is_captured) {
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaStreamBeginCapture(first_, cudaStreamCaptureModeRelaxed));
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaErrorStreamCaptureInvalidated);
}

TEST_F(EmuStream, a_captured_event_cannot_be_asked_until_it_is_recorded_again) {
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaStreamBeginCapture(first_, cudaStreamCaptureModeRelaxed));
  EXPECT_CUDA(cudaEventRecord(event_, first_));
  EXPECT_CUDA(cudaStreamEndCapture(first_, &graph));
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaStreamWaitEvent(second_, event_, 0), cudaErrorCapturedEvent);
  EXPECT_CUDA(cudaEventRecord(event_, first_));
  EXPECT_CUDA(cudaEventSynchronize(event_));
  EXPECT_CUDA(cudaEventQuery(event_));
  EXPECT_CUDA(cudaGraphDestroy(graph));
}

TEST_F(EmuStream, a_branch_must_be_joined_and_modes_can_be_relaxed) {
  const DeviceArray<float> data(4);
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal));
  EXPECT_CUDA(cudaEventRecord(event_, first_));
  EXPECT_CUDA(cudaStreamWaitEvent(second_, event_, 0));
  EXPECT_CUDA(run(second_, set, data.get(), 1.0f));
  cudaStreamCaptureStatus status;
  EXPECT_CUDA(cudaStreamIsCapturing(second_, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  EXPECT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  void* memory = nullptr;
  EXPECT_CUDA(cudaMalloc(&memory, 16));
  EXPECT_CUDA(cudaFree(memory));
  EXPECT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaErrorStreamCaptureUnjoined);
  EXPECT_CUDA(cudaStreamIsCapturing(second_, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
}

}  // namespace
