// reduce_norm.cpp - vector norms and sums of squares along dimensions, on the CPU.
#include "tarn/core/cpu/reduce.h"
#include "tarn/core/cpu/reducer.h"

namespace tarn::cpu {

void reduce_norm(ReduceOp op, const Tensor& x, double p, const Tensor& out) {
  visit_floating(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    visit_norm<T>(op, p, [&](auto operation, Finish finish) {
      run_reduction<decltype(operation), T>(operation, x, out, finish);
    });
  });
}

}  // namespace tarn::cpu
