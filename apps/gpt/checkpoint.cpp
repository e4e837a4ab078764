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

}  // namespace

void store_sizes(Checkpoint& c, const nn::models::GptOptions& o) {
  store_values(c, Sizes{o.vocab, o.block, o.layers, o.heads, o.size, o.bias});
}

nn::models::GptOptions restore_sizes(const Checkpoint& c) {
  Sizes s;
  restore_values(c, s);
  return {.vocab = s.vocab,
          .block = s.block,
          .layers = s.layers,
          .heads = s.heads,
          .size = s.size,
          .bias = s.bias != 0};
}

}  // namespace tarn::apps
