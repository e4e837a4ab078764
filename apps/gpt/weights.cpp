// weights.cpp - weights in safetensors files: which convention, which sizes.
#include "tarn/apps/gpt/weights.h"

#include "tarn/core/file.h"
#include "tarn/core/serialize.h"

namespace tarn::apps {
namespace {

constexpr int32_t kLlmcMagic = 20240326;
constexpr int64_t kHeadSize = 64;  // of every published GPT-2

int32_t first_word(const std::string& path) {
  InputFile file("weights", path);
  int32_t word = 0;
  if (file.size() >= sizeof word) file.read(&word, sizeof word, "the first word");
  return word;
}

// The tensor of this name with or without "transformer." in front.
const Tensor* find_tensor(const TensorDict& dict, const std::string& name) {
  const Tensor* tensor = dict.find("transformer." + name);
  return tensor ? tensor : dict.find(name);
}

const Tensor& need_matrix(const TensorDict& dict, const std::string& name,
                          const std::string& path) {
  const Tensor* tensor = find_tensor(dict, name);
  TARN_CHECK_AS(FileError, tensor && tensor->dim() == 2, "weights: ", path,
                " holds no GPT-2: it lacks a matrix ", name);
  return *tensor;
}

// Linear layers keep [out, in] here and in nanoGPT, [in, out] at Hugging Face: c_attn tells, since
// it is three times as wide on one side.
bool is_turned(const TensorDict& dict, const std::string& path) {
  const Tensor& c_attn = need_matrix(dict, "h.0.attn.c_attn.weight", path);
  return c_attn.size(1) == 3 * c_attn.size(0);
}

int64_t count_layers(const TensorDict& dict) {
  int64_t layers = 0;
  while (find_tensor(dict, "h." + std::to_string(layers) + ".ln_1.weight")) ++layers;
  return layers;
}

}  // namespace

GptWeights load_gpt_weights(const std::string& path, int64_t heads) {
  if (first_word(path) == kLlmcMagic) return load_llmc_checkpoint(path);
  TensorDict dict = load_safetensors(path).tensors;
  const Tensor& wte = need_matrix(dict, "wte.weight", path);
  GptWeights w;
  w.options = {.vocab = wte.size(0),
               .block = need_matrix(dict, "wpe.weight", path).size(0),
               .layers = count_layers(dict),
               .heads = heads > 0 ? heads : std::max<int64_t>(wte.size(1) / kHeadSize, 1),
               .size = wte.size(1),
               .bias = find_tensor(dict, "h.0.attn.c_attn.bias") != nullptr};
  w.state = is_turned(dict, path) ? nn::models::gpt_state_from_huggingface(dict) : std::move(dict);
  return w;
}

}  // namespace tarn::apps
