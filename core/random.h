// random.h - Philox4x32-10: counter-based random numbers, equal on every device and thread count.
//
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tarn/core/hd.h"
#include "tarn/core/tensor.h"

namespace tarn {

/// Where a stream of numbers stands: key and 128-bit counter's low half.
struct PhiloxState {
  uint64_t seed = 0;
  uint64_t offset = 0;
};

struct Philox4 {
  uint32_t v[4];
};

/// Ten rounds over counter (offset_lo, offset_hi, stream_lo, stream_hi) with key = seed.
TARN_HD Philox4 philox4x32_10(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0,
                              uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

TARN_HD Philox4 philox(const PhiloxState& s, uint64_t counter) {
  const uint64_t c = s.offset + counter;
  return philox4x32_10(static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32), 0, 0,
                       static_cast<uint32_t>(s.seed), static_cast<uint32_t>(s.seed >> 32));
}
/// [0, 1) with 24 bits.
TARN_HD float philox_uniform_float(uint32_t r) {
  return static_cast<float>(r >> 8) * 0x1p-24f;
}
/// [0, 1) with 53 bits.
TARN_HD double philox_uniform_double(uint32_t hi, uint32_t lo) {
  return static_cast<double>(((static_cast<uint64_t>(hi) << 32) | lo) >> 11) * 0x1p-53;
}

/// A seed and a position. Thread safety: take() and the accessors may be called from any thread.
class Generator {
 public:
  explicit Generator(uint64_t seed = 0) : state_{seed, 0} {}
  void manual_seed(uint64_t seed);
  PhiloxState state() const;
  void set_state(PhiloxState state);
  /// Reserves `draws` counters and returns where they begin.
  PhiloxState take(uint64_t draws);

 private:
  PhiloxState take_fresh(uint64_t draws);

  PhiloxState state_;
};

/// What the default generator gave to this thread, to be given once more.
using RandomRecord = std::vector<PhiloxState>;

/// While it lives, notes in `record` what the default generator gives to this thread. They nest.
class RandomRecorder {
 public:
  explicit RandomRecorder(RandomRecord& record);
  ~RandomRecorder();
  RandomRecorder(const RandomRecorder&) = delete;
  RandomRecorder& operator=(const RandomRecorder&) = delete;

 private:
  friend class Generator;
  friend class RandomReplay;
  RandomRecorder(RandomRecord* record, const RandomRecord* replayed);

  RandomRecord* record_;          // null: replays
  const RandomRecord* replayed_;  // null: records
  size_t next_ = 0;
  RandomRecorder* outer_;
};

/// While it lives, the default generator gives this thread what is in `record`, in order, and then
/// goes on as usual. Other threads, and where the generator stands, are not touched.
class RandomReplay : private RandomRecorder {
 public:
  explicit RandomReplay(const RandomRecord& record) : RandomRecorder(nullptr, &record) {}
  /// How much of the record was given.
  size_t given() const { return next_; }
};

/// The generator used when none is given. One for all devices, so that CPU and GPU agree.
Generator& default_generator();
/// Seeds the default generator.
void manual_seed(uint64_t seed);

}  // namespace tarn
