// elementwise_tables.cuh - the kernels of each operator and type, as tables for the dispatch.
//
// One table per group of operators and one file per table, to bound the compile time of a file.
#pragma once

#include "tarn/core/elementwise.h"
#include "tarn/cuda/elementwise.cuh"

namespace tarn::cuda {

/// The kernels of one unary operator by dtype; null where it is not defined.
struct UnaryKernels {
  ElementwiseKernel<2> forward[kNumDTypes];
  ElementwiseKernel<3> backward[kNumDTypes];  ///< order 1
};
/// Orders 2 and 3, for every floating dtype at once.
using HighOrderKernel = void (*)(ElementwiseWalk<3>, Scalars, DType, int order);

struct BinaryKernels {
  ElementwiseKernel<3> of[kNumDTypes];
};

// In the order of the enumerators, group by group.
extern const UnaryKernels kUnaryArithmeticKernels[];
extern const UnaryKernels kUnaryMathKernels[];
extern const UnaryKernels kUnaryActivationKernels[];
extern const HighOrderKernel kHighOrderKernels[];
extern const BinaryKernels kBinaryArithmeticKernels[];
extern const BinaryKernels kBinaryLogicKernels[];

template <class Op>
struct Forward {
  template <class C>
  static __device__ __forceinline__ auto call(C x, const Scalars& s) {
    return Op::fwd(x, s);
  }
};
template <class Op>
struct Backward {
  template <class C>
  static __device__ __forceinline__ C call(C grad, C saved, const Scalars& s) {
    return backward<Op, 1>(grad, saved, s);
  }
};
template <class Op>
struct Binary {
  template <class C>
  static __device__ __forceinline__ auto call(C a, C b, const Scalars&) {
    return Op::fwd(a, b);
  }
};

/// Element `at` of a floating tensor, as f64.
__device__ __forceinline__ double load_double(const void* data, uint32_t at, DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return static_cast<const double*>(data)[at];
    case DType::kF16:
      return static_cast<const half*>(data)[at];
    case DType::kBF16:
      return static_cast<const bfloat16*>(data)[at];
    default:
      return static_cast<const float*>(data)[at];
  }
}
__device__ __forceinline__ void store_double(void* data, uint32_t at, DType dtype, double value) {
  switch (dtype) {
    case DType::kF64:
      static_cast<double*>(data)[at] = value;
      break;
    case DType::kF16:
      static_cast<half*>(data)[at] = half(static_cast<float>(value));
      break;
    case DType::kBF16:
      static_cast<bfloat16*>(data)[at] = bfloat16(static_cast<float>(value));
      break;
    default:
      static_cast<float*>(data)[at] = static_cast<float>(value);
  }
}

/// grad * (second or third derivative), in f64 since it cancels digits. Rare, so one kernel serves
/// all dtypes and both orders: evaluating the slope on twice dual numbers gives both.
template <class Op>
__global__ void __launch_bounds__(kElementwiseThreads)
    high_order_kernel(const ElementwiseWalk<3> walk, const Scalars s, DType dtype, int order) {
  const uint32_t step = gridDim.x * kElementwiseThreads;
  for (uint32_t i = blockIdx.x * kElementwiseThreads + threadIdx.x; i < walk.rest; i += step) {
    uint32_t place[1] = {i}, at[1][3];
    find_offsets<1>(walk.steps, place, at);
    const double grad = load_double(walk.data[1], at[0][1], dtype);
    const double saved = load_double(walk.data[2], at[0][2], dtype);
    const double y = order == 2 ? backward<Op, 2>(grad, saved, s) : backward<Op, 3>(grad, saved, s);
    store_double(walk.data[0], at[0][0], dtype, y);
  }
}

/// Calls set(TypeTag<T>) for the types in Op's domain.
template <class Op, class F>
constexpr void for_types_of(F&& set) {
  const auto one = [&]<class T>(TypeTag<T> tag) {
    if constexpr (in_domain<T>(Op::domain)) set(tag);
  };
  one(TypeTag<float>{});
  one(TypeTag<double>{});
  one(TypeTag<half>{});
  one(TypeTag<bfloat16>{});
  one(TypeTag<int64_t>{});
  one(TypeTag<int32_t>{});
  one(TypeTag<uint8_t>{});
  one(TypeTag<bool>{});
}

/// Predicates see a bool as the byte it is, and share that kernel.
template <class Op, class T>
using Stored = std::conditional_t<Op::predicate && std::is_same_v<T, bool>, uint8_t, T>;

template <class Op>
constexpr UnaryKernels make_unary_kernels() {
  UnaryKernels kernels{};
  for_types_of<Op>([&]<class T>(TypeTag<T>) {
    using S = Stored<Op, T>;
    using R = std::conditional_t<Op::predicate, bool, T>;
    kernels.forward[static_cast<int>(dtype_of<T>)] = elementwise_kernel<Forward<Op>, R, S, S, 1>;
    if constexpr (Op::differentiable && in_domain<T>(Domain::kFloating)) {
      kernels.backward[static_cast<int>(dtype_of<T>)] =
          elementwise_kernel<Backward<Op>, T, T, T, 2>;
    }
  });
  return kernels;
}

template <class Op>
constexpr HighOrderKernel make_high_order_kernel() {
  if constexpr (Op::differentiable) {
    return high_order_kernel<Op>;
  } else {
    return nullptr;
  }
}

template <class Op>
constexpr BinaryKernels make_binary_kernels() {
  BinaryKernels kernels{};
  for_types_of<Op>([&]<class T>(TypeTag<T>) {
    using S = Stored<Op, T>;
    using R = std::conditional_t<Op::predicate, bool, T>;
    kernels.of[static_cast<int>(dtype_of<T>)] = elementwise_kernel<Binary<Op>, R, S, S, 2>;
  });
  return kernels;
}

}  // namespace tarn::cuda
