// transfer.cpp - the cache of pinned memory, and what uses it.
#include "tarn/core/transfer.h"

#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tarn/core/backend.h"
#include "tarn/core/capture.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {

/// Pinned blocks in powers of two. Locking pages costs hundreds of microseconds, so blocks are
/// kept; one that a queued copy still reads waits for its event, one that a recorded copy reads for
/// the end of the graph. Thread safety: all methods.
class PinnedPool {
 public:
  void* take(size_t bytes) {
    const size_t size = std::bit_ceil(std::max<size_t>(bytes, 4096));
    const std::lock_guard lock(mutex_);
    auto& cached = free_[size];
    for (size_t i = cached.size(); i-- > 0;) {
      if (!idle(blocks_.at(cached[i]))) continue;
      char* ptr = cached[i];
      cached.erase(cached.begin() + static_cast<std::ptrdiff_t>(i));
      return ptr;
    }
    auto* ptr = static_cast<char*>(backend(DeviceType::kCUDA).pinned_allocate(size));
    TARN_CHECK_AS(OutOfMemoryError, ptr, "pin_memory: the host has no ", size,
                  " bytes left to lock in memory; pin smaller batches or fewer of them");
    blocks_[ptr].size = size;
    return ptr;
  }

  void give(void* ptr) {
    const std::lock_guard lock(mutex_);
    free_[blocks_.at(static_cast<char*>(ptr)).size].push_back(static_cast<char*>(ptr));
  }

  bool contains(const void* ptr) {
    const std::lock_guard lock(mutex_);
    return find(ptr) != blocks_.end();
  }

  void record_use(const void* ptr, Stream stream) {
    const std::lock_guard lock(mutex_);
    const auto found = find(ptr);
    if (found == blocks_.end()) return;
    const auto use = std::make_shared<const char>();
    if (detail::keep_for_graph(stream, use)) return found->second.recorded.push_back(use);
    Event event(stream.device);
    event.record(stream);
    found->second.uses.push_back(std::move(event));
  }

 private:
  struct Block {
    size_t size = 0;
    std::vector<Event> uses;
    std::vector<std::weak_ptr<const char>> recorded;  // each lives as long as the graph it is in
  };

  static bool idle(Block& block) {
    std::erase_if(block.uses, [](const Event& event) { return event.query(); });
    std::erase_if(block.recorded, [](const auto& use) { return use.expired(); });
    return block.uses.empty() && block.recorded.empty();
  }

  std::map<char*, Block>::iterator find(const void* ptr) {
    auto* address = static_cast<char*>(const_cast<void*>(ptr));
    auto above = blocks_.upper_bound(address);
    if (above == blocks_.begin()) return blocks_.end();
    --above;
    return address < above->first + above->second.size ? above : blocks_.end();
  }

  std::mutex mutex_;
  std::map<char*, Block> blocks_;
  std::map<size_t, std::vector<char*>> free_;
};

PinnedPool& pinned_pool() {
  static PinnedPool& pool = *new PinnedPool;  // outlives static destructors
  return pool;
}

/// True if x fills its memory without gaps or overlaps, in whatever order of dimensions.
bool is_dense(const Tensor& x) {
  int64_t expected = 1;
  for (int64_t d : dims_by_stride(x.strides())) {
    const auto i = static_cast<int>(d);
    if (x.sizes()[i] == 1) continue;
    if (x.strides()[i] != expected) return false;
    expected *= x.sizes()[i];
  }
  return true;
}

/// Memory for x on another device: in x's order if x is dense, else row-major.
Tensor moved_like(const Tensor& x, Device device) {
  const Shape strides = is_dense(x) ? x.strides() : contiguous_strides(x.sizes());
  return empty_strided(x.sizes(), strides, {.dtype = x.dtype(), .device = device});
}

