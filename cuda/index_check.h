// index_check.h - checks of index tensors that do not make the host wait.
//
// The check runs in stream order. The first one that fails leaves what it found in a mailbox in
// pinned memory, one per device, and the kernels behind it neither read nor write at an index out
// of range, so the device's context survives. Whoever next waits for the device empties the mailbox
// and gets the IndexError. TARN_CUDA_BLOCKING=1: the check waits, and the operation itself throws.
// While a stream is being captured into a graph nothing is checked.
#pragma once

#include "tarn/core/index_check.h"

namespace tarn::cuda {

/// What a failed check leaves. Written by one thread of the device, read and reset by the host.
struct IndexMailbox {
  uint32_t claimed;  ///< 1: somebody writes or has written
  uint32_t ready;    ///< 1: the rest is complete
  int64_t position, value;
  IndexCheck check;
};

/// Throws the IndexError that a failed check on a device has left, if there is one, and forgets it.
/// To be called after waiting for that device.
void throw_index_error(int device);

/// The mailbox of a device, made at first use; kernels may write to it.
IndexMailbox* index_mailbox(int device);

}  // namespace tarn::cuda
