// kernels.h - THE BOUNDARY, part two: one table of kernels per kind of device.
//
// A slot is a function pointer with a contract (core/kernels/<family>.h). The raw layer has
// checked, allocated and normalised everything: kernels compute and trust. A null slot is an honest
// error. To add a kernel: a slot in its family, a function per device, one line in
// add_<family>_kernels.
#pragma once

#include "tarn/core/kernel_work.h"
#include "tarn/core/kernels/attention.h"
#include "tarn/core/kernels/conv.h"
#include "tarn/core/kernels/elementwise.h"
#include "tarn/core/kernels/index.h"
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

/// Calls a slot, or throws UnsupportedError "no <device> kernel for <slot>".
#define TARN_KERNEL(family, slot, device, ...)                                       \
  do {                                                                               \
    const auto tarn_kernel = ::tarn::kernels(device).family.slot;                    \
    if (!tarn_kernel) ::tarn::detail::missing_kernel(#family "." #slot, device);     \
    ::tarn::detail::run_kernel(#family "." #slot, tarn_kernel, device, __VA_ARGS__); \
  } while (0)

}  // namespace tarn