/// Uninitialised, dense in the order of the strides.
Tensor pinned(const Shape& sizes, const Shape& strides, DType dtype) {
  const auto bytes = static_cast<size_t>(sizes.numel() * item_size(dtype));
  if (bytes == 0) return empty_strided(sizes, strides, {.dtype = dtype});
  void* ptr = pinned_pool().take(bytes);
  return Tensor(Storage::wrap(ptr, bytes, kCPU, [ptr] { pinned_pool().give(ptr); }), sizes, strides,
                0, dtype);
}

}  // namespace

Tensor pin_memory(const Tensor& x) {
  TARN_CHECK_AS(DeviceError, x.device().is_cpu(), "pin_memory: expected a tensor on the cpu; got ",
                x.describe());
  if (is_pinned(x)) return x;
  backend(DeviceType::kCUDA);  // says why, if there is no GPU
  Tensor out = pinned(x.sizes(), empty_like(x).strides(), x.dtype());
  if (x.numel() > 0) raw::copy_(out, x);
  return out;
}

Tensor empty_pinned(const Shape& sizes, DType dtype) {
  backend(DeviceType::kCUDA);  // says why, if there is no GPU
  return pinned(sizes, contiguous_strides(sizes), dtype);
}

bool is_pinned(const Tensor& x) {
  return x.device().is_cpu() && x.numel() > 0 && detail::is_pinned_address(x.data());
}

void record_stream(const Tensor& x, Stream stream) {
  TARN_CHECK_AS(DeviceError, x.device() == stream.device, "record_stream: the stream is on ",
                stream.device, ", the tensor is ", x.describe());
  record_use(x.storage()->allocation(), stream);
}

Tensor to_async(const Tensor& x, Device device) {
  if (x.device() == device) return x;
  Tensor out = moved_like(x, device);
  if (x.numel() > 0) detail::copy_between(out, x, false);
  return out;
}

Tensor raw::to(const Tensor& x, Device device) {
  if (x.device() == device) return x;
  Tensor out = moved_like(x, device);
  if (x.numel() > 0) detail::copy_between(out, x);
  return out;
}

// One block copy between dense memory of one order, on the stream of the GPU; casts and gathers
// happen before and after it, on the side that needs them. Between two GPUs both streams wait for
// each other, since the source may be freed right after.
void detail::copy_between(const Tensor& out, const Tensor& from, bool wait) {
  Tensor source = raw::to(from, out.dtype());
  if (!(source.sizes() == out.sizes())) source = raw::expand(source, out.sizes());
  const bool direct = is_dense(out) && source.strides() == out.strides();
  if (!direct) source = raw::contiguous(source);
  const Tensor target = direct || out.is_contiguous()
                            ? out
                            : empty(out.sizes(), {.dtype = out.dtype(), .device = out.device()});
  const Device on = out.device().is_cuda() ? out.device() : source.device();
  const Stream stream = current_stream(on);
  const bool two_gpus = source.device().is_cuda() && !(source.device() == on);
  const Tensor& host = target.device().is_cpu() ? target : source;
  const bool pinned = host.device().is_cpu() && is_pinned_address(host.data());
  if (two_gpus) wait_for(current_stream(source.device()), stream);
  backend(on.type).copy(target.data(), target.device(), source.data(), source.device(),
                        static_cast<size_t>(out.numel() * item_size(out.dtype())), stream);
  if (two_gpus) wait_for(stream, current_stream(source.device()));
  if (pinned && !wait && target.is_same(out)) {
    record_pinned_use(host.data(), stream);
  } else if (pinned || target.device().is_cpu()) {
    backend(on.type).synchronize(stream);
  }
  if (!target.is_same(out)) raw::copy_(out, target);
}

void detail::wait_for(Stream first, Stream second) {
  Event mark(first.device);
  mark.record(first);
  mark.wait(second);
}

bool detail::is_pinned_address(const void* ptr) {
  return has_backend(DeviceType::kCUDA) && pinned_pool().contains(ptr);
}

void detail::record_pinned_use(const void* ptr, Stream stream) {
  pinned_pool().record_use(ptr, stream);
}

}  // namespace tarn
