// dataset.h - what a loader reads from: numbered examples, asked for a batch at a time.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tarn/core/tensor.h"
#include "tarn/data/transform.h"

namespace tarn::data {

struct Batch {
  Tensor input{};                      ///< [N, ...]; pictures [N, C, H, W] f32, undefined if N = 0
  Tensor target{};                     ///< [N] i64 class numbers, or what the dataset says
  std::vector<std::string> skipped{};  ///< examples left out because they could not be read
  /// What else belongs to the examples, by name: lengths, masks, ids; a row each.
  std::map<std::string, Tensor> extra{};

  int64_t size() const { return input.defined() ? input.size(0) : 0; }
};

/// What randomness may depend on, besides the index of the example.
struct EpochKey {
  uint64_t seed = 0;
  int64_t epoch = 0;
};

/// Thread safety: both methods may be called from any thread at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  /// The examples of these numbers, in this order. An error names the example.
  virtual Batch batch(std::span<const int64_t> indices, const EpochKey& key) const = 0;
};

/// Rows of two tensors held in memory: input [N, ...], target [N, ...].
class TensorDataset final : public Dataset {
 public:
  /// Throws ShapeError if the first dimensions differ.
  TensorDataset(const Tensor& input, const Tensor& target);
  int64_t size() const override { return input_.size(0); }
  Batch batch(std::span<const int64_t> indices, const EpochKey& key) const override;

 private:
  Tensor input_, target_;
};

/// Pictures with one class number each; a subclass says where they come from.
class ImageDataset : public Dataset {
 public:
  ImagePipeline pipeline;
  /// Batches as NHWC in memory (sizes stay [N, C, H, W]): what convolutions want.
  bool channels_last = true;
  /// Leaves examples out that cannot be read, and lists them in Batch::skipped.
  bool skip_unreadable = false;

  virtual Image image(int64_t index) const = 0;
  virtual int64_t label(int64_t index) const = 0;
  /// For errors: a path, or "example 17".
  virtual std::string name(int64_t index) const;
  virtual const std::vector<std::string>& classes() const = 0;

  /// Throws FileError "example 17 (PATH): reason", ShapeError if pictures come out of the pipeline
  /// in different sizes.
  Batch batch(std::span<const int64_t> indices, const EpochKey& key) const override;
};

/// Pictures of one size held in memory, [N, H, W, C] u8.
class MemoryImages : public ImageDataset {
 public:
  MemoryImages(Tensor pixels, std::vector<uint8_t> labels, std::vector<std::string> classes);
  int64_t size() const override { return pixels_.size(0); }
  Image image(int64_t index) const override;
  int64_t label(int64_t index) const override { return labels_[static_cast<size_t>(index)]; }
  const std::vector<std::string>& classes() const override { return classes_; }
  const Tensor& pixels() const { return pixels_; }

 private:
  Tensor pixels_;
  std::vector<uint8_t> labels_;
  std::vector<std::string> classes_;
};

}  // namespace tarn::data
