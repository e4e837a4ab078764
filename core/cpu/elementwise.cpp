// elementwise.cpp - the elementwise slots of the CPU: choose a row, hand it to the walk.
#include <cstring>

#include "tarn/core/cast.h"
#include "tarn/core/cpu/elementwise_rows.h"
#include "tarn/core/cpu/elementwise_walk.h"
#include "tarn/core/cpu/table.h"

namespace tarn::cpu {
namespace {

// Rows compute halves in float.
constexpr DType row_type(DType d) {
  return is_half(d) ? DType::kF32 : d;
}

#define TARN_COUNT(Name, name) +1
constexpr int kArithmetic = 0 TARN_UNARY_ARITHMETIC_OPS(TARN_COUNT);
constexpr int kMath = 0 TARN_UNARY_MATH_OPS(TARN_COUNT);
constexpr int kBinaryArithmetic = 0 TARN_BINARY_ARITHMETIC_OPS(TARN_COUNT);
#undef TARN_COUNT

const UnaryRows& unary_rows(UnaryOp op) {
  const int i = static_cast<int>(op);
  if (i < kArithmetic) return kUnaryArithmeticRows[i];
  if (i < kArithmetic + kMath) return kUnaryMathRows[i - kArithmetic];
  return kUnaryActivationRows[i - kArithmetic - kMath];
}

const BinaryRows& binary_rows(BinaryOp op) {
  const int i = static_cast<int>(op);
  return i < kBinaryArithmetic ? kBinaryArithmeticRows[i] : kBinaryLogicRows[i - kBinaryArithmetic];
}

[[noreturn, gnu::cold]] void not_defined(const char* name, DType dtype) {
  detail::fail<UnsupportedError>(name, ": not defined for ", dtype);
}

// x^2, 1/x and x itself have cheaper and equally exact forms.
UnaryOp cheaper_power(UnaryOp op, const Scalars& s) {
  if (op != UnaryOp::kPowScalar) return op;
  if (s.v[0] == 2.0) return UnaryOp::kSquare;
  if (s.v[0] == 1.0) return UnaryOp::kMulScalar;  // by s.v[0], which is 1
  return s.v[0] == -1.0 ? UnaryOp::kReciprocal : op;
}

// The row that small plans of one dense line, or one line and one element, take straight away:
// below a few hundred elements the walk would cost more than the work. Null if it is not that.
Row short_cut(const ElementwisePlan& plan, const RowCall& call) {
  if (plan.numel >= 2 * kGrain || plan.ndim != 1) return nullptr;
  bool plain = true, dense = true;
  for (int i = 0; i < call.operands; ++i) plain &= plan.dtype[i] == call.types[i];
  if (!plain) return nullptr;
  if (plan.dense) return call.row;
  for (int i = 0; i < call.operands; ++i) dense &= plan.strides[i][0] == 1 || i > 0;
  if (!dense || call.operands != 3) return nullptr;
  const int64_t first = plan.strides[1][0], second = plan.strides[2][0];
  if (first == 0 && second == 1) return call.first_scalar;
  return first == 1 && second == 0 ? call.second_scalar : nullptr;
}

// Runs a row whose operands are the plan's, in order.
void run(const ElementwisePlan& plan, const RowCall& call, const Scalars& s) {
  if (const Row row = short_cut(plan, call)) {
    char* p[RowCall::kMaxOperands];
    for (int i = 0; i < call.operands; ++i) p[i] = static_cast<char*>(plan.data[i]);
    row(p, plan.numel, s);
  } else {
    walk(plan, call, s);
  }
}

void unary(UnaryOp op, const Scalars& s, const ElementwisePlan& plan, Stream) {
  const UnaryRows& rows = unary_rows(cheaper_power(op, s));
  const DType type = row_type(plan.dtype[1]);
  RowCall call;
  call.row = rows.forward[static_cast<int>(type)];
  if (!call.row) not_defined(unary_info(op).name, plan.dtype[1]);
  call.operands = 2;
  call.types[0] = rows.predicate ? DType::kBool : type;
  call.types[1] = type;
  run(plan, call, s);
}

void unary_backward(UnaryOp op, int order, const Scalars& s, const ElementwisePlan& plan, Stream) {
  const UnaryRows& rows = unary_rows(op);
  const DType type = order == 1 ? row_type(plan.dtype[0]) : DType::kF64;
  RowCall call;
  call.row = order == 1   ? rows.backward[static_cast<int>(type)]
             : order == 2 ? rows.backward2
                          : rows.backward3;
  if (!call.row) not_defined(unary_info(op).name, plan.dtype[0]);
  call.operands = 3;
  for (DType& t : call.types) t = type;
  call.source[2] = rows.saves == Saves::kInput ? 2 : rows.saves == Saves::kOutput ? 3 : 1;
  walk(plan, call, s);
}

void binary(BinaryOp op, const ElementwisePlan& plan, Stream) {
  const BinaryRows& rows = binary_rows(op);
  const DType type = row_type(plan.dtype[1]);
  const int t = static_cast<int>(type);
  RowCall call;
  call.row = rows.dense[t];
  if (!call.row) not_defined(binary_info(op).name, plan.dtype[1]);
  call.first_scalar = rows.first_scalar[t];
  call.second_scalar = rows.second_scalar[t];
  call.operands = 3;
  call.types[0] = rows.predicate ? DType::kBool : type;
  call.types[1] = call.types[2] = type;
  run(plan, call, {});
}

template <class Op>
Row ternary_row_of(DType type) {
  Row found = nullptr;
  for_types_of<Op>([&]<class T>(TypeTag<T>) {
    if (dtype_of<T> == type) found = ternary_row<Op, T>;
  });
  return found;
}

void ternary(TernaryOp op, const Scalars& s, const ElementwisePlan& plan, Stream) {
  const DType type = row_type(plan.dtype[1]);
  RowCall call;
  switch (op) {
#define TARN_CASE(Name, name)                   \
  case TernaryOp::k##Name:                      \
    call.row = ternary_row_of<ops::Name>(type); \
    break;
    TARN_TERNARY_OPS(TARN_CASE)
#undef TARN_CASE
  }
  if (!call.row) not_defined(ternary_info(op).name, plan.dtype[1]);
  call.operands = 4;
  for (DType& t : call.types) t = type;
  walk(plan, call, s);
}

template <class Bits>
void where_row(char* const* p, int64_t n, const Scalars&) {
  Bits* const out = reinterpret_cast<Bits*>(p[0]);
  const uint8_t* const cond = reinterpret_cast<const uint8_t*>(p[1]);
  const Bits* const a = reinterpret_cast<const Bits*>(p[2]);
  const Bits* const b = reinterpret_cast<const Bits*>(p[3]);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const Bits x = a[i], y = b[i];
    out[i] = cond[i] != 0 ? x : y;
  }
}

void where(const ElementwisePlan& plan, Stream) {
  RowCall call;
  const int64_t size = item_size(plan.dtype[0]);
  call.row = size == 1   ? where_row<uint8_t>
             : size == 2 ? where_row<uint16_t>
             : size == 4 ? where_row<uint32_t>
                         : where_row<uint64_t>;
  call.operands = 4;
  for (DType& t : call.types) t = plan.dtype[0];
  call.types[1] = DType::kBool;
  walk(plan, call, {});
}

void fill(const Scalar& value, const ElementwisePlan& plan, Stream stream) {
  if (plan.numel == 0) return;
  alignas(8) char element[8] = {};
  visit_dtype(plan.dtype[0], [&]<class T>(TypeTag<T>) {
    const T typed = value.to<T>();
    std::memcpy(element, &typed, sizeof(T));
  });
  // A copy from one element, broadcast.
  ElementwisePlan copy = plan;
  copy.operands = 2;
  copy.dense = false;
  copy.data[1] = element;
  copy.dtype[1] = plan.dtype[0];
  for (int d = 0; d < plan.ndim; ++d) copy.strides[1][d] = 0;
  copy_kernel(copy, stream);
}

void arange(const Scalar& start, const Scalar& step, const Tensor& out, Stream) {
  const int64_t n = out.numel();
  visit_dtype(out.dtype(), [&]<class T>(TypeTag<T>) {
    T* const data = static_cast<T*>(out.data());
    for_dense_parts(n, [&](int64_t begin, int64_t end) {
      if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
        const int64_t first = start.to_int64(), by = step.to_int64();
        for (int64_t i = begin; i < end; ++i) {
          data[i] = static_cast<T>(math::wrap_add(first, math::wrap_mul(i, by)));
        }
      } else {
        const double first = start.to_double(), by = step.to_double();
        for (int64_t i = begin; i < end; ++i) {
          data[i] = cast_value<T>(first + static_cast<double>(i) * by);
        }
      }
    });
  });
}

}  // namespace

void add_elementwise_kernels(KernelTable& table) {
  table.elementwise.unary = unary;
  table.elementwise.unary_backward = unary_backward;
  table.elementwise.binary = binary;
  table.elementwise.where = where;
  table.elementwise.ternary = ternary;
  table.elementwise.copy = copy_kernel;
  table.elementwise.fill = fill;
  table.elementwise.arange = arange;
}

}  // namespace tarn::cpu
