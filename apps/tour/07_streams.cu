// 07_streams.cu - streams are queues, events are marks in them: how copies hide behind kernels.
//
// The host only queues work; the GPU does it later. Work in one stream runs in order, work in two
// streams in any order, until an event ties them together.
#include <chrono>
#include <cstdio>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/backend.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/core/transfer.h"
#include "tarn/cuda/launch.h"

using namespace tarn;

namespace {

// A kernel that takes its time: n rounds of a recurrence, for every number.
__global__ void iterate(float* x, int64_t n, int rounds) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = x[i];
  for (int r = 0; r < rounds; ++r) v = 0.5f * v + 1.0f;
  x[i] = v;
}

void iterate_on(const Tensor& x, int rounds, Stream stream) {
  const int64_t n = x.numel();
  cuda::launch(iterate, static_cast<unsigned>(cuda::ceil_div(n, 256)), 256, 0, stream,
               x.data<float>(), n, rounds);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main() {
  if (!has_backend(DeviceType::kCUDA)) {
    std::printf("%s\n", why_no_backend(DeviceType::kCUDA).c_str());
    return 0;
  }
  const Device device("cuda");
  Backend& gpu = backend(device.type);
  const bool emulated = gpu.info(0).name.find("emulated") != std::string::npos;
  const int64_t n = emulated ? 1 << 14 : 1 << 22;
  const int rounds = emulated ? 10 : 2000;

  // 1. A launch returns at once. synchronize() waits; so does reading a value.
  const Tensor x = zeros({n}, {.device = device});
  const auto start = std::chrono::steady_clock::now();
  iterate_on(x, rounds, current_stream(device));
  const double queued = seconds_since(start);
  synchronize(device);
  std::printf("queued after %.0f us, done after %.0f us; x[0] = %g\n", queued * 1e6,
              seconds_since(start) * 1e6, x[0].item());

  // 2. Two streams know nothing of each other. `side` writes y; the default stream may read it only
  //    after the mark that `side` leaves behind its work.
  const Stream side = gpu.create_stream(0, 0);
  const Tensor y = zeros({n}, {.device = device});
  Event ready(device), written(device);
  ready.record(current_stream(device));  // y is zeroed on the default stream ...
  ready.wait(side);                      // ... and `side` must not start before
  iterate_on(y, rounds, side);
  written.record(side);
  written.wait(current_stream(device));  // without this line the sum below is a race
  std::printf("sum over y / n = %g\n", sum(y).item() / static_cast<double>(n));

  // 3. Copies that do not wait. From pageable memory the host must wait until the driver has read
  //    it; pinned memory the GPU reads by itself, while a kernel of another stream computes.
  manual_seed(1);
  Tensor next = pin_memory(rand({n}));
  Tensor total = zeros({}, {.device = device});
  for (int batch = 0; batch < 4; ++batch) {
    Tensor here;
    {
      const StreamGuard on_side(side);
      here = to_async(next, device);  // queued on `side`
    }
    written.record(side);
    written.wait(current_stream(device));
    // `here` belongs to `side`: its memory goes back there when it dies, so the allocator must be
    // told that the default stream still reads it.
    record_stream(here, current_stream(device));
    total.add_(mean(here));
    next = pin_memory(rand({n}));  // the next batch is made while this one is copied
  }
  std::printf("mean of four batches %.4f (expected about 0.5)\n", total.item() / 4);

  // 4. What goes wrong without the marks shows under emulation: TARN_EMU_LAZY=1 runs each stream as
  //    late as it may, so forgetting an event reads memory that is not written yet.
  gpu.destroy_stream(side);
  return 0;
}
