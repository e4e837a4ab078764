// export.h - a model's weights in the files of other programs.
#pragma once

#include <string>

#include "tarn/data/tokenizer.h"
#include "tarn/nn/models/gpt.h"

namespace tarn::apps {

/// Writes the weights as `dtype`: to NAME.bin as a checkpoint of llm.c, to NAME.safetensors as
/// Hugging Face's GPT-2, to any other name as a folder for its from_pretrained(), with config.json
/// and, of a BPE tokenizer, vocab.json and merges.txt. A model without biases gets zeros, which
/// change nothing and which both expect. config.json says how many heads and which GELU it has;
/// so do the metadata of NAME.safetensors, which others do not read. Throws ValueError for llm.c
/// and a model with the exact GELU, or where files of a run would be replaced; FileError if it
/// cannot be written.
void export_gpt(const std::string& path, const nn::models::Gpt& gpt,
                const data::Tokenizer* tokenizer, DType dtype);

}  // namespace tarn::apps
