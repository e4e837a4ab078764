// elementwise_activation.cpp - the rows of the unary activation operators.
#include "tarn/core/cpu/elementwise_rows.h"

namespace tarn::cpu {

#define TARN_ROWS(Name, name) make_unary_rows<ops::Name>(),
constinit const UnaryRows kUnaryActivationRows[] = {TARN_UNARY_ACTIVATION_OPS(TARN_ROWS)};
#undef TARN_ROWS

}  // namespace tarn::cpu
