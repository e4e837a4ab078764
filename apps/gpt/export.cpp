// export.cpp - llm.c's checkpoints, Hugging Face's safetensors and folders.
#include "tarn/apps/gpt/export.h"

#include <filesystem>

#include "tarn/apps/common/file.h"
#include "tarn/apps/common/json_object.h"
#include "tarn/apps/gpt/weights.h"
#include "tarn/core/file.h"
#include "tarn/core/serialize.h"
#include "tarn/data/bpe.h"

namespace tarn::apps {
namespace {

namespace fs = std::filesystem;
using nn::models::Gpt;
using nn::models::GptOptions;

GptWeights with_biases(const Gpt& gpt) {
  if (gpt.options().bias) return {gpt.state_dict(), gpt.options()};
  GptOptions o = gpt.options();
  o.bias = true;
  Gpt whole(o);  // its biases are zeros
  whole.load_state_dict(gpt.state_dict(), false);
  return {whole.state_dict(), o};
}

const char* gelu_name(const GptOptions& o) {
  return o.tanh_gelu ? "gelu_new" : "gelu";
}

void save_huggingface(const fs::path& path, const GptWeights& w, DType dtype) {
  TensorDict out;
  for (const auto& [name, tensor] : nn::models::gpt_state_to_huggingface(w.state)) {
    out.add(name, tensor.to(dtype));
  }
  save_safetensors(path.string(), out,
                   {{"format", "pt"},
                    {"n_head", std::to_string(w.options.heads)},
                    {"activation_function", gelu_name(w.options)}});
}

std::string config_json(const GptOptions& o, const data::Tokenizer* tokenizer) {
  JsonObject json;
  json.add_json("architectures", R"(["GPT2LMHeadModel"])")
      .add("model_type", "gpt2")
      .add("activation_function", gelu_name(o))
      .add("layer_norm_epsilon", 1e-5)
      .add("vocab_size", o.vocab)
      .add("n_positions", o.block)
      .add("n_ctx", o.block)
      .add("n_embd", o.size)
      .add("n_layer", o.layers)
      .add("n_head", o.heads);
  for (const char* where : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) json.add(where, o.dropout);
  const auto end = tokenizer ? tokenizer->end_of_text() : std::nullopt;
  for (const char* token : {"bos_token_id", "eos_token_id"}) {
    json.add_json(token, end ? std::to_string(*end) : "null");
  }
  return json.pretty() + "\n";
}

// A run's folder has a config.json of its own, a checkpoint checksums: neither survives an export.
void refuse_files_of_a_run(const std::string& path, bool is_file) {
  const fs::path folder = is_file ? fs::path(path).parent_path() : fs::path(path);
  const auto has = [&](const char* name) { return is_there((folder / name).string()); };
  const bool run = !is_file && has("checkpoints"), checkpoint = has("manifest.json");
  TARN_CHECK_AS(ValueError, !run && !checkpoint, "--export ", path, ": files of a ",
                run ? "run" : "checkpoint", " would be replaced; pass a name outside of it");
}

}  // namespace

void export_gpt(const std::string& path, const Gpt& gpt, const data::Tokenizer* tokenizer,
                DType dtype) {
  const bool file = path.ends_with(".bin") || path.ends_with(".safetensors");
  refuse_files_of_a_run(path, file);
  const GptWeights w = with_biases(gpt);
  if (path.ends_with(".bin")) return save_llmc_checkpoint(path, w, dtype);
  if (path.ends_with(".safetensors")) return save_huggingface(path, w, dtype);
  const fs::path folder = path;
  make_folder(folder);
  save_huggingface(folder / "model.safetensors", w, dtype);
  write_file(folder / "config.json", config_json(w.options, tokenizer));
  if (const auto* bpe = dynamic_cast<const data::Bpe*>(tokenizer)) bpe->save(folder.string());
}

}  // namespace tarn::apps
