// kernel_call.h - TARN_KERNEL, which calls a slot of the kernel table and tells those who listen.
#pragma once

#include "tarn/core/kernel_work.h"
#include "tarn/core/kernels.h"

namespace tarn::detail {

/// Calls a kernel on the device's current stream; listeners hear of it first.
template <class Slot, class... A>
void run_kernel(const char* name, Slot slot, Device device, A&&... args) {
  if (listening()) tell_kernel_call(name, device, args...);
  slot(std::forward<A>(args)..., current_stream(device));
}

}  // namespace tarn::detail

/// Calls a slot, or throws UnsupportedError "no <device> kernel for <slot>".
#define TARN_KERNEL(family, slot, device, ...)                                       \
  do {                                                                               \
    const auto tarn_kernel = ::tarn::kernels(device).family.slot;                    \
    if (!tarn_kernel) ::tarn::detail::missing_kernel(#family "." #slot, device);     \
    ::tarn::detail::run_kernel(#family "." #slot, tarn_kernel, device, __VA_ARGS__); \
  } while (0)
