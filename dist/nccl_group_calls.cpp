// nccl_group_calls.cpp - collectives of tarn as calls of NCCL.
//
// Note [What NCCL lacks]
//   halves         are summed in f32 and rounded once, as on every transport; NCCL rounds at each
//                  rank. Costs twice the bytes.
//   min, max       propagate NaN, NCCL's drop it: a mask of the NaNs travels along.
//   bit_and, _or   do not exist: all ranks' values are gathered and combined here. On bool they are
//                  min and max, as product and sum are.
// The order of NCCL's sums is its own: the same bits on all ranks, other bits than other
// transports.
#ifdef TARN_HAVE_NCCL

#include "tarn/dist/nccl_group_calls.h"

#include <algorithm>
#include <limits>

#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn::dist {
namespace {

using Kind = CollectiveKind;

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    case DType::kF16:
      return ncclFloat16;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kI64:
      return ncclInt64;
    case DType::kI32:
      return ncclInt32;
    default:
      return ncclUint8;
  }
}

ncclRedOp_t op_of(ReduceOp op, DType dtype) {
  const bool logical = dtype == DType::kBool;
  switch (op) {
    case ReduceOp::kSum:
      return logical ? ncclMax : ncclSum;
    case ReduceOp::kProduct:
      return logical ? ncclMin : ncclProd;
    case ReduceOp::kAvg:
      return ncclAvg;
    case ReduceOp::kMax:
    case ReduceOp::kBitOr:
      return ncclMax;
    default:
      return ncclMin;
  }
}

// The tensors as one: over their own memory if they lie in it one after another.
Tensor joined(const std::vector<Tensor>& parts) {
  const Tensor& first = parts[0];
  bool dense = true;
  int64_t numel = 0;
  for (const Tensor& t : parts) {
    dense = dense && t.is_contiguous() && t.storage() == first.storage() &&
            t.storage_offset() == first.storage_offset() + numel;
    numel += t.numel();
  }
  if (!dense) return {};
  return Tensor(first.storage(), Shape{numel}, Shape{1}, first.storage_offset(), first.dtype());
}

class Lowering {
 public:
  Lowering(Communicator& comm, const Collective& c)
      : comm_(comm), c_(c), rank_(comm.rank()), size_(static_cast<size_t>(comm.size())) {}

  void run(Clock::time_point deadline) {
    lower();
    comm_.run(calls_, deadline);
    for (const auto& step : after_) step();
  }

 private:
  // A call of NCCL's that reduces `send` into `receive`, null where this rank gets nothing.
  using Reduction = std::function<ncclResult_t(const NcclApi&, const void*, void*, ncclDataType_t,
                                               ncclRedOp_t, ncclComm_t, cudaStream_t)>;

  void lower() {
    switch (c_.kind) {
      case Kind::kAllReduce:
        for (const Tensor& t : c_.inputs) all_reduce(t);
        return;
      case Kind::kReduce:
        for (const Tensor& t : c_.inputs) reduce(t);
        return;
      case Kind::kBroadcast:
        for (const Tensor& t : c_.inputs) broadcast(t);
        return;
      case Kind::kAllGather:
        for (size_t i = 0; i < c_.inputs.size(); ++i)
          all_gather(c_.inputs[i], group(c_.outputs, i));
        return;
      case Kind::kReduceScatter:
        for (size_t i = 0; i < c_.outputs.size(); ++i) {
          reduce_scatter(c_.outputs[i], group(c_.inputs, i));
        }
        return;
      case Kind::kAllToAll:
      case Kind::kGather:
      case Kind::kScatter:
        return exchange();
      case Kind::kBarrier:
        return all_reduce(zeros({1}, {.dtype = DType::kI32, .device = device()}));
      case Kind::kSend:
        return send(c_.inputs[0], 1 - rank_);
      case Kind::kReceive:
        return receive(c_.outputs[0], 1 - rank_);
    }
  }

  Device device() const { return Device(DeviceType::kCUDA, comm_.device()); }

  std::vector<Tensor> group(const std::vector<Tensor>& tensors, size_t i) const {
    const auto begin = tensors.begin() + static_cast<std::ptrdiff_t>(i * size_);
    return {begin, begin + static_cast<std::ptrdiff_t>(size_)};
  }

  // Memory for what `t` takes: t's own where it is dense, else deliver() brings it to t.
  static Tensor room_for(const Tensor& t) {
    if (t.is_contiguous()) return t;
    return empty(t.sizes(), {.dtype = t.dtype(), .device = t.device()});
  }
  // After the steps that fill `own`: they run in the order in which they were added.
  void deliver(const Tensor& t, const Tensor& own) {
    if (!own.is_same(t)) after_.push_back([t, own] { raw::copy_(t, own); });
  }
  // The two in one, for what NCCL's call fills itself.
  Tensor target(const Tensor& t) {
    const Tensor own = room_for(t);
    deliver(t, own);
    return own;
  }

