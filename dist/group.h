// group.h - ProcessGroup: ranks that exchange tensors.
//
//   auto group = init_process_group();                 // init.h: from the launcher's environment
//   group->all_reduce(gradient, ReduceOp::kAvg)->wait();
//   WorkPtr work = group->all_gather(all, mine);       // goes on while this thread computes
//   ...
//   work->wait();
//
// Every rank of a group calls the same collectives in the same order. Every call returns at once
// with a Work; the tensors belong to the group until it is done. Results are the same bits on all
// ranks and in every run: values are combined in the order of ranks, ((r0 + r1) + r2) + ...,
// whatever the sizes, the timing and the transport (Note [Rank order] in collectives.cpp).
//
// Transports: local_group.h (threads of one process), host_channel.h (processes of one host),
// gloo_group.h (processes anywhere), nccl_group.h (GPUs; the order of its sums is NCCL's).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tarn/core/tensor.h"
#include "tarn/dist/collective.h"
#include "tarn/dist/error.h"

namespace tarn::dist {

struct GroupOptions {
  std::string name = "world";  ///< in messages
  Millis timeout{60000};       ///< of every collective
  Millis start_timeout{
      300000};  ///< of the meeting and of the first collective: ranks start unevenly
};

inline constexpr int kMaxTag = 1 << 20;  ///< of send and recv

/// A collective or message under way. Whoever lets go of it, or never waits, changes nothing: it
/// goes on, its tensors stay, and the group ends if it is not done at its limit. Thread safety:
/// every method may be called from any thread.
class Work {
 public:
  virtual ~Work() = default;
  /// Returns when it is done; over NCCL, when what is queued on the current stream from now on
  /// comes after it. Throws what went wrong: TimeoutError or PeerError that names the operation,
  /// its number, sizes, group, rank and the rank at fault. The group is dead then.
  virtual void wait() = 0;
  /// Waits at most this long. Throws TimeoutError then; the collective goes on.
  virtual void wait(Millis limit) = 0;
  /// True if it is done, well or not; never waits.
  virtual bool test() = 0;
  /// How long it took in the transport, without the time in the queue; 0 until it is done.
  virtual double seconds() { return 0; }
};
using WorkPtr = std::shared_ptr<Work>;

/// Made by the functions of the transports, which return it shared. Thread safety: collectives of
/// one group are called from one thread at a time, since their order is the same on all ranks. Two
/// groups are independent of each other.
class ProcessGroup : public std::enable_shared_from_this<ProcessGroup> {
 public:
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return options_.name; }
  const GroupOptions& options() const { return options_; }
  /// "host", "gloo", "local", "nccl".
  virtual const char* transport() const = 0;

  // ---- in place
  [[nodiscard]] WorkPtr all_reduce(const Tensor& x, ReduceOp op = ReduceOp::kSum);
  /// Many tensors of one dtype as one message.
  [[nodiscard]] WorkPtr all_reduce(std::vector<Tensor> xs, ReduceOp op = ReduceOp::kSum);
  /// Only root's x changes.
  [[nodiscard]] WorkPtr reduce(const Tensor& x, int root, ReduceOp op = ReduceOp::kSum);
  [[nodiscard]] WorkPtr broadcast(const Tensor& x, int root);
  /// Many tensors, also of different dtypes, as one message.
  [[nodiscard]] WorkPtr broadcast(std::vector<Tensor> xs, int root);

  // ---- from all to all. Stacked tensors are [W, ...] or have W times the first size.
  /// out: the ranks' x, stacked in rank order.
  [[nodiscard]] WorkPtr all_gather(const Tensor& out, const Tensor& x);
  /// outs[r] takes rank r's x; sizes may differ between ranks.
  [[nodiscard]] WorkPtr all_gather(std::vector<Tensor> outs, const Tensor& x);
  /// As all_gather for each pair outs[i], xs[i] (stacked form), as one message.
  [[nodiscard]] WorkPtr all_gather_coalesced(std::span<const Tensor> outs, std::vector<Tensor> xs);
  /// x: stacked; out takes the reduction of every rank's part number rank().
  [[nodiscard]] WorkPtr reduce_scatter(const Tensor& out, const Tensor& x,
                                       ReduceOp op = ReduceOp::kSum);
  /// xs[r] goes to rank r; sizes may differ between ranks.
  [[nodiscard]] WorkPtr reduce_scatter(const Tensor& out, std::vector<Tensor> xs,
                                       ReduceOp op = ReduceOp::kSum);
  [[nodiscard]] WorkPtr reduce_scatter_coalesced(std::vector<Tensor> outs,
                                                 std::span<const Tensor> xs,
                                                 ReduceOp op = ReduceOp::kSum);
  /// Part r of x (stacked) goes to rank r; part s of out comes from rank s.
  [[nodiscard]] WorkPtr all_to_all(const Tensor& out, const Tensor& x);
  [[nodiscard]] WorkPtr all_to_all(std::vector<Tensor> outs, std::vector<Tensor> xs);

  // ---- one side is root's
  /// outs: one per rank on root, empty elsewhere.
  [[nodiscard]] WorkPtr gather(std::vector<Tensor> outs, const Tensor& x, int root);
  /// xs: one per rank on root, empty elsewhere.
  [[nodiscard]] WorkPtr scatter(const Tensor& out, std::vector<Tensor> xs, int root);

  // ---- two ranks. Matched by tag, in the order of calls; any thread may call these. A send is
  // done when the other side has received, so two ranks that send to each other call both first and
  // then wait. Tags are in [0, kMaxTag).
  [[nodiscard]] WorkPtr send(const Tensor& x, int to, int tag = 0);
  [[nodiscard]] WorkPtr recv(const Tensor& x, int from, int tag = 0);

  /// Done when every rank has called it.
  [[nodiscard]] WorkPtr barrier();

  /// A group of some of these ranks, which get the numbers 0, 1, ... in the order given; called by
  /// all of them (others may call it and get null). The name says which ranks they are.
  std::shared_ptr<ProcessGroup> subgroup(std::span<const int> ranks);

  /// Ends the group from any thread: what is under way fails here and on the other ranks, which are
  /// told the reason.
  virtual void abort(const std::string& reason) = 0;

 protected:
  ProcessGroup(int rank, int size, GroupOptions options);
  /// Starts a collective whose arguments are right.
  virtual WorkPtr submit(Collective collective) = 0;
  /// rank: this rank's place in `ranks`.
  virtual std::shared_ptr<ProcessGroup> make_subgroup(std::span<const int> ranks, int rank,
                                                      GroupOptions options) = 0;
  /// Devices whose tensors the transport moves.
  virtual bool takes(Device device) const { return device.is_cpu(); }
  virtual std::string takes_what() const { return "the CPU"; }
  /// Starts it, checked, on another group of the same ranks.
  static WorkPtr forward(ProcessGroup& group, Collective collective) {
    return group.submit(std::move(collective));
  }

 private:
  WorkPtr start(Collective collective);
  void check_tensors(const Collective& c) const;
  void check_rank(const char* op, const char* what, int rank) const;
  void check_parts(const char* op, size_t count) const;
  void check_own(const char* op, const char* list, const std::vector<Tensor>& tensors,
                 const char* name, const Tensor& own) const;
  std::vector<Tensor> parts(const char* op, const char* name, const Tensor& stacked,
                            const Tensor& part) const;

  int rank_, size_;
  GroupOptions options_;
  std::vector<std::string> subgroups_;  // names given out, for numbering them
};

}  // namespace tarn::dist
