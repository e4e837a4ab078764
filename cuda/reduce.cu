// reduce.cu - sum, mean, prod, max, min, any and all of floating elements; the family's slots.
#include "tarn/core/kernels.h"
#include "tarn/cuda/reduce.cuh"
#include "tarn/cuda/reduce.h"
#include "tarn/cuda/reduce_fold.cuh"
#include "tarn/cuda/table.h"

namespace tarn::cuda {

void reduce_float(ReduceOp op, const Tensor& x, const Tensor& out, Stream stream) {
  const double count = static_cast<double>(x.numel()) / std::max<int64_t>(1, out.numel());
  visit_floating(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    visit_reduction<T>(op, count, [&](const auto& operation, Finish finish) {
      reduce_to<T>(operation, finish, x, out, stream);
    });
  });
}

namespace {

void reduce(ReduceOp op, const Tensor& x, double p, const Tensor& out, Stream stream) {
  if (op >= ReduceOp::kNorm0) return reduce_norm(op, x, p, out, stream);
  if (is_floating(x.dtype())) return reduce_float(op, x, out, stream);
  reduce_integer(op, x, out, stream);
}

}  // namespace

void add_reduce_kernels(KernelTable& table) {
  table.reduce.reduce = reduce;
  table.reduce.var_mean = var_mean;
  table.reduce.arg_reduce = arg_reduce;
  table.reduce.cumulative = cumulative;
  table.reduce.topk = topk;
}

}  // namespace tarn::cuda
