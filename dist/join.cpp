// join.cpp - answering the collectives of ranks that still have batches.
#include "tarn/dist/join.h"

#include "tarn/core/factory.h"
#include "tarn/dist/agree.h"
#include "tarn/dist/store.h"

namespace tarn::dist {

Join::Join(DistributedDataParallel& ddp, JoinOptions options)
    : ddp_(ddp), options_(options), active_(ddp.group_.size()) {
  TARN_CHECK_AS(ValueError, !ddp.join_, "join: this ddp has one already; end it first");
  ddp_.join_ = this;
  ddp_.steps_ = 0;  // an earlier one may have ended in the middle
  ddp_.reducer_.set_before_reduce([this] { return before_backward(); });
}

Join::~Join() {
  detach();
}

void Join::detach() {
  if (ddp_.join_ != this) return;
  ddp_.join_ = nullptr;
  ddp_.reducer_.set_before_reduce(nullptr);
  ddp_.reducer_.set_root(0);
  ddp_.reducer_.set_complete(true);
  ddp_.steps_ = 0;  // ranks with fewer batches have counted fewer
}

Join::Event Join::exchange(Event mine) {
  const int W = ddp_.group_.size();
  const Tensor all = empty({W}, {.dtype = DType::kI64});
  ddp_.group_.all_gather(all, full({1}, static_cast<int64_t>(mine), {.dtype = DType::kI64}))
      ->wait();
  std::vector<int> going, finished;
  for (int r = 0; r < W; ++r) {
    (all.data<int64_t>()[r] == kFinished ? finished : going).push_back(r);
  }
  active_ = static_cast<int>(going.size());
  if (going.empty()) return kFinished;
  TARN_CHECK_AS(DistError, finished.empty() || !options_.throw_on_early_termination,
                "join: ", ranks_text(finished), " of ", W, " had fewer batches than ",
                ranks_text(going));
  root_ = going[0];
  ddp_.reducer_.set_root(root_);
  ddp_.reducer_.set_complete(complete());
  const auto event = static_cast<Event>(all.data<int64_t>()[root_]);
  for (const int r : going) {
    TARN_CHECK_AS(DistError, all.data<int64_t>()[r] == event, "join: rank ", r, " begins a ",
                  event == kForward ? "backward" : "forward", " where rank ", root_, " begins a ",
                  event == kForward ? "forward" : "backward",
                  "; all ranks must take the same steps as long as they have batches");
  }
  return event;
}

double Join::before_backward() {
  exchange(kBackward);
  if (options_.divide_by_initial_world_size) return 1;
  return static_cast<double>(ddp_.group_.size()) / active_;
}

void Join::finish() {
  for (Event event; (event = exchange(kFinished)) != kFinished;) {
    if (event == kBackward) {
      ddp_.reducer_.shadow();
    } else if (ddp_.shares_buffers()) {
      broadcast_values(ddp_.group_, ddp_.buffers_, root_);
    }
  }
  const int root = root_;
  detach();
  std::vector<Tensor> state = ddp_.module_.parameters();
  state.insert(state.end(), ddp_.buffers_.begin(), ddp_.buffers_.end());
  broadcast_values(ddp_.group_, state, root);
}

}  // namespace tarn::dist
