// cuda_offload_test.cpp - activations that wait in the host's memory give the same bits.
#include <optional>
#include <vector>

#include "gpu_tools.h"
#include <gtest/gtest.h>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/recompute.h"
#include "tarn/autograd/saved_tensor_hooks.h"
#include "tarn/core/allocator.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/core/transfer.h"
#include "tarn/nn/models/gpt.h"
#include "tarn/nn/models/resnet.h"

namespace tarn {
namespace {

class CudaOffload : public ::testing::Test {
 protected:
  void SetUp() override { TARN_NEEDS_GPU(); }
};

std::vector<std::vector<float>> gradients(nn::Module& net) {
  std::vector<std::vector<float>> all;
  for (const Tensor& p : net.parameters()) {
    Tensor leaf = p;
    all.push_back(leaf.grad().to(kCPU).to_vector<float>());
    leaf.zero_grad();
  }
  return all;
}

template <class Loss>
void expect_equal_bits(nn::Module& net, Loss&& loss) {
  manual_seed(5);
  loss().backward();
  const auto plain = gradients(net);
  for (const bool pinned : {false, true}) {
    manual_seed(5);
    Tensor offloaded;
    {
      const SaveOnCpu guard({.pin_memory = pinned});
      offloaded = loss();
    }
    offloaded.backward();
    EXPECT_EQ(gradients(net), plain) << (pinned ? "pinned" : "pageable");
  }
}

TEST_F(CudaOffload, a_convolutional_network_gives_equal_bits) {
  manual_seed(1);
  const auto net = nn::models::make_resnet("resnet8", {.classes = 4, .in_channels = 1});
  net->to(kCuda);
  const Tensor x = randn({2, 1, 8, 8}).contiguous(MemoryFormat::kChannelsLast).to(kCuda);
  const Tensor y = zeros({2}, {.dtype = DType::kI64, .device = kCuda});
  // Running statistics move, but gradients in training do not depend on them.
  expect_equal_bits(*net, [&] { return cross_entropy((*net)(x), y); });
}

TEST_F(CudaOffload, a_transformer_with_dropout_gives_equal_bits_checkpointed_or_not) {
  manual_seed(1);
  nn::models::Gpt gpt(
      {.vocab = 11, .block = 6, .layers = 2, .heads = 2, .size = 8, .dropout = 0.1});
  gpt.to(kCuda);
  const Tensor x = randint(0, 11, {2, 6}).to(kCuda);
  for (const bool checkpointed : {false, true}) {
    gpt.set_checkpoint(checkpointed);
    expect_equal_bits(gpt, [&] { return gpt.loss(x, x); });
  }
}

TEST_F(CudaOffload, views_come_back_with_their_strides) {
  const Tensor base = randn({6, 8}).to(kCuda);
  Tensor w = base.clone().set_requires_grad();
  const auto run = [&] {
    w.zero_grad();
    const Tensor y = w * 1;
    const Tensor part = y.transpose(0, 1).narrow(0, 2, 5);  // strided, not from the first element
    const Tensor wide = y.select(0, 1).unsqueeze(0).expand({3, 8});  // stride 0
    (square(part).sum() + mul(wide, wide).sum() + exp(y.narrow(0, 0, 0)).sum()).backward();
    return w.grad().to(kCPU).to_vector<float>();
  };
  const auto plain = run();
  const SaveOnCpu guard;
  EXPECT_EQ(run(), plain);
}

TEST_F(CudaOffload, device_memory_is_free_meanwhile) {
  Tensor w = ones({1 << 16}).to(kCuda).set_requires_grad();
  const auto held = [&](bool offload) {
    const int64_t before = memory_stats(kCuda).allocated;
    std::optional<SaveOnCpu> guard;
    if (offload) guard.emplace();
    Tensor y = w * 1;
    for (int i = 0; i < 8; ++i) y = exp(y * 0.1);
    return memory_stats(kCuda).allocated - before;
  };
  const int64_t kept = held(false), offloaded = held(true);
  EXPECT_GE(kept, 8 * (4 << 16));
  EXPECT_LE(offloaded, 2 * (4 << 16));
}

TEST_F(CudaOffload, small_tensors_may_stay) {
  Tensor w = ones({16}).to(kCuda).set_requires_grad();
  const auto held = [&](int64_t min_bytes) {
    const int64_t before = memory_stats(kCuda).allocated;
    const SaveOnCpu guard({.min_bytes = min_bytes});
    const Tensor y = exp(exp(w));
    return memory_stats(kCuda).allocated - before;
  };
  EXPECT_GT(held(65), held(64));
}

TEST_F(CudaOffload, fresh_pinned_memory_is_pinned) {
  const Tensor x = empty_pinned({3, 4}, DType::kF32);
  EXPECT_TRUE(is_pinned(x));
  EXPECT_EQ(x.sizes(), (Shape{3, 4}));
  EXPECT_EQ(empty_pinned({0}, DType::kF32).numel(), 0);
}

}  // namespace
}  // namespace tarn
