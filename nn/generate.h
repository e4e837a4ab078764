// generate.h - choosing the next token from a language model's logits.
#pragma once

#include "tarn/core/random.h"
#include "tarn/core/tensor.h"

namespace tarn::nn {

struct SampleOptions {
  double temperature = 1;          ///< divides the logits; 0: always the most likely token
  int64_t top_k = 0;               ///< only the k most likely; 0: all
  double top_p = 1;                ///< only the fewest most likely that have this probability
  Generator* generator = nullptr;  ///< none: default_generator()
};

/// One token per row of logits [B, V]: [B] i64. Throws ValueError on a negative temperature or
/// top_k, or a top_p outside (0, 1].
Tensor sample_tokens(const Tensor& logits, const SampleOptions& options = {});

/// Keys and values of the tokens seen so far, one pair per layer, so that a new token costs one
/// step and not the whole text again.
class KeyValueCache {
 public:
  /// Room for `capacity` tokens in `layers` layers. Throws ValueError on negative ones.
  KeyValueCache(int64_t layers, int64_t capacity);

  struct Pair {
    Tensor k, v;  ///< [B, H, length, D]
  };
  /// Appends k and v [B, H, T, D] to a layer; returns all that it holds now, the new ones included.
  /// The length counts after advance(). Throws ShapeError beyond the capacity and unless k and v
  /// have one T, IndexError on a layer that is not there.
  Pair append(int64_t layer, const Tensor& k, const Tensor& v);
  /// Call once the new tokens went through all layers.
  void advance(int64_t tokens) { length_ += tokens; }
  int64_t length() const { return length_; }
  int64_t capacity() const { return capacity_; }
  void clear() { length_ = 0; }

 private:
  int64_t capacity_, length_ = 0;
  std::vector<Pair> layers_;  // [B, H, capacity, D], allocated at first use
};

}  // namespace tarn::nn
