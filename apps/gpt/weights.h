// weights.h - published GPT-2 weights: from Hugging Face, nanoGPT, llm.c, or a run of tarn-gpt.
#pragma once

#include <string>

#include "tarn/core/tensor_dict.h"
#include "tarn/nn/models/gpt.h"

namespace tarn::apps {

/// Weights under the names of nn::models::Gpt, and the sizes they say the model has.
struct GptWeights {
  TensorDict state;
  nn::models::GptOptions options;
  bool guessed_heads = false;  ///< nothing said how many attention heads it has
};

/// Reads a safetensors file, a checkpoint of llm.c (known by its magic number), or a folder: with
/// model.safetensors in it, or a run's. heads: how many attention heads, which the tensors do not
/// say; 0: as the file's metadata say, or manifest.json or config.json beside it, else 64 values
/// each, as in all of GPT-2. Which GELU is told there, too; else the options have GPT-2's. Throws
/// FileError if the file is damaged or holds no GPT-2, ValueError if the heads do not divide it.
GptWeights load_gpt_weights(const std::string& path, int64_t heads = 0);

/// A checkpoint of llm.c: a header of 256 x i32 (magic 20240326; version 3: f32, 5: bf16; block,
/// vocab, layers, heads, size, padded vocab), then every kind of tensor over all layers.
GptWeights load_llmc_checkpoint(const std::string& path);
/// Writes one, of f32 or bf16; needs all biases. Throws ValueError for a model with the exact GELU,
/// FileError if it cannot.
void save_llmc_checkpoint(const std::string& path, const GptWeights& weights, DType dtype);

}  // namespace tarn::apps
