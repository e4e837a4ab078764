// core_op_scope_test.cpp - who hears of operations, kernels and memory, and what kernels cost.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tarn/core/factory.h"
#include "tarn/core/kernel_work.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/profiler.h"
#include "tarn/core/raw_attention.h"
#include "tarn/core/raw_conv.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_matmul.h"
#include "tarn/core/raw_norm.h"
#include "tarn/core/raw_random.h"

namespace tarn {
namespace {

struct Log : OpListener {
  std::string text;
  void begin(const char* op, OpKind, uint64_t) override { text += std::string("<") + op; }
  void end(const char* op) override { text += std::string(op) + ">"; }
};

TEST(OpScopeTest, every_listener_hears_nested_operations_and_current_op_is_restored) {
  Log first, second;
  add_op_listener(&first);
  {
    const OpScope outer("a");
    add_op_listener(&second);
    const OpScope inner("b");
    EXPECT_STREQ(detail::current_op, "b");
  }
  remove_op_listener(&first);
  { const OpScope alone("c"); }
  remove_op_listener(&second);
  { const OpScope unheard("d"); }
  EXPECT_EQ(first.text, "<a<bb>a>");
  EXPECT_EQ(second.text, "<bb>a><cc>");
  EXPECT_EQ(detail::current_op, nullptr);
  EXPECT_FALSE(detail::listening());
}

TEST(OpScopeTest, fused_sums_have_names_of_their_own) {
  Log log;
  const Tensor x = ones({2, 3});
  add_op_listener(&log);
  raw::layer_norm(x, {}, {}, 1e-5, raw::RowNorm::kLayer, x);
  raw::layer_norm(x, {}, {}, 1e-5, raw::RowNorm::kRms, x);
  raw::dropout(x, 0.5, PhiloxState(), MemoryFormat::kContiguous, x);
  raw::layer_norm(x, {}, {}, 1e-5);
  remove_op_listener(&log);
  EXPECT_EQ(log.text,
            "<add_layer_normadd_layer_norm><add_rms_normadd_rms_norm><dropout_adddropout_add>"
            "<layer_normlayer_norm>");
}

TEST(OpScopeTest, a_removed_listener_may_be_freed_while_other_threads_compute) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        const OpScope op("work");
        const Tensor x = empty({20});
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    struct Count : Log {
      void memory(const void*, int64_t, Device) override { text.resize(1); }
    };
    auto listener = std::make_unique<Count>();
    add_op_listener(listener.get());
    remove_op_listener(listener.get());
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(OpScopeTest, memory_is_told_of_with_its_size_both_ways) {
  struct Memory : OpListener {
    std::vector<std::pair<const void*, int64_t>> events;
    void memory(const void* ptr, int64_t bytes, Device device) override {
      EXPECT_EQ(device, kCPU);
      events.emplace_back(ptr, bytes);
    }
  } heard;
  add_op_listener(&heard);
  const void *small, *large;
  {
    const Tensor a = empty({100}), b = empty({1 << 20});
    small = a.data();
    large = b.data();
  }
  remove_op_listener(&heard);
  using Event = std::pair<const void*, int64_t>;
  EXPECT_EQ(heard.events, (std::vector<Event>{
                              {small, 400}, {large, 4 << 20}, {large, -(4 << 20)}, {small, -400}}));
}

/// What the kernels of f cost.
struct Works : OpListener {
  explicit Works(const std::function<void()>& f) {
    add_op_listener(this);
    f();
    remove_op_listener(this);
  }
  void kernel(const KernelWork& work) override { all.push_back(work); }
  std::vector<KernelWork> all;
};

TEST(KernelWorkTest, products_count_two_operations_a_multiply_add) {
  const Tensor a = ones({3, 5, 7}), b = ones({3, 7, 4});
  const auto product = Works([&] { raw::matmul(a, b); }).all;
  ASSERT_EQ(product.size(), 1u);
  EXPECT_STREQ(product[0].slot, "matmul.matmul");
  EXPECT_EQ(product[0].flops, 2.0 * 3 * 5 * 4 * 7);
  EXPECT_EQ(product[0].bytes, 4.0 * (3 * 5 * 7 + 3 * 7 * 4 + 3 * 5 * 4));
  ASSERT_EQ(product[0].sizes.size(), 3u);
  EXPECT_EQ(product[0].sizes[1], (Shape{3, 7, 4}));
  const auto linear = Works([&] { raw::linear(ones({6, 8}), ones({9, 8}), ones({9})); }).all;
  EXPECT_EQ(linear.back().flops, 2.0 * 6 * 8 * 9);
}

TEST(KernelWorkTest, the_three_passes_of_a_grouped_convolution_cost_the_same) {
  const Conv2dOptions o{.stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1, .groups = 2};
  const Tensor x = ones({2, 4, 9, 9}), w = ones({6, 2, 3, 3}), gy = ones({2, 6, 5, 5});
  const double expected = 2.0 * (2 * 6 * 5 * 5) * (2 * 3 * 3);
  const auto flops = [](const std::function<void()>& f) {
    double sum = 0;
    for (const KernelWork& work : Works(f).all) sum += work.flops;
    return sum;
  };
  EXPECT_EQ(flops([&] { raw::conv2d(x, w, {}, o); }), expected);
  EXPECT_EQ(flops([&] { raw::conv2d_backward_data(gy, w, x.sizes(), o); }), expected);
  EXPECT_EQ(flops([&] { raw::conv2d_backward_weight(x, gy, w.sizes(), o, false); }), expected);
}

TEST(KernelWorkTest, attention_counts_two_products_forward) {
  const Tensor q = ones({2, 4, 6, 8}), k = ones({2, 2, 10, 8}), v = ones({2, 2, 10, 5});
  const auto all =
      Works([&] {
        raw::scaled_dot_product_attention(raw::attention_call(q, k, v, {}, 1, false, 0, {}));
      }).all;
  double flops = 0;
  for (const KernelWork& work : all) flops += work.flops;
  EXPECT_EQ(flops, 2.0 * (2 * 4 * 6 * 10) * (8 + 5));
}

TEST(KernelWorkTest, a_broadcast_operand_is_read_once) {
  const Tensor x = ones({16, 8}), row = ones({8});
  const auto all = Works([&] { raw::add(x, row); }).all;
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].bytes, 4.0 * (2 * 16 * 8 + 8));
  EXPECT_EQ(all[0].flops, 0);
}

