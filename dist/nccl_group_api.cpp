// nccl_group_api.cpp - opens NCCL, checks its calls, waits for them.
#ifdef TARN_HAVE_NCCL

#include "tarn/dist/nccl_group_api.h"

#include <optional>
#include <thread>

#include "tarn/cuda/library.h"
#include "tarn/cuda/rt.h"

namespace tarn::dist {
namespace {

struct Loaded {
  NcclApi api;
  std::string problem;
};

Loaded load() {
  cuda::Library library({.name = "NCCL",
                         .files = {"libnccl.so.2"},
                         .variable = "TARN_NCCL",
                         .without = "ranks on GPUs cannot exchange tensors"});
  Loaded l;
  library.bind(l.api.version, "ncclGetVersion");
  library.bind(l.api.unique_id, "ncclGetUniqueId");
  library.bind(l.api.init, "ncclCommInitRankConfig");
  library.bind(l.api.finalize, "ncclCommFinalize");
  library.bind(l.api.destroy, "ncclCommDestroy");
  library.bind(l.api.abort, "ncclCommAbort");
  library.bind(l.api.async_error, "ncclCommGetAsyncError");
  library.bind(l.api.error_string, "ncclGetErrorString");
  library.bind(l.api.last_error, "ncclGetLastError");
  library.bind(l.api.all_reduce, "ncclAllReduce");
  library.bind(l.api.reduce, "ncclReduce");
  library.bind(l.api.broadcast, "ncclBroadcast");
  library.bind(l.api.all_gather, "ncclAllGather");
  library.bind(l.api.reduce_scatter, "ncclReduceScatter");
  library.bind(l.api.send, "ncclSend");
  library.bind(l.api.receive, "ncclRecv");
  library.bind(l.api.group_start, "ncclGroupStart");
  library.bind(l.api.group_end, "ncclGroupEnd");
  l.problem = library.problem();
  return l;
}

const char* result_name(ncclResult_t result) {
  constexpr const char* kNames[] = {
      "ncclSuccess",         "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError",
      "ncclInvalidArgument", "ncclInvalidUsage",       "ncclRemoteError", "ncclInProgress"};
  return result >= 0 && result < ncclNumResults ? kNames[result] : "unknown";
}

[[noreturn]] void fail(ncclResult_t result, const char* call, int device, ncclComm_t comm) {
  const NcclApi& api = nccl_api();
  const char* said = api.last_error(comm);
  const std::string more = said && *said ? std::string(": ") + said : "";
  throw NcclError(tarn::detail::concat("nccl: ", call, " failed on cuda:", device, ": ",
                                       api.error_string(result), " (", result_name(result), ", ",
                                       static_cast<int>(result), ")", more));
}

}  // namespace

const NcclApi& nccl_api() {
  static const Loaded& loaded = *new Loaded(load());
  TARN_CHECK_AS(UnsupportedError, loaded.problem.empty(), "nccl: ", loaded.problem,
                "; CPU tensors travel without it (transport auto, host or gloo)");
  return loaded.api;
}

void Pause::operator()() {
  constexpr int kEager = 50, kQuick = 200;
  if (++looks_ < kEager) return std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::microseconds(looks_ < kQuick ? 50 : 1000));
}

std::string nccl_unique_id(int device) {
  const cuda::DeviceGuard guard(device);
  ncclUniqueId id;
  const ncclResult_t result = nccl_api().unique_id(&id);
  if (result != ncclSuccess) fail(result, "ncclGetUniqueId", device, nullptr);
  return std::string(id.internal, sizeof id.internal);
}

Communicator::Communicator(int device, int rank, int size)
    : device_(device), rank_(rank), size_(size) {}

Communicator::~Communicator() {
  abort();
}

void Communicator::check_result(ncclResult_t result, const char* call) const {
  if (result != ncclSuccess && result != ncclInProgress) fail(result, call, device_, comm_);
}

