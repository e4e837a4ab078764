// host.h - a tensor's values as row-major memory of the host, for files and printing.
#pragma once

#include "tarn/core/tensor.h"

namespace tarn {

/// x itself if it is row-major on the CPU, else a row-major copy there. Never recorded.
Tensor host_row_major(const Tensor& x);

}  // namespace tarn
