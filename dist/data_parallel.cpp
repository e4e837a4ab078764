// data_parallel.cpp - one process, one replica per device.
#include "tarn/dist/data_parallel.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <thread>

#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn::dist {
namespace {

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
                           const Factory& make_replica, std::vector<double> shares)
    : module_(module), shares_(std::move(shares)) {
  TARN_CHECK_AS(ValueError, !devices.empty(), "DataParallel: needs at least one device");
  TARN_CHECK_AS(ValueError, shares_.empty() || shares_.size() == devices.size(),
                "DataParallel: one share per device; got ", shares_.size(), " for ",
                devices.size());
  for (double share : shares_) {
    TARN_CHECK_AS(ValueError, share >= 0 && std::isfinite(share),
                  "DataParallel: shares must not be negative; got ", share);
  }
  replicas_.resize(devices.size());
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
    for (Tensor& p : r.params) {
      if (i == 0) break;
      p.set_requires_grad();  // hooks stay, also where it is frozen for a while
      p.register_post_accumulate_grad_hook([this](const Tensor&) { gradient_arrived(); });
    }
    for (const Tensor& p : r.params) {
      TARN_CHECK_AS(DeviceError, p.device() == r.device,
                    "DataParallel: the module must be on the first device, ", r.device,
                    "; a parameter is on ", p.device());
    }
  }
}

std::vector<int64_t> DataParallel::cut(int64_t rows, int64_t devices,
                                       const std::vector<double>& shares) {
  std::vector<int64_t> counts;
  double total = 0, passed = 0;
  for (double share : shares) total += share;
  int64_t given = 0;
  for (int64_t d = 0; d < devices; ++d) {
    int64_t end;
    if (total > 0) {
      passed += shares[static_cast<size_t>(d)];
      end = d + 1 == devices ? rows : std::llround(static_cast<double>(rows) * passed / total);
    } else {
      end = std::min(rows, (d + 1) * ((rows + devices - 1) / devices));
    }
    counts.push_back(end - given);
    given = end;
  }
  return counts;
}

// What changed in the master since: values, frozen or not, training or not.
void DataParallel::copy_values() {
  for (size_t r = 1; r < replicas_.size(); ++r) {
    Replica& replica = replicas_[r];
    replica.module->train(module_.training());
    for (size_t i = 0; i < replica.params.size(); ++i) {
      const Tensor& from = replicas_[0].params[i];
      raw::copy_(replica.params[i], from);
      if (replica.params[i].requires_grad() != from.requires_grad()) {
        replica.params[i].set_requires_grad(from.requires_grad());
      }
    }
    for (size_t i = 0; i < replica.buffers.size(); ++i) {
      raw::copy_(replica.buffers[i], replicas_[0].buffers[i]);
    }
  }
}

void DataParallel::gradient_arrived() {
  if (asked_) return;
  asked_ = true;
  on_backward_end([this] { add_gradients(); });
}

// Into the master's, in the order of devices.
void DataParallel::add_gradients() {
  asked_ = false;
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
}

Tensor DataParallel::operator()(const Tensor& x) {
  TARN_CHECK_AS(ShapeError, x.dim() > 0, "DataParallel: x must have rows to share; got ",
                x.describe());
  const auto rows = cut(x.size(0), static_cast<int64_t>(replicas_.size()), shares_);
  if (std::count(rows.begin() + 1, rows.end(), 0) == static_cast<int64_t>(rows.size()) - 1) {
    return (*replicas_[0].module)(x.to(replicas_[0].device));
  }
  copy_values();
  std::vector<Tensor> parts, results(replicas_.size());
  int64_t begin = 0;
  for (size_t r = 0; r < replicas_.size(); ++r) {
    parts.push_back(rows[r] > 0 ? x.narrow(0, begin, rows[r]).to(replicas_[r].device) : Tensor());
    begin += rows[r];
  }
  std::vector<std::exception_ptr> errors(replicas_.size());
  const bool recording = grad_enabled();
  const auto run = [&](size_t r) {
    try {
      const GradModeGuard guard(recording);
      results[r] = (*replicas_[r].module)(parts[r]);
    } catch (...) {
      errors[r] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (size_t r = 1; r < replicas_.size(); ++r) {
    if (rows[r] > 0) threads.emplace_back(run, r);
  }
  if (rows[0] > 0) run(0);
  for (std::thread& t : threads) t.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  std::vector<Tensor> joined;
  for (const Tensor& y : results) {
    if (y.defined()) joined.push_back(y.to(replicas_[0].device));
  }
  return cat(joined, 0);
}

}  // namespace tarn::dist
