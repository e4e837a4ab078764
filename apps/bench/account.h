// account.h - a dry run: what a piece of work would cost, kernel by kernel, without doing it.
//
// While a DryRun lives, the slots of the CPU's kernel table count and do not compute: shapes are
// inferred and memory is reserved as always, but no number is read or written. So the account of a
// ResNet-50 step with 256 images takes a moment, and holds for any device: slots, operands and
// dtypes are the same on all.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tarn/core/dtype.h"

namespace tarn::bench {

/// One slot's share of the work. Bytes: every operand once, as if caches were perfect.
struct Cost {
  int64_t calls = 0;
  double bytes = 0;
  double flops = 0;         ///< multiplications and additions; 2 per multiply-add
  double saved_bytes = 0;   ///< what unfused operations would have moved beyond `bytes`
  int64_t saved_calls = 0;  ///< kernels that fusion saves
  bool products = false;    ///< matrix products and convolutions: may run on tensor cores

  Cost& operator+=(const Cost& other);
};

/// Slot name and dtype of its products, as "conv.forward f32".
using Account = std::map<std::pair<std::string, DType>, Cost>;

/// Not thread-safe: one at a time, and no kernel may run meanwhile.
class DryRun {
 public:
  DryRun();
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  /// Forgets what was counted so far.
  void reset();
  const Account& account() const;

 private:
  struct Saved;
  std::unique_ptr<Saved> saved_;
};

}  // namespace tarn::bench
