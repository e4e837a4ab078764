// dnn_settings.h - what the use of cuDNN depends on.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tarn::cuda {

/// From the environment, read when cuDNN is first considered:
///   TARN_CUDNN=auto                 off, on or auto: whether cuDNN is used at all
///   TARN_CUDNN_WORKSPACE_MIB=1024   scratch memory that a plan may take
///   TARN_CUDNN_DETERMINISTIC=1      1: only algorithms that give the same bits on every run
///   TARN_CUDNN_ATTENTION=1          1: attention too, where it fits (dnn_attention.h)
///                                   0: only convolutions
///   TARN_CUDNN_AUTOTUNE=0           1: times the first few plans of each new shape, keeps the
///                                   fastest
struct DnnSettings {
  int64_t workspace = int64_t{1024} << 20;  ///< bytes
  bool deterministic = true;
  bool attention = true;
  bool autotune = false;
  /// Shapes whose plans are kept; a CUDA graph's are kept besides, as long as the process lives.
  size_t cached_problems = 2048;
};
/// Throws ValueError, naming the variable, if one is not a number in its range.
DnnSettings read_dnn_settings();

/// The settings in force; a test may change them while cuDNN runs nothing, and then has to
/// forget the plans.
DnnSettings& dnn_settings();
void forget_dnn_plans();

}  // namespace tarn::cuda
