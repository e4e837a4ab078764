// nccl_comm.h - inside the stand-in for NCCL: one rank's side of a communicator.
//
// A call becomes two operations in its stream. The first, when the stream comes to it, sends this
// rank's data to the hub; the second waits for the answers, as a kernel of NCCL's waits for its
// peers, and writes them to device memory. What the world outside does is seen by a reader thread.
#pragma once

#include <atomic>
#include <thread>

#include "tarn/cuda/emu/nccl_wire.h"
#include "tarn/cuda/emu/runtime.h"

namespace tarn::emu {

/// One call; several between ncclGroupStart and ncclGroupEnd make one batch.
struct NcclCall {
  NcclMessage message;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t send_bytes = 0, receive_bytes = 0;
};

/// Calls that run as one kernel.
struct NcclBatch {
  std::vector<NcclCall> calls;
  std::vector<NcclData> answers;
  std::size_t missing = 0;  // answers
  bool sent = false, aborted = false;
  std::shared_ptr<Event> done = std::make_shared<Event>();
};

/// Shared by the handle and by operations that wait in streams.
class NcclComm : public std::enable_shared_from_this<NcclComm> {
 public:
  NcclComm(int rank, int size, int device, bool blocking);

  /// Goes to the hub in threads of its own.
  void start(const std::string& address);
  /// Blocks until ready or failed.
  void wait_ready();
  /// ncclInProgress, an error, or success; one call under way counts as done afterwards.
  ncclResult_t async_error();
  /// Success if a call may be made now. Clears nothing.
  ncclResult_t check_ready();
  ncclResult_t launch(std::vector<NcclCall> calls, cudaStream_t stream);
  void finalize();
  /// Ends all that is under way; later calls fail. Comes before the end of the last reference,
  /// which may be an operation's and die with the emulator's mutex held.
  void close();
  /// As NCCL, which frees memory at the end: until all work of the device is done, other
  /// communicators' too.
  void wait_for_device();
  std::string error_text();
  int rank() const { return rank_; }
  int size() const { return size_; }
  bool blocking() const { return blocking_; }

 private:
  void run_reader(const std::string& address);
  void run_writer();
  void send(const std::shared_ptr<NcclBatch>& batch);
  void take_answer(const NcclMessage& message, NcclData data);
  void fail(ncclResult_t code, const std::string& text);

  const int rank_, size_, device_;
  const bool blocking_;
  std::thread reader_, writer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int socket_ = -1;
  bool ready_ = false, closing_ = false, finalizing_ = false;
  int lag_ = 0;  // how often the last call still says that it is in progress
  ncclResult_t error_ = ncclSuccess;
  std::string text_;
  uint64_t next_number_ = 1;
  struct Waiting {
    std::shared_ptr<NcclBatch> batch;
    std::size_t index;
  };
  std::map<uint64_t, Waiting> waiting_;  // by number
  std::deque<std::pair<NcclMessage, NcclData>> outgoing_;
};

}  // namespace tarn::emu
