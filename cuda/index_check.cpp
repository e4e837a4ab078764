// index_check.cpp - the host's side of index checks: mailboxes and the errors in them.
#include "tarn/cuda/index_check.h"

#include <array>
#include <atomic>
#include <mutex>
#include <new>

#include "tarn/cuda/rt.h"

namespace tarn::cuda {
namespace {

constexpr int kMostDevices = 128;  // Device holds the index in 8 bits
std::array<std::atomic<IndexMailbox*>, kMostDevices> mailboxes;
std::mutex mutex;  // making and emptying them

}  // namespace

IndexMailbox* index_mailbox(int device) {
  std::atomic<IndexMailbox*>& slot = mailboxes[static_cast<size_t>(device)];
  if (IndexMailbox* box = slot.load(std::memory_order_acquire)) return box;
  const std::lock_guard lock(mutex);
  if (IndexMailbox* box = slot.load(std::memory_order_relaxed)) return box;
  set_device(device);
  void* memory = nullptr;  // lives as long as the process
  TARN_CUDA_CALL(cudaHostAlloc, &memory, sizeof(IndexMailbox),
                 static_cast<unsigned>(cudaHostAllocPortable | cudaHostAllocMapped));
  auto* const box = new (memory) IndexMailbox{};
  slot.store(box, std::memory_order_release);
  return box;
}

void throw_index_error(int device) {
  IndexMailbox* const box = mailboxes[static_cast<size_t>(device)].load(std::memory_order_acquire);
  if (!box || __atomic_load_n(&box->ready, __ATOMIC_ACQUIRE) == 0) return;
  IndexMailbox found;
  {
    const std::lock_guard lock(mutex);
    if (box->ready == 0) return;  // another thread was first
    found = *box;
    box->ready = 0;
    __atomic_store_n(&box->claimed, 0u, __ATOMIC_RELEASE);
  }
  const Device where(DeviceType::kCUDA, device);
  throw IndexError(tarn::detail::concat(
      out_of_range_text(found.check, found.value, found.position, where), " on ", where,
      "; found by an earlier operation, set TARN_CUDA_BLOCKING=1 to see it where it happens"));
}

}  // namespace tarn::cuda
