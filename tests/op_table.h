// op_table.h - one row per operation; what a row is run through is the same for all.
//
// A row names an operation of autograd/functions_*.h, how to call it, what to call it on, and what
// it must give. From that the table makes one test per aspect, named OpTable/<row>.<aspect>, and,
// with a GPU, real or emulated, OpTable/<row>.<aspect>_cuda with the inputs there:
//   value        f64 against the reference (naive loops or the C library)
//   gradient     against central differences, f64, rtol 1e-5, atol 1e-7
//   second       gradients of the gradients, the same way (smooth rows)
//   dtype_*      f32 against f64; halves against the rounded f32 result; integers against the
//                reference
//   layout_*     transposed, sliced, expanded and channels_last inputs give what dense ones give,
//                in value and gradient, f64 and f32
//   empty        zero-size cases: sizes, values, zero gradients
//   special      NaN, infinities, signed zeros, huge and tiny numbers, f64 and f32
//   nonfinite    one NaN or infinity among ordinary inputs, f64 and f32
//   large        value and gradient where kernels use blocks, tails and threads
//   device_cuda  the GPU against the CPU
//   errors       each wrong call throws tarn::Error with its text, at the latest when the device is
//                waited for
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tarn/autograd/gradcheck.h"
#include "tarn/core/factory.h"

namespace tarn::optable {

/// Where inputs are made: the CPU until an InputDeviceGuard says otherwise.
Device input_device();

// The same names as in core/factory.h, so that rows need not speak of devices: what they make for a
// wrong call is there as well.
inline Tensor zeros(const Shape& sizes, TensorOptions options = {}) {
  options.device = input_device();
  return tarn::zeros(sizes, options);
}
inline Tensor ones(const Shape& sizes, TensorOptions options = {}) {
  options.device = input_device();
  return tarn::ones(sizes, options);
}
inline Tensor tensor(std::initializer_list<double> values, TensorOptions options = {}) {
  options.device = input_device();
  return tarn::tensor(values, options);
}
inline Tensor tensor(std::initializer_list<double> values, const Shape& sizes,
                     TensorOptions options) {
  options.device = input_device();
  return tarn::tensor(values, sizes, options);
}

/// How one input is made.
struct In {
  enum Kind { kReal, kIndex, kBool };
  Shape sizes{};
  double low = -2, high = 2;  ///< kIndex: low <= value < high
  Kind kind = kReal;
  std::vector<double> avoid{};  ///< kinks: values stay 0.05 away from them
  /// kReal: no two values closer than (high - low) / (2 * numel). kIndex: neighbours count up.
  bool distinct = false;
  bool grad = true;  ///< kReal: differentiate with respect to it
};
using Case = std::vector<In>;

inline In index(Shape sizes, int64_t end) {
  return {.sizes = sizes, .low = 0, .high = static_cast<double>(end), .kind = In::kIndex};
}
inline In mask(Shape sizes) {
  return {.sizes = sizes, .kind = In::kBool};
}

/// A tensor as the references see it: sizes and row-major values.
struct Host {
  Shape sizes;
  std::vector<double> v;

