// buckets.h - which gradients travel together, and the words for those that did not come.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tarn/core/tensor.h"

namespace tarn::dist {

/// MiB of gradients in a bucket: DdpOptions says what each limits.
struct BucketCaps {
  double bucket_cap_mb = 25, first_bucket_mb = 1, last_bucket_mb = 1;
  /// Throws ValueError, in the words of `who` ("ddp"), unless they are above 0 (the last: at
  /// least).
  void check(const char* who) const;
};

/// Parameters as indices, bucket by bucket, filled in this order; a dtype has buckets of its own.
/// The last to arrive have a small bucket of their own, and no other holds more than an eighth of
/// all: little hides the message that leaves when backward is nearly over, nothing the one that
/// leaves after it.
std::vector<std::vector<size_t>> plan_buckets(const std::vector<Tensor>& params,
                                              const std::vector<size_t>& order,
                                              const BucketCaps& caps);

/// "ddp: 2 of 9 parameters got no gradient in this backward on rank 1: fc.weight, fc.bias".
std::string missing_text(const char* who, const std::vector<std::string>& names, size_t all,
                         int rank);

/// Of a parameter whose gradient came again, from a backward that a hook ran inside this one, when
/// the first had left.
std::string second_text(const char* who, const std::string& name, int rank);

}  // namespace tarn::dist
