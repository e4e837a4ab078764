// settings.h - the flags of tarn-bert.
#pragma once

#include <string>
#include <vector>

#include "tarn/apps/common/options.h"

namespace tarn::apps {

struct BertSettings {
  // The model
  std::string weights, vocab, config;
  int64_t heads = 0, max_length = 0;
  std::string pooling = "auto";
  bool normalize = true;
  bool normalize_given = false;  ///< else a folder of sentence-transformers may say otherwise
  // Texts
  std::vector<std::string> texts;
  std::string input;
  int64_t batch_size = 32;
  // What is printed
  std::string output;
  bool similarity = false, tokens = false;
  // Run
  std::string device = "auto";
  int64_t threads = 0;

  bool writes_npy() const { return output.ends_with(".npy"); }
};

/// Declares every flag on `options`, bound to `s`.
void declare_flags(Options& options, BertSettings& s);
/// Throws UsageError for flags that are fine alone and not together, before anything is done.
void check_settings(const BertSettings& s);

}  // namespace tarn::apps
