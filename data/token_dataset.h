// token_dataset.h - windows of a long text for language models: the input, and the same one token
// further as target.
//
//   TokenDataset data(tokens, {.block = 256, .vocab = 65});
//   Batch batch = data.random(seed, step, rows);       // [rows, 256] each
#pragma once

#include "tarn/data/dataset.h"
#include "tarn/data/tokens.h"

namespace tarn::data {

struct WindowOptions {
  int64_t block = 1024;  ///< tokens of a window
  int64_t vocab = 0;     ///< ids from here on are an error; 0: not checked
};

/// As a Dataset, its examples are the windows that lie side by side: number i begins at token
/// i * block, and a rest too short for a window is left out. Thread safety: as Dataset.
class TokenDataset final : public Dataset {
 public:
  /// Throws ValueError if the text is shorter than one window and the token after it.
  TokenDataset(Tokens tokens, const WindowOptions& options);

  int64_t size() const override { return (tokens_.size() - 1) / options_.block; }
  Batch batch(std::span<const int64_t> indices, const EpochKey& key) const override;

  /// Windows at random places: input and target [rows, block] i64. A function of (seed, step, row)
  /// alone, so a run resumes from the step number, and ranks or micro-batches take their share of
  /// a step's rows by first_row.
  Batch random(uint64_t seed, int64_t step, int64_t rows, int64_t first_row = 0) const;

  const Tokens& tokens() const { return tokens_; }
  const WindowOptions& options() const { return options_; }

 private:
  Batch windows(std::span<const int64_t> starts) const;

  Tokens tokens_;
  WindowOptions options_;
};

}  // namespace tarn::data
