// nccl_wire.h - what the emulated ranks of NCCL say to each other, and the hub where they meet.
//
// Each communicator is one connection to the hub, a few threads in the process that made the unique
// id: it matches the calls of the ranks, computes and answers. Ranks may be threads or processes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <nccl.h>

namespace tarn::emu {

enum class NcclKind : uint32_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kSend,
  kReceive,
  // not calls of NCCL's interface:
  kHello,    // first words of a rank: root is its number, count how many it expects
  kWelcome,  // all have come
  kBye,      // this rank is done; from the hub: all are
  kError,    // root is an ncclResult_t, the data a sentence
};

/// Goes ahead of `bytes` bytes of data.
struct NcclMessage {
  NcclKind kind = NcclKind::kHello;
  int32_t root = 0;  // or the other rank of a send or receive
  int32_t type = 0, op = 0;
  uint64_t count = 0;
  uint64_t number = 0;  // the caller's own; the answer bears it too
  uint64_t bytes = 0;

  bool reduces() const { return kind <= NcclKind::kReduce || kind == NcclKind::kReduceScatter; }
  /// "AllReduce of 10 float32 (op 0)".
  std::string describe() const;
};

using NcclData = std::vector<char>;

/// Bytes of one element; 0: not a type the stand-in has.
std::size_t nccl_size(int type);
/// The reduction of all ranks' `inputs`, in the order of ranks. As on a GPU, halves are rounded
/// after each step, and min and max drop a NaN.
NcclData nccl_fold(int type, int op, const std::vector<const NcclData*>& inputs);

/// Move a whole message; false if the other side is gone.
bool nccl_write(int socket, const NcclMessage& message, const void* data);
bool nccl_read(int socket, NcclMessage& message, NcclData& data);
/// Connects to "host:port"; -1 if nobody listens there.
int nccl_connect(const std::string& address);

/// Matches the calls of the ranks of one communicator. Lives until its last connection ends.
class NcclHub : public std::enable_shared_from_this<NcclHub> {
 public:
  /// Listens on a free port and returns "host:port".
  static std::string start();

 private:
  struct Call {
    NcclMessage message;
    NcclData data;
  };
  struct Rank {
    int socket = -1;
    int device = 0;
    bool here = false, done = false;
    std::deque<Call> calls;  // collectives that not all ranks have called yet
  };

  void accept_all(int listener);
  void serve(int socket);
  bool join(const NcclMessage& hello, int socket);
  void take(int rank, Call call);
  void take_message(int rank, Call call);
  void run_collective();
  void answer(int rank, const Call& call, const NcclData& data);
  void fail(ncclResult_t code, const std::string& text);
  void leave(int rank);

  std::mutex mutex_;
  std::vector<Rank> ranks_;
  std::size_t joined_ = 0;
  bool failed_ = false;
  // Sends and receives that wait for the other side, by (from, to).
  std::map<std::pair<int, int>, std::deque<Call>> sends_, receives_;
};

}  // namespace tarn::emu
