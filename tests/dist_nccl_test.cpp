// dist_nccl_test.cpp - what is particular to ranks on GPUs: streams, who shares a GPU, tensors of
// the CPU in the same group, and what trains on it.
#include <cstdlib>

#include "tarn/autograd/functions.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/transfer.h"
#include "tarn/core/views.h"
#include "tarn/dist/agree.h"
#include "tarn/dist/ddp.h"
#include "tarn/dist/hooks.h"
#include "tarn/dist/init.h"
#include "tarn/dist/sync_batch_norm.h"
#include "tarn/dist/waited.h"
#include "tarn/nn/linear.h"
#include "tarn/nn/norm.h"
#include "tarn/optim/sgd.h"
#include "tarn/tests/dist_tools.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::dist {
namespace {

using test::bits;
using test::device_of;
using test::on;
using test::quick;
using test::run_ranks;

class Nccl : public testing::Test {
 protected:
  void SetUp() override {
    const std::string why = test::why_not("nccl", 3);
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

const Device kGpu0(DeviceType::kCUDA, 0), kGpu1(DeviceType::kCUDA, 1);

TEST(NcclStart, without_nccl_the_error_says_why) {
  if (why_no_nccl().empty()) GTEST_SKIP() << "there is NCCL here";
  const auto make = [] {
    make_nccl_group(std::make_shared<MemoryStore>(), 0, 1, {.device = kGpu0});
  };
  EXPECT_THROWS_WITH(make(), UnsupportedError, "nccl group: ");
  EXPECT_THROWS_WITH(make(), UnsupportedError, why_no_nccl());
  EXPECT_THROWS_WITH(init_process_group(Environment{}, {.transport = "nccl"}), UnsupportedError,
                     "init_process_group: transport nccl: " + why_no_nccl());
}

TEST_F(Nccl, two_ranks_on_one_gpu_are_named_before_nccl_hangs) {
  const auto store = std::make_shared<MemoryStore>();
  const auto run = [&] {
    run_threads(
        3,
        [&](int r) {
          return make_nccl_group(store, r, 3, {.group = quick(), .device = r == 1 ? kGpu1 : kGpu0});
        },
        [](ProcessGroup&) { FAIL() << "made"; });
  };
  EXPECT_THROWS_WITH(run(), DeviceError,
                     "nccl: ranks 0 and 2 of group world are both on cuda:0 of one host; every "
                     "rank needs a GPU of its own");
}

TEST_F(Nccl, more_ranks_than_gpus_are_an_error_on_every_rank) {
  const int devices = backend(DeviceType::kCUDA).device_count();
  EXPECT_THROWS_WITH(make_nccl_group(std::make_shared<MemoryStore>(), 0, 1,
                                     {.device = Device(DeviceType::kCUDA, devices)}),
                     DeviceError, "but this host has " + std::to_string(devices) + " GPUs");
  EXPECT_THROWS_WITH(make_nccl_group(std::make_shared<MemoryStore>(), 0, 1, {.device = kCPU}),
                     DeviceError, "nccl group: rank 0 is to be on cpu");
  for (int rank : {0, devices}) {
    const Environment e{
        .rank = rank, .size = devices + 1, .local_rank = rank, .local_size = devices + 1};
    EXPECT_THROWS_WITH(
        init_process_group(e, {.transport = "nccl"}), DeviceError,
        std::to_string(devices + 1) + " ranks were started on this host, but it has");
  }
}

TEST_F(Nccl, missing_ranks_are_named) {
  EXPECT_THROWS_WITH(make_nccl_group(std::make_shared<MemoryStore>(), 0, 3,
                                     {.group = quick(Millis(80)), .device = kGpu0}),
                     TimeoutError, "nccl group world: ranks 1, 2 of 3 did not come within 80 ms");
}

TEST_F(Nccl, wrong_devices_and_undefined_work_are_refused) {
  run_ranks("nccl", 2, [](ProcessGroup& g) {
    const Device mine = device_of(g), other(DeviceType::kCUDA, 1 - g.rank());
    EXPECT_THROWS_WITH((void)g.all_reduce(zeros({2}, {.device = other})), DeviceError,
                       "all_reduce: the nccl transport moves tensors of " + mine.str() +
                           "; got [2] f32 " + other.str());
    EXPECT_THROWS_WITH((void)g.broadcast({zeros({2}), zeros({2}, on(g))}, 0), DeviceError,
                       "broadcast: all tensors must be on one device; got cpu and " + mine.str());
    EXPECT_THROWS_WITH((void)g.all_reduce(zeros({2}, on(g)), ReduceOp::kBitAnd), DTypeError,
                       "bit_and is for integers and bool");
  });
}

TEST_F(Nccl, a_world_of_one_needs_no_launcher) {
  const auto group = init_process_group(Environment{}, {.device = kGpu0});
  EXPECT_STREQ(group->transport(), "nccl");
  const Tensor x = full({3}, 2, {.device = kGpu0});
  group->all_reduce(x)->wait();
  EXPECT_EQ(x.to_vector<double>(), std::vector<double>(3, 2.0));
}

TEST_F(Nccl, tensors_of_the_cpu_travel_in_the_same_group) {
  run_ranks("nccl", 3, [](ProcessGroup& g) {
    const Tensor cpu = full({4}, g.rank()), gpu = full({4}, g.rank(), on(g));
    const WorkPtr works[] = {g.all_reduce(gpu), g.all_reduce(cpu)};
    for (const WorkPtr& work : works) work->wait();
    EXPECT_EQ(bits(cpu), bits(full({4}, 3)));
    EXPECT_EQ(bits(gpu), bits(full({4}, 3)));
    EXPECT_EQ(all_gather_text(g, std::string(static_cast<size_t>(g.rank()), 'x'))[2], "xx");
    const auto pair = g.subgroup(std::vector<int>{2, 0});
    if (!pair) return;
    pair->all_reduce(cpu)->wait();
    pair->all_reduce(gpu)->wait();
    EXPECT_EQ(bits(cpu), bits(full({4}, 6)));
    EXPECT_EQ(bits(gpu), bits(full({4}, 6)));
  });
}

// Work queued on the caller's stream comes before the collective, what is queued after wait()
// comes behind it, and memory let go in between is not used by others too early.
TEST_F(Nccl, collectives_keep_the_order_of_the_callers_stream) {
  run_ranks("nccl", 3, [](ProcessGroup& g) {
    Tensor total = zeros({5000}, on(g));
    for (int step = 0; step < 8; ++step) {
      Tensor x = full({5000}, 1.0, on(g));
      for (int i = 0; i < 3; ++i) raw::mul_(x, 2.0);  // 8, queued only
      const WorkPtr work = g.all_reduce(x);
      const Tensor other = full({5000}, -1.0, on(g));  // beside it
      work->wait();
      raw::add_(total, raw::mul(x, 0.5));
      x = Tensor();
      raw::add_(total, other);
    }
    EXPECT_EQ(bits(total), bits(full({5000}, 8 * (12 - 1))));
  });
}

TEST_F(Nccl, a_stream_of_the_callers_own_is_respected) {
  run_ranks("nccl", 2, [](ProcessGroup& g) {
    const Stream side = backend(DeviceType::kCUDA).create_stream(device_of(g).index, 0);
    {
      const StreamGuard guard(side);
      const Tensor x = full({3000}, 1.0 + g.rank(), on(g));
      g.all_reduce(x)->wait();
      EXPECT_EQ(bits(raw::mul(x, 2.0)), bits(full({3000}, 6)));
    }
  });
}

TEST_F(Nccl, a_work_tells_its_time_when_it_is_done) {
  run_ranks("nccl", 2, [](ProcessGroup& g) {
    const WorkPtr work = g.all_reduce(zeros({100}, on(g)));
    work->wait(Millis(20000));
    EXPECT_TRUE(work->test());
    EXPECT_GT(work->seconds(), 0);
    EXPECT_LT(work->seconds(), 20);
  });
}

// ---- calls compared

// To NCCL both are the sum of one i32.
TEST_F(Nccl, calls_that_look_alike_to_it_are_told_apart_if_asked_for) {
  setenv("TARN_NCCL_CHECK_CALLS", "1", 1);
  const auto errors = test::errors_of("nccl", 2, [](ProcessGroup& g) {
    const Tensor x = full({3}, g.rank(), on(g));
    g.all_reduce(x)->wait();
    (g.rank() == 0 ? g.send(x, 1) : g.recv(x, 0))->wait();
    EXPECT_EQ(x.to_vector<double>(), std::vector<double>(3, 1.0));
    (g.rank() == 0 ? g.barrier() : g.all_reduce(zeros({1}, on(g, DType::kI32))))->wait();
  });
  unsetenv("TARN_NCCL_CHECK_CALLS");
  for (const std::string& error : errors) {
    test::expect_part(error, " barrier #2");
    test::expect_part(error, " all_reduce #2 of 4 bytes i32 (sum)");
  }
}

TEST_F(Nccl, a_rank_without_the_call_to_compare_is_named) {
  setenv("TARN_NCCL_CHECK_CALLS", "1", 1);
  const std::string error = test::error_without_rank_1(
      "nccl", Millis(300), [](ProcessGroup& g) { g.all_reduce(zeros({7}, on(g)))->wait(); });
  unsetenv("TARN_NCCL_CHECK_CALLS");
  test::expect_part(error,
                    "all_reduce #2 ([7] f32, sum) on rank 0 of 2 in group world: rank 1 did not "
                    "answer within 300 ms");
}

// ---- what trains on it

Tensor random_of(const Shape& sizes, unsigned seed) {
  std::vector<float> values(static_cast<size_t>(sizes.numel()));
  for (float& v : values) {
    seed = seed * 1664525u + 1013904223u;
    v = static_cast<float>(seed >> 16) / 32768.f - 1;
  }
  return from_vector(values, sizes);
}

class Net : public nn::Module {
 public:
  Net() {
    unsigned seed = 1;
    for (Tensor& p : parameters()) raw::copy_(p, raw::mul(random_of(p.sizes(), seed++), 0.4));
  }
  Tensor forward(const Tensor& x) override { return out(relu(norm(in(x)))); }
  nn::Linear in{this, "in", {.in = 10, .out = 16}};
  nn::BatchNorm1d norm{this, "norm", {.features = 16}};
  nn::Linear out{this, "out", {.in = 16, .out = 3}};
};

// Losses of the global batch of 12, with the statistics of all of it.
std::vector<double> train(ProcessGroup& g, const CommHook& hook = nullptr) {
  const Device device = device_of(g);
  Net net;
  net.to(device);
  convert_sync_batch_norm(net, g);
  DistributedDataParallel ddp(net, g, {.bucket_cap_mb = 0.3 / 1024, .first_bucket_mb = 0.1 / 1024});
  if (hook) ddp.register_comm_hook(hook);
  optim::SGD sgd(net.parameters(), {.lr = 0.05, .momentum = 0.5});
  std::vector<double> losses;
  const int64_t n = 12 / g.size();
  for (unsigned step = 0; step < 10; ++step) {
    const auto mine = [&](const Shape& sizes, unsigned seed) {
      return raw::to(raw::clone(raw::narrow(random_of(sizes, seed), 0, g.rank() * n, n)), device);
    };
    sgd.zero_grad();
    const Tensor d = net(mine({12, 10}, 100 + step)) - mine({12, 3}, 200 + step);
    const Tensor loss = mean(d * d);
    loss.backward();
    sgd.step();
    const Tensor all = loss.detach().clone();
    g.all_reduce(all, ReduceOp::kAvg)->wait();
    losses.push_back(all.item());
  }
  ddp.check_replicas();
  return losses;
}

TEST_F(Nccl, ddp_with_sync_batch_norm_trains_as_one_process_does) {
  std::vector<double> alone;
  run_local(1, [&](ProcessGroup& g) { alone = train(g); });
  for (int size : {2, 3}) {
    run_ranks("nccl", size, [&](ProcessGroup& g) {
      const auto losses = train(g);
      for (size_t i = 0; i < losses.size(); ++i) ASSERT_NEAR(losses[i], alone[i], 2e-5) << i;
    });
  }
}

TEST_F(Nccl, what_the_stream_waits_for_the_other_rank_is_known_when_it_is_done) {
  run_ranks("nccl", 2, [&](ProcessGroup& g) {
    const Device device = device_of(g);
    Net net;
    net.to(device);
    DistributedDataParallel ddp(net, g);
    for (int step = 0; step < 2; ++step) {  // the first also meets the other rank
      const Tensor loss = mean(net(raw::to(random_of({6, 10}, 1), device)));
      if (step == 1 && g.rank() == 1) std::this_thread::sleep_for(Millis(300));
      loss.backward();
      synchronize(device);
    }
    if (g.rank() == 0) {
      EXPECT_GT(ddp.stats().wait_seconds, 0.2);
    } else {
      EXPECT_LT(ddp.stats().wait_seconds, 0.2);
    }
  });
}

// Neither by waited_seconds() nor elsewhere: who subtracts both must not subtract it twice.
TEST_F(Nccl, what_the_stream_waits_is_not_counted_as_the_hosts_wait_too) {
  for (const char* transport : {"nccl", "nccl-blocking"}) {
    run_ranks(transport, 2, [&](ProcessGroup& g) {
      const Tensor x = full({100}, 1.0, on(g));
      g.all_reduce(x)->wait();  // the first also meets the other rank
      synchronize(device_of(g));
      const double before = waited_seconds();
      if (g.rank() == 1) std::this_thread::sleep_for(Millis(300));
      g.all_reduce(x)->wait();
      synchronize(device_of(g));
      EXPECT_LT(waited_seconds() - before, 0.2) << transport;
      if (g.rank() == 1) std::this_thread::sleep_for(Millis(300));
      g.barrier()->wait();
      if (g.rank() == 0) {
        EXPECT_GT(waited_seconds() - before, 0.2) << "in a barrier";
      }
    });
  }
}

TEST_F(Nccl, compressed_buckets_learn_on_gpus_too) {
  run_ranks("nccl", 2, [&](ProcessGroup& g) {
    for (const CommHook& hook :
         {compress_hook(DType::kBF16), top_k_hook(0.3), powersgd_hook({.rank = 2})}) {
      const auto losses = train(g, hook);
      EXPECT_LT(losses.back(), losses.front());
    }
  });
}

}  // namespace
}  // namespace tarn::dist
