// gradients.cpp - collecting gradients, their norms and their scaling in one pass each.
#include "tarn/optim/gradients.h"

#include <algorithm>
#include <cmath>

#include "tarn/core/factory.h"
#include "tarn/core/kernels.h"
#include "tarn/core/profiler.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn::optim::detail {

Gradients::Gradients(const char* op, const std::vector<Tensor>& params) {
  for (size_t i = 0; i < params.size(); ++i) {
    raw::check_defined(op, "each of the parameters", params[i]);
    Tensor g = params[i].grad();
    if (!g.defined()) continue;
    if (!g.is_contiguous() && !g.is_contiguous(MemoryFormat::kChannelsLast)) {
      g = raw::contiguous(g);
      Tensor(params[i]).set_grad(g);  // so that scaling reaches it
    }
    if (!list.empty()) raw::check_same_device(op, list[0], g);
    list.push_back(g);
    owners.push_back(i);
  }
}

std::vector<double> Gradients::norms(double p) const {
  if (list.empty()) return {};
  const Device device = list[0].device();
  const auto count = static_cast<int64_t>(list.size());
  const Tensor out = empty({count}, {.dtype = DType::kF64, .device = device});
  TARN_KERNEL(optim, norms, device, list, p, out);
  return out.to_vector<double>();
}

void Gradients::scale(double factor) const {
  if (list.empty()) return;
  TARN_KERNEL(optim, scale, list[0].device(), list, factor);
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
