// bert.h - BERT: an encoder of post-norm Transformer blocks over word pieces; MiniLM is one.
//
// Parameter names are Hugging Face's BertModel: embeddings.{word,position,token_type}_embeddings,
// embeddings.LayerNorm, encoder.layer.N.attention.self.{query,key,value}, attention.output.{dense,
// LayerNorm}, intermediate.dense, output.{dense, LayerNorm}, pooler.dense.
// Source: Devlin et al. 2018, arXiv:1810.04805.
#pragma once

#include "tarn/nn/activation.h"
#include "tarn/nn/attention.h"
#include "tarn/nn/linear.h"
#include "tarn/nn/norm.h"
#include "tarn/nn/sequential.h"

namespace tarn::nn::models {

struct BertOptions {
  int64_t vocab = 30522;
  int64_t positions = 512;  ///< the longest sequence
  int64_t types = 2;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t size = 768;
  int64_t hidden = 3072;
  double dropout = 0.1;
  double eps = 1e-12;
  bool pooler = true;
};

/// Sizes of "bert-base-uncased" and "all-MiniLM-L6-v2". Throws ValueError that lists them.
BertOptions bert_options(const std::string& name);

/// How hidden states [B, T, size] become one vector a sentence.
struct SentenceOptions {
  enum class Pooling { kMean, kFirst };  ///< over the real tokens; or the first, [CLS]
  Pooling pooling = Pooling::kMean;
  bool normalize = true;  ///< to length 1
};

/// dense, dropout, and LayerNorm of the sum with what went around.
class BertOutput final : public Module {
 public:
  BertOutput(Module* parent, std::string name, int64_t in, const BertOptions& options);
  Tensor add(const Tensor& x, const Tensor& residual);

  Linear dense;
  LayerNorm norm;

 private:
  Dropout dropout_;
};

class BertAttention final : public Module {
 public:
  BertAttention(Module* parent, std::string name, const BertOptions& options);
  Tensor run(const Tensor& x, const Tensor& mask);

  class Self final : public Module {
   public:
    Self(Module* parent, std::string name, const BertOptions& options);
    Linear query, key, value;
  };
  Self self;
  BertOutput output;

 private:
  int64_t heads_;
  double dropout_;
};

class BertLayer final : public Module {
 public:
  using Options = BertOptions;
  explicit BertLayer(const Options& options);
  Tensor run(const Tensor& x, const Tensor& mask);

  class Intermediate final : public Module {
   public:
    Intermediate(Module* parent, std::string name, const BertOptions& options);
    Linear dense;
  };
  BertAttention attention;
  Intermediate intermediate;
  BertOutput output;
};

class Bert final : public Module {
 public:
  using Options = BertOptions;
  /// Initialised as BERT: N(0, 0.02), biases 0. Throws ValueError on sizes that do not go together.
  explicit Bert(const Options& options);

  /// tokens [B, T] i64 -> the last hidden states [B, T, size].
  Tensor forward(const Tensor& tokens) override { return run(tokens); }
  /// mask [B, T] bool: false for padding. types [B, T] i64: which sentence; 0 if undefined.
  Tensor run(const Tensor& tokens, const Tensor& mask = {}, const Tensor& types = {});
  /// tanh(dense(hidden of the first token)): [B, size].
  Tensor pooled(const Tensor& hidden);
  /// One vector a sentence, [B, size], of the hidden states of the tokens that mask counts (all, if
  /// it is undefined). These are the vectors of sentence-transformers.
  Tensor sentence_vectors(const Tensor& tokens, const Tensor& mask,
                          const SentenceOptions& options = {});

  const Options& options() const { return options_; }

  class Embeddings final : public Module {
   public:
    Embeddings(Module* parent, std::string name, const BertOptions& options);
    Embedding word_embeddings, position_embeddings, token_type_embeddings;
    LayerNorm norm;
    Dropout dropout;
  };
  class Encoder final : public Module {
   public:
    Encoder(Module* parent, std::string name, const BertOptions& options);
    ModuleList<BertLayer> layer;
  };
  class Pooler final : public Module {
   public:
    Pooler(Module* parent, std::string name, const BertOptions& options);
    Linear dense;
  };
  Embeddings embeddings;
  Encoder encoder;
  std::optional<Pooler> pooler;

 private:
  Tensor hidden_states(const Tensor& tokens, const Tensor& mask, const Tensor& types);
  Options options_;
};

/// A state_dict for Bert from Hugging Face's: a prefix "bert." goes, and so do position_ids and the
/// heads of other tasks ("cls.", "classifier."); LayerNorm.gamma and beta become weight and bias.
TensorDict bert_state_from_huggingface(const TensorDict& dict);

}  // namespace tarn::nn::models
