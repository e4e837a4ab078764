// cuda_emu_nccl_test.cpp - the stand-in for NCCL: what it computes, and what it refuses; then the
// group of tarn over it, with calls that are made to fail and streams that run late.
#if TARN_HAVE_NCCL

#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include <nccl.h>

#include "tarn/core/raw_elementwise.h"
#include "tarn/cuda/graph.h"
#include "tarn/tests/cuda_emu_tools.h"
#include "tarn/tests/dist_tools.h"
#include "tarn/tests/tests_throws.h"

namespace {

using namespace tarn::emu_test;

class EmuNccl : public testing::Test {
 protected:
  void SetUp() override {
    if (tarn::emu::settings().devices < 2) GTEST_SKIP() << "needs TARN_EMU_DEVICES=2";
  }
  void TearDown() override { tarn::emu::clear_failures(); }

 private:
  SettingsGuard guard_;
};
#define EXPECT_NCCL(call) EXPECT_EQ(call, ncclSuccess) << #call

// What a communicator says in the end.
ncclResult_t settled(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    EXPECT_NCCL(ncclCommGetAsyncError(comm, &state));
    std::this_thread::yield();
  }
  return state;
}

ncclResult_t error_of(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  while (state == ncclSuccess || state == ncclInProgress) {
    EXPECT_NCCL(ncclCommGetAsyncError(comm, &state));
    std::this_thread::yield();
  }
  return state;
}

struct Rank {
  int rank;
  ncclComm_t comm;
  cudaStream_t stream;
};

// Before memory is freed that a call which is stuck would use: freeing waits for it.
void abort_calls(Rank& r) {
  EXPECT_NCCL(ncclCommAbort(std::exchange(r.comm, nullptr)));
}

