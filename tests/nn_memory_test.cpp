// nn_memory_test.cpp - what memory is used for: tags, modules, and steps that leave nothing behind.
#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/error.h"
#include "tarn/core/factory.h"
#include "tarn/core/leak_guard.h"
#include "tarn/core/random.h"
#include "tarn/nn/linear.h"
#include "tarn/nn/memory_report.h"
#include "tarn/nn/models/gpt.h"
#include "tarn/nn/models/mlp.h"
#include "tarn/nn/models/resnet.h"
#include "tarn/optim/adam.h"
#include "tarn/optim/ema.h"
#include "tarn/optim/scaler.h"
#include "tarn/optim/sgd.h"

namespace tarn {
namespace {

int64_t tagged(MemoryTag tag) {
  return memory_stats().by_tag[static_cast<int>(tag)];
}

TEST(MemoryTagTest, parameters_activations_gradients_and_state_are_told_apart) {
  const int64_t parameters = tagged(MemoryTag::kParameters),
                activations = tagged(MemoryTag::kActivations),
                gradients = tagged(MemoryTag::kGradients), state = tagged(MemoryTag::kOptimizer);
  nn::models::Mlp net({.sizes = {64, 256, 10}});
  const int64_t bytes = 4 * net.num_parameters();
  EXPECT_EQ(tagged(MemoryTag::kParameters) - parameters, bytes);
  optim::Adam adam(net.parameters(), {});
  const Tensor x = randn({512, 64}), y = zeros({512}, {.dtype = DType::kI64});
  {
    const Tensor loss = cross_entropy(net(x), y);
    // At least the input, the hidden layer and the logits wait for backward.
    EXPECT_GE(tagged(MemoryTag::kActivations) - activations, 4 * 512 * (64 + 256 + 10));
    EXPECT_EQ(tagged(MemoryTag::kGradients), gradients);
    loss.backward();
  }
  EXPECT_EQ(tagged(MemoryTag::kGradients) - gradients, bytes);
  adam.step();
  EXPECT_GE(tagged(MemoryTag::kOptimizer) - state, 2 * bytes);
  // x and y are kept by the test.
  EXPECT_LE(tagged(MemoryTag::kActivations) - activations, 4 * 512 * 64 + 8 * 512);
  EXPECT_NE(memory_summary().find("activations"), std::string::npos);
}

TEST(MemoryTagTest, the_tags_at_the_peak_add_up_to_the_peak) {
  nn::models::Mlp net({.sizes = {64, 256, 10}});
  const Tensor x = randn({2048, 64}), y = zeros({2048}, {.dtype = DType::kI64});
  reset_peak_memory();
  cross_entropy(net(x), y).backward();
  const MemoryStats s = memory_stats();
  int64_t sum = 0;
  for (const int64_t bytes : s.peak_by_tag) sum += bytes;
  // Small blocks are counted by threads and handed over now and then (magazine.h).
  EXPECT_NEAR(static_cast<double>(sum), static_cast<double>(s.peak_allocated), 512 << 10);
  EXPECT_GT(s.peak_by_tag[static_cast<int>(MemoryTag::kActivations)], 4 * 2048 * 256);
}

TEST(MemoryTagTest, a_plain_leaf_that_is_kept_is_a_parameter) {
  const int64_t before = tagged(MemoryTag::kParameters);
  Tensor w = empty({1 << 18}).set_requires_grad();
  w.detach().fill_(2);
  const Tensor y = mul(w, w);
  EXPECT_EQ(tagged(MemoryTag::kParameters) - before, 4 << 18);
}

struct Wide : nn::Module {
  nn::Linear narrow{this, "narrow", {.in = 8, .out = 16}};
  nn::Linear wide{this, "wide", {.in = 16, .out = 4096}};
  Tensor forward(const Tensor& x) override { return relu(wide(narrow(x))); }
};

TEST(ModuleMemoryTest, memory_belongs_to_the_innermost_module) {
  Wide net;
  const Tensor x = randn({64, 8});
  nn::ModuleMemory memory(net);
  Tensor y = net(x);
  const auto rows = memory.rows();
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].path, "");
  EXPECT_EQ(rows[0].kind, "Wide");
  EXPECT_EQ(rows[0].kept, 4 * 64 * 4096);  // relu's result
  EXPECT_EQ(rows[1].path, "narrow");
  EXPECT_EQ(rows[1].kept, 4 * 64 * 16);
  EXPECT_EQ(rows[2].path, "wide");
  EXPECT_EQ(rows[2].allocated, 4 * 64 * 4096);
  EXPECT_EQ(rows[2].parameters, 4 * (16 * 4096 + 4096));
  EXPECT_EQ(rows[3].path, "(no module)");
  EXPECT_EQ(rows[3].allocated, 0);
  y.sum().backward();
  y = Tensor();
  const auto after = memory.rows();
  EXPECT_EQ(after[0].kept + after[1].kept + after[2].kept, 0);
  EXPECT_GT(after[3].allocated, 0);
  EXPECT_EQ(after[0].at_peak, 4 * 64 * 4096);  // in backward, beside the gradients
  EXPECT_GT(after[3].at_peak, 4 * 64 * 4096);
}

