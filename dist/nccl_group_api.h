// nccl_group_api.h - NCCL's calls, loaded at run time, and one communicator as an owned object.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <nccl.h>

#include "tarn/dist/error.h"

namespace tarn::dist {

/// The entry points in use; of the library, or of its stand-in under emulation.
struct NcclApi {
  decltype(ncclGetVersion)* version = nullptr;
  decltype(ncclGetUniqueId)* unique_id = nullptr;
  decltype(ncclCommInitRankConfig)* init = nullptr;
  decltype(ncclCommFinalize)* finalize = nullptr;
  decltype(ncclCommDestroy)* destroy = nullptr;
  decltype(ncclCommAbort)* abort = nullptr;
  decltype(ncclCommGetAsyncError)* async_error = nullptr;
  decltype(ncclGetErrorString)* error_string = nullptr;
  decltype(ncclGetLastError)* last_error = nullptr;
  decltype(ncclAllReduce)* all_reduce = nullptr;
  decltype(ncclReduce)* reduce = nullptr;
  decltype(ncclBroadcast)* broadcast = nullptr;
  decltype(ncclAllGather)* all_gather = nullptr;
  decltype(ncclReduceScatter)* reduce_scatter = nullptr;
  decltype(ncclSend)* send = nullptr;
  decltype(ncclRecv)* receive = nullptr;
  decltype(ncclGroupStart)* group_start = nullptr;
  decltype(ncclGroupEnd)* group_end = nullptr;
};

/// Throws UnsupportedError that says why, if NCCL is missing or switched off (TARN_NCCL=off).
const NcclApi& nccl_api();

/// "nccl: <call> failed on cuda:1: <text> (<name>, <code>): <what NCCL says of it>".
class NcclError : public DistError {
 public:
  using DistError::DistError;
};

/// Between looks at something that is soon done, usually.
class Pause {
 public:
  void operator()();

 private:
  int looks_ = 0;
};

/// An id for one communicator, to be given to all its ranks.
std::string nccl_unique_id(int device);

/// One ncclComm_t that never blocks the caller for longer than a deadline, but for abort(). Thread
/// safety: abort() and check() may be called from any thread, the rest from one at a time.
class Communicator {
 public:
  using Call = std::function<ncclResult_t(const NcclApi&, ncclComm_t, cudaStream_t)>;

  Communicator(int device, int rank, int size);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Meets the other ranks. Throws TimeoutError, NcclError.
  void connect(const std::string& unique_id, Clock::time_point deadline);
  /// Enqueues the calls as one group on the current stream of the device. Throws TimeoutError,
  /// NcclError.
  void run(const std::vector<Call>& calls, Clock::time_point deadline);
  /// Throws NcclError if something has gone wrong in what is under way.
  void check();
  /// Ends what is under way, whose results are undefined then.
  void abort() noexcept;
  /// Leaves in good order, for which all ranks must come; aborts if they have not come by the
  /// deadline, or when `hopeless` says that one never will.
  void finish(Clock::time_point deadline, const std::function<bool()>& hopeless) noexcept;

  int device() const { return device_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  void settle(const char* call, Clock::time_point deadline,
              const std::function<bool()>& hopeless = {});
  void check_result(ncclResult_t result, const char* call) const;

  int device_, rank_, size_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
  bool aborted_ = false;
};

}  // namespace tarn::dist
