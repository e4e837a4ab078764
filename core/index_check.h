// index_check.h - what index tensors must satisfy, and the words for those that do not.
#pragma once

#include <string>

#include "tarn/core/hd.h"
#include "tarn/core/tensor.h"

namespace tarn {

/// What every value of an index tensor must satisfy. Trivially copyable, so that it can travel
/// through a device.
struct IndexCheck {
  const char* op = nullptr;   ///< a string literal
  int64_t low = 0, high = 0;  ///< values in [low, high) are allowed,
  bool labels = false;        ///< and if they are class labels:
  int64_t ignore_index = 0;   ///< this one as well
  int64_t dim = 0;            ///< the dimension that is indexed, for the text
  Shape sizes;                ///< of the index tensor, for the text

  TARN_HD bool allows(int64_t value) const {
    return (value >= low && value < high) || (labels && value == ignore_index);
  }
};

/// "op: index 7 at position [0, 1] is out of range for dimension 1 of size 4".
std::string out_of_range_text(const IndexCheck& check, int64_t value, int64_t position,
                              Device device);

namespace raw {
/// Throws IndexError if the check does not allow a value of the dense i64 index. Where the device
/// only queues the check, whoever next waits for the device gets the IndexError.
void check_values(const Tensor& index, const IndexCheck& check);
}  // namespace raw

}  // namespace tarn
