// dnn_index.h - inside the stand-in for cuDNN: visits the elements of a tensor.
#pragma once

#include <cstdint>

namespace tarn::emu {

/// f(a, b, c, d) for every index of a tensor of these sizes, the last one fastest.
template <class F>
void for_each_index(const int64_t (&sizes)[4], F f) {
  for (int64_t a = 0; a < sizes[0]; ++a) {
    for (int64_t b = 0; b < sizes[1]; ++b) {
      for (int64_t c = 0; c < sizes[2]; ++c) {
        for (int64_t d = 0; d < sizes[3]; ++d) f(a, b, c, d);
      }
    }
  }
}

}  // namespace tarn::emu