  // Adds the reduction of `from` into `to`, which may be `from`; undefined: this rank gets none.
  // The part for this rank starts at `offset` of `from`.
  void reduction(const Tensor& from, const Tensor& to, int64_t offset, const Reduction& call) {
    if (from.numel() == 0) return;
    const DType dtype = from.dtype();
    const bool bits = c_.op == ReduceOp::kBitAnd || c_.op == ReduceOp::kBitOr;
    if (bits && dtype != DType::kBool) return gather_bits(from, to, offset);
    const bool extreme = c_.op == ReduceOp::kMin || c_.op == ReduceOp::kMax;
    const DType wire = is_half(dtype) && !extreme ? DType::kF32 : dtype;
    const Tensor sent = raw::to(from, wire);
    Tensor got;
    if (to.defined()) {
      got = to.is_same(from) ? sent
            : wire == dtype  ? to
                             : empty(to.sizes(), {.dtype = wire, .device = to.device()});
    }
    add(call, sent, got, type_of(wire), op_of(c_.op, dtype));
    if (extreme && is_floating(dtype)) keep_nan(sent, got, call);
    if (to.defined() && !got.is_same(to)) after_.push_back([to, got] { raw::copy_(to, got); });
  }

  void add(const Reduction& call, const Tensor& sent, const Tensor& got, ncclDataType_t type,
           ncclRedOp_t op) {
    calls_.push_back([=](const NcclApi& api, ncclComm_t comm, cudaStream_t stream) {
      return call(api, sent.data(), got.defined() ? got.data() : nullptr, type, op, comm, stream);
    });
  }

  void keep_nan(const Tensor& sent, const Tensor& got, const Reduction& call) {
    const Tensor mask = raw::to(raw::ne(sent, sent), DType::kU8);
    Tensor masks;
    if (got.defined()) {
      masks = got.is_same(sent) ? mask
                                : empty(got.sizes(), {.dtype = DType::kU8, .device = got.device()});
    }
    add(call, mask, masks, ncclUint8, ncclMax);
    if (!got.defined()) return;
    after_.push_back([got, masks] {
      const Tensor nan = full({}, std::numeric_limits<double>::quiet_NaN(),
                              {.dtype = got.dtype(), .device = got.device()});
      raw::copy_(got, raw::where(raw::to(masks, DType::kBool), nan, got));
    });
  }

  void gather_bits(const Tensor& from, const Tensor& to, int64_t offset) {
    const int64_t n = from.numel();
    const Tensor all = empty({comm_.size(), n}, {.dtype = from.dtype(), .device = from.device()});
    calls_.push_back([=](const NcclApi& api, ncclComm_t comm, cudaStream_t stream) {
      return api.all_gather(from.data(), all.data(), static_cast<size_t>(n), type_of(from.dtype()),
                            comm, stream);
    });
    if (!to.defined()) return;
    after_.push_back([all, to, offset, op = c_.op] {
      const auto part = [&](int64_t r) {
        return raw::narrow(raw::select(all, 0, r), 0, offset, to.numel());
      };
      Tensor sum = part(0);
      for (int64_t r = 1; r < all.size(0); ++r) {
        sum = op == ReduceOp::kBitAnd ? raw::bitwise_and(sum, part(r))
                                      : raw::bitwise_or(sum, part(r));
      }
      raw::copy_(to, raw::reshape(sum, to.sizes()));
    });
  }

  void all_reduce(const Tensor& t) {
    const Tensor dense = raw::contiguous(t);
    const auto count = static_cast<size_t>(t.numel());
    reduction(dense, dense, 0,
              [count](const NcclApi& api, const void* in, void* out, ncclDataType_t type,
                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
                return api.all_reduce(in, out, count, type, op, comm, stream);
              });
    deliver(t, dense);
  }

  static Reduction reduce_to(int root, size_t count) {
    return [=](const NcclApi& api, const void* in, void* out, ncclDataType_t type, ncclRedOp_t op,
               ncclComm_t comm, cudaStream_t stream) {
      return api.reduce(in, out, count, type, op, root, comm, stream);
    };
  }

  void reduce(const Tensor& t) {
    const Tensor dense = raw::contiguous(t);
    const bool mine = rank_ == c_.root;
    reduction(dense, mine ? dense : Tensor(), 0,
              reduce_to(c_.root, static_cast<size_t>(t.numel())));
    if (mine) deliver(t, dense);
  }

  void broadcast(const Tensor& t) {
    broadcast(rank_ == c_.root ? raw::contiguous(t) : target(t), Tensor(), c_.root);
  }

