// run_checkpoints.cpp - saving and resuming, alone and on several ranks.
#include "tarn/apps/common/run_checkpoints.h"

#include <cmath>
#include <cstdio>
#include <sstream>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"

namespace tarn::apps {
namespace {

constexpr const char* kGenerator = "default";  // the main rank's

std::string generator_of(int rank) {
  return rank == 0 ? kGenerator : std::string(kGenerator) + "-rank-" + std::to_string(rank);
}

// With dropout ranks draw apart, and with --rebalance not equally much.
void add_generators(Checkpoint& c, const Ranks& ranks) {
  const PhiloxState own = c.generator(kGenerator);
  const auto all = ranks.from_all(std::to_string(own.seed) + " " + std::to_string(own.offset));
  for (int rank = 0; rank < ranks.size(); ++rank) {
    PhiloxState& state = c.generators[generator_of(rank)];
    std::istringstream(all[static_cast<size_t>(rank)]) >> state.seed >> state.offset;
  }
}

// An optimizer's saved state with the options it has now. Flags that are not given are those of the
// run, so these differ only where the user asked for others.
TensorDict with_own_options(const optim::Optimizer& optimizer, const TensorDict& saved) {
  const TensorDict own = optimizer.state_dict();
  TensorDict merged;
  for (const auto& [name, tensor] : saved) {
    const bool option = name.starts_with("param_groups.") && !name.ends_with(".params");
    const Tensor* now = option ? own.find(name) : nullptr;
    merged.add(name, now ? *now : tensor);
  }
  return merged;
}

// A run that kept no mean has one from here on.
void start_mean(optim::Ema& ema, const TensorDict& model) {
  TensorDict fresh;
  for (const auto& [name, tensor] : ema.state_dict()) {
    const Tensor* weight = model.find(name);
    fresh.add(name, weight ? *weight : tensor);
  }
  ema.load_state_dict(fresh);
}

// Whether the sum of every parameter is finite, which it is not if one element is not. The device
// is asked once, for the sum of all. Buffers, momenta and the running mean are not looked at:
// parameters are the same on all ranks, so all of these fail, or none.
void check_finite(nn::Module& net, int64_t step) {
  const NoGradGuard no_grad;
  Tensor total;
  for (const auto& [name, p] : net.named_parameters()) {
    total = total.defined() ? total + sum(p).to(total.device()) : sum(p);
  }
  if (!total.defined() || std::isfinite(total.item())) return;
  for (const auto& [name, p] : net.named_parameters()) {
    TARN_CHECK(std::isfinite(sum(p).item()), "training: the weights ", name,
               " are not finite after step ", step,
               ", so they are not saved and the newest checkpoint stays; try a lower --lr");
  }
}

std::string folder_of_run(const std::string& run) {
  return run + "/checkpoints";
}

Checkpoint load_newest_whole(const std::string& run, const std::vector<std::string>& only) {
  CheckpointManager manager(folder_of_run(run));
  std::vector<std::string> damaged;
  auto c = manager.load_newest([&](const std::string& what) { damaged.push_back(what); }, only);
  TARN_CHECK_AS(FileError, c, "resume: no checkpoint in ", manager.folder(),
                "; a run has one once it has begun to train");
  for (const std::string& what : damaged) {
    std::fprintf(stderr, "warning: %s; taking that of step %lld instead\n", what.c_str(),
                 static_cast<long long>(c->step));
  }
  return std::move(*c);
}

}  // namespace

void declare_checkpoint_flags(Options& options, CheckpointSettings& s) {
  options.add("--keep-last", &s.keep_last, "checkpoints kept, besides the best").at_least(1);
  options.add("--save-interval", &s.save_interval, "steps between further checkpoints; 0: none")
      .at_least(0);
  options.add("--async-save", &s.async_save,
              "copy the state (memory for one checkpoint) and write it while training goes on");
}

void store(Checkpoint& c, const Trained& t) {
  ModelSharing alone(t.net);
  ModelSharing& sharing = t.sharing ? *t.sharing : alone;
  const ModelSharing::Guard whole = sharing.whole();
  check_finite(t.net, c.step);
  c.tensors["model"] = sharing.model_state();
  c.tensors["optim"] = sharing.optimizer_state(t.optimizer);
  c.tensors["scaler"] = t.scaler.state_dict();
  if (t.ema) c.tensors["ema"] = t.ema->state_dict();
  c.generators[kGenerator] = default_generator().state();
}

void restore(const Checkpoint& c, const Trained& t, const Ranks& ranks) {
  ModelSharing alone(t.net);
  ModelSharing& sharing = t.sharing ? *t.sharing : alone;
  {
    const ModelSharing::Guard whole = sharing.whole();
    t.net.load_state_dict(c.dict("model"));
  }
  sharing.load_optimizer_state(t.optimizer, with_own_options(t.optimizer, c.dict("optim")));
  if (t.scaler.enabled() && !c.dict("scaler").empty()) t.scaler.load_state_dict(c.dict("scaler"));
  if (t.ema) {
    c.dict("ema").empty() ? start_mean(*t.ema, c.dict("model"))
                          : t.ema->load_state_dict(c.dict("ema"));
  }
  const auto own = c.generators.find(generator_of(ranks.rank()));
  default_generator().set_state(own != c.generators.end() ? own->second
                                                          : ranks.apart(c.generator(kGenerator)));
}

RunCheckpoints::RunCheckpoints(const std::string& run, const CheckpointSettings& settings,
                               const Ranks& ranks)
    : settings_(settings),
      ranks_(ranks),
      manager_(folder_of_run(run), {.keep_last = settings.keep_last}) {}

bool RunCheckpoints::due(int64_t step) const {
  return settings_.save_interval > 0 && step % settings_.save_interval == 0;
}

void RunCheckpoints::save(Checkpoint c) {
  if (ranks_.group()) add_generators(c, ranks_);
  // The one before it may still be on its way to the disk: all ranks wait for that.
  if (ranks_.group()) settle(true, nullptr);
  std::exception_ptr error;
  const bool background = settings_.async_save || ranks_.group();
  if (ranks_.main()) {
    try {
      background ? manager_.save_async(c) : manager_.save(c);
    } catch (...) {
      error = std::current_exception();
    }
  }
  settle(!settings_.async_save, error);
}

// Tells all ranks whether the main one has failed; with `wait`, once all is on disk. Ranks give up
// on one that is late to a collective, and a big checkpoint takes its time: they meet until it is
// written.
void RunCheckpoints::settle(bool wait, std::exception_ptr error) {
  constexpr double kSeconds = 0.2;  // far below any --dist-timeout
  for (bool busy = true; busy;) {
    busy = false;
    if (wait && ranks_.main() && !error) {
      try {
        busy = !manager_.wait_for(kSeconds);
      } catch (...) {
        error = std::current_exception();
      }
    }
    const auto sums = ranks_.sum({busy ? 1.0 : 0.0, error ? 1.0 : 0.0});
    if (error) std::rethrow_exception(error);
    TARN_CHECK(sums[1] == 0, "checkpoint: rank 0 could not save; it says why");
    busy = sums[0] > 0;
  }
}

bool RunCheckpoints::save_alone(const Checkpoint& c) {
  if (ranks_.main()) manager_.save(c);
  return ranks_.main();
}

void RunCheckpoints::check() {
  manager_.idle();
}

void RunCheckpoints::finish() {
  settle(true, nullptr);
}

void RunCheckpoints::resumed(int64_t step) {
  if (!ranks_.main()) return;
  manager_.distrust_after(step);
  manager_.relink();
}

Checkpoint load_newest_checkpoint(const std::string& run, const Ranks& ranks,
                                  const std::vector<std::string>& only) {
  std::optional<Checkpoint> c;
  std::exception_ptr error;
  if (ranks.main()) {
    try {
      c = load_newest_whole(run, only);
    } catch (...) {
      error = std::current_exception();
    }
  }
  const std::string step = ranks.from_main(c ? std::to_string(c->step) : "");
  if (error) std::rethrow_exception(error);
  TARN_CHECK(!step.empty(), "resume: rank 0 could not read the checkpoint; it says why");
  return c ? std::move(*c) : CheckpointManager(folder_of_run(run)).load(std::stoll(step), only);
}

Checkpoint load_best_checkpoint(const std::string& run, const std::vector<std::string>& only) {
  return CheckpointManager(folder_of_run(run)).load_best(only);
}

}  // namespace tarn::apps