// Two ranks, each in a thread with a device and a stream of its own; neither leaves before the
// other is through. devices: by rank.
void run_two(const std::function<void(Rank&)>& body, bool blocking = true,
             std::vector<int> devices = {0, 1}) {
  ncclUniqueId id;
  EXPECT_NCCL(ncclGetUniqueId(&id));
  std::barrier end(2);
  std::vector<std::thread> threads;
  for (int r : {0, 1}) {
    threads.emplace_back([&, r] {
      EXPECT_CUDA(cudaSetDevice(devices[static_cast<std::size_t>(r)]));
      Rank rank{r, nullptr, nullptr};
      EXPECT_CUDA(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = blocking ? 1 : 0;
      const ncclResult_t made = ncclCommInitRankConfig(&rank.comm, 2, id, r, &config);
      EXPECT_TRUE(blocking || made == ncclInProgress);
      body(rank);
      end.arrive_and_wait();
      EXPECT_TRUE(rank.comm == nullptr || ncclCommAbort(rank.comm) == ncclSuccess);
      EXPECT_CUDA(cudaStreamSynchronize(rank.stream));
      EXPECT_CUDA(cudaStreamDestroy(rank.stream));
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST_F(EmuNccl, reductions_and_copies_are_right_eager_and_lazy) {
  for (bool lazy : {false, true}) {
    tarn::emu::settings().lazy = lazy;
    run_two([](Rank& r) {
      const float mine = 1.f + static_cast<float>(r.rank);
      const DeviceArray<float> x({mine, 10 * mine}), all(4), part(1), sum(2);
      EXPECT_NCCL(ncclAllReduce(x.get(), sum.get(), 2, ncclFloat32, ncclSum, r.comm, r.stream));
      EXPECT_NCCL(ncclAllGather(x.get(), all.get(), 2, ncclFloat32, r.comm, r.stream));
      EXPECT_NCCL(
          ncclReduceScatter(x.get(), part.get(), 1, ncclFloat32, ncclMax, r.comm, r.stream));
      EXPECT_NCCL(ncclReduce(x.get(), x.get(), 2, ncclFloat32, ncclProd, 1, r.comm, r.stream));
      EXPECT_NCCL(ncclGroupStart());
      EXPECT_NCCL(ncclSend(sum.get(), 1, ncclFloat32, 1 - r.rank, r.comm, r.stream));
      EXPECT_NCCL(ncclRecv(sum.get() + 1, 1, ncclFloat32, 1 - r.rank, r.comm, r.stream));
      EXPECT_NCCL(ncclGroupEnd());
      EXPECT_CUDA(cudaStreamSynchronize(r.stream));
      EXPECT_EQ(sum.values(), std::vector<float>({3, 3}));
      EXPECT_EQ(all.values(), std::vector<float>({1, 10, 2, 20}));
      EXPECT_EQ(part.values()[0], r.rank == 0 ? 2 : 20);
      EXPECT_EQ(x.values(),
                r.rank == 0 ? std::vector<float>({1, 10}) : std::vector<float>({2, 200}));
      EXPECT_NCCL(ncclBroadcast(x.get(), x.get(), 2, ncclFloat32, 1, r.comm, r.stream));
      EXPECT_CUDA(cudaStreamSynchronize(r.stream));
      EXPECT_EQ(x.values(), std::vector<float>({2, 200}));
    });
  }
}

TEST_F(EmuNccl, a_call_does_not_wait_for_the_other_rank_but_its_stream_does) {
  std::atomic<bool> asked{false};
  run_two([&](Rank& r) {
    const DeviceArray<int32_t> x(std::vector<int32_t>{r.rank + 1}), y(1);
    while (r.rank == 1 && !asked) std::this_thread::yield();
    EXPECT_NCCL(ncclAllReduce(x.get(), x.get(), 1, ncclInt32, ncclSum, r.comm, r.stream));
    EXPECT_CUDA(cudaMemcpyAsync(y.get(), x.get(), 4, cudaMemcpyDeviceToDevice, r.stream));
    EXPECT_TRUE(r.rank == 1 || cudaStreamQuery(r.stream) == cudaErrorNotReady);
    asked = true;
    EXPECT_CUDA(cudaStreamSynchronize(r.stream));
    EXPECT_EQ(y.values()[0], 3);
  });
}

TEST_F(EmuNccl, calls_that_do_not_block_are_in_progress_first) {
  run_two(
      [](Rank& r) {
        EXPECT_EQ(settled(r.comm), ncclSuccess);
        const DeviceArray<float> x(8);
        const auto sum = [&] {
          return ncclAllReduce(x.get(), x.get(), 8, ncclFloat32, ncclSum, r.comm, r.stream);
        };
        EXPECT_EQ(sum(), ncclInProgress);
        EXPECT_EQ(sum(), ncclInvalidArgument);
        EXPECT_STREQ(ncclGetLastError(r.comm),
                     "the communicator is used before the previous call on it is done");
        EXPECT_EQ(settled(r.comm), ncclSuccess);
        EXPECT_EQ(sum(), ncclInProgress);
        EXPECT_EQ(settled(r.comm), ncclSuccess);
        EXPECT_CUDA(cudaStreamSynchronize(r.stream));
      },
      false);
}

TEST_F(EmuNccl, different_calls_are_an_asynchronous_error) {
  run_two([](Rank& r) {
    const DeviceArray<float> x(8);
    EXPECT_NCCL(ncclAllReduce(x.get(), x.get(), r.rank == 0 ? 8 : 4, ncclFloat32, ncclSum, r.comm,
                              r.stream));
    EXPECT_EQ(error_of(r.comm), ncclInvalidUsage);
    const std::string text = ncclGetLastError(r.comm);
    EXPECT_NE(text.find("AllReduce of 8 float32 (op 0)"), std::string::npos) << text;
    EXPECT_NE(text.find("AllReduce of 4 float32 (op 0)"), std::string::npos) << text;
    abort_calls(r);
  });
  run_two([](Rank& r) {
    const DeviceArray<float> x(8);
    EXPECT_NCCL(r.rank == 0 ? ncclSend(x.get(), 8, ncclFloat32, 1, r.comm, r.stream)
                            : ncclRecv(x.get(), 8, ncclInt32, 0, r.comm, r.stream));
    EXPECT_EQ(error_of(r.comm), ncclInvalidUsage);
    abort_calls(r);
  });
}

TEST_F(EmuNccl, a_rank_that_goes_is_noticed) {
  std::atomic<bool> called{false};
  run_two([&](Rank& r) {
    const DeviceArray<float> x(8);
    while (r.rank == 1 && !called) std::this_thread::yield();
    if (r.rank == 0) {
      EXPECT_NCCL(ncclAllReduce(x.get(), x.get(), 8, ncclFloat32, ncclSum, r.comm, r.stream));
      called = true;
      EXPECT_EQ(error_of(r.comm), ncclRemoteError);
      EXPECT_STREQ(ncclGetLastError(r.comm), "rank 1 closed its connection");
    }
    abort_calls(r);
  });
}

TEST_F(EmuNccl, wrong_use_is_refused) {
  run_two([](Rank& r) { EXPECT_EQ(error_of(r.comm), ncclInvalidUsage); }, false, {1, 1});
  run_two([](Rank& r) {
    const DeviceArray<float> x(8);
    const auto sum = [&](void* to, int type, int op) {
      return ncclAllReduce(x.get(), to, 8, static_cast<ncclDataType_t>(type),
                           static_cast<ncclRedOp_t>(op), r.comm, r.stream);
    };
    EXPECT_EQ(sum(x.get(), ncclNumTypes, ncclSum), ncclInvalidArgument);
    EXPECT_EQ(sum(x.get(), ncclFloat32, ncclNumOps), ncclInvalidArgument);
    EXPECT_EQ(sum(x.get() + 1, ncclFloat32, ncclSum), ncclInvalidArgument) << "beyond its memory";
    EXPECT_EQ(ncclReduce(x.get(), x.get(), 8, ncclFloat32, ncclSum, 2, r.comm, r.stream),
              ncclInvalidArgument);
    EXPECT_CUDA(cudaSetDevice(1 - r.rank));
    {
      const DeviceArray<float> other(8);
      EXPECT_CUDA(cudaSetDevice(r.rank));
      EXPECT_EQ(sum(other.get(), ncclFloat32, ncclSum), ncclInvalidArgument);
      EXPECT_NE(std::string(ncclGetLastError(r.comm)).find("that are not memory of CUDA device"),
                std::string::npos);
    }
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  });
  ncclUniqueId id{};
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, 2, nullptr), ncclInvalidArgument);
  ncclConfig_t config{};
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInvalidArgument);
}

// ---- tarn's group

namespace dist = tarn::dist;
using dist::test::errors_of;
using dist::test::on;

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "got: " << text << "\nwanted: " << part;
}

TEST_F(EmuNccl, a_call_that_fails_ends_the_group_on_both_ranks) {
  for (const char* call : {"ncclAllReduce", "ncclGroupEnd", "ncclCommGetAsyncError"}) {
    const auto errors = errors_of("nccl", 2, [&](dist::ProcessGroup& g) {
      const tarn::Tensor x = tarn::zeros({8}, on(g));
      g.all_reduce(x)->wait();
      if (g.rank() == 0) tarn::emu::fail_call(call, 1, ncclSystemError);
      g.all_reduce(x)->wait();
      g.all_reduce(x)->wait();
    });
    const bool first = errors[0].find("closed its connection") == std::string::npos;
    const std::string &one = errors[first ? 0 : 1], &other = errors[first ? 1 : 0];
    expect_part(one, "in group world: nccl: ");
    expect_part(one,
                "unhandled system error (run with NCCL_DEBUG=INFO for details) "
                "(ncclSystemError, 2): injected by TARN_EMU_FAIL");
    expect_part(other, "closed its connection: all_reduce #");
    expect_part(other, "(ncclSystemError, 2)");
    tarn::emu::clear_failures();
  }
}

TEST_F(EmuNccl, a_collective_in_a_recorded_step_is_refused) {
  dist::test::run_ranks("nccl", 2, [](dist::ProcessGroup& g) {
    const tarn::Tensor x = tarn::ones({10}, on(g));
    tarn::cuda::Graph graph(dist::test::device_of(g));
    const auto step = [&] { g.all_reduce(x)->wait(); };
    EXPECT_THROWS_WITH(graph.capture(step, 0), tarn::UnsupportedError,
                       "all_reduce: cannot be recorded into a CUDA graph");
    step();
    EXPECT_EQ(x.to_vector<float>(), std::vector<float>(10, 2.0f));
  });
}

TEST_F(EmuNccl, a_rank_that_leaves_late_is_waited_for) {
  const uint64_t aborts = tarn::emu::call_count("ncclCommAbort");
  dist::test::run_ranks("nccl", 2, [](dist::ProcessGroup& g) {
    g.all_reduce(tarn::ones({10}, on(g)))->wait(dist::Millis(10000));
    // A checkpoint is written, say.
    if (g.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2200));
  });
  EXPECT_EQ(tarn::emu::call_count("ncclCommAbort"), aborts);
}

