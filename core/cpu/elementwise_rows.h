// elementwise_rows.h - rows made from functors, and the tables that hold them.
#pragma once

#include "tarn/core/cpu/elementwise_walk.h"
#include "tarn/core/elementwise.h"

namespace tarn::cpu {

/// The rows of one unary operator; null where the operator is not defined for the type.
struct UnaryRows {
  Row forward[kNumDTypes];   ///< by computing type (no halves)
  Row backward[kNumDTypes];  ///< order 1
  Row backward2, backward3;  ///< in f64 for every type: rare, and they cancel digits
  bool predicate;
  Saves saves;
};
/// The rows of one binary operator: dense, and with either operand one element.
struct BinaryRows {
  Row dense[kNumDTypes], first_scalar[kNumDTypes], second_scalar[kNumDTypes];
  bool predicate;
};

// One table per group of TARN_UNARY_OPS and TARN_BINARY_OPS, in the order of the enumerators.
extern const UnaryRows kUnaryArithmeticRows[];
extern const UnaryRows kUnaryMathRows[];
extern const UnaryRows kUnaryActivationRows[];
extern const BinaryRows kBinaryArithmeticRows[];
extern const BinaryRows kBinaryLogicRows[];

// The output of a row may be its input: ivdep says that no iteration reads what another wrote,
// without which gcc falls back to scalar code for identical pointers. Scalars are copied so that
// stores of doubles cannot touch them.

template <class Op, class T>
void unary_row(char* const* p, int64_t n, const Scalars& scalars) {
  const Scalars s = scalars;
  using R = decltype(Op::fwd(T(), s));
  R* const out = reinterpret_cast<R*>(p[0]);
  const T* const x = reinterpret_cast<const T*>(p[1]);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = Op::fwd(x[i], s);
}

template <class Op, int N, class T>
void backward_row(char* const* p, int64_t n, const Scalars& scalars) {
  const Scalars s = scalars;
  T* const out = reinterpret_cast<T*>(p[0]);
  const T* const grad = reinterpret_cast<const T*>(p[1]);
  const T* const saved = reinterpret_cast<const T*>(p[2]);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = backward<Op, N>(grad[i], saved[i], s);
}

/// kScalar: which operand is one element, 0 for none.
template <class Op, class T, int kScalar>
void binary_row(char* const* p, int64_t n, const Scalars&) {
  using R = decltype(Op::fwd(T(), T()));
  R* const out = reinterpret_cast<R*>(p[0]);
  const T* const a = reinterpret_cast<const T*>(p[1]);
  const T* const b = reinterpret_cast<const T*>(p[2]);
  if constexpr (kScalar == 1) {
    const T a0 = a[0];
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = Op::fwd(a0, b[i]);
  } else if constexpr (kScalar == 2) {
    const T b0 = b[0];
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = Op::fwd(a[i], b0);
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = Op::fwd(a[i], b[i]);
  }
}

template <class Op, class T>
void ternary_row(char* const* p, int64_t n, const Scalars& scalars) {
  const Scalars s = scalars;
  T* const out = reinterpret_cast<T*>(p[0]);
  const T* const a = reinterpret_cast<const T*>(p[1]);
  const T* const b = reinterpret_cast<const T*>(p[2]);
  const T* const c = reinterpret_cast<const T*>(p[3]);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = Op::fwd(a[i], b[i], c[i], s);
}

/// Calls set(TypeTag<T>) for the computing types in Op's domain.
template <class Op, class F>
constexpr void for_types_of(F&& set) {
  const auto one = [&]<class T>(TypeTag<T> tag) {
    if constexpr (in_domain<T>(Op::domain)) set(tag);
  };
  one(TypeTag<float>{});
  one(TypeTag<double>{});
  one(TypeTag<int64_t>{});
  one(TypeTag<int32_t>{});
  one(TypeTag<uint8_t>{});
  one(TypeTag<bool>{});
}

template <class T>
constexpr int type_index() {
  return static_cast<int>(dtype_of<T>);
}

template <class Op>
constexpr UnaryRows make_unary_rows() {
  UnaryRows rows{};
  rows.predicate = Op::predicate;
  rows.saves = Op::saves;
  for_types_of<Op>([&]<class T>(TypeTag<T>) { rows.forward[type_index<T>()] = unary_row<Op, T>; });
  if constexpr (Op::differentiable) {
    rows.backward[type_index<float>()] = backward_row<Op, 1, float>;
    rows.backward[type_index<double>()] = backward_row<Op, 1, double>;
    rows.backward2 = backward_row<Op, 2, double>;
    rows.backward3 = backward_row<Op, 3, double>;
  }
  return rows;
}

template <class Op>
constexpr BinaryRows make_binary_rows() {
  BinaryRows rows{};
  rows.predicate = Op::predicate;
  for_types_of<Op>([&]<class T>(TypeTag<T>) {
    constexpr int i = type_index<T>();
    rows.dense[i] = binary_row<Op, T, 0>;
    rows.first_scalar[i] = binary_row<Op, T, 1>;
    rows.second_scalar[i] = binary_row<Op, T, 2>;
  });
  return rows;
}

}  // namespace tarn::cpu
