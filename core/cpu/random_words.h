// random_words.h - Philox's bits for a run of counters, in a loop the compiler vectorises.
#pragma once

#include "tarn/core/random.h"

namespace tarn::cpu {

/// words[4 i .. 4 i + 3] = Philox at counter state.offset + first + i, for i in [0, count).
inline void fill_words(const PhiloxState& state, uint64_t first, int64_t count,
                       uint32_t* __restrict words) {
  const auto k0 = static_cast<uint32_t>(state.seed);
  const auto k1 = static_cast<uint32_t>(state.seed >> 32);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t c = state.offset + first + static_cast<uint64_t>(i);
    const Philox4 r =
        philox4x32_10(static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32), 0, 0, k0, k1);
    words[4 * i] = r.v[0];
    words[4 * i + 1] = r.v[1];
    words[4 * i + 2] = r.v[2];
    words[4 * i + 3] = r.v[3];
  }
}

}  // namespace tarn::cpu
