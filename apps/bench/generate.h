// generate.h - times generation, a token at a time, beside what memory allows.
#pragma once

#include <cstdint>
#include <string>

namespace tarn::bench {

struct GenerateSettings {
  std::string model = "gpt2", device = "cpu", dtype = "float32";  ///< dtype: of the weights
  int64_t tokens = 64;
};

struct GenerateResult {
  double tokens_per_s;
  double limit;      ///< tokens/s if each weight were read once a token, at the measured rate
  double read_gbps;  ///< that rate
  double weights_mib;
};

/// One text, with the key-value cache, after a prompt of 8 tokens; the most likely token each time.
/// Checks the first tokens, in f32, against the model without a cache. Throws Error on a model that
/// is no GPT.
GenerateResult bench_generate(const GenerateSettings& settings);

/// One line for people.
std::string generate_text(const GenerateSettings& settings, const GenerateResult& result);

}  // namespace tarn::bench