TEST(ModuleMemoryTest, the_table_adds_up_what_is_inside) {
  nn::models::Gpt gpt({.vocab = 11, .block = 8, .layers = 2, .heads = 2, .size = 8});
  nn::ModuleMemory memory(gpt);
  const Tensor loss = gpt(randint(0, 11, {2, 8}));
  const std::string table = memory.table(3);
  for (const char* path : {"(model)", "transformer.h.0", "transformer.h.1", "(no module)"}) {
    EXPECT_NE(table.find(path), std::string::npos) << table;
  }
  EXPECT_EQ(table.find("transformer.h.0.attn"), std::string::npos) << table;
  EXPECT_NE(memory.table(4).find("transformer.h.0.attn"), std::string::npos) << memory.table(4);
}

/// Checks that `step`, once caches and states are made, leaves nothing behind.
template <class F>
void expect_no_growth(const char* what, F&& step) {
  LeakGuard leaks;
  step();
  step();
  leaks.mark();
  for (int i = 0; i < 3; ++i) step();
  leaks.check(what);
}

TEST(LeakTest, steps_of_a_convolutional_network_leave_nothing) {
  const auto net = nn::models::make_resnet("resnet8", {.classes = 10, .in_channels = 1});
  optim::SGD sgd(net->parameters(), {.lr = 0.01, .momentum = 0.9});
  optim::Ema ema(net->state_dict());
  const Tensor x = randn({2, 1, 12, 12}), y = zeros({2}, {.dtype = DType::kI64});
  expect_no_growth("resnet8", [&] {
    sgd.zero_grad();
    cross_entropy((*net)(x), y).backward();
    sgd.step();
    ema.update();
  });
}

TEST(LeakTest, steps_of_a_transformer_leave_nothing_checkpointed_and_scaled_as_well) {
  for (const bool checkpointed : {false, true}) {
    nn::models::Gpt gpt(
        {.vocab = 11, .block = 8, .layers = 2, .heads = 2, .size = 8, .dropout = 0.1});
    gpt.set_checkpoint(checkpointed);
    optim::AdamW adam(gpt.parameters(), {});
    optim::GradScaler scaler;
    const Tensor x = randint(0, 11, {2, 8});
    expect_no_growth(checkpointed ? "gpt, checkpointed" : "gpt", [&] {
      adam.zero_grad();
      Tensor loss;
      {
        const AutocastGuard autocast(DeviceType::kCPU, DType::kBF16);
        loss = gpt.loss(x, x);
      }
      scaler.scale(loss).backward();
      scaler.step(adam);
      scaler.update();
    });
  }
}

TEST(LeakTest, a_loss_kept_with_its_history_is_found_and_named) {
  nn::models::Mlp net({.sizes = {8, 4}});
  const Tensor x = randn({16, 8}), y = zeros({16}, {.dtype = DType::kI64});
  std::vector<Tensor> losses;
  LeakGuard leaks;
  losses.push_back(cross_entropy(net(x), y));
  leaks.mark();
  losses.push_back(cross_entropy(net(x), y));
  EXPECT_GT(leaks.total().nodes, 1);
  EXPECT_THROWS_WITH(leaks.check("a step"), Error, "cross_entropy +");
}

}  // namespace
}  // namespace tarn
