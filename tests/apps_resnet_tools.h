// apps_resnet_tools.h - tiny data sets for the trainer.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "apps_process.h"
#include "temp_folder.h"

namespace tarn::test {

inline std::string big_endian(uint32_t v) {
  return {static_cast<char>(v >> 24), static_cast<char>(v >> 16), static_cast<char>(v >> 8),
          static_cast<char>(v)};
}

/// 28 x 28 pictures of two kinds, light above or light below, with some noise: what the labels 0
/// and 1 say.
inline void write_mnist(const TempFolder& folder, const std::string& name, uint32_t train,
                        uint32_t test) {
  uint32_t random = 1;
  for (const auto& [prefix, n] : {std::pair{"train", train}, std::pair{"t10k", test}}) {
    std::string images = big_endian(0x803) + big_endian(n) + big_endian(28) + big_endian(28);
    std::string labels = big_endian(0x801) + big_endian(n);
    for (uint32_t i = 0; i < n; ++i) {
      labels += static_cast<char>(i % 2);
      for (uint32_t p = 0; p < 28 * 28; ++p) {
        random = random * 1664525 + 1013904223;
        const bool light = (p < 14 * 28) == (i % 2 == 0);
        images += static_cast<char>((light ? 150 : 20) + random % 80);
      }
    }
    folder.write(name + "/" + prefix + "-images-idx3-ubyte", images);
    folder.write(name + "/" + prefix + "-labels-idx1-ubyte", labels);
  }
}

/// Flags of a short run on write_mnist(folder, "data", ...) that ranks may share.
inline std::vector<std::string> run_of_ranks(const TempFolder& folder, const std::string& name) {
  return {"--data-path",  "mnist:" + folder / "data",
          "-b",           "12",
          "--epochs",     "2",
          "--lr",         "0.005",
          "--threads",    "1",
          "--device",     "cpu",
          "--output-dir", folder / "runs",
          "--print-freq", "1",
          "--name",       name,
          "--sync-bn"};
}

}  // namespace tarn::test
