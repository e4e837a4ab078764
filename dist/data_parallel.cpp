// data_parallel.cpp - one process, one replica per device.
#include "tarn/dist/data_parallel.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <thread>

#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/autograd/thread_modes.h"
#include "tarn/core/backend.h"
#include "tarn/core/random.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn::dist {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<Tensor> values_of(const TensorDict& dict) {
  std::vector<Tensor> values;
  for (const auto& [name, tensor] : dict) values.push_back(tensor);
  return values;
}

void check_alike(const TensorDict& master, const TensorDict& replica) {
  TARN_CHECK_AS(ValueError, master.size() == replica.size(), "DataParallel: a replica has ",
                replica.size(), " tensors, the module ", master.size(),
                "; make_replica must build the same model");
  auto other = replica.begin();
  for (const auto& [name, tensor] : master) {
    TARN_CHECK_AS(ValueError,
                  other->first == name && other->second.sizes() == tensor.sizes() &&
                      other->second.dtype() == tensor.dtype(),
                  "DataParallel: a replica has ", other->first, " ", other->second.describe(),
                  " where the module has ", name, " ", tensor.describe(),
                  "; make_replica must build the same model");
    ++other;
  }
}

}  // namespace

DataParallel::DataParallel(nn::Module& module, std::vector<Device> devices,
                           const Factory& make_replica, std::vector<double> shares,
                           int64_t rebalance_every)
    : module_(module), shares_(std::move(shares)) {
  TARN_CHECK_AS(ValueError, !devices.empty(), "DataParallel: needs at least one device");
  TARN_CHECK_AS(ValueError, shares_.empty() || shares_.size() == devices.size(),
                "DataParallel: one share per device; got ", shares_.size(), " for ",
                devices.size());
  for (double share : shares_) {
    TARN_CHECK_AS(ValueError, share >= 0 && std::isfinite(share),
                  "DataParallel: shares must not be negative; got ", share);
  }
  TARN_CHECK_AS(ValueError, rebalance_every >= 0,
                "DataParallel: rebalance_every must not be negative; got ", rebalance_every);
  if (rebalance_every > 0) {
    balancer_.emplace(static_cast<int64_t>(devices.size()), rebalance_every, shares_);
  }
  replicas_.resize(devices.size());
  const PhiloxState random = default_generator().state();
  for (size_t i = 0; i < devices.size(); ++i) {
    Replica& r = replicas_[i];
    r.device = devices[i];
    if (i > 0) r.own = make_replica();
    r.module = i > 0 ? r.own.get() : &module;
    if (i > 0) {
      check_alike(module.named_parameters(), r.module->named_parameters());
      check_alike(module.named_buffers(), r.module->named_buffers());
      r.module->to(r.device);
    }
    r.params = values_of(r.module->named_parameters());
    r.buffers = values_of(r.module->named_buffers());
    r.copied.resize(r.params.size() + r.buffers.size());
    for (Tensor& p : r.params) {
      if (i == 0) break;
      p.set_requires_grad();  // hooks stay, also where it is frozen for a while
      // A graph may keep the replica's parameters for longer than this object lives.
      p.register_post_accumulate_grad_hook(
          [this, alive = std::weak_ptr<const bool>(alive_)](const Tensor&) {
            if (!alive.expired()) gradient_arrived();
          });
    }
    for (const Tensor& p : r.params) {
      TARN_CHECK_AS(DeviceError, p.device() == r.device,
                    "DataParallel: the module must be on the first device, ", r.device,
                    "; a parameter is on ", p.device());
    }
  }
  default_generator().set_state(random);
}

std::vector<int64_t> DataParallel::cut(int64_t rows, int64_t devices,
                                       const std::vector<double>& shares) {
  if (!shares.empty()) return cut_by_share(rows, shares);
  std::vector<int64_t> counts;
  int64_t given = 0;
  for (int64_t d = 0; d < devices; ++d) {
    const int64_t end = std::min(rows, (d + 1) * ((rows + devices - 1) / devices));
    counts.push_back(end - given);
    given = end;
  }
  return counts;
}

// Only if one of the two was written to: an earlier forward may wait for its backward, which needs
// the replica's values as they were.
void DataParallel::refresh(const Tensor& to, const Tensor& from, Versions& last) {
  if (last.storage == from.storage() && last.master == from.version() &&
      last.replica == to.version()) {
    return;
  }
  raw::copy_(to, from);
  last = {.storage = from.storage(), .master = from.version(), .replica = to.version()};
}

// What changed in the master since: values, frozen or not, training or not.
void DataParallel::copy_values() {
  const auto start = Clock::now();
  for (size_t r = 1; r < replicas_.size(); ++r) {
    Replica& replica = replicas_[r];
    // Each part's own mode: a frozen batch norm may be in eval() alone.
    const auto masters = module_.named_modules(), copies = replica.module->named_modules();
    for (size_t i = 0; i < std::min(masters.size(), copies.size()); ++i) {
      copies[i].second->set_training(masters[i].second->training());
    }
    for (size_t i = 0; i < replica.params.size(); ++i) {
      const Tensor& from = replicas_[0].params[i];
      refresh(replica.params[i], from, replica.copied[i]);
      if (pass_.expired()) replica.params[i].zero_grad();  // of a backward that threw
      if (replica.params[i].requires_grad() != from.requires_grad()) {
        replica.params[i].set_requires_grad(from.requires_grad());
      }
    }
    for (size_t i = 0; i < replica.buffers.size(); ++i) {
      refresh(replica.buffers[i], replicas_[0].buffers[i],
              replica.copied[replica.params.size() + i]);
    }
  }
  copy_seconds_ = seconds_since(start);
}

