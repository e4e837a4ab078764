// dtype.cpp - names and promotion of dtypes; printing of scalars.
#include "tarn/core/dtype.h"

#include <algorithm>
#include <utility>

namespace tarn {

DType parse_dtype(std::string_view name) {
  static constexpr std::pair<std::string_view, DType> kNames[] = {
      {"f32", DType::kF32},   {"float32", DType::kF32},   {"float", DType::kF32},
      {"f64", DType::kF64},   {"float64", DType::kF64},   {"double", DType::kF64},
      {"f16", DType::kF16},   {"float16", DType::kF16},   {"half", DType::kF16},
      {"bf16", DType::kBF16}, {"bfloat16", DType::kBF16}, {"i64", DType::kI64},
      {"int64", DType::kI64}, {"long", DType::kI64},      {"i32", DType::kI32},
      {"int32", DType::kI32}, {"int", DType::kI32},       {"u8", DType::kU8},
      {"uint8", DType::kU8},  {"bool", DType::kBool}};
  for (const auto& [text, dtype] : kNames) {
    if (text == name) return dtype;
  }
  detail::fail<ValueError>(
      "dtype: expected one of float32, float64, float16, bfloat16, int64, int32, ",
      "uint8, bool; got '", name, "'");
}

DType promote_types(DType a, DType b) {
  if (a == b) return a;
  const auto kind = [](DType d) { return is_floating(d) ? 2 : d == DType::kBool ? 0 : 1; };
  if (kind(a) != kind(b)) return kind(a) > kind(b) ? a : b;
  if (is_half(a) && is_half(b)) return DType::kF32;
  return item_size(a) > item_size(b) ? a : b;
}

std::ostream& operator<<(std::ostream& out, const Scalar& s) {
  if (s.kind() == Scalar::Kind::kBool) return out << (s.to_int64() ? "true" : "false");
  if (s.is_floating()) return out << s.to_double();
  return out << s.to_int64();
}

}  // namespace tarn
