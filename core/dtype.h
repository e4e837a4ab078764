// dtype.h - the element types, their names, sizes and promotion, and dispatch over them.
#pragma once

#include <cstdint>
#include <ostream>
#include <string_view>
#include <type_traits>

#include "tarn/core/error.h"
#include "tarn/core/half.h"

namespace tarn {

enum class DType : uint8_t { kF32, kF64, kF16, kBF16, kI64, kI32, kU8, kBool };
inline constexpr int kNumDTypes = 8;

/// Bytes per element.
constexpr int64_t item_size(DType dtype) {
  constexpr int8_t kSizes[kNumDTypes] = {4, 8, 2, 2, 8, 4, 1, 1};
  return kSizes[static_cast<int>(dtype)];
}
/// "f32", "bf16", "i64", "bool" ... as in error messages and safetensors (lower case).
constexpr const char* dtype_name(DType dtype) {
  constexpr const char* kNames[kNumDTypes] = {"f32", "f64", "f16", "bf16",
                                              "i64", "i32", "u8",  "bool"};
  return kNames[static_cast<int>(dtype)];
}
/// Accepts tarn's names and PyTorch's ("float32", "half", "int64", ...). Throws ValueError.
DType parse_dtype(std::string_view name);

constexpr bool is_floating(DType d) {
  return d <= DType::kBF16;
}
constexpr bool is_integral(DType d) {
  return d >= DType::kI64 && d <= DType::kU8;
}
constexpr bool is_half(DType d) {
  return d == DType::kF16 || d == DType::kBF16;
}
/// The type in which values of d are accumulated: f32 for halves, i64 for integers and bool.
constexpr DType accumulate_dtype(DType d) {
  return is_half(d) ? DType::kF32 : is_floating(d) ? d : DType::kI64;
}

/// The dtype of a binary operation between tensors, as in PyTorch: floating beats integral beats
/// bool; within a kind the wider; f16 with bf16 gives f32.
DType promote_types(DType a, DType b);

inline std::ostream& operator<<(std::ostream& out, DType d) {
  return out << dtype_name(d);
}

template <class T>
struct TypeTag {
  using type = T;
};

template <class T>
inline constexpr DType dtype_of = DType::kF32;
template <>
inline constexpr DType dtype_of<double> = DType::kF64;
template <>
inline constexpr DType dtype_of<half> = DType::kF16;
template <>
inline constexpr DType dtype_of<bfloat16> = DType::kBF16;
template <>
inline constexpr DType dtype_of<int64_t> = DType::kI64;
template <>
inline constexpr DType dtype_of<int32_t> = DType::kI32;
template <>
inline constexpr DType dtype_of<uint8_t> = DType::kU8;
template <>
inline constexpr DType dtype_of<bool> = DType::kBool;

/// Calls f(TypeTag<T>{}) with the C++ type of dtype: the one switch over all dtypes.
template <class F>
decltype(auto) visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f(TypeTag<float>{});
    case DType::kF64:
      return f(TypeTag<double>{});
    case DType::kF16:
      return f(TypeTag<half>{});
    case DType::kBF16:
      return f(TypeTag<bfloat16>{});
    case DType::kI64:
      return f(TypeTag<int64_t>{});
    case DType::kI32:
      return f(TypeTag<int32_t>{});
    case DType::kU8:
      return f(TypeTag<uint8_t>{});
    case DType::kBool:
      return f(TypeTag<bool>{});
  }
  __builtin_unreachable();
}

/// As visit_dtype, over the four floating types only; the caller has checked the dtype.
template <class F>
decltype(auto) visit_floating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF64:
      return f(TypeTag<double>{});
    case DType::kF16:
      return f(TypeTag<half>{});
    case DType::kBF16:
      return f(TypeTag<bfloat16>{});
    default:
      return f(TypeTag<float>{});
  }
}

/// The type arithmetic on T happens in: float for the halves, T otherwise.
template <class T>
using compute_t =
    std::conditional_t<std::is_same_v<T, half> || std::is_same_v<T, bfloat16>, float, T>;

/// A number given where a tensor could stand: keeps its kind, so that x_f32 * 2.5 stays f32 and
/// x_i64 * 2.5 becomes floating, as in PyTorch.
class Scalar {
 public:
  enum class Kind : uint8_t { kFloating, kIntegral, kBool };
  Scalar(double v) : floating_(v), integral_(static_cast<int64_t>(0)), kind_(Kind::kFloating) {}
  Scalar(float v) : Scalar(static_cast<double>(v)) {}
  Scalar(bool v) : floating_(v), integral_(v), kind_(Kind::kBool) {}
  template <class T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int> = 0>
  Scalar(T v)
      : floating_(static_cast<double>(v)),
        integral_(static_cast<int64_t>(v)),
        kind_(Kind::kIntegral) {}

  Kind kind() const { return kind_; }
  bool is_floating() const { return kind_ == Kind::kFloating; }
  double to_double() const { return floating_; }
  /// Truncates towards zero and saturates; NaN gives 0, as where tensors are cast (cast.h).
  int64_t to_int64() const {
    if (!is_floating()) return integral_;
    if (floating_ >= -0x1p63 && floating_ < 0x1p63) return static_cast<int64_t>(floating_);
    return floating_ > 0 ? INT64_MAX : floating_ < 0 ? INT64_MIN : 0;
  }
  template <class T>
  T to() const {
    if constexpr (std::is_same_v<T, bool>) {
      return floating_ != 0;
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(to_int64());
    } else {
      return T(static_cast<compute_t<T>>(floating_));
    }
  }
  /// The dtype of (tensor of dtype d) op (this scalar).
  DType result_dtype(DType d, DType default_floating = DType::kF32) const {
    if (kind_ == Kind::kFloating) return tarn::is_floating(d) ? d : default_floating;
    if (kind_ == Kind::kIntegral) return d == DType::kBool ? DType::kI64 : d;
    return d;
  }

 private:
  double floating_;
  int64_t integral_;
  Kind kind_;
};

std::ostream& operator<<(std::ostream& out, const Scalar& s);

}  // namespace tarn
