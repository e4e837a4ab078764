// tensor_methods_reduce.cpp - the members of Tensor that reduce, and softmax.
#include "tarn/autograd/functions.h"

namespace tarn {

Tensor Tensor::sum() const {
  return tarn::sum(*this);
}
Tensor Tensor::sum(const Shape& dims, bool keepdim) const {
  return tarn::sum(*this, dims, keepdim);
}
Tensor Tensor::mean() const {
  return tarn::mean(*this);
}
Tensor Tensor::mean(const Shape& dims, bool keepdim) const {
  return tarn::mean(*this, dims, keepdim);
}
Tensor Tensor::max() const {
  return tarn::max(*this);
}
Tensor Tensor::min() const {
  return tarn::min(*this);
}
Tensor Tensor::softmax(int64_t dim) const {
  return tarn::softmax(*this, dim);
}
Tensor Tensor::log_softmax(int64_t dim) const {
  return tarn::log_softmax(*this, dim);
}
Tensor Tensor::argmax(int64_t dim) const {
  return tarn::argmax(*this, dim);
}

}  // namespace tarn
