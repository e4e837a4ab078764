// nccl.cpp - stand-in for the part of NCCL that tarn uses, behind NCCL's own prototypes.
//
// As strict as the library or stricter: a call on a communicator that is still in progress is
// refused, memory must be that of the communicator's device, two ranks on one GPU are refused, and
// communicators that do not block answer "in progress" first, every time.
#if TARN_HAVE_NCCL

#include <cstring>

#include "tarn/cuda/emu/nccl_comm.h"

using namespace tarn::emu;

struct ncclComm {
  std::shared_ptr<NcclComm> comm;
};

namespace {

thread_local std::string last_text;

ncclResult_t refuse(ncclResult_t code, std::string text) {
  last_text = std::move(text);
  return code;
}

// Calls since ncclGroupStart, of this thread.
struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  struct Part {
    ncclComm_t comm;
    cudaStream_t stream;
    std::vector<NcclCall> calls;
  };
  std::vector<Part> parts;
};
thread_local Group group;

ncclResult_t launch(ncclComm_t comm, std::vector<NcclCall> calls, cudaStream_t stream) {
  const ncclResult_t result = comm->comm->launch(std::move(calls), stream);
  if (result != ncclSuccess && result != ncclInProgress) last_text = comm->comm->error_text();
  return result;
}

ncclResult_t submit(ncclComm_t comm, cudaStream_t stream, NcclCall call) {
  ncclResult_t result = ncclSuccess;
  if (comm == nullptr) {
    result = refuse(ncclInvalidArgument, "no communicator");
  } else if (nccl_size(call.message.type) == 0 || call.message.op < 0 ||
             call.message.op >= ncclNumOps) {
    result = refuse(ncclInvalidArgument, "an unknown data type or operation");
  } else if (call.message.root < 0 || call.message.root >= comm->comm->size()) {
    result = refuse(ncclInvalidArgument, "the root or peer is no rank of the communicator");
  } else if (sticky_error() != cudaSuccess) {
    result = ncclUnhandledCudaError;
  } else {
    result = comm->comm->check_ready();
    if (result != ncclSuccess) last_text = comm->comm->error_text();
  }
  if (group.depth > 0) {
    if (group.error == ncclSuccess) group.error = result;
    if (result != ncclSuccess || call.message.count == 0) return result;
    for (Group::Part& part : group.parts) {
      if (part.comm != comm || part.stream != stream) continue;
      part.calls.push_back(call);
      return ncclSuccess;
    }
    group.parts.push_back({comm, stream, {call}});
    return ncclSuccess;
  }
  if (result != ncclSuccess || call.message.count == 0) return result;
  return launch(comm, {call}, stream);
}

// sends, receives: in units of `count` elements.
NcclCall make_call(NcclKind kind, const void* send, std::size_t sends, void* receive,
                   std::size_t receives, std::size_t count, ncclDataType_t type,
                   ncclRedOp_t op = ncclSum, int root = 0) {
  const std::size_t bytes = count * nccl_size(type);
  NcclCall call;
  call.message = {.kind = kind, .root = root, .type = type, .op = op, .count = count};
  call.send = send;
  call.receive = receive;
  call.send_bytes = sends * bytes;
  call.receive_bytes = receives * bytes;
  return call;
}

std::size_t is_root(ncclComm_t comm, int root) {
  return comm != nullptr && comm->comm->rank() == root ? 1 : 0;
}
std::size_t ranks_of(ncclComm_t comm) {
  return comm != nullptr ? static_cast<std::size_t>(comm->comm->size()) : 0;
}

}  // namespace

