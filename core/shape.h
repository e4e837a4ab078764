// shape.h - sizes and strides: up to eight int64 values held inline.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <span>
#include <vector>

#include "tarn/core/error.h"

namespace tarn {

inline constexpr int kMaxDims = 8;

/// a * b modulo 2^64. Products of sizes may leave 64 bits where another size is 0 and nothing is
/// stored; what counts elements for real uses checked_numel.
constexpr int64_t wrapping_mul(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

/// A list of at most kMaxDims integers: sizes, strides, or dimension numbers. Trivially copyable,
/// so backward formulas may capture it.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> values) : Shape(values.begin(), values.size()) {}
  Shape(std::span<const int64_t> values) : Shape(values.data(), values.size()) {}
  Shape(const std::vector<int64_t>& values) : Shape(values.data(), values.size()) {}
  Shape(const int64_t* values, size_t count) : ndim_(static_cast<int>(count)) {
    TARN_CHECK_AS(ShapeError, count <= kMaxDims, "shape: at most ", kMaxDims,
                  " dimensions are supported; got ", count);
    for (size_t i = 0; i < count; ++i) values_[i] = values[i];
  }
  static Shape filled(int ndim, int64_t value) {
    TARN_CHECK_AS(ShapeError, ndim <= kMaxDims, "shape: at most ", kMaxDims,
                  " dimensions are supported; got ", ndim);
    Shape s;
    s.ndim_ = ndim;
    for (int i = 0; i < ndim; ++i) s.values_[i] = value;
    return s;
  }

  int dim() const { return ndim_; }
  size_t size() const { return static_cast<size_t>(ndim_); }
  bool empty() const { return ndim_ == 0; }
  int64_t operator[](int i) const { return values_[i]; }
  int64_t& operator[](int i) { return values_[i]; }
  const int64_t* data() const { return values_; }
  int64_t* data() { return values_; }
  const int64_t* begin() const { return values_; }
  const int64_t* end() const { return values_ + ndim_; }
  int64_t* begin() { return values_; }
  int64_t* end() { return values_ + ndim_; }
  int64_t back() const { return values_[ndim_ - 1]; }
  operator std::span<const int64_t>() const { return {values_, size()}; }

  void push_back(int64_t v) {
    TARN_CHECK_AS(ShapeError, ndim_ < kMaxDims, "shape: at most ", kMaxDims,
                  " dimensions are supported");
    values_[ndim_++] = v;
  }
  void insert(int at, int64_t v) {
    push_back(v);
    std::rotate(begin() + at, end() - 1, end());
  }
  void erase(int at) {
    std::copy(begin() + at + 1, end(), begin() + at);
    --ndim_;
  }
  bool contains(int64_t v) const { return std::find(begin(), end(), v) != end(); }
  /// Product of the values; 1 for an empty list.
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < ndim_; ++i) n = wrapping_mul(n, values_[i]);
    return n;
  }
  bool operator==(const Shape& other) const {
    if (ndim_ != other.ndim_) return false;
    for (int i = 0; i < ndim_; ++i) {
      if (values_[i] != other.values_[i]) return false;
    }
    return true;
  }

 private:
  int64_t values_[kMaxDims];
  int ndim_ = 0;
};

/// Prints "[2, 3, 4]".
std::ostream& operator<<(std::ostream& out, const Shape& shape);

/// Row-major strides, in elements, of a dense tensor of these sizes.
Shape contiguous_strides(const Shape& sizes);
/// Strides of a dense NHWC (4-d) tensor whose logical sizes are NCHW.
Shape channels_last_strides(const Shape& sizes);
/// The dimensions from the smallest stride to the largest; equal strides keep their order, last
/// first.
Shape dims_by_stride(const Shape& strides);
/// The broadcast of two shapes. Throws ShapeError in the words of `op`.
Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b);
/// Maps dim in [-ndim, ndim) to [0, ndim). Throws IndexError in the words of `op`. A 0-d tensor
/// accepts 0 and -1, as in PyTorch.
int wrap_dim(const char* op, int64_t dim, int ndim);
/// Multiplies sizes with an overflow check; throws ShapeError on a negative size.
int64_t checked_numel(const char* op, const Shape& sizes);
/// Elements from the first to the last that these sizes and strides reach; 0 if there are none.
/// Throws ShapeError on negative sizes or strides, and on more than 2^58 elements.
int64_t checked_span(const char* op, const Shape& sizes, const Shape& strides);

}  // namespace tarn
