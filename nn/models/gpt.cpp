// gpt.cpp - GPT-2: blocks, initialisation, loss, generation, and published weights.
#include "tarn/nn/models/gpt.h"

#include <cmath>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/autograd/recompute.h"
#include "tarn/core/factory.h"
#include "tarn/nn/init.h"

namespace tarn::nn::models {
namespace {

constexpr double kStd = 0.02;
constexpr char kPrefix[] = "transformer.";  // of all names but lm_head.weight

const GptOptions& checked(const GptOptions& o) {
  TARN_CHECK_AS(ValueError, o.vocab > 0 && o.block > 0 && o.layers > 0 && o.heads > 0 && o.size > 0,
                "Gpt: vocab, block, layers, heads and size must be positive; got ", o.vocab, ", ",
                o.block, ", ", o.layers, ", ", o.heads, ", ", o.size);
  TARN_CHECK_AS(ValueError, o.size % o.heads == 0,
                "Gpt: size must be a multiple of heads; got size=", o.size, ", heads=", o.heads);
  return o;
}

LayerNormOptions norm_options(const GptOptions& o) {
  return {.shape = {o.size}, .bias = o.bias};
}

/// True for the linear weights, which Hugging Face stores [in, out].
bool is_turned(const std::string& name) {
  return name.ends_with("c_attn.weight") || name.ends_with("c_proj.weight") ||
         name.ends_with("c_fc.weight");
}

/// [B, T, 3 C] -> queries, keys or values (part 0, 1, 2) [B, H, T, D].
Tensor heads_of(const Tensor& qkv, int64_t heads, int64_t part) {
  const int64_t width = qkv.size(2) / 3;
  return qkv.narrow(2, part * width, width)
      .reshape({qkv.size(0), qkv.size(1), heads, width / heads})
      .transpose(1, 2);
}

}  // namespace

GptOptions gpt_options(const std::string& name) {
  struct Size {
    const char* name;
    int64_t layers, heads, size;
  };
  constexpr Size kSizes[] = {{"gpt2", 12, 12, 768},
                             {"gpt2-medium", 24, 16, 1024},
                             {"gpt2-large", 36, 20, 1280},
                             {"gpt2-xl", 48, 25, 1600}};
  for (const Size& s : kSizes) {
    if (name == s.name) return {.layers = s.layers, .heads = s.heads, .size = s.size};
  }
  tarn::detail::fail<ValueError>("gpt_options: '", name,
                                 "' is none of gpt2, gpt2-medium, gpt2-large, gpt2-xl");
}

GptAttention::GptAttention(Module* parent, std::string name, const GptOptions& o)
    : Module(parent, std::move(name)),
      c_attn(this, "c_attn", {.in = o.size, .out = 3 * o.size, .bias = o.bias}),
      c_proj(this, "c_proj", {.in = o.size, .out = o.size, .bias = o.bias}),
      heads_(o.heads),
      dropout_(o.dropout),
      resid_dropout_(this, "resid_dropout", {.p = o.dropout}) {}

Tensor GptAttention::forward(const Tensor& x) {
  const Tensor y = scaled_dot_product_attention_qkv(
      c_attn(x), heads_, {.causal = true, .dropout = training() ? dropout_ : 0});
  return resid_dropout_(c_proj(y));
}

Tensor GptAttention::forward(const Tensor& x, KeyValueCache& cache, int64_t layer) {
  return hooked(x, [&](const Tensor& in) { return attend(in, cache, layer); });
}

Tensor GptAttention::attend(const Tensor& x, KeyValueCache& cache, int64_t layer) {
  const Tensor qkv = c_attn(x);
  const int64_t before = cache.length(), time = x.size(1);
  const KeyValueCache::Pair all =
      cache.append(layer, heads_of(qkv, heads_, 1), heads_of(qkv, heads_, 2));
  AttentionOptions options{.causal = before == 0};
  if (before > 0 && time > 1) {  // query t stands at place before + t
    const Tensor one = ones({time, before + time}, {.device = x.device()});
    options.mask = tril(one, before).to(DType::kBool);
  }
  const Tensor y = scaled_dot_product_attention(heads_of(qkv, heads_, 0), all.k, all.v, options);
  return c_proj(y.transpose(1, 2).reshape(x.sizes()));
}

GptMlp::GptMlp(Module* parent, std::string name, const GptOptions& o)
    : Module(parent, std::move(name)),
      c_fc(this, "c_fc", {.in = o.size, .out = 4 * o.size, .bias = o.bias}),
      c_proj(this, "c_proj", {.in = 4 * o.size, .out = o.size, .bias = o.bias}),
      tanh_gelu_(o.tanh_gelu),
      dropout_(this, "dropout", {.p = o.dropout}) {}

Tensor GptMlp::forward(const Tensor& x) {
  return dropout_(c_proj(c_fc.gelu(x, tanh_gelu_)));
}

GptBlock::GptBlock(const Options& o)
    : ln_1(this, "ln_1", norm_options(o)),
      attn(this, "attn", o),
      ln_2(this, "ln_2", norm_options(o)),
      mlp(this, "mlp", o) {}

Tensor GptBlock::forward(const Tensor& x) {
  const AddNormResult y = ln_2.add(x, attn(ln_1(x)));
  return y.sum + mlp(y.y);
}

Tensor GptBlock::forward(const Tensor& x, KeyValueCache& cache, int64_t layer) {
  return hooked(x, [&](const Tensor& in) {
    const AddNormResult y = ln_2.add(in, attn.forward(ln_1(in), cache, layer));
    return y.sum + mlp(y.y);
  });
}

Gpt::Transformer::Transformer(Module* parent, std::string name, const Options& o)
    : Module(parent, std::move(name)),
      wte(this, "wte", {.count = checked(o).vocab, .size = o.size}),
      wpe(this, "wpe", {.count = o.block, .size = o.size}),
      drop(this, "drop", {.p = o.dropout}),
      h(this, "h"),
      ln_f(this, "ln_f", norm_options(o)) {
  for (int64_t i = 0; i < o.layers; ++i) h.add<GptBlock>(o);
}

Gpt::Head::Head(Module* parent, std::string name, const Parameter& tied)
    : Module(parent, std::move(name)), weight(this, "weight", Tensor()) {
  weight.tie(tied);
}

Tensor Gpt::Head::forward(const Tensor& x) {
  return tarn::linear(x, weight);
}

Gpt::Gpt(const Options& o)
    : transformer(this, "transformer", o),
      lm_head(this, "lm_head", transformer.wte.weight),
      options_(o) {
  const double projection = kStd / std::sqrt(2.0 * static_cast<double>(o.layers));
  for (auto& [name, p] : named_parameters()) {
    if (p.dim() == 2) init::normal_(p, 0, name.ends_with("c_proj.weight") ? projection : kStd);
    if (p.dim() == 1 && name.ends_with("bias")) init::zeros_(p);
  }
}

Tensor Gpt::embed(const Tensor& tokens, int64_t first) {
  TARN_CHECK_AS(ShapeError, tokens.dim() == 2, "Gpt: tokens must be [B, T]; got ",
                tokens.describe());
  TARN_CHECK_AS(ShapeError, first + tokens.size(1) <= options_.block,
                "Gpt: the model reads at most ", options_.block, " tokens; got ",
                first + tokens.size(1));
  const Tensor places = transformer.wpe.weight.narrow(0, first, tokens.size(1));
  return transformer.drop(transformer.wte(tokens) + places);
}

Tensor Gpt::features(const Tensor& tokens) {
  const CallScope scope(*this);
  Tensor x = embed(tokens, 0);
  for (GptBlock* block : transformer.h) {
    const auto run = [block](const Tensor& in) { return (*block)(in); };
    x = checkpoints_ ? checkpoint(run, x) : run(x);
  }
  return transformer.ln_f(x);
}

Tensor Gpt::forward(const Tensor& tokens) {
  return lm_head(features(tokens));
}

Tensor Gpt::loss(const Tensor& tokens, const Tensor& targets) {
  const CallScope scope(*this);
  TARN_CHECK_AS(ShapeError, tokens.sizes() == targets.sizes(),
                "Gpt: targets must have the sizes of tokens; got tokens=", tokens.describe(),
                ", targets=", targets.describe());
  const Tensor logits = (*this)(tokens);
  return cross_entropy(logits.view({-1, options_.vocab}), targets.reshape({-1}), {},
                       {.ignore_index = -1});
}

Tensor Gpt::next_logits(const Tensor& tokens, KeyValueCache& cache) {
  const CallScope scope(*this);
  const NoGradGuard no_grad;
  Tensor x = embed(tokens, cache.length());
  for (size_t i = 0; i < transformer.h.size(); ++i) {
    x = transformer.h[i].forward(x, cache, static_cast<int64_t>(i));
  }
  cache.advance(tokens.size(1));
  return lm_head(transformer.ln_f(x.select(1, x.size(1) - 1)));
}

Tensor Gpt::generate(const Tensor& tokens, int64_t count, const SampleOptions& options) {
  TARN_CHECK_AS(ShapeError, tokens.dim() == 2 && tokens.size(1) > 0,
                "Gpt: generate needs tokens [B, T] with T > 0; got ", tokens.describe());
  TARN_CHECK_AS(ValueError, count >= 0, "Gpt: generate needs a count of at least 0; got ", count);
  const CallScope scope(*this);
  const NoGradGuard no_grad;
  const EvalScope evaluation(*this);
  KeyValueCache cache = make_cache();
  Tensor text = tokens;
  int64_t unread = tokens.size(1);  // tokens at the end that the cache has not seen
  for (int64_t i = 0; i < count; ++i) {
    if (cache.length() + unread > options_.block) {
      cache.clear();
      unread = std::min(text.size(1), i == 0 ? options_.block : (options_.block + 1) / 2);
    }
    const Tensor logits = next_logits(text.narrow(1, text.size(1) - unread, unread), cache);
    text = cat({text, sample_tokens(logits, options).unsqueeze(1)}, 1);
    unread = 1;
  }
  return text;
}

int64_t Gpt::num_parameters_without_positions() const {
  return num_parameters() - transformer.wpe.weight.numel();
}

std::string Gpt::details() const {
  return tarn::detail::concat("vocab=", options_.vocab, ", block=", options_.block,
                              ", layers=", options_.layers, ", heads=", options_.heads,
                              ", size=", options_.size);
}

TensorDict gpt_state_from_huggingface(const TensorDict& dict) {
  TensorDict out;
  const NoGradGuard no_grad;
  for (const auto& [key, tensor] : dict) {
    const bool is_head = key.starts_with("lm_head.");
    const std::string name = key.starts_with(kPrefix) || is_head ? key : kPrefix + key;
    if (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")) continue;  // masks
    out.add(name, is_turned(name) ? tensor.t().contiguous() : tensor);
  }
  const Tensor* wte = out.find(std::string(kPrefix) + "wte.weight");
  if (wte != nullptr && !out.contains("lm_head.weight")) out.add("lm_head.weight", *wte);
  return out;
}

TensorDict gpt_state_to_huggingface(const TensorDict& dict) {
  TensorDict out;
  const NoGradGuard no_grad;
  for (const auto& [name, tensor] : dict) {
    if (!name.starts_with(kPrefix)) continue;  // lm_head.weight is wte.weight
    const Tensor plain = tensor.detach();
    out.add(name.substr(std::size(kPrefix) - 1), is_turned(name) ? plain.t().contiguous() : plain);
  }
  return out;
}

}  // namespace tarn::nn::models
