// elementwise_logic.cpp - the rows of the binary comparison, logic and bit operators.
#include "tarn/core/cpu/elementwise_rows.h"

namespace tarn::cpu {

#define TARN_ROWS(Name, name) make_binary_rows<ops::Name>(),
constinit const BinaryRows kBinaryLogicRows[] = {TARN_BINARY_LOGIC_OPS(TARN_ROWS)};
#undef TARN_ROWS

}  // namespace tarn::cpu
