// join.cpp - answering the collectives of ranks that still have batches.
#include "tarn/dist/join.h"

#include <algorithm>
#include <numeric>

#include "tarn/core/factory.h"
#include "tarn/dist/agree.h"
#include "tarn/dist/store.h"

namespace tarn::dist {

Join::Join(DistributedDataParallel& ddp, JoinOptions options)
    : ddp_(ddp), options_(options), going_(static_cast<size_t>(ddp.group_.size())) {
  std::iota(going_.begin(), going_.end(), 0);
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

std::vector<int64_t> Join::gather(int64_t mine) {
  const int W = ddp_.group_.size();
  const Tensor all = empty({W}, {.dtype = DType::kI64});
  ddp_.group_.all_gather(all, full({1}, mine, {.dtype = DType::kI64}))->wait();
  return {all.data<int64_t>(), all.data<int64_t>() + W};
}

Join::Event Join::exchange(Event mine) {
  const std::vector<int64_t> events = gather(mine);
  const int W = static_cast<int>(events.size());
  const auto event_of = [&](int r) { return static_cast<Event>(events[static_cast<size_t>(r)]); };
  std::vector<int> going, finished;
  for (int r = 0; r < W; ++r) (event_of(r) == kFinished ? finished : going).push_back(r);
  if (going.empty()) return kFinished;
  TARN_CHECK_AS(DistError, finished.empty() || !options_.throw_on_early_termination,
                "join: ", ranks_text(finished), " of ", W, " had fewer batches than ",
                ranks_text(going));
  going_ = going;
  ddp_.reducer_.set_root(root());
  ddp_.reducer_.set_complete(complete());
  const Event event = event_of(root());
  for (const int r : going) {
    TARN_CHECK_AS(DistError, event_of(r) == event, "join: rank ", r, " begins a ",
                  event == kForward ? "backward" : "forward", " where rank ", root(), " begins a ",
                  event == kForward ? "forward" : "backward",
                  "; all ranks must take the same steps as long as they have batches");
  }
  return event;
}

double Join::before_backward() {
  exchange(kBackward);
  if (options_.divide_by_initial_world_size) return 1;
  return static_cast<double>(ddp_.group_.size()) / static_cast<double>(going_.size());
}

// A rank that others took for equal at the last exchange may have gone on under no_sync(), which
// tells nobody. Of the same number of forwards, the first.
int Join::last_rank() {
  const std::vector<int64_t> forwards = gather(forwards_);
  return *std::max_element(going_.begin(), going_.end(), [&](int a, int b) {
    return forwards[static_cast<size_t>(a)] < forwards[static_cast<size_t>(b)];
  });
}

void Join::finish() {
  for (Event event; (event = exchange(kFinished)) != kFinished;) {
    if (event == kBackward) {
      ddp_.reducer_.shadow();
    } else if (ddp_.shares_buffers()) {
      broadcast_values(ddp_.group_, ddp_.buffers_, root());
    }
  }
  const int root = last_rank();
  detach();
  std::vector<Tensor> state = ddp_.module_.parameters();
  state.insert(state.end(), ddp_.buffers_.begin(), ddp_.buffers_.end());
  broadcast_values(ddp_.group_, state, root);
}

}  // namespace tarn::dist
