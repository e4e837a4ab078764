// reduce_integer.cu - sum, prod, max, min, any and all of integers and bool (as u8).
#include "tarn/cuda/reduce.cuh"
#include "tarn/cuda/reduce.h"
#include "tarn/cuda/reduce_fold.cuh"

namespace tarn::cuda {
namespace {

template <class T>
void reduce_typed(ReduceOp op, const Tensor& x, const Tensor& out, Stream stream) {
  visit_reduction<T>(op, 1, [&](const auto& operation, Finish finish) {
    reduce_to<T>(operation, finish, x, out, stream);
  });
}

}  // namespace

void reduce_integer(ReduceOp op, const Tensor& x, const Tensor& out, Stream stream) {
  switch (x.dtype()) {
    case DType::kI64:
      return reduce_typed<int64_t>(op, x, out, stream);
    case DType::kI32:
      return reduce_typed<int32_t>(op, x, out, stream);
    default:
      return reduce_typed<uint8_t>(op, x, out, stream);
  }
}

}  // namespace tarn::cuda
