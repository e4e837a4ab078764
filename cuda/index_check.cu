// index_check.cu - looks for the first index out of range, 8 bytes read per index.
//
// Short lists: one block. Long ones: every block leaves the first position that it finds, a second
// kernel of one block takes the smallest; no atomics but the one that claims the mailbox.
#include <algorithm>

#include "tarn/cuda/grid.cuh"
#include "tarn/cuda/index.cuh"
#include "tarn/cuda/index_check.h"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/scratch.h"
#include "tarn/cuda/warp.cuh"

namespace tarn::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int64_t kOneBlock = 32768;  // indices that one block looks at
constexpr int64_t kNone = INT64_MAX;  // no position

struct Smaller {
  __device__ int64_t operator()(int64_t a, int64_t b) const { return a < b ? a : b; }
};

/// Where the result goes: the mailbox, or *position (-1: none) for a host that waits.
struct Report {
  IndexMailbox* mailbox = nullptr;
  int64_t* position = nullptr;
};

__device__ void report_first(const int64_t* index, int64_t first, const IndexCheck& check,
                             const Report& report) {
  if (report.position) {
    *report.position = first == kNone ? -1 : first;
  } else if (first != kNone && atomicCAS(&report.mailbox->claimed, 0u, 1u) == 0u) {
    report.mailbox->position = first;
    report.mailbox->value = index[first];
    report.mailbox->check = check;
    __threadfence_system();
    *static_cast<volatile uint32_t*>(&report.mailbox->ready) = 1;
  }
}

// firsts: where each of several blocks leaves what it found; null for a single block.
__global__ void __launch_bounds__(kThreads)
    check_range(const int64_t* index, int64_t n, IndexCheck check, int64_t* firsts, Report report) {
  __shared__ int64_t scratch[kWarp];
  int64_t first = kNone;
  for (int64_t i = grid_index(); i < n; i += grid_step()) {
    if (!check.allows(index[i]) && first == kNone) first = i;
  }
  first = block_reduce(first, kNone, scratch, Smaller());
  if (threadIdx.x != 0) return;
  if (firsts) {
    firsts[blockIdx.x] = first;
  } else {
    report_first(index, first, check, report);
  }
}

__global__ void __launch_bounds__(kThreads)
    take_first(const int64_t* firsts, int blocks, const int64_t* index, IndexCheck check,
               Report report) {
  __shared__ int64_t scratch[kWarp];
  int64_t first = kNone;
  for (int b = static_cast<int>(threadIdx.x); b < blocks; b += kThreads) {
    first = Smaller()(first, firsts[b]);
  }
  first = block_reduce(first, kNone, scratch, Smaller());
  if (threadIdx.x == 0) report_first(index, first, check, report);
}

void start_check(const Tensor& index, const IndexCheck& check, const Report& report,
                 Stream stream) {
  const auto* const values = data_as<const int64_t>(index);
  const int64_t n = index.numel();
  if (n <= kOneBlock) {
    launch(check_range, 1, kThreads, 0, stream, values, n, check, nullptr, report);
    return;
  }
  const unsigned blocks = blocks_for(n, 8 * kThreads, stream);
  const Scratch firsts(blocks * sizeof(int64_t), stream);
  launch(check_range, blocks, kThreads, 0, stream, values, n, check, firsts.as<int64_t>(), report);
  launch(take_first, 1, kThreads, 0, stream, firsts.as<const int64_t>(), static_cast<int>(blocks),
         values, check, report);
}

bool is_captured(Stream stream) {
  set_device(stream.device.index);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  TARN_CUDA_CALL(cudaStreamIsCapturing, raw_stream(stream), &status);
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

void find_out_of_range(const Tensor& index, const IndexCheck& check, int64_t* position,
                       Stream stream) {
  *position = kCheckQueued;
  if (is_captured(stream)) return;
  if (blocking()) {
    const Scratch found(sizeof(int64_t), stream);
    start_check(index, check, {.position = found.as<int64_t>()}, stream);
    *position = read_back(found.as<const int64_t>(), stream);
  } else {
    start_check(index, check, {.mailbox = index_mailbox(stream.device.index)}, stream);
  }
}

}  // namespace tarn::cuda
