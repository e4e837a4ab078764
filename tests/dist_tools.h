// dist_tools.h - ranks for tests: threads over the local transport or over Gloo.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/dist/gloo_group.h"
#include "tarn/dist/host_channel.h"
#include "tarn/dist/local_group.h"
#include "tarn/dist/store.h"

namespace tarn::dist::test {

using Body = std::function<void(ProcessGroup&)>;

inline GroupOptions quick(Millis timeout = Millis(20000)) {
  return {.name = "world", .timeout = timeout, .start_timeout = timeout};
}

/// As run_local, but over Gloo's sockets or the memory of one host.
inline void run_met(const std::string& transport, int size, const Body& body,
                    const GroupOptions& options) {
  const auto store = std::make_shared<MemoryStore>();
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      std::shared_ptr<ProcessGroup> group;
      try {
        group = transport == "gloo" ? make_gloo_group(store, r, size, {.group = options})
                                    : make_host_group(store, r, size, options);
        body(*group);
      } catch (const std::exception& error) {
        {
          std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        if (group) group->abort(error.what());
      }
    });
  }
  for (auto& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

/// Runs body on `size` ranks of "local", "host" or "gloo".
inline void run_ranks(const std::string& transport, int size, const Body& body,
                      const GroupOptions& options = quick()) {
  if (transport == "local") {
    run_local(size, body, options);
  } else {
    run_met(transport, size, body, options);
  }
}

/// What each rank throws, "" for none.
inline std::vector<std::string> errors_of(const std::string& transport, int size, const Body& body,
                                          const GroupOptions& options = quick()) {
  std::vector<std::string> errors(static_cast<size_t>(size));
  run_ranks(
      transport, size,
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

/// The bytes of a tensor, row-major: equal means equal bit for bit.
inline std::string bits(const Tensor& x) {
  const Tensor dense = raw::contiguous(x);
  return {static_cast<const char*>(dense.data()),
          static_cast<size_t>(dense.numel() * item_size(dense.dtype()))};
}

/// A test that runs on every transport with 1 to 4 ranks.
class OnRanks : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  void SetUp() override {
    if (transport() == "gloo" && !gloo_available()) GTEST_SKIP() << "built without Gloo";
  }
  std::string transport() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
  void run(const Body& body) { run_ranks(transport(), size(), body); }
};
inline std::string ranks_name(const testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  return std::get<0>(info.param) + "_" + std::to_string(std::get<1>(info.param));
}

/// Small whole numbers that differ between ranks and elements, exact in every dtype.
inline Tensor values_of(int rank, const Shape& sizes, DType dtype) {
  Tensor x = empty(sizes, {.dtype = dtype});
  visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
    T* data = x.data<T>();
    for (int64_t i = 0; i < x.numel(); ++i) {
      const int64_t v = (i * 7 + rank * 3) % 5;
      data[i] = std::is_same_v<T, bool> ? static_cast<T>(v > 1) : static_cast<T>(v + 1);
    }
  });
  return x;
}

}  // namespace tarn::dist::test