  explicit Host(Shape s, double fill = 0) : sizes(s), v(static_cast<size_t>(s.numel()), fill) {}
  Host(Shape s, std::vector<double> values) : sizes(s), v(std::move(values)) {}
  static Host of(const Tensor& x) { return Host(x.sizes(), x.to_vector<double>()); }
  int64_t numel() const { return static_cast<int64_t>(v.size()); }
  double& at(std::initializer_list<int64_t> index) { return v[position(Shape(index))]; }
  double at(std::initializer_list<int64_t> index) const { return v[position(Shape(index))]; }
  size_t position(const Shape& index) const;
  /// The index of a row-major position.
  Shape index(int64_t position) const;
};
using Reference = std::function<std::vector<Host>(const std::vector<Host>&)>;

struct Error {
  const char* what;  ///< the wrong call, for the message of a failing test
  std::function<void()> call;
  const char* text;  ///< part of the exception's text
};

struct Row {
  std::string name;  ///< function name, or name/variant
  TensorFunction fn;
  std::vector<Case> cases;
  Reference reference{};      ///< none: no value, dtype_int and special aspects
  std::vector<Case> large{};  ///< cases that reach the kernels' blocks, tails and threads
  std::vector<Case> empty{};  ///< cases with zero-size inputs
  std::vector<Error> errors{};
  bool gradient = true;       ///< the result is differentiable
  bool second = true;         ///< ... twice, at the cases' inputs
  bool nonfinite = false;     ///< the reference holds for a NaN or infinity among the inputs
  bool special = false;       ///< the reference holds for NaN, infinities and extremes
  bool integers = false;      ///< takes i64 and i32 with the reference's values
  bool u8 = true;             ///< ... and u8 (nothing wraps round)
  bool halves = true;         ///< takes f16 and bf16
  bool layouts = true;        ///< any strides are accepted (views by view() are not)
  bool channels_last = true;  ///< ... with the same result in channels_last
  double rtol = 1e-12;        ///< value in f64
  double rtol_f32 = 2e-6;     ///< value in f32, relative to the largest value of the result
  double ulps_half = 1;       ///< halves, in units of the last place of the rounded f32 result
};

class Table {
 public:
  void add(Row row) { rows_.push_back(std::move(row)); }
  /// Declared, but not in the table, and why.
  void exempt(const std::string& name, const std::string& reason) {
    exempt_.emplace_back(name, reason);
  }
  const std::vector<Row>& rows() const { return rows_; }
  const std::vector<std::pair<std::string, std::string>>& exempted() const { return exempt_; }
  /// Makes the gtest cases.
  void register_tests() const;

 private:
  void register_on(Device device) const;

  std::vector<Row> rows_;
  std::vector<std::pair<std::string, std::string>> exempt_;
};

// ---- writing rows
/// A reference that computes each element from the broadcast inputs' elements.
Reference each(std::function<double(const std::vector<double>&)> f);
/// From lambdas of one, two or three doubles.
inline Reference each1(std::function<double(double)> f) {
  return each([f](const std::vector<double>& x) { return f(x[0]); });
}
inline Reference each2(std::function<double(double, double)> f) {
  return each([f](const std::vector<double>& x) { return f(x[0], x[1]); });
}
inline Reference each3(std::function<double(double, double, double)> f) {
  return each([f](const std::vector<double>& x) { return f(x[0], x[1], x[2]); });
}
/// A reference with a single result.
inline Reference one(std::function<Host(const std::vector<Host>&)> f) {
  return [f](const std::vector<Host>& in) { return std::vector<Host>{f(in)}; };
}
/// fn over all inputs with a single result.
inline TensorFunction call(std::function<Tensor(const std::vector<Tensor>&)> f) {
  return [f](const std::vector<Tensor>& in) { return std::vector<Tensor>{f(in)}; };
}
inline TensorFunction call1(std::function<Tensor(const Tensor&)> f) {
  return call([f](const std::vector<Tensor>& in) { return f(in[0]); });
}
inline TensorFunction call2(std::function<Tensor(const Tensor&, const Tensor&)> f) {
  return call([f](const std::vector<Tensor>& in) { return f(in[0], in[1]); });
}
inline TensorFunction call3(std::function<Tensor(const Tensor&, const Tensor&, const Tensor&)> f) {
  return call([f](const std::vector<Tensor>& in) { return f(in[0], in[1], in[2]); });
}

// One per family.
void add_elementwise_rows(Table& table);
void add_activation_rows(Table& table);
void add_logic_rows(Table& table);
void add_shape_rows(Table& table);
void add_matmul_rows(Table& table);
void add_linalg_rows(Table& table);
void add_conv_rows(Table& table);
void add_reduce_rows(Table& table);
void add_order_rows(Table& table);
void add_pool_rows(Table& table);
void add_norm_rows(Table& table);
void add_loss_rows(Table& table);
void add_index_rows(Table& table);
void add_join_rows(Table& table);
void add_random_rows(Table& table);
void add_attention_rows(Table& table);

}  // namespace tarn::optable
