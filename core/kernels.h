// kernels.h - THE BOUNDARY, part two: one table of kernels per kind of device.
//
// A slot is a function pointer with a contract (core/kernels/<family>.h). The raw layer has
// checked, allocated and normalised everything: kernels compute and trust. A null slot is an honest
// error. To add a kernel: a slot in its family, a function per device, one line in
// add_<family>_kernels.
#pragma once

#include "tarn/core/kernels/attention.h"
#include "tarn/core/kernels/conv.h"
#include "tarn/core/kernels/elementwise.h"
#include "tarn/core/kernels/index.h"
#include "tarn/core/kernels/linalg.h"
#include "tarn/core/kernels/matmul.h"
#include "tarn/core/kernels/norm.h"
#include "tarn/core/kernels/optim.h"
#include "tarn/core/kernels/pool.h"
#include "tarn/core/kernels/random.h"
#include "tarn/core/kernels/reduce.h"
#include "tarn/core/kernels/softmax.h"

namespace tarn {

struct KernelTable {
  ElementwiseKernels elementwise;
  ReduceKernels reduce;
  SoftmaxKernels softmax;
  NormKernels norm;
  MatmulKernels matmul;
  LinalgKernels linalg;
  ConvKernels conv;
  PoolKernels pool;
  IndexKernels index;
  RandomKernels random;
  AttentionKernels attention;
  OptimKernels optim;
};

/// The table of a device type, filled once at first use. Throws DeviceError if it is not built in.
const KernelTable& kernels(DeviceType type);
inline const KernelTable& kernels(Device device) {
  return kernels(device.type);
}
/// For test doubles and overrides: the same table, writable. Not while kernels run.
KernelTable& mutable_kernels(DeviceType type);

namespace detail {
[[noreturn]] void missing_kernel(const char* slot, Device device);
}

// A slot is called by TARN_KERNEL (kernel_call.h):
//
//   TARN_KERNEL(softmax, softmax, x.device(), x, dim, log, y);
//
// That lets those who listen hear of the call, and where the slot is null it throws
// UnsupportedError "no <device> kernel for <slot>". The stream is added at the end: the current one
// of the device.

}  // namespace tarn
