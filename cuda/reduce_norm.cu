// reduce_norm.cu - vector norms and sums of squares along dimensions.
#include "tarn/cuda/reduce.cuh"
#include "tarn/cuda/reduce.h"
#include "tarn/cuda/reduce_fold.cuh"

namespace tarn::cuda {

void reduce_norm(ReduceOp op, const Tensor& x, double p, const Tensor& out, Stream stream) {
  visit_floating(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    visit_norm<T>(op, p, [&](const auto& operation, Finish finish) {
      reduce_to<T>(operation, finish, x, out, stream);
    });
  });
}

}  // namespace tarn::cuda
