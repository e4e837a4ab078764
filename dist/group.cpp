// group.cpp - the checks before a collective: written once for all transports.
#include "tarn/dist/group.h"

#include <algorithm>
#include <sstream>

#include "tarn/core/views.h"
#include "tarn/dist/fault.h"

namespace tarn::dist {
namespace {

using Kind = CollectiveKind;

std::string ranks_name(std::span<const int> ranks) {
  std::ostringstream text;
  for (size_t i = 0; i < ranks.size(); ++i) text << (i ? "," : "[") << ranks[i];
  text << "]";
  return text.str();
}

void check_tag(const char* op, int tag) {
  TARN_CHECK_AS(ValueError, tag >= 0 && tag < kMaxTag, op, ": the tag must be in [0, ", kMaxTag,
                "); got ", tag);
}

// Two elements at one address: a stride of 0 would receive several values.
bool overlaps_itself(const Tensor& x) {
  for (int d = 0; d < x.dim(); ++d) {
    if (x.stride(d) == 0 && x.size(d) > 1) return true;
  }
  return false;
}

}  // namespace

ProcessGroup::ProcessGroup(int rank, int size, GroupOptions options)
    : rank_(rank), size_(size), options_(std::move(options)) {
  TARN_CHECK_AS(ValueError, size > 0 && rank >= 0 && rank < size,
                "process group: rank must be in [0, size); got rank=", rank, ", size=", size);
  TARN_CHECK_AS(ValueError, options_.timeout > Millis(0) && options_.start_timeout > Millis(0),
                "process group: timeouts must be positive");
}

void ProcessGroup::check_rank(const char* op, const char* what, int rank) const {
  TARN_CHECK_AS(ValueError, rank >= 0 && rank < size_, op, ": ", what, " must be in [0, ", size_,
                ") in group ", name(), "; got ", rank);
}

void ProcessGroup::check_parts(const char* op, size_t count) const {
  TARN_CHECK_AS(ValueError, count == static_cast<size_t>(size_), op,
                ": needs one tensor for each of the ", size_, " ranks of group ", name(), "; got ",
                count);
}

void ProcessGroup::check_own(const char* op, const char* list, const std::vector<Tensor>& tensors,
                             const char* name, const Tensor& own) const {
  check_parts(op, tensors.size());
  const Tensor& mine = tensors[static_cast<size_t>(rank_)];
  TARN_CHECK_AS(ShapeError, !own.defined() || !mine.defined() || mine.numel() == own.numel(), op,
                ": ", list, "[", rank_, "] must be of the size of ", name, "; got ", list, "[",
                rank_, "]=", mine.sizes(), ", ", name, "=", own.sizes());
}

void ProcessGroup::check_tensors(const Collective& c) const {
  const char* op = kind_name(c.kind);
  const Tensor* first = nullptr;
  const auto check = [&](const Tensor& t, bool written) {
    TARN_CHECK_AS(ValueError, t.defined(), op, ": a tensor is undefined");
    TARN_CHECK_AS(DeviceError, takes(t.device()), op, ": the ", transport(),
                  " transport moves tensors of ", takes_what(), "; got ", t.describe());
    TARN_CHECK_AS(ValueError, !written || !overlaps_itself(t), op,
                  ": cannot write into an expanded tensor; got ", t.describe(), "; clone it first");
    if (!first) first = &t;
    TARN_CHECK_AS(DeviceError, t.device() == first->device(), op,
                  ": all tensors must be on one device; got ", first->device(), " and ",
                  t.device());
    TARN_CHECK_AS(DTypeError, t.dtype() == first->dtype() || c.kind == Kind::kBroadcast, op,
                  ": all tensors must have one dtype; got ", first->dtype(), " and ", t.dtype());
  };
  const bool in_place =
      c.kind == Kind::kAllReduce || c.kind == Kind::kReduce || c.kind == Kind::kBroadcast;
  for (const Tensor& t : c.inputs) check(t, in_place);
  for (const Tensor& t : c.outputs) check(t, true);
  if (!c.reduces() || !first) return;
  const bool bits = c.op == ReduceOp::kBitAnd || c.op == ReduceOp::kBitOr;
  TARN_CHECK_AS(DTypeError, !bits || !is_floating(first->dtype()), op, ": ", op_name(c.op),
                " is for integers and bool; got ", first->dtype());
  TARN_CHECK_AS(DTypeError, c.op != ReduceOp::kAvg || is_floating(first->dtype()), op,
                ": avg is for floating dtypes; got ", first->dtype(), "; use sum");
}

// The W parts of a stacked tensor: [W, ...] or W times the first size.
std::vector<Tensor> ProcessGroup::parts(const char* op, const char* name, const Tensor& stacked,
                                        const Tensor& part) const {
  TARN_CHECK_AS(ValueError, stacked.defined() && part.defined(), op, ": a tensor is undefined");
  Shape along = part.sizes(), apart = part.sizes();
  apart.insert(0, size_);
  const bool has_rows = along.dim() > 0;
  if (has_rows) along[0] *= size_;
  const bool is_apart = stacked.sizes() == apart;
  TARN_CHECK_AS(ShapeError, is_apart || (has_rows && stacked.sizes() == along), op, ": ", name,
                " must be ", apart, " for ", size_, " ranks with parts of ", part.sizes(), "; got ",
                stacked.sizes());
  std::vector<Tensor> views;
  for (int r = 0; r < size_; ++r) {
    views.push_back(is_apart ? raw::select(stacked, 0, r)
                             : raw::narrow(stacked, 0, r * part.size(0), part.size(0)));
  }
  return views;
}

WorkPtr ProcessGroup::start(Collective c) {
  TARN_CHECK_AS(ValueError, c.kind == Kind::kBarrier || !c.inputs.empty() || !c.outputs.empty(),
                kind_name(c.kind), ": needs at least one tensor");
  check_tensors(c);
  c.lost = maybe_fail(rank_);
  const bool in_place = c.kind == Kind::kAllReduce ||
                        (c.kind == Kind::kReduce && c.root == rank_) ||
                        (c.kind == Kind::kBroadcast && c.root != rank_);
  for (const Tensor& t : in_place ? c.inputs : c.outputs) t.bump_version();
  return submit(std::move(c));
}

WorkPtr ProcessGroup::all_reduce(const Tensor& x, ReduceOp op) {
  return start({.kind = Kind::kAllReduce, .op = op, .inputs = {x}});
}

WorkPtr ProcessGroup::all_reduce(std::vector<Tensor> xs, ReduceOp op) {
  return start({.kind = Kind::kAllReduce, .op = op, .inputs = std::move(xs)});
}

WorkPtr ProcessGroup::reduce(const Tensor& x, int root, ReduceOp op) {
  check_rank("reduce", "root", root);
  return start({.kind = Kind::kReduce, .op = op, .root = root, .inputs = {x}});
}

WorkPtr ProcessGroup::broadcast(const Tensor& x, int root) {
  return broadcast(std::vector<Tensor>{x}, root);
}

WorkPtr ProcessGroup::broadcast(std::vector<Tensor> xs, int root) {
  check_rank("broadcast", "root", root);
  return start({.kind = Kind::kBroadcast, .root = root, .inputs = std::move(xs)});
}

WorkPtr ProcessGroup::all_gather(const Tensor& out, const Tensor& x) {
  return start(
      {.kind = Kind::kAllGather, .inputs = {x}, .outputs = parts("all_gather", "out", out, x)});
}

WorkPtr ProcessGroup::all_gather(std::vector<Tensor> outs, const Tensor& x) {
  check_own("all_gather", "outs", outs, "x", x);
  return start({.kind = Kind::kAllGather, .inputs = {x}, .outputs = std::move(outs)});
}

WorkPtr ProcessGroup::all_gather_coalesced(std::span<const Tensor> outs, std::vector<Tensor> xs) {
  TARN_CHECK_AS(ValueError, outs.size() == xs.size(), "all_gather: got ", outs.size(), " outs for ",
                xs.size(), " tensors");
  Collective c{.kind = Kind::kAllGather};
  for (size_t i = 0; i < xs.size(); ++i) {
    for (Tensor& part : parts("all_gather", "out", outs[i], xs[i])) c.outputs.push_back(part);
  }
  c.inputs = std::move(xs);
  return start(std::move(c));
}

WorkPtr ProcessGroup::reduce_scatter(const Tensor& out, const Tensor& x, ReduceOp op) {
  return start({.kind = Kind::kReduceScatter,
                .op = op,
                .inputs = parts("reduce_scatter", "x", x, out),
                .outputs = {out}});
}

WorkPtr ProcessGroup::reduce_scatter(const Tensor& out, std::vector<Tensor> xs, ReduceOp op) {
  check_own("reduce_scatter", "xs", xs, "out", out);
  return start({.kind = Kind::kReduceScatter, .op = op, .inputs = std::move(xs), .outputs = {out}});
}

WorkPtr ProcessGroup::reduce_scatter_coalesced(std::vector<Tensor> outs, std::span<const Tensor> xs,
                                               ReduceOp op) {
  TARN_CHECK_AS(ValueError, outs.size() == xs.size(), "reduce_scatter: got ", outs.size(),
                " outs for ", xs.size(), " tensors");
  Collective c{.kind = Kind::kReduceScatter, .op = op};
  for (size_t i = 0; i < xs.size(); ++i) {
    for (Tensor& part : parts("reduce_scatter", "x", xs[i], outs[i])) c.inputs.push_back(part);
  }
  c.outputs = std::move(outs);
  return start(std::move(c));
}

WorkPtr ProcessGroup::all_to_all(const Tensor& out, const Tensor& x) {
  TARN_CHECK_AS(ValueError, out.defined() && x.defined(), "all_to_all: a tensor is undefined");
  TARN_CHECK_AS(ShapeError, x.dim() > 0 && x.size(0) % size_ == 0 && out.sizes() == x.sizes(),
                "all_to_all: x and out must be alike, with a first size that ", size_,
                " ranks divide; got x=", x.sizes(), ", out=", out.sizes());
  const int64_t rows = x.size(0) / size_;
  std::vector<Tensor> outs, xs;
  for (int r = 0; r < size_; ++r) {
    outs.push_back(raw::narrow(out, 0, r * rows, rows));
    xs.push_back(raw::narrow(x, 0, r * rows, rows));
  }
  return all_to_all(std::move(outs), std::move(xs));
}

WorkPtr ProcessGroup::all_to_all(std::vector<Tensor> outs, std::vector<Tensor> xs) {
  check_parts("all_to_all", outs.size());
  check_own("all_to_all", "xs", xs, "outs[rank]", outs[static_cast<size_t>(rank_)]);
  return start({.kind = Kind::kAllToAll, .inputs = std::move(xs), .outputs = std::move(outs)});
}

WorkPtr ProcessGroup::gather(std::vector<Tensor> outs, const Tensor& x, int root) {
  check_rank("gather", "root", root);
  if (rank_ == root) check_own("gather", "outs", outs, "x", x);
  if (rank_ != root) outs.clear();
  return start({.kind = Kind::kGather, .root = root, .inputs = {x}, .outputs = std::move(outs)});
}

WorkPtr ProcessGroup::scatter(const Tensor& out, std::vector<Tensor> xs, int root) {
  check_rank("scatter", "root", root);
  if (rank_ == root) check_own("scatter", "xs", xs, "out", out);
  if (rank_ != root) xs.clear();
  return start({.kind = Kind::kScatter, .root = root, .inputs = std::move(xs), .outputs = {out}});
}

WorkPtr ProcessGroup::send(const Tensor& x, int to, int tag) {
  check_rank("send", "the receiver", to);
  TARN_CHECK_AS(ValueError, to != rank_, "send: a rank cannot send to itself; got to=", to);
  check_tag("send", tag);
  return start({.kind = Kind::kSend, .root = to, .tag = static_cast<uint32_t>(tag), .inputs = {x}});
}

WorkPtr ProcessGroup::recv(const Tensor& x, int from, int tag) {
  check_rank("recv", "the sender", from);
  TARN_CHECK_AS(ValueError, from != rank_,
                "recv: a rank cannot receive from itself; got from=", from);
  check_tag("recv", tag);
  return start(
      {.kind = Kind::kReceive, .root = from, .tag = static_cast<uint32_t>(tag), .outputs = {x}});
}

WorkPtr ProcessGroup::barrier() {
  return start({.kind = Kind::kBarrier});
}

std::shared_ptr<ProcessGroup> ProcessGroup::subgroup(std::span<const int> ranks) {
  TARN_CHECK_AS(ValueError, !ranks.empty(), "subgroup: needs at least one rank");
  for (size_t i = 0; i < ranks.size(); ++i) {
    check_rank("subgroup", "every rank", ranks[i]);
    TARN_CHECK_AS(ValueError,
                  std::find(ranks.begin(), ranks.begin() + i, ranks[i]) ==
                      ranks.begin() + static_cast<int64_t>(i),
                  "subgroup: rank ", ranks[i], " is named twice");
  }
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) return nullptr;
  // The same ranks may form several groups: the members count them alike.
  GroupOptions options = options_;
  options.name = name() + "/" + ranks_name(ranks);
  const auto before = std::count(subgroups_.begin(), subgroups_.end(), options.name);
  subgroups_.push_back(options.name);
  if (before > 0) options.name += "#" + std::to_string(before + 1);
  return make_subgroup(ranks, static_cast<int>(mine - ranks.begin()), std::move(options));
}

}  // namespace tarn::dist
