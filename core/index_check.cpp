// index_check.cpp - checks of index tensors and their error texts.
#include "tarn/core/index_check.h"

#include "tarn/core/kernel_call.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {

/// "3", or "[1, 2]" where the index has several dimensions.
std::string position_text(const Shape& sizes, int64_t position) {
  if (sizes.dim() <= 1) return std::to_string(position);
  Shape at = sizes;
  for (int d = sizes.dim() - 1; d >= 0; --d) {
    at[d] = position % sizes[d];
    position /= sizes[d];
  }
  return detail::concat(at);
}

}  // namespace

std::string out_of_range_text(const IndexCheck& check, int64_t value, int64_t position,
                              Device device) {
  if (check.labels) {
    return detail::concat(check.op, ": targets must be in [", check.low, ", ", check.high,
                          ") or equal ignore_index=", check.ignore_index, "; got ", value,
                          " at position ", position_text(check.sizes, position),
                          " of target=", check.sizes, " i64 ", device);
  }
  return detail::concat(check.op, ": index ", value, " at position ",
                        position_text(check.sizes, position), " is out of range for dimension ",
                        check.dim, " of size ", check.high);
}

void raw::check_values(const Tensor& index, const IndexCheck& check) {
  if (index.numel() == 0) return;
  int64_t position = -1;
  TARN_KERNEL(index, find_out_of_range, index.device(), index, check, &position);
  if (position < 0) return;
  const auto value = view(index, {-1}).to_vector<int64_t>()[static_cast<size_t>(position)];
  throw IndexError(out_of_range_text(check, value, position, index.device()));
}

}  // namespace tarn
