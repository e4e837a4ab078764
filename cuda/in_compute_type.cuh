// in_compute_type.cuh - a weight as the kernels multiply with it.
#pragma once

#include <optional>

#include "tarn/cuda/channel_values.cuh"
#include "tarn/cuda/grid.cuh"
#include "tarn/cuda/scratch.h"

namespace tarn::cuda {

constexpr int kConvertThreads = 256;

template <class A>
__global__ void convert(ChannelValues from, int64_t n, A* to) {
  for (int64_t i = grid_index(); i < n; i += grid_step()) {
    A value[1];
    from.load(i, A(0), value);
    to[i] = value[0];
  }
}

/// A vector of D numbers in the compute type, as it is or converted.
template <class A>
class InComputeType {
 public:
  InComputeType(const Tensor& t, Stream stream) {
    if (!t.defined()) return;
    if (t.dtype() == dtype_of<A>) {
      data_ = static_cast<const A*>(t.data());
      return;
    }
    copy_.emplace(static_cast<size_t>(t.numel()) * sizeof(A), stream);
    data_ = copy_->template as<A>();
    launch(convert<A>, blocks_for(t.numel(), kConvertThreads, stream), kConvertThreads, 0, stream,
           ChannelValues(t), t.numel(), copy_->template as<A>());
  }
  const A* data() const { return data_; }

 private:
  std::optional<Scratch> copy_;
  const A* data_ = nullptr;
};

}  // namespace tarn::cuda
