// llmc_checkpoint.cpp - llm.c's GPT-2 checkpoints, read and written.
#include <array>
#include <utility>

#include "tarn/apps/gpt/weights.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/file.h"
#include "tarn/core/host.h"

namespace tarn::apps {
namespace {

constexpr int32_t kMagic = 20240326, kFloat = 3, kBfloat16 = 5;
constexpr int64_t kPadding = 128;  // llm.c rounds the vocabulary up to a multiple of this
constexpr const char* kTokens = "transformer.wte.weight";

struct Entry {
  std::string name;
  Shape sizes;
};

// All tensors in the order of the file: each kind over all layers. The vocabulary as it is padded.
std::vector<Entry> entries(const nn::models::GptOptions& o, int64_t padded) {
  const int64_t c = o.size;
  const Entry kinds[] = {{"ln_1.weight", {c}},
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
  std::vector<Entry> out{{kTokens, {padded, c}}, {"transformer.wpe.weight", {o.block, c}}};
  for (const Entry& kind : kinds) {
    for (int64_t layer = 0; layer < o.layers; ++layer) {
      out.push_back({"transformer.h." + std::to_string(layer) + "." + kind.name, kind.sizes});
    }
  }
  out.push_back({"transformer.ln_f.weight", {c}});
  out.push_back({"transformer.ln_f.bias", {c}});
  return out;
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
  // Of sizes that are larger than the file neither a list nor a product is made.
  const auto item = static_cast<double>(item_size(dtype)), c = static_cast<double>(o.size);
  const double least = item * c *
                       (static_cast<double>(padded) + static_cast<double>(o.block) +
                        12 * c * static_cast<double>(o.layers));
  if (least > static_cast<double>(file.size())) {
    file.fail("truncated: its sizes take more than ", static_cast<uint64_t>(std::min(least, 1e19)),
              " bytes; the file has ", file.size());
  }
  uint64_t expected = sizeof header;
  for (const Entry& e : entries(o, padded)) {
    expected += static_cast<uint64_t>(e.sizes.numel() * item_size(dtype));
  }
  if (file.size() != expected) {
    file.fail(file.size() < expected ? "truncated" : "damaged", ": its sizes take ", expected,
              " bytes; the file has ", file.size());
  }
  for (const Entry& e : entries(o, padded)) {
    Tensor tensor = empty(e.sizes, {.dtype = dtype});
    file.read(tensor.data(), static_cast<uint64_t>(tensor.numel() * item_size(dtype)), e.name);
    if (e.name == kTokens) tensor = tensor.narrow(0, 0, o.vocab).contiguous();
    w.state.add(e.name, tensor);
  }
  w.state.add("lm_head.weight", w.state.at(kTokens));
  return w;
}

void save_llmc_checkpoint(const std::string& path, const GptWeights& w, DType dtype) {
  TARN_CHECK_AS(DTypeError, dtype == DType::kF32 || dtype == DType::kBF16,
                "weights: llm.c knows f32 and bf16; got ", dtype);
  const nn::models::GptOptions& o = w.options;
  TARN_CHECK_AS(ValueError, o.tanh_gelu, "weights: ", path,
                ": llm.c computes GELU by tanh, and this model was trained with the exact one; "
                "export it for Hugging Face, as a folder");
  const int64_t padded = (o.vocab + kPadding - 1) / kPadding * kPadding;
  std::array<int32_t, 256> header{kMagic, dtype == DType::kF32 ? kFloat : kBfloat16};
  size_t at = 2;
  for (const int64_t value : {o.block, o.vocab, o.layers, o.heads, o.size, padded}) {
    header[at++] = static_cast<int32_t>(value);
  }
  OutputFile file("weights", path);
  file.write(header.data(), sizeof header);
  for (const Entry& e : entries(o, padded)) {
    const Tensor packed = host_row_major(w.state.at(e.name).detach().to(dtype));
    const int64_t missing = e.sizes.numel() - packed.numel();  // what pads the vocabulary
    file.write(packed.data(), static_cast<uint64_t>(packed.numel() * item_size(dtype)));
    file.write(std::string(static_cast<size_t>(missing * item_size(dtype)), '\0'));
  }
  file.commit();
}

}  // namespace tarn::apps
