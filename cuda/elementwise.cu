// elementwise.cu - the elementwise slots: choose a kernel, hand it the plan. where, ternary, fill
// and arange are here; the unary and binary operators come from the tables.
//
// Bytes per element: every operand once (elementwise.cuh); fill and arange write only.
#include <bit>
#include <cstring>

#include "tarn/core/cast.h"
#include "tarn/cuda/elementwise_tables.cuh"
#include "tarn/cuda/elementwise_walk.h"
#include "tarn/cuda/grid.cuh"
#include "tarn/cuda/table.h"

namespace tarn::cuda {
namespace {

#define TARN_COUNT(Name, name) +1
constexpr int kArithmetic = 0 TARN_UNARY_ARITHMETIC_OPS(TARN_COUNT);
constexpr int kMath = 0 TARN_UNARY_MATH_OPS(TARN_COUNT);
constexpr int kBinaryArithmetic = 0 TARN_BINARY_ARITHMETIC_OPS(TARN_COUNT);
#undef TARN_COUNT

const UnaryKernels& unary_kernels(UnaryOp op) {
  const int i = static_cast<int>(op);
  if (i < kArithmetic) return kUnaryArithmeticKernels[i];
  if (i < kArithmetic + kMath) return kUnaryMathKernels[i - kArithmetic];
  return kUnaryActivationKernels[i - kArithmetic - kMath];
}

const BinaryKernels& binary_kernels(BinaryOp op) {
  const int i = static_cast<int>(op);
  return i < kBinaryArithmetic ? kBinaryArithmeticKernels[i]
                               : kBinaryLogicKernels[i - kBinaryArithmetic];
}

[[noreturn, gnu::cold]] void not_defined(const char* name, DType dtype) {
  tarn::detail::fail<UnsupportedError>(name, ": not defined for ", dtype);
}

// x^2, 1/x and x itself have cheaper and equally exact forms.
UnaryOp cheaper_power(UnaryOp op, const Scalars& s) {
  if (op != UnaryOp::kPowScalar) return op;
  if (s.v[0] == 2.0) return UnaryOp::kSquare;
  if (s.v[0] == 1.0) return UnaryOp::kMulScalar;  // by s.v[0], which is 1
  return s.v[0] == -1.0 ? UnaryOp::kReciprocal : op;
}

void unary(UnaryOp op, const Scalars& s, const ElementwisePlan& plan, Stream stream) {
  const UnaryKernels& kernels = unary_kernels(cheaper_power(op, s));
  const auto kernel = kernels.forward[static_cast<int>(plan.dtype[1])];
  if (!kernel) not_defined(unary_info(op).name, plan.dtype[1]);
  run_elementwise<2>(kernel, plan, s, stream);
}

// Operands {out, grad, what the operator saves}.
ElementwisePlan backward_plan(UnaryOp op, const ElementwisePlan& plan) {
  const Saves saves = unary_info(op).saves;
  const int from = saves == Saves::kInput ? 2 : saves == Saves::kOutput ? 3 : 1;
  ElementwisePlan result = plan;
  result.operands = 3;
  result.data[2] = plan.data[from];
  result.dtype[2] = plan.dtype[from];
  std::copy_n(plan.strides[from], kMaxDims, result.strides[2]);
  return result;
}

void unary_backward(UnaryOp op, int order, const Scalars& s, const ElementwisePlan& plan,
                    Stream stream) {
  const ElementwisePlan three = backward_plan(op, plan);
  const DType dtype = plan.dtype[0];
  if (order == 1) {
    const auto kernel = unary_kernels(op).backward[static_cast<int>(dtype)];
    if (!kernel) not_defined(unary_info(op).name, dtype);
    run_elementwise<3>(kernel, three, s, stream);
    return;
  }
  const HighOrderKernel kernel = kHighOrderKernels[static_cast<int>(op)];
  if (!kernel) not_defined(unary_info(op).name, dtype);
  for_each_part(three, [&](const ElementwisePlan& part) {
    const unsigned blocks = blocks_for(part.numel, kElementwiseThreads, stream);
    launch(kernel, blocks, kElementwiseThreads, 0, stream, detail::make_walk<3>(part, false), s,
           dtype, order);
  });
}

void binary(BinaryOp op, const ElementwisePlan& plan, Stream stream) {
  const auto kernel = binary_kernels(op).of[static_cast<int>(plan.dtype[1])];
  if (!kernel) not_defined(binary_info(op).name, plan.dtype[1]);
  run_elementwise<3>(kernel, plan, {}, stream);
}

struct Select {
  template <class Bits>
  static __device__ __forceinline__ Bits call(uint8_t cond, Bits a, Bits b, const Scalars&) {
    return cond != 0 ? a : b;
  }
};

void where(const ElementwisePlan& plan, Stream stream) {
  const ElementwiseKernel<4> kernel = visit_bits(plan.dtype[0], []<class Bits>(TypeTag<Bits>) {
    return ElementwiseKernel<4>(elementwise_kernel<Select, Bits, uint8_t, Bits, 3>);
  });
  run_elementwise<4>(kernel, plan, {}, stream);
}

template <class Op>
struct Ternary {
  template <class C>
  static __device__ __forceinline__ C call(C a, C b, C c, const Scalars& s) {
    return Op::fwd(a, b, c, s);
  }
};

template <class Op>
ElementwiseKernel<4> ternary_kernel(DType dtype) {
  ElementwiseKernel<4> found = nullptr;
  for_types_of<Op>([&]<class T>(TypeTag<T>) {
    if (dtype == dtype_of<T>) found = elementwise_kernel<Ternary<Op>, T, T, T, 3>;
  });
  return found;
}

void ternary(TernaryOp op, const Scalars& s, const ElementwisePlan& plan, Stream stream) {
  ElementwiseKernel<4> kernel = nullptr;
  switch (op) {
#define TARN_CASE(Name, name)                          \
  case TernaryOp::k##Name:                             \
    kernel = ternary_kernel<ops::Name>(plan.dtype[1]); \
    break;
    TARN_TERNARY_OPS(TARN_CASE)
#undef TARN_CASE
  }
  if (!kernel) not_defined(ternary_info(op).name, plan.dtype[1]);
  run_elementwise<4>(kernel, plan, s, stream);
}

/// The scalar's bits, whatever its type: they travel in the first of the kernel's numbers.
struct Constant {
  template <class Bits>
  static __device__ __forceinline__ Bits call(const Scalars& s) {
    return static_cast<Bits>(std::bit_cast<uint64_t>(s.v[0]));
  }
};

void fill(const Scalar& value, const ElementwisePlan& plan, Stream stream) {
  const uint64_t bits = visit_dtype(plan.dtype[0], [&]<class T>(TypeTag<T>) {
    const T typed = value.to<T>();
    uint64_t element = 0;
    std::memcpy(&element, &typed, sizeof(T));
    return element;
  });
  const ElementwiseKernel<1> kernel = visit_bits(plan.dtype[0], []<class Bits>(TypeTag<Bits>) {
    return ElementwiseKernel<1>(elementwise_kernel<Constant, Bits, Bits, Bits, 0>);
  });
  run_elementwise<1>(kernel, plan, {{std::bit_cast<double>(bits)}}, stream);
}

/// out[i] = start + i * step; integers in 64 bits that wrap, the others in f64.
template <class T, class C>
__global__ void arange_kernel(T* out, int64_t n, C start, C step) {
  for (int64_t i = grid_index(); i < n; i += grid_step()) {
    if constexpr (std::is_integral_v<C>) {
      out[i] = static_cast<T>(math::wrap_add(start, math::wrap_mul(i, step)));
    } else {
      out[i] = cast_value<T>(start + static_cast<double>(i) * step);
    }
  }
}

void arange(const Scalar& start, const Scalar& step, const Tensor& out, Stream stream) {
  const int64_t n = out.numel();
  const unsigned blocks = blocks_for(n, kElementwiseThreads, stream);
  visit_dtype(out.dtype(), [&]<class T>(TypeTag<T>) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      launch(arange_kernel<T, int64_t>, blocks, kElementwiseThreads, 0, stream, out.data<T>(), n,
             start.to_int64(), step.to_int64());
    } else {
      launch(arange_kernel<T, double>, blocks, kElementwiseThreads, 0, stream, out.data<T>(), n,
             start.to_double(), step.to_double());
    }
  });
}

}  // namespace

void add_elementwise_kernels(KernelTable& table) {
  table.elementwise.unary = unary;
  table.elementwise.unary_backward = unary_backward;
  table.elementwise.binary = binary;
  table.elementwise.where = where;
  table.elementwise.ternary = ternary;
  table.elementwise.fill = fill;
  table.elementwise.arange = arange;
}

}  // namespace tarn::cuda
