// elementwise_math.cpp - the rows of the unary math operators.
#include "tarn/core/cpu/elementwise_rows.h"

namespace tarn::cpu {

#define TARN_ROWS(Name, name) make_unary_rows<ops::Name>(),
constinit const UnaryRows kUnaryMathRows[] = {TARN_UNARY_MATH_OPS(TARN_ROWS)};
#undef TARN_ROWS

}  // namespace tarn::cpu
