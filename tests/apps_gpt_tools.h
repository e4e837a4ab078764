// apps_gpt_tools.h - a small text, and a small training of tarn-gpt on it.
#pragma once

#include <string>
#include <vector>

#include "apps_process.h"
#include "temp_folder.h"

namespace tarn::test {

/// Writes words.txt, of some five thousand letters that are soon learned; returns its path.
inline std::string write_words(const TempFolder& folder) {
  std::string words;
  for (int i = 0; i < 400; ++i) words += i % 3 ? "the cat sat. " : "a dog ran! ";
  return folder.write("words.txt", words);
}

/// The arguments of 60 steps that leave all there is to see in run folder `run`. `more` comes last,
/// and the last of a flag wins.
inline std::vector<std::string> small_gpt(const std::string& text, const std::string& run,
                                          const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments;
  const auto add = [&](const char* flag, const std::string& value) {
    arguments.push_back(flag);
    arguments.push_back(value);
  };
  add("--data", text);
  add("--out-dir", run);
  add("--n-layer", "2");
  add("--n-head", "2");
  add("--n-embd", "16");
  add("--block-size", "16");
  add("--batch-size", "4");
  add("--gradient-accumulation-steps", "2");
  add("--dropout", "0.1");
  add("--threads", "1");
  add("--device", "cpu");
  add("--max-iters", "60");
  add("--eval-interval", "20");
  add("--eval-iters", "2");
  add("--log-interval", "1");
  add("--warmup-iters", "5");
  add("--lr", "0.01");
  add("--sample-tokens", "12");
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

}  // namespace tarn::test
