// operand.h - what the backward of a broadcasting operation remembers of an operand.
#pragma once

#include "tarn/autograd/functions_elementwise.h"

namespace tarn::detail {

// The gradient of one operand: back to the sizes it had before broadcasting.
inline Tensor reduced(const Tensor& grad, const Shape& sizes) {
  return grad.sizes() == sizes ? grad : sum_to_size(grad, sizes);
}
// ... and to the dtype it had before promotion.
inline Tensor reduced(const Tensor& grad, const Shape& sizes, DType dtype) {
  return reduced(grad.dtype() == dtype ? grad : grad.to(dtype), sizes);
}

struct Operand {
  Shape sizes;
  DType dtype;
  explicit Operand(const Tensor& x) : sizes(x.sizes()), dtype(x.dtype()) {}
  Tensor reduce(const Tensor& grad) const { return reduced(grad, sizes, dtype); }
};

// alpha * b in the dtype of a + b: 2 * u8(200) is 400 beside an f32.
Tensor scaled(const char* op, const Tensor& a, const Tensor& b, double alpha);

// A scalar in the words of Scalars.
inline Scalars one(double v) {
  Scalars s;
  s.v[0] = v;
  return s;
}
inline Scalars two(double a, double b) {
  Scalars s = one(a);
  s.v[1] = b;
  return s;
}

}  // namespace tarn::detail
