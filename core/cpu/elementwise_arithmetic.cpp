// elementwise_arithmetic.cpp - the rows of the unary arithmetic operators.
#include "tarn/core/cpu/elementwise_rows.h"

namespace tarn::cpu {

#define TARN_ROWS(Name, name) make_unary_rows<ops::Name>(),
constinit const UnaryRows kUnaryArithmeticRows[] = {TARN_UNARY_ARITHMETIC_OPS(TARN_ROWS)};
#undef TARN_ROWS

}  // namespace tarn::cpu
