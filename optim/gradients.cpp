// gradients.cpp - collecting gradients, their norms and their scaling in one pass each.
#include "tarn/optim/gradients.h"

#include <algorithm>
#include <cmath>

#include "tarn/core/factory.h"
#include "tarn/core/kernel_call.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn::optim::detail {

void by_device(const std::vector<Tensor>& list, const OfDevice& f) {
  std::vector<bool> done(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    if (done[i]) continue;
    std::vector<Tensor> tensors;
    std::vector<size_t> places;
    for (size_t k = i; k < list.size(); ++k) {
      if (!(list[k].device() == list[i].device())) continue;
      tensors.push_back(list[k]);
      places.push_back(k);
      done[k] = true;
    }
    f(tensors, places);
  }
}

Gradients::Gradients(const char* op, const std::vector<Tensor>& params) {
  for (size_t i = 0; i < params.size(); ++i) {
    raw::check_defined(op, "each of the parameters", params[i]);
    Tensor g = params[i].grad();
    if (!g.defined()) continue;
    if (!g.is_contiguous() && !g.is_contiguous(MemoryFormat::kChannelsLast)) {
      g = raw::contiguous(g);
      params[i].set_grad(g);  // so that scaling reaches it
    }
    list.push_back(g);
    owners.push_back(i);
  }
}

std::vector<double> Gradients::norms(double p) const {
  std::vector<double> all(list.size());
  by_device([&](const std::vector<Tensor>& tensors, const std::vector<size_t>& places) {
    const Device device = tensors[0].device();
    const auto count = static_cast<int64_t>(tensors.size());
    const Tensor out = empty({count}, {.dtype = DType::kF64, .device = device});
    TARN_KERNEL(optim, norms, device, tensors, p, out);
    const auto norms = out.to_vector<double>();
    for (size_t i = 0; i < places.size(); ++i) all[places[i]] = norms[i];
  });
  return all;
}

void Gradients::scale(double factor) const {
  by_device([&](const std::vector<Tensor>& tensors, const std::vector<size_t>&) {
    TARN_KERNEL(optim, scale, tensors[0].device(), tensors, factor);
  });
  changed();
}

void Gradients::changed() const {
  for (const Tensor& g : list) g.bump_version();
}

double total_norm(const std::vector<double>& norms, double norm_type) {
  double largest = 0, sum = 0;
  for (double n : norms) {
    if (std::isnan(n)) return n;
    largest = std::max(largest, n);
    sum += n;
  }
  if (norm_type == 1) return sum;
  if (std::isinf(norm_type) || largest == 0 || std::isinf(largest)) return largest;
  sum = 0;
  for (double n : norms) sum += (n / largest) * (n / largest);
  return largest * std::sqrt(sum);
}

}  // namespace tarn::optim::detail
