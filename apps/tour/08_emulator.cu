// 08_emulator.cu - six wrong kernels, and what the emulator says of each.
//
// On a GPU most of these run without a word and give wrong numbers now and then. In a build with
// TARN_CUDA=EMU each stops with one line. Every mistake runs in a process of its own.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include "tarn/core/backend.h"
#include "tarn/core/factory.h"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/warp.cuh"

using namespace tarn;
using namespace tarn::cuda;

namespace {

// Threads read what their neighbour writes to shared memory, and nobody waits.
__global__ void no_barrier(float* out) {
  __shared__ float row[64];
  row[threadIdx.x] = static_cast<float>(threadIdx.x);
  out[threadIdx.x] = row[63 - threadIdx.x];  // __syncthreads() belongs before this line
}

// Half of the block waits for the other half, which waits elsewhere.
__global__ void divergent_barrier(float* out) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = 1;
}

// Names 32 lanes, of which 16 have left.
__global__ void wrong_mask(float* out) {
  if (threadIdx.x >= 16) return;
  out[threadIdx.x] = __shfl_xor_sync(kFullMask, static_cast<float>(threadIdx.x), 1);
}

// The guard lets one thread too many through.
__global__ void past_the_end(float* out, int n) {
  if (static_cast<int>(threadIdx.x) <= n) out[threadIdx.x] = 1;
}

__global__ void fine(float* out) {
  out[threadIdx.x] = 2;
}

struct Mistake {
  const char* title;
  void (*run)(const Tensor& out, Stream stream);
};

void missing_barrier(const Tensor& out, Stream stream) {
  launch(no_barrier, 1, 64, 0, stream, out.data<float>());
  for (float v : out.to_vector<float>()) {
    if (std::isnan(v)) {
      std::fprintf(stderr,
                   "  the result holds NaN: shared memory starts as NaN, and was read "
                   "before it was written\n");
      std::exit(1);
    }
  }
}
void barrier_in_a_branch(const Tensor& out, Stream stream) {
  launch(divergent_barrier, 1, 64, 0, stream, out.data<float>());
}
void mask_of_lanes_that_left(const Tensor& out, Stream stream) {
  launch(wrong_mask, 1, 32, 0, stream, out.data<float>());
}
void write_past_the_end(const Tensor& out, Stream stream) {
  launch(past_the_end, 1, 96, 0, stream, out.data<float>(), 64);
  synchronize(out.device());
}
void host_reads_device_memory(const Tensor& out, Stream stream) {
  launch(fine, 1, 64, 0, stream, out.data<float>());
  std::printf("%g\n", static_cast<double>(out.data<float>()[0]));  // a pointer of the GPU
}
void block_too_large(const Tensor& out, Stream stream) {
  launch(fine, 1, 2048, 0, stream, out.data<float>());
}

// Runs a mistake in a child, whose messages come through; true if it was caught.
bool caught(const Mistake& mistake) {
  std::printf("%s:\n", mistake.title);
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    try {
      const Device device("cuda");
      const Tensor out = empty({64}, {.device = device});
      mistake.run(out, current_stream(device));
      synchronize(device);
      std::_Exit(0);
    } catch (const Error& error) {
      std::fprintf(stderr, "  %s\n", error.what());
      std::_Exit(1);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace

int main() {
  if (!has_backend(DeviceType::kCUDA) ||
      backend(DeviceType::kCUDA).info(0).name.find("emulated") == std::string::npos) {
    std::printf("This chapter needs the emulator: cmake --preset cuda-emu\n");
    return 0;
  }
  int missed = 0;
  for (const Mistake& mistake :
       {Mistake{"a missing barrier", missing_barrier},
        Mistake{"a barrier that only some threads reach", barrier_in_a_branch},
        Mistake{"a shuffle with lanes that have left", mask_of_lanes_that_left},
        Mistake{"a write past the end of a tensor", write_past_the_end},
        Mistake{"the host reads memory of the device", host_reads_device_memory},
        Mistake{"2048 threads in a block", block_too_large}}) {
    if (!caught(mistake)) {
      std::printf("  (not caught)\n");
      ++missed;
    }
  }
  std::printf("%d of 6 mistakes were not caught\n", missed);
  return missed;
}
