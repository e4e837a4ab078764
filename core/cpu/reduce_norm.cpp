// reduce_norm.cpp - vector norms and sums of squares along dimensions, on the CPU.
#include "tarn/core/cpu/reduce.h"
#include "tarn/core/cpu/reducer.h"

namespace tarn::cpu {
namespace {

template <class T>
void reduce_norm(ReduceOp op, const Tensor& x, double p, const Tensor& out) {
  PowerSumOp<T> power;
  power.p = p;
  switch (op) {
    case ReduceOp::kNorm0:
      return run_reduction<CountOp<T>, T>({}, x, out);
    case ReduceOp::kNorm1:
      return run_reduction<AbsSumOp<T>, T>({}, x, out);
    case ReduceOp::kNorm2:
      return run_reduction<SquareSumOp<T>, T>({}, x, out, {Finish::kSqrt});
    case ReduceOp::kSumSquares:
      return run_reduction<SquareSumOp<T>, T>({}, x, out);
    case ReduceOp::kNormInf:
      return run_reduction<AbsMaxOp<T>, T>({}, x, out);
    case ReduceOp::kNormNegInf:
      return run_reduction<AbsMinOp<T>, T>({}, x, out);
    default:
      return run_reduction<PowerSumOp<T>, T>(power, x, out, {Finish::kRoot, 1.0 / p});
  }
}

}  // namespace

void reduce_norm(ReduceOp op, const Tensor& x, double p, const Tensor& out) {
  visit_floating(x.dtype(),
                 [&](auto tag) { reduce_norm<typename decltype(tag)::type>(op, x, p, out); });
}

}  // namespace tarn::cpu
