// nn_golden_transformer_test.cpp - GPT, BERT and nn.Transformer follow PyTorch's, step for step.
//
// What the file holds is described in golden/golden_transformer.py.
#include "golden/reader.h"
#include <gtest/gtest.h>

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/nn/models/bert.h"
#include "tarn/nn/models/gpt.h"
#include "tarn/nn/transformer.h"
#include "tarn/optim/adam.h"

namespace tarn::golden {
namespace {

const File& file() {
  static const File f("transformer");
  return f;
}

/// The tensors whose names begin with prefix, without it.
TensorDict under(const std::string& prefix) {
  TensorDict out;
  for (const auto& [name, tensor] : file().tensors()) {
    if (name.starts_with(prefix)) out.add(name.substr(prefix.size()), tensor);
  }
  return out;
}

/// Worst ||got - want|| / ||want|| over a model's tensors, relative to the largest of their norms.
double worst_error(const TensorDict& got, const TensorDict& want) {
  double worst = 0;
  for (const auto& [name, tensor] : want) {
    const Tensor* mine = got.find(name);
    EXPECT_TRUE(mine != nullptr && mine->defined()) << name;
    if (mine == nullptr || !mine->defined()) continue;
    const double error = relative_error(mine->to_vector<double>(), tensor.to_vector<double>());
    // A key's bias moves all scores of a query alike: its gradient is rounding noise about 0.
    if (norm(tensor).item() < 1e-6) continue;
    worst = std::max(worst, error);
  }
  return worst;
}

TensorDict gradients(const nn::Module& model) {
  TensorDict out;
  for (const auto& [name, p] : model.named_parameters()) out.add(name, p.grad());
  return out;
}

struct Limits {
  double loss, gradient, end;
};
// The end in f32: Adam makes full steps of gradients that are rounding noise (those of a key's
// bias).
Limits limits(DType dtype) {
  return dtype == DType::kF64 ? Limits{1e-9, 1e-6, 1e-5} : Limits{1e-5, 1e-4, 5e-2};
}

/// Ten AdamW steps against the file's; loss(step) builds the graph.
template <class Loss>
void check_training(const std::string& prefix, nn::Module& model, DType dtype, Loss loss) {
  SCOPED_TRACE(dtype_name(dtype));
  optim::AdamW optimizer(model.parameters(),
                         {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1});
  const std::vector<double> want = file().at(prefix + "losses").to_vector<double>();
  const Limits limit = limits(dtype);
  for (size_t step = 0; step < want.size(); ++step) {
    optimizer.zero_grad();
    const Tensor value = loss(static_cast<int64_t>(step));
    value.backward();
    EXPECT_NEAR(value.item(), want[step], limit.loss * std::max(1.0, want[step])) << step;
    if (step == 0) {
      EXPECT_LT(worst_error(gradients(model), under(prefix + "grad.")), limit.gradient);
    }
    optimizer.step();
  }
  EXPECT_LT(worst_error(model.named_parameters(), under(prefix + "end.")), limit.end);
}

TEST(GoldenTransformer, ten_adamw_steps_of_gpt_follow_pytorch) {
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    nn::models::Gpt gpt({.vocab = 17, .block = 12, .layers = 2, .heads = 2, .size = 16});
    gpt.load_state_dict(nn::models::gpt_state_from_huggingface([&] {
      TensorDict turned;  // the file has [out, in], Hugging Face's [in, out]
      for (const auto& [name, t] : under("gpt.start.")) {
        const bool linear = name.ends_with("c_attn.weight") || name.ends_with("c_proj.weight") ||
                            name.ends_with("c_fc.weight");
        turned.add(name, linear ? t.t().contiguous() : t);
      }
      return turned;
    }()));
    gpt.to(dtype);
    check_training("gpt.", gpt, dtype, [&](int64_t step) {
      return gpt.loss(file().at("gpt.tokens")[step], file().at("gpt.targets")[step]);
    });
  }
}

TEST(GoldenTransformer, ten_adamw_steps_of_bert_follow_pytorch) {
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    nn::models::Bert bert({.vocab = 19,
                           .positions = 10,
                           .types = 2,
                           .layers = 2,
                           .heads = 2,
                           .size = 16,
                           .hidden = 24,
                           .dropout = 0});
    bert.load_state_dict(nn::models::bert_state_from_huggingface(under("bert.start.")));
    bert.to(dtype);
    const Tensor vectors =
        bert.sentence_vectors(file().at("bert.tokens")[0], file().at("bert.mask")[0]);
    EXPECT_TRUE(near(vectors.to(DType::kF32), file().at("bert.vectors"), {1e-4, 1e-5}));
    check_training("bert.", bert, dtype, [&](int64_t step) {
      const Tensor mask = file().at("bert.mask")[step];
      const Tensor hidden = bert.run(file().at("bert.tokens")[step], mask);
      const Tensor off = hidden - file().at("bert.goal")[step].to(dtype);
      const Tensor counts = mask.to(dtype);
      const Tensor squares = (square(off) * counts.unsqueeze(2)).sum() / counts.sum();
      return squares * (1.0 / 16) + square(bert.pooled(hidden)).mean();
    });
  }
}

/// torch.nn.Transformer's names around tarn's stacks.
class EncoderDecoder final : public nn::Module {
 public:
  explicit EncoderDecoder(const nn::TransformerLayerOptions& o)
      : encoder(this, "encoder", 2, o), decoder(this, "decoder", 2, o) {}
  nn::TransformerEncoder encoder;
  nn::TransformerDecoder decoder;
};

TEST(GoldenTransformer, encoder_and_decoder_stacks_agree_with_pytorch) {
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    SCOPED_TRACE(dtype_name(dtype));
    EncoderDecoder model({.size = 12, .heads = 3, .hidden = 20, .dropout = 0});
    model.load_state_dict(under("torch.start."));
    model.to(dtype);
    const Tensor real = eq(file().at("torch.pad"), Scalar(0));
    const Tensor memory = model.encoder.run(file().at("torch.src").to(dtype), {.key_mask = real});
    const Tensor y = model.decoder.run(file().at("torch.tgt").to(dtype), memory, {.causal = true},
                                       {.key_mask = real});
    EXPECT_TRUE(near(y.to(DType::kF32), file().at("torch.out"), {1e-5, 1e-5}));
    y.backward(file().at("torch.cot").to(dtype));
    EXPECT_LT(worst_error(gradients(model), under("torch.grad.")), limits(dtype).gradient);
  }
}

}  // namespace
}  // namespace tarn::golden
