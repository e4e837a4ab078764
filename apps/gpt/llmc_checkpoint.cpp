// llmc_checkpoint.cpp - reading llm.c's GPT-2 checkpoints.
#include <array>
#include <utility>

#include "tarn/apps/gpt/weights.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/file.h"

namespace tarn::apps {
namespace {

constexpr int32_t kMagic = 20240326, kFloat = 3, kBfloat16 = 5;

struct Kind {
  const char* name;
  Shape sizes;
};

// What every layer has, in the order of the file.
std::vector<Kind> layer_kinds(int64_t c) {
  return {{"ln_1.weight", {c}},
          {"ln_1.bias", {c}},
          {"attn.c_attn.weight", {3 * c, c}},
          {"attn.c_attn.bias", {3 * c}},
          {"attn.c_proj.weight", {c, c}},
          {"attn.c_proj.bias", {c}},
          {"ln_2.weight", {c}},
          {"ln_2.bias", {c}},
          {"mlp.c_fc.weight", {4 * c, c}},
          {"mlp.c_fc.bias", {4 * c}},
          {"mlp.c_proj.weight", {c, 4 * c}},
          {"mlp.c_proj.bias", {c}}};
}

int64_t parameter_count(const nn::models::GptOptions& o, int64_t padded_vocab) {
  int64_t count = (padded_vocab + o.block + 2) * o.size;
  for (const Kind& kind : layer_kinds(o.size)) count += o.layers * kind.sizes.numel();
  return count;
}

}  // namespace

GptWeights load_llmc_checkpoint(const std::string& path) {
  InputFile file("weights", path);
  std::array<int32_t, 256> header{};
  file.read(header.data(), sizeof header, "the header");
  const auto [magic, version] = std::pair{header[0], header[1]};
  if (magic != kMagic) file.fail("no llm.c checkpoint: it begins with ", magic);
  if (version != kFloat && version != kBfloat16) {
    file.fail("llm.c checkpoint of version ", version,
              "; versions 3 (f32) and 5 (bf16) can be read");
  }
  GptWeights w;
  w.options = {.vocab = header[3],
               .block = header[2],
               .layers = header[4],
               .heads = header[5],
               .size = header[6]};
  const int64_t padded = header[7];
  const nn::models::GptOptions& o = w.options;
  if (o.vocab < 1 || o.block < 1 || o.layers < 1 || o.heads < 1 || o.size < 1 || padded < o.vocab) {
    file.fail("damaged: the header says vocab ", o.vocab, " (padded ", padded, "), block ", o.block,
              ", layers ", o.layers, ", heads ", o.heads, ", size ", o.size);
  }
  const DType dtype = version == kFloat ? DType::kF32 : DType::kBF16;
  const uint64_t expected =
      sizeof header + static_cast<uint64_t>(parameter_count(o, padded) * item_size(dtype));
  if (file.size() != expected) {
    file.fail(file.size() < expected ? "truncated" : "damaged", ": its sizes take ", expected,
              " bytes; the file has ", file.size());
  }
  const auto next = [&](const std::string& name, const Shape& sizes) {
    Tensor tensor = empty(sizes, {.dtype = dtype});
    file.read(tensor.data(), static_cast<uint64_t>(tensor.numel() * item_size(dtype)), name);
    return tensor;
  };
  const Tensor wte = next("wte", {padded, o.size}).narrow(0, 0, o.vocab).contiguous();
  w.state.add("transformer.wte.weight", wte);
  w.state.add("transformer.wpe.weight", next("wpe", {o.block, o.size}));
  for (const Kind& kind : layer_kinds(o.size)) {
    for (int64_t layer = 0; layer < o.layers; ++layer) {
      const std::string name = "transformer.h." + std::to_string(layer) + "." + kind.name;
      w.state.add(name, next(name, kind.sizes));
    }
  }
  w.state.add("transformer.ln_f.weight", next("ln_f.weight", {o.size}));
  w.state.add("transformer.ln_f.bias", next("ln_f.bias", {o.size}));
  w.state.add("lm_head.weight", wte);
  return w;
}

}  // namespace tarn::apps
