// transfer.h - copies that overlap with computing: pinned memory, and memory shared by streams.
#pragma once

#include "tarn/core/tensor.h"

namespace tarn {

/// x in page-locked memory of the host, dense in x's order: the GPU copies from and to it while the
/// host goes on. x itself if it is pinned already. Throws DeviceError without a GPU, and on a
/// tensor that is not on the CPU. Freed memory is kept and used again.
Tensor pin_memory(const Tensor& x);
/// Uninitialised page-locked memory. Throws DeviceError without a GPU.
Tensor empty_pinned(const Shape& sizes, DType dtype);
/// True if x's memory came from pin_memory.
bool is_pinned(const Tensor& x);

/// x on `device`, copied in the order of the GPU's current stream without waiting for it. Between a
/// GPU and pinned memory the copy runs while the host goes on: what arrives on the host may be read
/// only after the stream was waited for. From and to pageable memory it is the ordinary copy.
Tensor to_async(const Tensor& x, Device device);

/// Work queued on `stream` uses x, which was made on another stream of its device: when x dies, its
/// memory is not handed out again before that work is done.
void record_stream(const Tensor& x, Stream stream);

namespace detail {
/// out = from, cast and broadcast; the two are on different devices. wait: what arrived on the host
/// may be read, and what left pinned memory may be changed, when the call returns.
void copy_between(const Tensor& out, const Tensor& from, bool wait = true);
/// What is queued on `first` so far happens before what comes on `second`.
void wait_for(Stream first, Stream second);
/// True for an address inside pinned memory.
bool is_pinned_address(const void* ptr);
/// Queued work on `stream` uses the pinned memory that holds ptr.
void record_pinned_use(const void* ptr, Stream stream);
}  // namespace detail

}  // namespace tarn
