// dnn_tensor.cpp - stand-in for cuDNN: tensors, and their elements as f32.
#if TARN_HAVE_CUDNN

#include <algorithm>

#include "tarn/core/half.h"
#include "tarn/cuda/emu/dnn.h"

namespace tarn::emu {

DnnTensor read_tensor(const DnnNode& node) {
  DnnTensor t;
  t.id = node.number<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
  t.alignment = node.number<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 0);
  t.type = node.number(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT);
  t.is_virtual = node.number(CUDNN_ATTR_TENSOR_IS_VIRTUAL, false);
  t.is_by_value = node.number(CUDNN_ATTR_TENSOR_IS_BY_VALUE, false);
  const auto sizes = node.numbers(CUDNN_ATTR_TENSOR_DIMENSIONS);
  const auto strides = node.numbers(CUDNN_ATTR_TENSOR_STRIDES);
  require(sizes.size() == 4 && strides.size() == 4, CUDNN_STATUS_NOT_SUPPORTED_SHAPE,
          "the stand-in has tensors of 4 dimensions only");
  std::copy(sizes.begin(), sizes.end(), t.sizes);
  std::copy(strides.begin(), strides.end(), t.strides);
  return t;
}

int64_t DnnTensor::extent() const {
  int64_t last = 0;
  for (int i = 0; i < 4; ++i) last += (sizes[i] - 1) * strides[i];
  return last + 1;
}

std::size_t size_of(cudnnDataType_t type) {
  if (type == CUDNN_DATA_FLOAT) return 4;
  return type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16 ? 2 : 0;
}

float load(const DnnTensor& t, const void* data, int64_t at) {
  switch (t.type) {
    case CUDNN_DATA_HALF:
      return static_cast<const half*>(data)[at];
    case CUDNN_DATA_BFLOAT16:
      return static_cast<const bfloat16*>(data)[at];
    default:
      return static_cast<const float*>(data)[at];
  }
}

void store(const DnnTensor& t, void* data, int64_t at, float value) {
  switch (t.type) {
    case CUDNN_DATA_HALF:
      static_cast<half*>(data)[at] = half(value);
      break;
    case CUDNN_DATA_BFLOAT16:
      static_cast<bfloat16*>(data)[at] = bfloat16(value);
      break;
    default:
      static_cast<float*>(data)[at] = value;
  }
}

}  // namespace tarn::emu

#endif  // TARN_HAVE_CUDNN