void Communicator::connect(const std::string& unique_id, Clock::time_point deadline) {
  const NcclApi& api = nccl_api();
  ncclUniqueId id;
  unique_id.copy(id.internal, sizeof id.internal);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  {
    const cuda::DeviceGuard guard(device_);
    const std::lock_guard lock(mutex_);
    TARN_CHECK_AS(DistError, !aborted_, "the communicator was aborted");
    check_result(api.init(&comm_, size_, id, rank_, &config), "ncclCommInitRankConfig");
  }
  settle("ncclCommInitRankConfig", deadline);
}

void Communicator::run(const std::vector<Call>& calls, Clock::time_point deadline) {
  if (calls.empty()) return;
  const NcclApi& api = nccl_api();
  const cudaStream_t stream = cuda::raw_stream(current_stream(Device(DeviceType::kCUDA, device_)));
  {
    const cuda::DeviceGuard guard(device_);
    const std::lock_guard lock(mutex_);
    TARN_CHECK_AS(DistError, comm_, "the communicator was aborted");
    check_result(api.group_start(), "ncclGroupStart");
    ncclResult_t first = ncclSuccess;
    for (const Call& call : calls) {
      const ncclResult_t result = call(api, comm_, stream);
      if (first == ncclSuccess || first == ncclInProgress) first = result;
    }
    const ncclResult_t end = api.group_end();  // also after a call that failed
    check_result(first, "a collective");
    check_result(end, "ncclGroupEnd");
  }
  settle("ncclGroupEnd", deadline);
}

// Until the last call has left the state "in progress": only then the kernel is in the stream.
void Communicator::settle(const char* call, Clock::time_point deadline,
                          const std::function<bool()>& hopeless) {
  const auto start = Clock::now();
  for (Pause pause;; pause()) {
    ncclResult_t state = ncclSuccess;
    {
      const std::lock_guard lock(mutex_);
      TARN_CHECK_AS(DistError, comm_, "the communicator was aborted");
      check_result(nccl_api().async_error(comm_, &state), "ncclCommGetAsyncError");
      check_result(state, call);
    }
    if (state == ncclSuccess) return;
    TARN_CHECK_AS(DistError, !hopeless || !hopeless(), "nccl: ", call, ": another rank is gone");
    TARN_CHECK_AS(TimeoutError, Clock::now() < deadline, "nccl: ", call, " was in progress after ",
                  duration_text(std::chrono::round<Millis>(Clock::now() - start)));
  }
}

void Communicator::check() {
  const std::lock_guard lock(mutex_);
  if (!comm_) return;
  ncclResult_t state = ncclSuccess;
  check_result(nccl_api().async_error(comm_, &state), "ncclCommGetAsyncError");
  check_result(state, "a collective under way");
}

// Without the lock: NCCL waits here for the kernels of the GPU, and the queue's thread must go on
// meanwhile.
void Communicator::abort() noexcept {
  ncclComm_t comm = nullptr;
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    comm = std::exchange(comm_, nullptr);
  }
  if (!comm) return;
  // The thread may be a new one: without a device it would set up the first GPU's context.
  std::optional<cuda::DeviceGuard> guard;
  try {
    guard.emplace(device_);
  } catch (const std::exception&) {  // the GPU is lost; NCCL's threads and sockets are to end
  }
  nccl_api().abort(comm);
}

void Communicator::finish(Clock::time_point deadline,
                          const std::function<bool()>& hopeless) noexcept {
  try {
    const cuda::DeviceGuard guard(device_);
    {
      const std::lock_guard lock(mutex_);
      if (!comm_) return;
      check_result(nccl_api().finalize(comm_), "ncclCommFinalize");
    }
    settle("ncclCommFinalize", deadline, hopeless);
    const std::lock_guard lock(mutex_);
    nccl_api().destroy(std::exchange(comm_, nullptr));
  } catch (const std::exception&) {  // another rank left in another way
    abort();
  }
}

}  // namespace tarn::dist

#endif  // TARN_HAVE_NCCL
