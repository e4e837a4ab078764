// elementwise_binary.cpp - the rows of the binary arithmetic operators.
#include "tarn/core/cpu/elementwise_rows.h"

namespace tarn::cpu {

#define TARN_ROWS(Name, name) make_binary_rows<ops::Name>(),
constinit const BinaryRows kBinaryArithmeticRows[] = {TARN_BINARY_ARITHMETIC_OPS(TARN_ROWS)};
#undef TARN_ROWS

}  // namespace tarn::cpu
