// dnn_settings.cpp - reads what the use of cuDNN depends on.
#if TARN_HAVE_CUDNN

#include "tarn/cuda/dnn_settings.h"

#include <cstdlib>

#include "tarn/core/error.h"

namespace tarn::cuda {
namespace {

int64_t environment(const char* name, int64_t otherwise, int64_t most) {
  const char* text = std::getenv(name);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const long long value = std::strtoll(text, &end, 10);
  TARN_CHECK_AS(ValueError, *end == '\0' && value >= 0 && value <= most, name,
                " must be a number from 0 to ", most, "; got '", text, "'");
  return value;
}

}  // namespace

DnnSettings read_dnn_settings() {
  DnnSettings settings;
  settings.workspace = environment("TARN_CUDNN_WORKSPACE_MIB", 1024, int64_t{1} << 20) << 20;
  settings.deterministic = environment("TARN_CUDNN_DETERMINISTIC", 1, 1) != 0;
  settings.attention = environment("TARN_CUDNN_ATTENTION", 1, 1) != 0;
  settings.autotune = environment("TARN_CUDNN_AUTOTUNE", 0, 1) != 0;
  return settings;
}

DnnSettings& dnn_settings() {
  static DnnSettings settings = read_dnn_settings();
  return settings;
}

}  // namespace tarn::cuda

#endif  // TARN_HAVE_CUDNN
