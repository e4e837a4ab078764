// dist_tools.h - ranks for tests: threads over the local transport, over Gloo, or on GPUs of their
// own over NCCL.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <spawn.h>
#include <unistd.h>

#include "tarn/core/backend.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/dist/gloo_group.h"
#include "tarn/dist/host_channel.h"
#include "tarn/dist/local_group.h"
#include "tarn/dist/nccl_group.h"
#include "tarn/dist/store.h"

namespace tarn::dist::test {

using Body = RankBody;

inline GroupOptions quick(Millis timeout = Millis(20000)) {
  return {.name = "world", .timeout = timeout, .start_timeout = timeout};
}

/// As run_local, but over Gloo's sockets, the memory of one host, or NCCL ("nccl-blocking": waits
/// keep the host); there, rank r is on cuda:r, and CPU tensors are local.
inline void run_met(const std::string& transport, int size, const Body& body,
                    const GroupOptions& options) {
  const auto store = std::make_shared<MemoryStore>();
  GroupOptions cpu = options;
  cpu.name += " cpu";
  auto local = make_local_groups(size, cpu);
  const auto make = [&](int r) -> std::shared_ptr<ProcessGroup> {
    if (transport == "gloo") return make_gloo_group(store, r, size, {.group = options});
    if (transport == "host") return make_host_group(store, r, size, options);
    return make_nccl_group(store, r, size,
                           {.group = options,
                            .device = Device(DeviceType::kCUDA, r),
                            .cpu = std::move(local[static_cast<size_t>(r)]),
                            .blocking_wait = transport == "nccl-blocking"});
  };
  run_threads(size, make, body);
}

/// Runs body on `size` ranks of "local", "host", "gloo" or "nccl".
inline void run_ranks(const std::string& transport, int size, const Body& body,
                      const GroupOptions& options = quick()) {
  if (transport == "local") {
    run_local(size, body, options);
  } else {
    run_met(transport, size, body, options);
  }
}

/// Where the tensors of a rank of the world are.
inline Device device_of(const ProcessGroup& g) {
  const bool gpu = std::string(g.transport()) == "nccl";
  return gpu ? Device(DeviceType::kCUDA, g.rank()) : kCPU;
}
inline TensorOptions on(const ProcessGroup& g, DType dtype = DType::kF32) {
  return {.dtype = dtype, .device = device_of(g)};
}

/// Why this build and machine cannot run `size` ranks over `transport`; "" if they can.
inline std::string why_not(const std::string& transport, int size) {
  if (transport == "gloo" && !gloo_available()) return "built without Gloo";
  if (!transport.starts_with("nccl")) return "";
  const std::string why = why_no_nccl();
  if (!why.empty()) return why;
  return backend(DeviceType::kCUDA).device_count() < size ? "too few GPUs (TARN_EMU_DEVICES)" : "";
}

/// What each rank throws, "" for none.
inline std::vector<std::string> errors_of(const std::string& transport, int size, const Body& body,
                                          const GroupOptions& options = quick()) {
  std::vector<std::string> errors(static_cast<size_t>(size));
  run_ranks(
      transport == "nccl" ? "nccl-blocking" : transport, size,
      [&](ProcessGroup& group) {
        try {
          body(group);
        } catch (const std::exception& error) {
          errors[static_cast<size_t>(group.rank())] = error.what();
        }
      },
      options);
  return errors;
}

/// A short limit once the ranks have met and the first collective is through.
inline GroupOptions late(Millis limit) {
  return {.name = "world", .timeout = limit, .start_timeout = Millis(20000)};
}

/// What rank 0 of two throws: both meet in a barrier, then rank 0 runs `body`, and rank 1 calls
/// nothing until that has ended.
inline std::string error_without_rank_1(const std::string& transport, Millis limit,
                                        const Body& body) {
  std::atomic<bool> over = false;
  struct End {
    std::atomic<bool>& over;
    bool mine;
    ~End() {
      if (mine) over = true;
    }
  };
  const auto errors = errors_of(
      transport, 2,
      [&](ProcessGroup& g) {
        const End end{over, g.rank() == 0};
        g.barrier()->wait();
        if (g.rank() == 0) return body(g);
        while (!over) std::this_thread::sleep_for(Millis(5));
      },
      late(limit));
  EXPECT_EQ(errors[1], "");
  return errors[0];
}

inline void wait_until_done(Work& work) {
  while (!work.test()) std::this_thread::sleep_for(Millis(5));
}

/// The text holds this part.
inline void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "got: " << text << "\nwanted: " << part;
}

/// The bytes of a tensor, row-major: equal means equal bit for bit.
inline std::string bits(const Tensor& x) {
  const Tensor dense = raw::contiguous(raw::to(x, kCPU));
  return {static_cast<const char*>(dense.data()),
          static_cast<size_t>(dense.numel() * item_size(dense.dtype()))};
}

/// A test that runs on every transport with 1 to 4 ranks.
class OnRanks : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  void SetUp() override {
    const std::string why = why_not(transport(), size());
    if (!why.empty()) GTEST_SKIP() << why;
  }
  std::string transport() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
  void run(const Body& body) { run_ranks(transport(), size(), body); }
};
/// This program once more, as one test with these variables beside its own. Returns its process.
inline pid_t start_again(const std::string& name, std::vector<std::string> variables) {
  // A part of a suite that runs in parts would not be asked for that test.
  const auto stays = [](const char* entry) { return std::string_view(entry).find("GTEST_") != 0; };
  std::vector<char*> environment;
  for (char** e = ::environ; *e; ++e) {
    if (stays(*e)) environment.push_back(*e);
  }
  for (std::string& v : variables) environment.push_back(v.data());
  environment.push_back(nullptr);
  std::string program = "/proc/self/exe", filter = "--gtest_filter=" + name,
              brief = "--gtest_brief=1";
  char* arguments[] = {program.data(), filter.data(), brief.data(), nullptr};
  pid_t child = 0;
  EXPECT_EQ(posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environment.data()),
            0);
  return child;
}

inline std::string ranks_name(const testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  return std::get<0>(info.param) + "_" + std::to_string(std::get<1>(info.param));
}

/// Small whole numbers that differ between ranks and elements, exact in every dtype.
inline Tensor values_of(int rank, const Shape& sizes, DType dtype, Device device = kCPU) {
  Tensor x = empty(sizes, {.dtype = dtype});
  visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
    T* data = x.data<T>();
    for (int64_t i = 0; i < x.numel(); ++i) {
      const int64_t v = (i * 7 + rank * 3) % 5;
      data[i] = std::is_same_v<T, bool> ? static_cast<T>(v > 1) : static_cast<T>(v + 1);
    }
  });
  return raw::to(x, device);
}

}  // namespace tarn::dist::test