void DataParallel::gradient_arrived() {
  if (!pass_.expired()) return;
  const auto pass = std::make_shared<int>(0);
  on_backward_end([this, pass] { add_gradients(); });
  pass_ = pass;
}

// Into the master's, in the order of devices.
void DataParallel::add_gradients() {
  const auto start = Clock::now();
  for (size_t r = 1; r < replicas_.size(); ++r) {
    for (size_t i = 0; i < replicas_[r].params.size(); ++i) {
      Tensor& from = replicas_[r].params[i];
      Tensor& to = replicas_[0].params[i];
      if (!from.grad().defined()) continue;
      const Tensor grad = raw::to(from.grad(), to.device());
      from.zero_grad();
      if (to.grad().defined()) {
        raw::add_(to.grad(), grad);
      } else {
        to.set_grad(grad);
      }
    }
  }
  copy_seconds_ += seconds_since(start);
}

std::vector<int64_t> DataParallel::share_out(int64_t rows) const {
  return balancer_ ? balancer_->cut(rows)
                   : cut(rows, static_cast<int64_t>(replicas_.size()), shares_);
}

// Every replica that has rows, in a thread of its own; the master's is this one.
void DataParallel::run_replicas(const Call& call, const std::vector<std::vector<Tensor>>& parts,
                                std::vector<Tensor>& results) {
  std::vector<std::exception_ptr> errors(replicas_.size());
  std::vector<double> seconds(replicas_.size());
  const bool recording = grad_enabled();
  const auto run = [&](size_t r) {
    try {
      const auto start = Clock::now();
      results[r] = call(*replicas_[r].module, parts[r]);
      if (balancer_) synchronize(replicas_[r].device);
      seconds[r] = seconds_since(start);
    } catch (...) {
      errors[r] = std::current_exception();
    }
  };
  const ThreadModes modes = thread_modes();
  const auto run_there = [&](size_t r, Stream stream) {
    const ThreadModesGuard guard(modes);
    const StreamGuard current(stream);
    run(r);
  };
  std::vector<std::jthread> threads;
  for (size_t r = 1; r < replicas_.size(); ++r) {
    if (rows_[r] > 0) threads.emplace_back(run_there, r, current_stream(replicas_[r].device));
  }
  if (rows_[0] > 0) run(0);
  threads.clear();  // joins
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  if (balancer_ && recording) balancer_->add(rows_, seconds);
}

// What each replica returns; undefined for those without rows.
std::vector<Tensor> DataParallel::run(const Call& call, const std::vector<Tensor>& inputs) {
  TARN_CHECK_AS(ValueError, !inputs.empty(), "DataParallel: needs at least one input");
  for (const Tensor& x : inputs) {
    TARN_CHECK_AS(ShapeError, x.dim() > 0 && x.size(0) == inputs[0].size(0),
                  "DataParallel: inputs must have rows to share, and equally many; got ",
                  inputs[0].describe(), " and ", x.describe());
  }
  copy_seconds_ = 0;
  rows_ = share_out(inputs[0].size(0));
  std::vector<Tensor> results(replicas_.size());
  std::vector<std::vector<Tensor>> parts(replicas_.size());
  if (std::count(rows_.begin() + 1, rows_.end(), 0) == static_cast<int64_t>(rows_.size()) - 1) {
    for (const Tensor& x : inputs) parts[0].push_back(x.to(replicas_[0].device));
    results[0] = call(*replicas_[0].module, parts[0]);
    return results;
  }
  copy_values();
  int64_t begin = 0;
  for (size_t r = 0; r < replicas_.size(); ++r) {
    for (const Tensor& x : inputs) {
      if (rows_[r] == 0) break;
      parts[r].push_back(x.narrow(0, begin, rows_[r]).to(replicas_[r].device));
    }
    begin += rows_[r];
  }
  run_replicas(call, parts, results);
  return results;
}

Tensor DataParallel::operator()(const Tensor& x) {
  return apply([](nn::Module& replica, std::span<const Tensor> parts) { return replica(parts[0]); },
               {x});
}

Tensor DataParallel::apply(const Call& call, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> joined;
  for (const Tensor& y : run(call, inputs)) {
    if (!y.defined()) continue;
    const Tensor here = y.to(replicas_[0].device);
    joined.push_back(here.dim() == 0 ? here.reshape({1}) : here);
  }
  return joined.size() == 1 ? joined[0] : cat(joined, 0);
}

Tensor DataParallel::mean_of(const Call& call, const std::vector<Tensor>& inputs) {
  const std::vector<Tensor> means = run(call, inputs);
  const auto all = static_cast<double>(inputs[0].size(0));
  Tensor mean;
  for (size_t r = 0; r < means.size(); ++r) {
    if (!means[r].defined()) continue;
    TARN_CHECK_AS(ShapeError, means[r].dim() == 0,
                  "DataParallel: mean_of needs a call that returns a scalar; got ",
                  means[r].describe());
    const auto rows = static_cast<double>(rows_[r]);
    const Tensor here = means[r].to(replicas_[0].device);
    const Tensor part = rows == all ? here : here * (rows / all);
    mean = mean.defined() ? mean + part : part;
  }
  return mean;
}

}  // namespace tarn::dist
