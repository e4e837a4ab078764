// 10_gpt.cpp - a GPT in 80 lines: it reads a psalm letter by letter and learns to go on.
#include <cstdio>
#include <iostream>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/data/tokenizer.h"
#include "tarn/nn/generate.h"
#include "tarn/nn/linear.h"
#include "tarn/nn/norm.h"
#include "tarn/nn/sequential.h"
#include "tarn/optim/adam.h"

using namespace tarn;

constexpr int64_t kBlock = 32, kWidth = 64, kHeads = 4, kBatch = 16;  // letters read at once, ...
constexpr char kText[] =
    "The Lord is my shepherd; I shall not want.\nHe maketh me to lie down in green pastures: he "
    "leadeth me beside the still waters.\nHe restoreth my soul: he leadeth me in the paths of "
    "righteousness for his name's sake.\nYea, though I walk through the valley of the shadow of "
    "death,\nI will fear no evil: for thou art with me; thy rod and thy staff they comfort me.\n";
const auto kLetters = data::CharTokenizer::of(kText);

// Tokens listen to earlier ones (attention), then each thinks by itself; both add to what passes.
class Block : public nn::Module {
 public:
  nn::LayerNorm ln_1{this, "ln_1", {.shape = {kWidth}}}, ln_2{this, "ln_2", {.shape = {kWidth}}};
  nn::Linear qkv{this, "qkv", {.in = kWidth, .out = 3 * kWidth}};  // asks, offers, tells
  nn::Linear join{this, "join", {.in = kWidth, .out = kWidth}};
  nn::Linear up{this, "up", {.in = kWidth, .out = 4 * kWidth}};
  nn::Linear down{this, "down", {.in = 4 * kWidth, .out = kWidth}};
  Tensor forward(const Tensor& x) override {
    const Tensor y =
        x + join(scaled_dot_product_attention_qkv(qkv(ln_1(x)), kHeads, {.causal = true}));
    return y + down(gelu(up(ln_2(y))));
  }
};

class Gpt : public nn::Module {
 public:
  Gpt() { blocks.add<Block>(), blocks.add<Block>(); }
  Tensor forward(const Tensor& tokens) override {  // [B, T] -> scores of the next one [B, T, V]
    return head(norm(blocks(letters(tokens) + places.weight.narrow(0, 0, tokens.size(1)))));
  }
  nn::Embedding letters{this, "letters", {.count = kLetters->vocab_size(), .size = kWidth}};
  nn::Embedding places{this, "places", {.count = kBlock, .size = kWidth}};
  nn::Sequential blocks{this, "blocks"};
  nn::LayerNorm norm{this, "norm", {.shape = {kWidth}}};
  nn::Linear head{this, "head", {.in = kWidth, .out = kLetters->vocab_size()}};
};

int main() {
  manual_seed(1);
  const std::vector<int32_t> ids = kLetters->encode(kText);
  const Tensor text = from_vector(ids, {static_cast<int64_t>(ids.size())}).to(DType::kI64);
  Gpt gpt;
  optim::AdamW adam(gpt.parameters(), {.lr = 3e-3});
  double last = 0;
  for (int step = 0; step <= 300; ++step) {
    const Tensor starts = randint(0, text.numel() - kBlock, {kBatch, 1});
    const Tensor at = starts + arange(kBlock);  // windows [B, T]; the answers are one letter on
    const Tensor scores = gpt(index(text, {at}));
    const Tensor loss = cross_entropy(scores.flatten(0, 1), index(text, {at + 1}).flatten());
    adam.zero_grad();
    loss.backward();
    adam.step();
    if (step % 50 == 0) std::printf("step %3d  loss %.3f\n", step, last = loss.item());
  }
  const NoGradGuard no_grad;
  Tensor written = text.narrow(0, 0, 1).unsqueeze(0);  // a first letter
  for (int i = 0; i < 180; ++i) {
    const int64_t seen = std::min(written.size(1), kBlock);
    const Tensor scores = gpt(written.narrow(1, written.size(1) - seen, seen)).select(1, seen - 1);
    written = cat({written, nn::sample_tokens(scores, {.temperature = 0.5}).unsqueeze(1)}, 1);
  }
  std::cout << kLetters->decode(written.to_vector<int32_t>()) << "\n";
  return last < 1 ? 0 : 1;
}
