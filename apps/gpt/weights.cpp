// weights.cpp - weights in safetensors files: which convention, which sizes.
#include "tarn/apps/gpt/weights.h"

#include <filesystem>
#include <map>

#include <nlohmann/json.hpp>

#include "tarn/core/file.h"
#include "tarn/core/serialize.h"

namespace tarn::apps {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

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

// What tensors do not tell.
struct Told {
  int64_t heads = 0;  // 0: unknown
  std::string gelu;   // as in config.json of Hugging Face
};

// The object in a file beside the weights; an empty one where there is none.
json beside(const fs::path& weights, const char* name) {
  const std::string path = (weights.parent_path() / name).string();
  if (!is_there(path)) return json::object();
  const json j = json::parse(read_file("weights", path), nullptr, false);
  TARN_CHECK_AS(FileError, j.is_object(), "weights: ", path,
                " is damaged: it holds no JSON object");
  return j;
}

int64_t integer_in(const json& j, const char* key) {
  const auto found = j.find(key);
  return found != j.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

// Exports of tarn-gpt say it themselves, its checkpoints have a manifest, others a config.json.
Told told_by(const std::map<std::string, std::string>& metadata, const fs::path& path) {
  Told told;
  if (metadata.contains("n_head")) told.heads = std::atoll(metadata.at("n_head").c_str());
  if (metadata.contains("activation_function")) told.gelu = metadata.at("activation_function");
  if (told.heads > 0) return told;
  const json manifest = beside(path, "manifest.json");
  const json values = manifest.value("values", json::object());
  if (integer_in(values, "heads") > 0) {
    return {integer_in(values, "heads"), integer_in(values, "exact_gelu") ? "gelu" : "gelu_new"};
  }
  const json config = beside(path, "config.json");
  const auto gelu = config.find("activation_function");
  return {integer_in(config, "n_head"),
          gelu != config.end() && gelu->is_string() ? gelu->get<std::string>() : ""};
}

// The file in a folder of from_pretrained(), of a run or of a checkpoint.
std::string weights_file(const std::string& path) {
  if (!is_folder(path)) return path;
  for (const char* name : {"model.safetensors", "checkpoints/last/model.safetensors"}) {
    const std::string file = (fs::path(path) / name).string();
    if (is_there(file)) return file;
  }
  detail::fail<FileError>("weights: no model.safetensors in the folder ", path);
}

}  // namespace

GptWeights load_gpt_weights(const std::string& given, int64_t heads) {
  const std::string path = weights_file(given);
  if (first_word(path) == kLlmcMagic) return load_llmc_checkpoint(path);
  Safetensors file = load_safetensors(path);
  TensorDict& dict = file.tensors;
  const Told told = told_by(file.metadata, path);
  if (heads == 0) heads = told.heads;
  const Tensor& wte = need_matrix(dict, "wte.weight", path);
  GptWeights w;
  w.options = {.vocab = wte.size(0),
               .block = need_matrix(dict, "wpe.weight", path).size(0),
               .layers = count_layers(dict),
               .heads = heads > 0 ? heads : std::max<int64_t>(wte.size(1) / kHeadSize, 1),
               .size = wte.size(1),
               .bias = find_tensor(dict, "h.0.attn.c_attn.bias") != nullptr,
               .tanh_gelu = told.gelu != "gelu"};
  w.guessed_heads = heads == 0;
  TARN_CHECK_AS(ValueError, w.options.size % w.options.heads == 0, "weights: the model in ", path,
                " has a width of ", w.options.size, ", which ", w.options.heads,
                " attention heads do not divide; pass --n-head");
  w.state = is_turned(dict, path) ? nn::models::gpt_state_from_huggingface(dict) : std::move(dict);
  return w;
}

}  // namespace tarn::apps