  // from: on the root, if it is not `to` itself.
  void broadcast(const Tensor& to, const Tensor& from, int root) {
    if (to.numel() == 0) return;
    calls_.push_back([=](const NcclApi& api, ncclComm_t comm, cudaStream_t stream) {
      return api.broadcast(from.defined() ? from.data() : to.data(), to.data(),
                           static_cast<size_t>(to.numel()), type_of(to.dtype()), root, comm,
                           stream);
    });
  }

  static bool same_sizes(const std::vector<Tensor>& tensors) {
    return std::all_of(tensors.begin(), tensors.end(),
                       [&](const Tensor& t) { return t.numel() == tensors[0].numel(); });
  }

  void all_gather(const Tensor& x, const std::vector<Tensor>& outs) {
    const Tensor mine = raw::contiguous(x);
    if (!same_sizes(outs)) {
      for (size_t r = 0; r < size_; ++r) {
        const int root = static_cast<int>(r);
        broadcast(target(outs[r]), root == rank_ ? mine : Tensor(), root);
      }
      return;
    }
    const int64_t n = x.numel();
    if (n == 0) return;
    Tensor all = joined(outs);
    if (!all.defined()) {
      all = empty({comm_.size() * n}, {.dtype = x.dtype(), .device = x.device()});
      for (size_t r = 0; r < size_; ++r) {
        const Tensor part = raw::narrow(all, 0, static_cast<int64_t>(r) * n, n);
        after_.push_back(
            [out = outs[r], part] { raw::copy_(out, raw::reshape(part, out.sizes())); });
      }
    }
    calls_.push_back([=](const NcclApi& api, ncclComm_t comm, cudaStream_t stream) {
      return api.all_gather(mine.data(), all.data(), static_cast<size_t>(n), type_of(x.dtype()),
                            comm, stream);
    });
  }

  void reduce_scatter(const Tensor& out, const std::vector<Tensor>& xs) {
    const Tensor mine = room_for(out);
    reduce_parts(mine, xs);
    deliver(out, mine);
  }

  void reduce_parts(const Tensor& mine, const std::vector<Tensor>& xs) {
    const int64_t n = mine.numel();
    const auto count = static_cast<size_t>(n);
    if (!same_sizes(xs)) {
      for (size_t r = 0; r < size_; ++r) {
        const int root = static_cast<int>(r);
        const Tensor x = raw::contiguous(xs[r]);
        reduction(x, root == rank_ ? mine : Tensor(), 0,
                  reduce_to(root, static_cast<size_t>(x.numel())));
      }
      return;
    }
    Tensor all = joined(xs);
    if (!all.defined()) {
      all = empty({comm_.size() * n}, {.dtype = mine.dtype(), .device = mine.device()});
      for (size_t r = 0; r < size_; ++r) {
        const Tensor part = raw::narrow(all, 0, static_cast<int64_t>(r) * n, n);
        raw::copy_(part, raw::reshape(raw::contiguous(xs[r]), {n}));
      }
    }
    reduction(all, mine, rank_ * n,
              [count](const NcclApi& api, const void* in, void* to, ncclDataType_t type,
                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
                return api.reduce_scatter(in, to, count, type, op, comm, stream);
              });
  }

  void send(const Tensor& x, int to) {
    if (x.numel() == 0) return;
    const Tensor dense = raw::contiguous(x);
    calls_.push_back([=](const NcclApi& api, ncclComm_t comm, cudaStream_t stream) {
      return api.send(dense.data(), static_cast<size_t>(dense.numel()), type_of(dense.dtype()), to,
                      comm, stream);
    });
  }

  void receive(const Tensor& x, int from) {
    if (x.numel() == 0) return;
    const Tensor own = target(x);
    calls_.push_back([=](const NcclApi& api, ncclComm_t comm, cudaStream_t stream) {
      return api.receive(own.data(), static_cast<size_t>(own.numel()), type_of(own.dtype()), from,
                         comm, stream);
    });
  }

  // all_to_all: to and from all; gather: to root, on root from all; scatter: the reverse.
  void exchange() {
    const auto each = [&](const std::vector<Tensor>& tensors, bool all, bool sends) {
      for (size_t r = 0; r < tensors.size(); ++r) {
        const int peer = all ? static_cast<int>(r) : c_.root;
        sends ? send(tensors[r], peer) : receive(tensors[r], peer);
      }
    };
    each(c_.inputs, c_.kind != Kind::kGather, true);
    each(c_.outputs, c_.kind != Kind::kScatter, false);
  }

  Communicator& comm_;
  const Collective& c_;
  int rank_;
  size_t size_;
  std::vector<Communicator::Call> calls_;
  std::vector<std::function<void()>> after_;
};

}  // namespace

void run_collective(Communicator& comm, const Collective& c, Clock::time_point deadline) {
  Lowering(comm, c).run(deadline);
}

}  // namespace tarn::dist

#endif  // TARN_HAVE_NCCL
