// reducer.cpp - buckets of gradients, averaged while backward goes on.
#include "tarn/dist/reducer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "tarn/autograd/engine.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/dist/agree.h"

namespace tarn::dist {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

// A dense tensor over part of a bucket. Not made as a view: gradients are written in place.
Tensor part_of(const Tensor& flat, int64_t offset, const Shape& sizes) {
  return Tensor(flat.storage(), sizes, contiguous_strides(sizes), flat.storage_offset() + offset,
                flat.dtype());
}

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Reducer::Reducer(ProcessGroup& group, const TensorDict& parameters, ReducerOptions options)
    : group_(group), options_(options) {
  caps().check("ddp");
  comm_hook_ = [](ProcessGroup& g, GradBucket& bucket) {
    return g.all_reduce(bucket.flat, ReduceOp::kAvg);
  };
  for (const auto& [name, tensor] : parameters) {
    if (tensor.requires_grad()) params_.push_back({name, tensor, 0, 0, {}, false});
  }
  TARN_CHECK_AS(ValueError, !params_.empty(), "ddp: no parameter requires a gradient");
  TensorDict trained;
  for (const Param& p : params_) trained.add(p.name, p.tensor);
  claim_.emplace("ddp", "DistributedDataParallel", trained);
  check_one_device("ddp", trained);
  std::vector<size_t> order;
  for (size_t i = params_.size(); i-- > 0;) order.push_back(i);
  build(order);
  for (size_t i = 0; i < params_.size(); ++i) {
    params_[i].hook = params_[i].tensor.register_post_accumulate_grad_hook(
        [this, i](const Tensor&) { arrived(i); });
  }
}

Reducer::~Reducer() {
  for (const Param& p : params_) p.tensor.remove_hook(p.hook);
}

void Reducer::build(const std::vector<size_t>& order) {
  std::vector<Tensor> tensors;
  for (const Param& p : params_) tensors.push_back(p.tensor);
  buckets_.clear();
  for (std::vector<size_t>& params : plan_buckets(tensors, order, caps())) {
    for (size_t i : params) params_[i].bucket = buckets_.size();
    buckets_.push_back({});
    buckets_.back().params = std::move(params);
  }
  const MemoryTagGuard tag(MemoryTag::kGradients);  // .grad of the parameters will lie there
  for (Bucket& b : buckets_) {
    int64_t numel = 0;
    for (size_t i : b.params) numel += params_[i].tensor.numel();
    b.flat = empty({numel}, {.dtype = params_[b.params[0]].tensor.dtype(),
                             .device = params_[b.params[0]].tensor.device()});
    int64_t offset = 0;
    for (size_t i : b.params) {
      params_[i].view = part_of(b.flat, offset, params_[i].tensor.sizes());
      offset += params_[i].tensor.numel();
    }
  }
}

// Once, in the order in which rank 0's gradients came. Gradients in the old buckets stay there
// until they are dropped or the next backward adds to them.
void Reducer::rebuild() {
  rebuilt_ = true;
  if (options_.find_unused_parameters && !options_.static_graph) return;
  for (size_t i = 0; i < params_.size(); ++i) {
    if (!params_[i].ready) arrival_.push_back(i);  // static_graph: what is never there comes last
  }
  const auto n = static_cast<int64_t>(params_.size());
  const Tensor order = empty({n}, {.dtype = DType::kI64});
  std::copy(arrival_.begin(), arrival_.end(), order.data<int64_t>());
  group_.broadcast(order, root_)->wait();
  const int64_t* agreed = order.data<int64_t>();
  build({agreed, agreed + n});
}

void Reducer::reset() {
  next_ = 0;
  start_ = Clock::now();
  for (Param& p : params_) p.ready = false;
  for (Bucket& b : buckets_) {
    b.pending = b.params.size();
    if (b.work) b.work->wait();  // of a backward that threw: its message still uses the bucket
    b.work.reset();
  }
  arrival_.clear();
}

void Reducer::begin() {
  const auto pass = std::make_shared<int>(0);
  on_backward_end([this, pass] { end(); });
  pass_ = pass;
  phase_ = sync_ ? Phase::kReducing : Phase::kLocal;
  reset();
  if (phase_ == Phase::kLocal) return;
  factor_ = before_reduce_ ? before_reduce_() : 1;
  if (!knows_graph()) return;
  for (Param& p : params_) {
    if (!p.expected) fill_absent(p);
  }
}

// A backward of the others: all there is to send are zeros.
void Reducer::shadow() {
  reset();
  for (Param& p : params_) p.tensor.zero_grad();
  for (Bucket& b : buckets_) {
    raw::fill_(b.flat, 0);
    b.pending = 0;
  }
  factor_ = 1;
  launch_ready();
  finish();
  for (Param& p : params_) p.tensor.zero_grad();
  if (!rebuilt_) rebuild();
}

void Reducer::arrived(size_t index) {
  if (phase_ == Phase::kIdle || pass_.expired()) begin();
  if (phase_ == Phase::kLocal) return;
  Param& p = params_[index];
  if (knows_graph() && !p.expected) {
    refuse("ddp: static_graph: " + p.name + " got a gradient on rank " +
           std::to_string(group_.rank()) +
           ", which it did not in the first backward; every backward must use the same "
           "parameters, or set find_unused_parameters instead");
  }
  if (p.ready) {  // of a backward that a hook ran inside this one
    if (p.bucket < next_) refuse(second_text("ddp", p.name, group_.rank()));
    return take_gradient(p);
  }
  p.ready = true;
  if (!rebuilt_) arrival_.push_back(index);
  take_gradient(p);
  --buckets_[p.bucket].pending;
  if (options_.overlap) launch_ready();
}

// The gradient becomes its part of the bucket.
void Reducer::take_gradient(Param& p) {
  const Tensor grad = p.tensor.grad();
  if (grad.is_same(p.view)) return;
  raw::copy_(p.view, grad);
  p.tensor.set_grad(p.view);
}

void Reducer::launch_ready() {
  for (; next_ < buckets_.size() && buckets_[next_].pending == 0; ++next_) {
    launch(buckets_[next_], next_ + 1 == buckets_.size());
  }
}

void Reducer::launch(Bucket& b, bool last) {
  const MemoryTagGuard tag(MemoryTag::kCommunication);
  GradBucket bucket{b.flat, static_cast<int>(&b - buckets_.data()), last, {}};
  for (size_t i : b.params) {
    bucket.params.push_back(params_[i].tensor);
    // Until finish(): nothing may be added to what is on its way.
    if (params_[i].ready) params_[i].tensor.set_grad(Tensor());
  }
  b.sent_at = seconds_between(start_, Clock::now());
  b.work = comm_hook_(group_, bucket);
}

// Which parameters got a gradient on any rank. With static_graph, once for all backwards.
void Reducer::agree_on_use() {
  if (!may_miss() || knows_graph()) return;
  std::vector<char> used;
  for (Param& p : params_) {
    p.expected = p.ready;
    // A gradient that an earlier backward left, without a message, counts as well.
    used.push_back(p.ready || p.tensor.grad().defined());
  }
  used = true_on_any_rank(group_, used);
  for (size_t i = 0; i < params_.size(); ++i) params_[i].used = used[i];
  graph_known_ = complete_;
}

// A parameter without a gradient in this backward counts as zeros, or as what earlier backwards
// added on this rank.
void Reducer::fill_absent(Param& p) {
  const Tensor grad = p.tensor.grad();
  if (!grad.defined()) {
    raw::fill_(p.view, 0);
  } else if (!grad.is_same(p.view)) {
    raw::copy_(p.view, grad);
  }
  --buckets_[p.bucket].pending;
}

void Reducer::refuse(const std::string& text) {
  group_.abort(text);  // the others wait for buckets that will not come
  throw DistError(text);
}

// Parameters without a gradient: filled, or an error that names them.
void Reducer::handle_missing() {
  std::vector<std::string> names;
  for (Param& p : params_) {
    if (p.ready || (knows_graph() && !p.expected)) continue;
    names.push_back(p.name);
    if (may_miss() && !knows_graph()) fill_absent(p);
  }
  if (names.empty() || (may_miss() && !knows_graph())) return;
  refuse(missing_text("ddp", names, params_.size(), group_.rank()) +
         (options_.static_graph ? "; with static_graph every backward must use the same parameters "
                                  "as the first: set find_unused_parameters instead"
                                : "; leave them out of the model, freeze them, or set "
                                  "find_unused_parameters"));
}

void Reducer::end() {
  const Phase phase = std::exchange(phase_, Phase::kIdle);
  if (phase != Phase::kReducing) return;
  handle_missing();
  launch_ready();
  finish();
  if (!rebuilt_) rebuild();
}

void Reducer::finish() {
  const auto computed = Clock::now();
  stats_ = {.buckets = buckets(), .compute_seconds = seconds_between(start_, computed)};
  done_.clear();
  const Device device = buckets_[0].flat.device();
  if (device.is_cuda()) {
    if (!stream_wait_) stream_wait_.emplace(StreamWait{Event(device, true), Event(device, true)});
    stream_wait_->begin.record(current_stream(device));
  }
  for (Bucket& b : buckets_) {
    const auto before = Clock::now();
    b.work->wait();
    if (factor_ != 1) raw::mul_(b.flat, factor_);
    stats_.each.push_back({.bytes = b.flat.numel() * item_size(b.flat.dtype()),
                           .parameters = static_cast<int>(b.params.size()),
                           .sent_at = b.sent_at,
                           .wait = seconds_between(before, Clock::now())});
    stats_.bytes += stats_.each.back().bytes;
    done_.push_back(std::move(b.work));
  }
  if (stream_wait_) {
    stream_wait_->end.record(current_stream(device));
  } else {
    stats_.wait_seconds = seconds_between(computed, Clock::now());
  }
  agree_on_use();
  for (Param& p : params_) {
    // Where nobody used it, absent stays absent, so that optimizers leave it alone.
    if (p.ready || p.used) p.tensor.set_grad(p.view);
  }
}

std::string ReducerStats::table() const {
  std::string text = "bucket  parameters       MiB   sent at ms    comm ms    wait ms\n";
  for (size_t i = 0; i < each.size(); ++i) {
    const BucketStats& b = each[i];
    char line[100];
    std::snprintf(line, sizeof line, "%6zu  %10d  %8.3f  %11.3f  %9.3f  %9.3f\n", i, b.parameters,
                  static_cast<double>(b.bytes) / kMiB, b.sent_at * 1e3, b.comm * 1e3, b.wait * 1e3);
    text += line;
  }
  return text;
}

ReducerStats Reducer::stats() const {
  ReducerStats stats = stats_;
  for (size_t i = 0; i < done_.size(); ++i) {
    stats.each[i].comm = done_[i]->seconds();
    stats.comm_seconds += stats.each[i].comm;
  }
  if (stream_wait_ && stream_wait_->end.query()) {
    stats.wait_seconds = stream_wait_->end.elapsed_ms_since(stream_wait_->begin) / 1000;
  }
  return stats;
}

}  // namespace tarn::dist
