// checkpoint.cpp - the model's sizes in a checkpoint.
#include "tarn/apps/gpt/checkpoint.h"

#include "tarn/apps/common/run_checkpoints.h"

namespace tarn::apps {
namespace {

struct Sizes {
  int64_t vocab = 0, block = 0, layers = 0, heads = 0, size = 0, bias = 0;

  template <class F>
  void visit(F&& f) {
    f("vocab", vocab);
    f("block", block);
    f("layers", layers);
    f("heads", heads);
    f("size", size);
    f("bias", bias);
  }
};

// 1 for a model with the exact GELU. Runs from before there was a choice have none.
constexpr const char* kExactGelu = "exact_gelu";

}  // namespace

void store_sizes(Checkpoint& c, const nn::models::GptOptions& o) {
  store_values(c, Sizes{o.vocab, o.block, o.layers, o.heads, o.size, o.bias});
  c.values[kExactGelu] = int64_t{o.tanh_gelu ? 0 : 1};
}

nn::models::GptOptions restore_sizes(const Checkpoint& c) {
  Sizes s;
  restore_values(c, s);
  return {.vocab = s.vocab,
          .block = s.block,
          .layers = s.layers,
          .heads = s.heads,
          .size = s.size,
          .bias = s.bias != 0,
          .tanh_gelu = !c.values.contains(kExactGelu) || c.integer(kExactGelu) == 0};
}

}  // namespace tarn::apps
