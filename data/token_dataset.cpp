// token_dataset.cpp - windows of tokens as batches.
#include "tarn/data/token_dataset.h"

#include <algorithm>

#include "tarn/core/factory.h"
#include "tarn/data/rng.h"

namespace tarn::data {

TokenDataset::TokenDataset(Tokens tokens, const WindowOptions& options)
    : tokens_(std::move(tokens)), options_(options) {
  TARN_CHECK_AS(ValueError, options.block >= 1, "TokenDataset: block must be at least 1; got ",
                options.block);
  TARN_CHECK_AS(ValueError, tokens_.size() > options.block, "TokenDataset: ", tokens_.name(),
                " has ", tokens_.size(), " tokens, a window of ", options.block, " needs ",
                options.block + 1, "; take a shorter block or a longer text");
}

Batch TokenDataset::batch(std::span<const int64_t> indices, const EpochKey&) const {
  std::vector<int64_t> starts;
  for (const int64_t i : indices) {
    TARN_CHECK_AS(IndexError, i >= 0 && i < size(), "TokenDataset: no window ", i, " among the ",
                  size(), " of ", tokens_.name());
    starts.push_back(i * options_.block);
  }
  return windows(starts);
}

Batch TokenDataset::random(uint64_t seed, int64_t step, int64_t rows, int64_t first_row) const {
  std::vector<int64_t> starts(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) {
    Rng rng(seed, step, first_row + row);
    starts[static_cast<size_t>(row)] = rng.below(tokens_.size() - options_.block);
  }
  return windows(starts);
}

Batch TokenDataset::windows(std::span<const int64_t> starts) const {
  const auto rows = static_cast<int64_t>(starts.size());
  const int64_t block = options_.block;
  Batch batch{.input = empty({rows, block}, {.dtype = DType::kI64}),
              .target = empty({rows, block}, {.dtype = DType::kI64}),
              .skipped = {}};
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t start = starts[static_cast<size_t>(row)];
    int64_t* input = batch.input.data<int64_t>() + row * block;
    int64_t* target = batch.target.data<int64_t>() + row * block;
    tokens_.copy(start, block, input);
    std::copy_n(input + 1, block - 1, target);
    target[block - 1] = tokens_[start + block];
    if (options_.vocab == 0) continue;
    for (int64_t i = 0; i <= block; ++i) {
      const int64_t id = i < block ? input[i] : target[block - 1];
      TARN_CHECK_AS(IndexError, id < options_.vocab, "TokenDataset: token ", id, " at place ",
                    start + i, " of ", tokens_.name(), " is outside the vocabulary of ",
                    options_.vocab, "; were these tokens made with another tokenizer?");
    }
  }
  return batch;
}

}  // namespace tarn::data
