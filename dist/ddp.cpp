// ddp.cpp - DistributedDataParallel.
#include "tarn/dist/ddp.h"

#include "tarn/autograd/recompute.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/dist/agree.h"
#include "tarn/dist/join.h"

namespace tarn::dist {
namespace {

// Before the reducer is made: its hooks belong to parameters that agree.
nn::Module& same_everywhere(nn::Module& module, ProcessGroup& group) {
  check_same_model("ddp", module, group);
  std::vector<Tensor> all = module.parameters();
  for (const auto& [name, buffer] : module.named_buffers()) all.push_back(buffer);
  broadcast_values(group, all);
  return module;
}

// The compressed bucket on its way; waiting brings it back.
class Compressed final : public Work {
 public:
  Compressed(Tensor flat, Tensor small, WorkPtr work)
      : flat_(std::move(flat)), small_(std::move(small)), work_(std::move(work)) {}
  void wait() override {
    work_->wait();
    restore();
  }
  void wait(Millis limit) override {
    work_->wait(limit);
    restore();
  }
  bool test() override { return work_->test(); }
  double seconds() override { return work_->seconds(); }

 private:
  void restore() {
    if (small_.defined()) raw::copy_(flat_, small_);
    small_ = Tensor();
  }
  Tensor flat_, small_;
  WorkPtr work_;
};

}  // namespace

DistributedDataParallel::DistributedDataParallel(nn::Module& module, ProcessGroup& group,
                                                 DdpOptions options)
    : module_(same_everywhere(module, group)),
      group_(group),
      options_(options),
      reducer_(group, module.named_parameters(),
               {.bucket_cap_mb = options.bucket_cap_mb,
                .first_bucket_mb = options.first_bucket_mb,
                .last_bucket_mb = options.last_bucket_mb,
                .find_unused_parameters = options.find_unused_parameters,
                .static_graph = options.static_graph,
                .overlap = options.overlap}) {
  TARN_CHECK_AS(ValueError, options.check_every >= 0, "ddp: check_every must not be negative; got ",
                options.check_every);
  for (const auto& [name, buffer] : module.named_buffers()) buffers_.push_back(buffer);
  hook_ = module_.register_forward_pre_hook([this](nn::Module&, const Tensor&) {
    before_forward();
    return Tensor();
  });
}

DistributedDataParallel::~DistributedDataParallel() {
  module_.remove_hook(hook_);
}

void DistributedDataParallel::before_forward() {
  if (!module_.training() || is_recomputing()) return;
  if (join_) join_->count_forward();
  if (!reducer_.sync()) return;
  const bool due = options_.check_every > 0 && ++steps_ % options_.check_every == 0;
  if (join_ && (due || shares_buffers())) join_->before_forward();
  if (shares_buffers()) broadcast_values(group_, buffers_, join_ ? join_->root() : 0);
  // A rank that has finished is behind.
  if (due && (!join_ || join_->complete())) check_replicas();
}

void DistributedDataParallel::check_replicas() {
  check_same_values(group_, "ddp", module_.named_parameters());
}

CommHook compress_hook(DType dtype) {
  TARN_CHECK_AS(DTypeError, is_half(dtype), "compress_hook: f16 or bf16; got ", dtype);
  return [dtype](ProcessGroup& group, GradBucket& bucket) -> WorkPtr {
    const Tensor small = raw::to(bucket.flat, dtype);
    return std::make_shared<Compressed>(bucket.flat, small,
                                        group.all_reduce(small, ReduceOp::kAvg));
  };
}

}  // namespace tarn::dist
