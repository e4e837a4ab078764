// cuda_graph_test.cpp - steps that are recorded and replayed: what may be in them, what they keep,
// and what is left when recording fails.
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gpu_tools.h"
#include "tests_throws.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/allocator.h"
#include "tarn/core/capture.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_random.h"
#include "tarn/core/transfer.h"
#include "tarn/cuda/graph.h"
#include "tarn/nn/attention.h"
#include "tarn/nn/transformer.h"
#include "tarn/optim/sgd.h"
#if defined(TARN_CUDA_EMU)
#include "tarn/cuda/emu/hooks.h"
#endif

namespace tarn {
namespace {

class CudaGraph : public testing::Test {
 protected:
  void SetUp() override { TARN_NEEDS_GPU(); }
};

/// The device works, nothing is kept, and the next recording does.
void expect_usable() {
  const Tensor x = ones({700}, {.device = kCuda}), y = zeros_like(x);
  cuda::Graph graph(kCuda);
  graph.capture([&] { raw::copy_(y, raw::add(x, x)); });
  graph.replay();
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(700, 2.0f));
}

TEST_F(CudaGraph, copies_of_ordinary_host_memory_are_refused_both_ways) {
  const Tensor host = ones({64}), there = zeros({64}, {.device = kCuda});
  Tensor back = zeros({64});
  cuda::Graph graph(kCuda);
  const auto record = [&](const std::function<void()>& step) { graph.capture(step, 0); };
  EXPECT_THROWS_WITH(
      record([&] { raw::copy_(there, host); }), UnsupportedError,
      "ordinary memory of the host cannot be recorded into a graph; pin that memory");
  EXPECT_THROWS_WITH(record([&] { back = to_async(there, kCPU); }), UnsupportedError,
                     "ordinary memory of the host cannot be recorded into a graph");
  EXPECT_THROWS_WITH(graph.replay(), Error, "nothing has been captured");
  expect_usable();
}

TEST_F(CudaGraph, pinned_memory_of_a_step_is_read_at_every_replay_and_freed_with_the_graph) {
  const Tensor x = zeros({5000}, {.device = kCuda});
  const void* first = nullptr;
  Tensor next;
  {
    cuda::Graph graph(kCuda);
    {
      const Tensor host = pin_memory(full({5000}, 3));
      first = host.data();
      graph.capture([&] { raw::copy_(x, to_async(host, kCuda)); }, 0);
    }
    next = pin_memory(full({5000}, 4));
    EXPECT_NE(next.data(), first) << "the graph still reads it";
    graph.replay();
    EXPECT_EQ(x.to_vector<float>(), std::vector<float>(5000, 3.0f));
  }
  EXPECT_EQ(empty_pinned({5000}, DType::kF32).data(), first);
}

TEST_F(CudaGraph, a_step_with_rotary_attention_is_replayed) {
  const Tensor host = empty({2, 3, 5, 8});
  raw::uniform_(host, -1, 1);
  const Tensor expected = nn::rotary_positions(host, 2), x = host.to(kCuda);
  const Tensor y = zeros_like(x);
  cuda::Graph graph(kCuda);
  graph.capture([&] { raw::copy_(y, nn::rotary_positions(x, 2)); });
  // Forgets the tables that the graph reads.
  for (int64_t first = 0; first < 200; ++first) (void)nn::rotary_positions(x, first);
  for (int i = 0; i < 2; ++i) {
    raw::fill_(y, 0);
    graph.replay();
    EXPECT_LT((y.to(kCPU) - expected).abs().max().item(), 1e-6);
  }
}

/// A layer with attention, all of which a step needs: forward, loss, backward, optimizer.
class Trained {
 public:
  explicit Trained(Device device) {
    manual_seed(5);
    layer_ = std::make_unique<nn::TransformerEncoderLayer>(
        nn::TransformerLayerOptions{.size = 8, .heads = 2, .hidden = 16, .dropout = 0});
    layer_->to(device);
    optimizer_ = std::make_unique<optim::SGD>(layer_->parameters(),
                                              optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
  }
  void step(const Tensor& x, const Tensor& target) {
    optimizer_->zero_grad();
    const Tensor y = layer_->forward(x);
    cross_entropy(y.reshape({-1, 8}), target).backward();
    optimizer_->step();
  }
  std::vector<float> weights() const {
    std::vector<float> all;
    for (const Tensor& p : layer_->parameters()) {
      const auto values = p.to_vector<float>();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

 private:
  std::unique_ptr<nn::TransformerEncoderLayer> layer_;
  std::unique_ptr<optim::SGD> optimizer_;
};

TEST_F(CudaGraph, a_training_step_is_replayed) {
  const Tensor x = sin(arange(2 * 3 * 8).to(DType::kF32)).view({2, 3, 8}).to(kCuda);
  const Tensor target = zeros({6}, {.dtype = DType::kI64, .device = kCuda});
  Trained plain(kCuda), recorded(kCuda);
  for (int i = 0; i < 5; ++i) plain.step(x, target);
  cuda::Graph graph(kCuda);
  graph.capture([&] { recorded.step(x, target); });  // twice for real
  for (int i = 0; i < 3; ++i) graph.replay();
  EXPECT_EQ(recorded.weights(), plain.weights());
}

TEST_F(CudaGraph, a_block_that_the_step_used_on_another_stream_is_given_back_afterwards) {
  Tensor x = ones({3000}, {.device = kCuda});
  const void* first = x.data();
  cuda::Graph graph(kCuda);
  graph.capture(
      [&] {
        if (!x.defined()) return;
        const Tensor y = raw::add(x, x);
        record_stream(x, current_stream(kCuda));
        x = Tensor();
        EXPECT_NE(empty({3000}, {.device = kCuda}).data(), first);
      },
      0);
  synchronize(kCuda);
  empty_cache(kCuda);  // nothing waits for a mark that never comes
  EXPECT_EQ(std::exchange(x, ones({3000}, {.device = kCuda})).defined(), false);
  expect_usable();
}

TEST_F(CudaGraph, too_little_memory_for_a_step_is_told_as_such) {
  empty_cache(kCuda);
  const auto reserved = static_cast<size_t>(memory_stats(kCuda).reserved);
  set_memory_limit(reserved + (size_t{64} << 20), kCuda);
  { const Tensor cached = empty({int64_t{12} << 20}, {.device = kCuda}); }
  cuda::Graph graph(kCuda);
  const auto step = [] { (void)ones({int64_t{8} << 20}, {.device = kCuda}); };
  EXPECT_THROWS_WITH(graph.capture(step, 0), OutOfMemoryError, "out of memory on cuda:0");
  set_memory_limit(0, kCuda);
  EXPECT_FALSE(detail::is_capturing(kCuda));
  expect_usable();
}

#if defined(TARN_CUDA_EMU)

TEST_F(CudaGraph, a_recording_that_fails_at_its_end_keeps_nothing) {
  constexpr int kOutOfMemory = 2, kUnknown = 999;
  const Tensor x = ones({int64_t{3} << 20}, {.device = kCuda}), y = zeros_like(x);
  const auto step = [&] { raw::copy_(y, raw::add(raw::add(x, x), x)); };
  empty_cache(kCuda);
  const int64_t before = memory_stats(kCuda).reserved;
  cuda::Graph graph(kCuda);
  emu::fail_call("cudaGraphInstantiate", 1, kUnknown);
  EXPECT_THROWS_WITH(graph.capture(step), DeviceError, "cuda: cudaGraphInstantiate failed");
  emu::fail_call("cudaGraphInstantiate", 1, kOutOfMemory);
  EXPECT_THROWS_WITH(graph.capture(step), OutOfMemoryError, "cuda: cudaGraphInstantiate failed");
  emu::clear_failures();
  EXPECT_THROWS_WITH(graph.replay(), Error, "nothing has been captured");
  EXPECT_EQ(graph.nodes(), 0);
  empty_cache(kCuda);
  EXPECT_EQ(memory_stats(kCuda).reserved, before);
  graph.capture(step);
  graph.replay();
  EXPECT_EQ(y.slice(0, 0, 2).to_vector<float>(), std::vector<float>({3, 3}));
}

#endif  // TARN_CUDA_EMU

}  // namespace
}  // namespace tarn
