// profiler.cpp - the installed listener.
#include "tarn/core/profiler.h"

namespace tarn {

std::atomic<OpListener*> detail::op_listener{nullptr};

OpListener* set_op_listener(OpListener* listener) {
  return detail::op_listener.exchange(listener, std::memory_order_acq_rel);
}

}  // namespace tarn
