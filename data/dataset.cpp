// dataset.cpp - gathering examples into batches.
#include "tarn/data/dataset.h"

#include <cstring>

#include "tarn/core/factory.h"
#include "tarn/core/host.h"

namespace tarn::data {
namespace {

void check_index(int64_t index, int64_t size) {
  TARN_CHECK_AS(IndexError, index >= 0 && index < size, "dataset: example ", index,
                " does not exist; there are ", size);
}

Tensor gather_rows(const Tensor& x, std::span<const int64_t> indices) {
  Shape sizes = x.sizes();
  sizes[0] = static_cast<int64_t>(indices.size());
  Tensor out = empty(sizes, {.dtype = x.dtype()});
  const int64_t bytes = x.size(0) ? x.numel() / x.size(0) * item_size(x.dtype()) : 0;
  const char* from = static_cast<const char*>(x.data());
  char* to = static_cast<char*>(out.data());
  for (int64_t index : indices) {
    check_index(index, x.size(0));
    if (bytes) std::memcpy(to, from + index * bytes, static_cast<size_t>(bytes));
    to += bytes;
  }
  return out;
}

/// Batch memory for pictures as large as the first one.
Tensor empty_batch(int64_t n, const Image& first, bool channels_last) {
  return empty({n, first.channels, first.height, first.width},
               {.format = channels_last ? MemoryFormat::kChannelsLast : MemoryFormat::kContiguous});
}

}  // namespace

TensorDataset::TensorDataset(const Tensor& input, const Tensor& target) {
  TARN_CHECK_AS(ShapeError,
                input.defined() && target.defined() && input.dim() > 0 && target.dim() > 0 &&
                    input.size(0) == target.size(0),
                "TensorDataset: input and target must have the same first size; got input=",
                input.describe(), ", target=", target.describe());
  input_ = host_row_major(input);
  target_ = host_row_major(target);
}

Batch TensorDataset::batch(std::span<const int64_t> indices, const EpochKey&) const {
  return {gather_rows(input_, indices), gather_rows(target_, indices), {}};
}

std::string ImageDataset::name(int64_t index) const {
  return "example " + std::to_string(index);
}

Batch ImageDataset::batch(std::span<const int64_t> indices, const EpochKey& key) const {
  Batch out;
  std::vector<int64_t> labels;
  Shape shape;  // [H, W, C] of the first picture
  float* to = nullptr;
  for (int64_t index : indices) {
    check_index(index, size());
    Rng rng(key.seed, key.epoch, index);
    try {
      const Image picture = pipeline.run_steps(image(index), rng);
      const Shape sizes{picture.height, picture.width, picture.channels};
      if (!to) {
        out.input = empty_batch(static_cast<int64_t>(indices.size()), picture, channels_last);
        to = out.input.data<float>();
        shape = sizes;
      }
      TARN_CHECK_AS(ShapeError, sizes == shape, "pictures of one batch must have one size; got ",
                    sizes, " after ", shape, "; add a crop or a resize to the pipeline");
      pipeline.write(picture, rng, channels_last, to);
      to += shape.numel();
      labels.push_back(label(index));
    } catch (const FileError& e) {
      if (!skip_unreadable) {
        detail::fail<FileError>("example ", index, " (", name(index), "): ", e.what());
      }
      out.skipped.push_back(name(index));
    } catch (const ShapeError& e) {
      detail::fail<ShapeError>("example ", index, " (", name(index), "): ", e.what());
    } catch (const ValueError& e) {
      detail::fail<ValueError>("example ", index, " (", name(index), "): ", e.what());
    }
  }
  const auto read = static_cast<int64_t>(labels.size());
  if (read > 0 && read < out.input.size(0)) {  // some were skipped
    Shape sizes = out.input.sizes();
    sizes[0] = read;
    out.input = Tensor(out.input.storage(), sizes, out.input.strides(), 0, out.input.dtype());
  }
  out.target = from_vector(labels, {read});
  return out;
}

MemoryImages::MemoryImages(Tensor pixels, std::vector<uint8_t> labels,
                           std::vector<std::string> classes)
    : pixels_(std::move(pixels)), labels_(std::move(labels)), classes_(std::move(classes)) {
  TARN_CHECK_AS(ShapeError,
                pixels_.defined() && pixels_.dim() == 4 && pixels_.dtype() == DType::kU8,
                "MemoryImages: pixels must be [N, H, W, C] u8; got pixels=", pixels_.describe());
  TARN_CHECK_AS(ShapeError, pixels_.size(0) == static_cast<int64_t>(labels_.size()),
                "MemoryImages: one label per picture; got ", pixels_.size(0), " pictures, ",
                labels_.size(), " labels");
  pixels_ = host_row_major(pixels_);
}

Image MemoryImages::image(int64_t index) const {
  Image out(pixels_.size(1), pixels_.size(2), pixels_.size(3));
  std::memcpy(out.pixels.data(), pixels_.data<uint8_t>() + index * out.pixels.size(),
              out.pixels.size());
  return out;
}

}  // namespace tarn::data