TEST(ProfilerStopTest, the_last_complete_cycle_stays_unless_another_has_a_step) {
  const auto work = [] { const OpScope op("work"); };
  int cycles = 0;
  Profiler profiler({.schedule = ProfilerSchedule{.active = 1},  // the next cycle begins at once
                     .on_trace_ready = [&](Profiler&) { ++cycles; }});
  work();
  profiler.step();
  profiler.stop();
  EXPECT_EQ(cycles, 1);
  ASSERT_EQ(profiler.profile().steps.size(), 1u);
  EXPECT_EQ(profiler.rows().size(), 1u);
  EXPECT_NE(profiler.table().find("work"), std::string::npos);

  Profiler begun({.schedule = ProfilerSchedule{.active = 2}});
  work();
  begun.step();  // one step of two
  begun.stop();
  EXPECT_EQ(begun.profile().steps.size(), 1u);
  Profiler short_run({.schedule = ProfilerSchedule{.active = 2}});
  work();
  short_run.stop();  // not one step: what there is
  EXPECT_EQ(short_run.rows().size(), 1u);
}

TEST(FlopCounterTest, counters_nest_and_count_all_threads) {
  const Tensor a = ones({4, 4});
  const FlopCounter outer;
  {
    const FlopCounter inner;
    std::thread([&] { raw::matmul(a, a); }).join();
    EXPECT_EQ(inner.flops(), 128);
  }
  raw::matmul(a, a);
  EXPECT_EQ(outer.flops(), 256);
}

}  // namespace
}  // namespace tarn