#define TARN_EMU_NCCL(name)                   \
  static ::tarn::emu::Entry emu_entry(#name); \
  if (const int emu_code = emu_entry.enter()) \
  return refuse(static_cast<ncclResult_t>(emu_code), "injected by TARN_EMU_FAIL")

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  TARN_EMU_NCCL(ncclGetVersion);
  if (version == nullptr) return ncclInvalidArgument;
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

/// The id is the address of the hub, which is in this process.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  TARN_EMU_NCCL(ncclGetUniqueId);
  if (id == nullptr) return ncclInvalidArgument;
  const std::string address = NcclHub::start();
  if (address.empty()) return refuse(ncclSystemError, "no port is free");
  std::memset(id->internal, 0, sizeof id->internal);
  std::memcpy(id->internal, address.data(), address.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  TARN_EMU_NCCL(ncclCommInitRankConfig);
  if (comm == nullptr || ranks < 1 || rank < 0 || rank >= ranks) {
    return refuse(ncclInvalidArgument, "the rank must be below the number of ranks");
  }
  if (config != nullptr && (config->magic != 0xcafebeef || config->size != sizeof *config)) {
    return refuse(ncclInvalidArgument, "the config was not made with NCCL_CONFIG_INITIALIZER");
  }
  const bool blocking = config == nullptr || config->blocking != 0;
  *comm = new ncclComm{std::make_shared<NcclComm>(rank, ranks, current_device(), blocking)};
  (*comm)->comm->start(std::string(id.internal, ::strnlen(id.internal, sizeof id.internal)));
  if (!blocking) return ncclInProgress;
  (*comm)->comm->wait_ready();
  return (*comm)->comm->async_error();
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  TARN_EMU_NCCL(ncclCommFinalize);
  if (comm == nullptr) return ncclInvalidArgument;
  if (const ncclResult_t result = comm->comm->check_ready()) return result;
  comm->comm->finalize();
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  TARN_EMU_NCCL(ncclCommDestroy);
  if (comm == nullptr) return ncclInvalidArgument;
  comm->comm->close();
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  TARN_EMU_NCCL(ncclCommAbort);
  if (comm == nullptr) return ncclInvalidArgument;
  comm->comm->close();
  comm->comm->wait_for_device();
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  TARN_EMU_NCCL(ncclCommGetAsyncError);
  if (comm == nullptr || error == nullptr) return ncclInvalidArgument;
  *error = comm->comm->async_error();
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  constexpr const char* kTexts[] = {
      "no error",
      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
      "internal error - please report this issue to the NCCL developers",
      "invalid argument (run with NCCL_DEBUG=WARN for details)",
      "invalid usage (run with NCCL_DEBUG=WARN for details)",
      "remote process exited or there was a network error",
      "NCCL operation in progress"};
  return result >= 0 && result < ncclNumResults ? kTexts[result] : "unknown result code";
}

const char* ncclGetLastError(ncclComm_t comm) {
  if (comm != nullptr) {
    const std::string own = comm->comm->error_text();
    if (!own.empty()) last_text = own;
  }
  return last_text.c_str();
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  TARN_EMU_NCCL(ncclAllReduce);
  return submit(comm, stream,
                make_call(NcclKind::kAllReduce, send, 1, receive, 1, count, type, op));
}

ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  TARN_EMU_NCCL(ncclReduce);
  return submit(
      comm, stream,
      make_call(NcclKind::kReduce, send, 1, receive, is_root(comm, root), count, type, op, root));
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  TARN_EMU_NCCL(ncclBroadcast);
  return submit(comm, stream,
                make_call(NcclKind::kBroadcast, send, is_root(comm, root), receive, 1, count, type,
                          ncclSum, root));
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  TARN_EMU_NCCL(ncclAllGather);
  return submit(comm, stream,
                make_call(NcclKind::kAllGather, send, 1, receive, ranks_of(comm), count, type));
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  TARN_EMU_NCCL(ncclReduceScatter);
  return submit(
      comm, stream,
      make_call(NcclKind::kReduceScatter, send, ranks_of(comm), receive, 1, count, type, op));
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  TARN_EMU_NCCL(ncclSend);
  return submit(comm, stream,
                make_call(NcclKind::kSend, data, 1, nullptr, 0, count, type, ncclSum, peer));
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  TARN_EMU_NCCL(ncclRecv);
  return submit(comm, stream,
                make_call(NcclKind::kReceive, nullptr, 0, data, 1, count, type, ncclSum, peer));
}

ncclResult_t ncclGroupStart() {
  TARN_EMU_NCCL(ncclGroupStart);
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  TARN_EMU_NCCL(ncclGroupEnd);
  if (group.depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group.depth > 0) return ncclSuccess;
  const Group done = std::exchange(group, {});
  if (done.error != ncclSuccess) return done.error;
  ncclResult_t result = ncclSuccess;
  for (const Group::Part& part : done.parts) {
    const ncclResult_t one = launch(part.comm, part.calls, part.stream);
    if (one != ncclSuccess && one != ncclInProgress) return one;
    if (one == ncclInProgress) result = one;
  }
  return result;
}

}  // extern "C"

#endif  // TARN_HAVE_NCCL
