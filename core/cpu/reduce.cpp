// reduce.cpp - sum, mean, prod, max, min, any and all along dimensions, on the CPU.
#include "tarn/core/cpu/reduce.h"

#include "tarn/core/cpu/reducer.h"
#include "tarn/core/cpu/table.h"
#include "tarn/core/factory.h"
#include "tarn/core/kernels.h"

namespace tarn::cpu {
namespace {

template <class T>
void reduce_typed(ReduceOp op, const Tensor& x, const Tensor& out) {
  const double count = static_cast<double>(x.numel()) / std::max<int64_t>(1, out.numel());
  visit_reduction<T>(op, count, [&](auto operation, Finish finish) {
    run_reduction<decltype(operation), T>(operation, x, out, finish);
  });
}

/// The narrow integers and bool take the road of i64: they are rarely large.
Tensor widened(const Tensor& x) {
  Tensor wide = empty(x.sizes(), {.dtype = DType::kI64});
  const ReducePlan plan = make_reduce_plan(x, wide);
  int64_t* to = wide.data<int64_t>();
  visit_dtype(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = static_cast<const T*>(x.data());
    parallel_for(plan.outputs, grain_for(1), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        to[offset_at(i, plan.kept, plan.kept_size, plan.out_stride)] =
            static_cast<int64_t>(from[offset_at(i, plan.kept, plan.kept_size, plan.kept_stride)]);
      }
    });
  });
  return wide;
}

void reduce(ReduceOp op, const Tensor& x, double p, const Tensor& out, Stream) {
  if (op >= ReduceOp::kNorm0) return reduce_norm(op, x, p, out);
  if (is_floating(x.dtype())) {
    visit_floating(x.dtype(),
                   [&](auto tag) { reduce_typed<typename decltype(tag)::type>(op, x, out); });
  } else {
    reduce_typed<int64_t>(op, x.dtype() == DType::kI64 ? x : widened(x), out);
  }
}

}  // namespace

void add_reduce_kernels(KernelTable& table) {
  table.reduce.reduce = reduce;
  table.reduce.var_mean = var_mean;
  table.reduce.arg_reduce = arg_reduce;
  table.reduce.cumulative = cumulative;
  table.reduce.topk = topk;
}

}  // namespace tarn::cpu