// An abort waits for all kernels of the GPU, so each communicator that is stuck must be aborted
// before any of the aborts can end, and whoever waits must be told before that.
TEST_F(EmuNccl, a_group_with_several_stuck_communicators_ends) {
  const auto errors = errors_of("nccl", 2, [&](dist::ProcessGroup& g) {
    const tarn::Tensor x = tarn::zeros({8}, on(g));
    g.all_reduce(x)->wait();
    for (uint32_t tag : {1u, 2u}) {  // makes their communicators
      (g.rank() == 0 ? g.send(x, 1, tag) : g.recv(x, 0, tag))->wait();
    }
    if (g.rank() == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    const dist::WorkPtr stuck = g.send(x, 1, 1), also = g.send(x, 1, 2), all = g.all_reduce(x);
    std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      g.abort("it was told to");
    }).join();
    const auto start = dist::Clock::now();
    for (const dist::WorkPtr& work : {stuck, also, all}) EXPECT_THROW(work->wait(), tarn::Error);
    EXPECT_LT(dist::Clock::now() - start, dist::Millis(1000));
  });
  EXPECT_EQ(errors[0], "");
}

// Two groups of a process on one GPU, both stuck: the one that notices first ends the other too.
TEST_F(EmuNccl, a_group_ends_whose_gpu_is_held_by_another_group) {
  const auto store = std::make_shared<dist::MemoryStore>();
  std::barrier over(2);
  const auto run = [&](int rank) {
    const auto make = [&](const char* name, int limit) {
      auto options = dist::test::quick(dist::Millis(limit));
      options.name = name;
      options.start_timeout = dist::Millis(20000);
      return dist::make_nccl_group(
          store, rank, 2,
          {.group = options, .device = tarn::Device(tarn::DeviceType::kCUDA, rank)});
    };
    const auto patient = make("patient", 60000), quick = make("quick", 300);
    const tarn::Tensor x =
        tarn::zeros({8}, {.device = tarn::Device(tarn::DeviceType::kCUDA, rank)});
    for (const auto& group : {patient, quick}) group->all_reduce(x)->wait(dist::Millis(10000));
    if (rank == 0) {
      const auto start = dist::Clock::now();
      const dist::WorkPtr held = patient->all_reduce(x);
      EXPECT_THROW(quick->all_reduce(x)->wait(dist::Millis(30000)), tarn::Error);
      EXPECT_THROWS_WITH(held->wait(dist::Millis(30000)), dist::DistError,
                         "group quick on the same GPU ended (");
      EXPECT_LT(dist::Clock::now() - start, dist::Millis(20000));
    }
    over.arrive_and_wait();
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

TEST_F(EmuNccl, a_group_that_cannot_start_says_why_on_all_ranks) {
  tarn::emu::fail_call("ncclGetUniqueId", 1, ncclSystemError);
  std::vector<std::string> errors(2);
  const auto store = std::make_shared<dist::MemoryStore>();
  std::vector<std::thread> ranks;
  for (int r : {0, 1}) {
    ranks.emplace_back([&, r] {
      try {
        dist::make_nccl_group(
            store, r, 2,
            {.group = dist::test::quick(), .device = tarn::Device(tarn::DeviceType::kCUDA, r)});
      } catch (const tarn::Error& error) {
        errors[static_cast<std::size_t>(r)] = error.what();
      }
    });
  }
  for (std::thread& t : ranks) t.join();
  expect_part(errors[0], "nccl: ncclGetUniqueId failed on cuda:0: unhandled system error");
  expect_part(errors[1], "rank 0 failed: nccl: ncclGetUniqueId failed on cuda:0");
}

// Streams run against each other in random order: a missing wait shows as a wrong sum.
TEST_F(EmuNccl, collectives_and_computing_stay_in_order_when_streams_run_late) {
  for (unsigned seed : {1u, 2u, 3u}) {
    tarn::emu::settings().lazy = true;
    tarn::emu::settings().seed = seed;
    dist::test::run_ranks("nccl", 2, [](dist::ProcessGroup& g) {
      const tarn::Tensor total = tarn::zeros({700}, on(g));
      for (int step = 0; step < 6; ++step) {
        tarn::Tensor x = tarn::full({700}, 1.0 + g.rank(), on(g));
        tarn::raw::mul_(x, 2.0);
        const dist::WorkPtr work = g.all_reduce(x);
        const tarn::Tensor parts = tarn::zeros({2, 700}, on(g));
        const dist::WorkPtr gathered = g.all_gather(parts, tarn::full({700}, g.rank(), on(g)));
        work->wait();
        tarn::raw::add_(total, x);  // 6
        x = tarn::Tensor();
        gathered->wait();
        tarn::raw::add_(total, tarn::raw::mul(parts, 3.0).narrow(0, 1, 1).reshape({700}));
      }
      EXPECT_EQ(total.to_vector<float>(), std::vector<float>(700, 6 * 9.f));
    });
  }
  tarn::emu::settings().seed = 1;
}

}  // namespace

#endif  // TARN_HAVE_NCCL
