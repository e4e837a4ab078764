// hooks.cpp - lossy averages of gradients with error feedback.
#include "tarn/dist/hooks.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>

#include "tarn/autograd/anomaly.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_matmul.h"
#include "tarn/core/views.h"

namespace tarn::dist {
namespace {

// Messages that `finish` turns into the bucket's average, in the thread that waits.
class Finishing final : public Work {
 public:
  Finishing(std::vector<WorkPtr> works, std::function<void()> finish)
      : works_(std::move(works)), finish_(std::move(finish)) {}
  void wait() override {
    for (const WorkPtr& w : works_) w->wait();
    done();
  }
  void wait(Millis limit) override {
    for (const WorkPtr& w : works_) w->wait(limit);
    done();
  }
  bool test() override {
    return std::all_of(works_.begin(), works_.end(), [](const WorkPtr& w) { return w->test(); });
  }
  double seconds() override {
    double sum = 0;
    for (const WorkPtr& w : works_) sum += w->seconds();
    return sum;
  }

 private:
  void done() {
    if (finish_) std::exchange(finish_, nullptr)();
  }
  std::vector<WorkPtr> works_;
  std::function<void()> finish_;
};

// What a hook keeps for one bucket.
struct Memory {
  std::vector<const TensorImpl*> params;
  Tensor error;           // [n]: what was left out so far
  std::vector<Tensor> q;  // PowerSGD's guess per matrix
};

// The reducer forms its buckets anew after the first backward: what was left out stays with its
// parameter.
struct Memories {
  std::map<int, Memory> of_bucket;
  std::map<const TensorImpl*, Tensor> errors;  // views of the buckets' errors
};

Memory& memory_of(Memories& memories, const GradBucket& bucket, const char* hook, Device device) {
  TARN_CHECK_AS(DTypeError, bucket.flat.dtype() == DType::kF32, hook,
                ": gradients must be f32; got ", bucket.flat.dtype());
  std::vector<const TensorImpl*> params;
  for (const Tensor& p : bucket.params) params.push_back(p.impl().get());
  Memory& memory = memories.of_bucket[bucket.index];
  if (memory.params == params) return memory;
  memory = {std::move(params), zeros({bucket.flat.numel()}, {.device = device}), {}};
  int64_t offset = 0;
  for (const TensorImpl* param : memory.params) {
    const Tensor error = raw::narrow(memory.error, 0, offset, param->numel);
    Tensor& known = memories.errors[param];
    if (known.defined()) raw::copy_(error, known);
    known = error;
    offset += error.numel();
  }
  return memory;
}

// What is not finite is as large as can be, so that the numbers have an order.
float size_of(float x) {
  return std::isfinite(x) ? std::abs(x) : std::numeric_limits<float>::infinity();
}

// The k indices with the largest |x|, ascending; of equals the first.
std::vector<int64_t> largest(const float* x, int64_t n, int64_t k) {
  std::vector<int64_t> index(static_cast<size_t>(n));
  std::iota(index.begin(), index.end(), int64_t{0});
  std::nth_element(index.begin(), index.begin() + (k - 1), index.end(), [x](int64_t a, int64_t b) {
    const float u = size_of(x[a]), v = size_of(x[b]);
    return u != v ? u > v : a < b;
  });
  index.resize(static_cast<size_t>(k));
  std::sort(index.begin(), index.end());
  return index;
}

WorkPtr send_largest(ProcessGroup& group, const GradBucket& bucket, Memory& memory, double share) {
  const int64_t n = bucket.flat.numel(), W = group.size();
  const int64_t k = std::clamp<int64_t>(static_cast<int64_t>(share * static_cast<double>(n)), 1, n);
  raw::add_(memory.error, raw::to(bucket.flat, kCPU));
  float* left = memory.error.data<float>();
  const std::vector<int64_t> chosen = largest(left, n, k);
  const Tensor index = from_vector(chosen, {k}), value = empty({k});
  for (int64_t i = 0; i < k; ++i) {
    float& from = left[chosen[static_cast<size_t>(i)]];
    value.data<float>()[i] = std::exchange(from, 0.f);
  }
  // An overflow is told once; kept, it would come back in every later step.
  std::replace_if(
      left, left + n, [](float v) { return !std::isfinite(v); }, 0.f);
  const Tensor indices = empty({W, k}, {.dtype = DType::kI64}), values = empty({W, k});
  std::vector<WorkPtr> works = {group.all_gather(indices, index), group.all_gather(values, value)};
  const auto finish = [flat = bucket.flat, indices, values, W, k] {
    const Tensor sum = zeros(flat.sizes());
    float* to = sum.data<float>();
    const int64_t* at = indices.data<int64_t>();
    const float* from = values.data<float>();
    for (int64_t i = 0; i < W * k; ++i) to[at[i]] += from[i];  // in the order of ranks
    raw::mul_(sum, 1.0 / static_cast<double>(W));
    raw::copy_(flat, sum);
  };
  return std::make_shared<Finishing>(std::move(works), finish);
}

// Columns made orthonormal (Gram-Schmidt, twice for accuracy); a column without a rest becomes
// zero.
void orthonormalise(const Tensor& target) {
  const Tensor p = raw::to(target, kCPU);
  const int64_t n = p.size(0), r = p.size(1);
  float* x = p.data<float>();
  for (int64_t c = 0; c < r; ++c) {
    const auto dot = [&](int64_t a, int64_t b) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i * r + a]) * x[i * r + b];
      return sum;
    };
    const double before = std::sqrt(dot(c, c));
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t b = 0; b < c; ++b) {
        const double d = dot(c, b);
        for (int64_t i = 0; i < n; ++i) x[i * r + c] -= static_cast<float>(d) * x[i * r + b];
      }
    }
    const double norm = std::sqrt(dot(c, c));
    const bool rest = norm > 1e-6 * before && norm > 0;
    for (int64_t i = 0; i < n; ++i)
      x[i * r + c] = rest ? static_cast<float>(x[i * r + c] / norm) : 0;
  }
  if (!p.is_same(target)) raw::copy_(target, p);
}

// One bucket on its way through PowerSGD.
struct PowerStep {
  struct Matrix {
    Tensor m, p, q;  // [n, m] view of the bucket, [n, r], [m, r]
    Tensor error;    // [n, m] view of the memory
  };
  std::vector<Matrix> matrices;
  std::vector<Tensor> plain;  // views of the bucket that are averaged as they are

  PowerStep(const GradBucket& bucket, Memory& memory, const PowerSgdOptions& o) {
    int64_t offset = 0;
    size_t number = 0;
    for (const Tensor& param : bucket.params) {
      const int64_t count = param.numel();
      const int64_t n = param.dim() > 1 ? param.size(0) : 1, m = n > 0 ? count / n : 0;
      const Tensor grad = raw::narrow(bucket.flat, 0, offset, count);
      if (param.dim() > 1 && o.rank * (n + m) < n * m) {
        const Tensor error = raw::view(raw::narrow(memory.error, 0, offset, count), {n, m});
        if (memory.q.size() == number) {
          memory.q.push_back(guess(m, o, bucket.index, number, grad.device()));
        }
        matrices.push_back({raw::view(grad, {n, m}), {}, memory.q[number++], error});
      } else {
        plain.push_back(grad);
      }
      offset += count;
    }
  }

  // The same on all ranks.
  static Tensor guess(int64_t m, const PowerSgdOptions& o, int bucket, size_t number,
                      Device device) {
    std::mt19937_64 random(o.seed + static_cast<uint64_t>(bucket) * 1000003u + number);
    Tensor q = empty({m, o.rank});
    for (int64_t i = 0; i < q.numel(); ++i) {
      q.data<float>()[i] = static_cast<float>(random() >> 40) / 8388608.f - 1;
    }
    return raw::to(q, device);
  }

  std::vector<WorkPtr> send_p(ProcessGroup& group) {
    std::vector<Tensor> message = plain;
    for (Matrix& x : matrices) {
      raw::add_(x.m, x.error);
      x.p = raw::matmul(x.m, x.q);
      message.push_back(x.p);
    }
    return {group.all_reduce(message, ReduceOp::kAvg)};
  }

  void finish(ProcessGroup& group) {
    // An overflow of any rank is in the average of P on all. They pass it on, and remember nothing
    // of it: neither error nor guess would recover.
    std::erase_if(matrices, [](const Matrix& x) {
      if (first_nonfinite(x.p) < 0) return false;
      raw::fill_(x.m, std::numeric_limits<double>::quiet_NaN());
      raw::fill_(x.error, 0);
      return true;
    });
    if (matrices.empty()) return;
    std::vector<Tensor> message;
    for (Matrix& x : matrices) {
      orthonormalise(x.p);
      raw::copy_(x.q, raw::matmul(raw::t(x.m), x.p));
      message.push_back(x.q);
    }
    group.all_reduce(message, ReduceOp::kAvg)->wait();
    for (Matrix& x : matrices) {
      const Tensor approximation = raw::matmul(x.p, raw::t(x.q));
      raw::copy_(x.error, raw::sub(x.m, approximation));
      raw::copy_(x.m, approximation);
    }
  }
};

}  // namespace

CommHook top_k_hook(double share) {
  TARN_CHECK_AS(ValueError, share > 0 && share <= 1,
                "top_k_hook: the share must be in (0, 1]; got ", share);
  const auto memories = std::make_shared<Memories>();
  return [memories, share](ProcessGroup& group, GradBucket& bucket) {
    return send_largest(group, bucket, memory_of(*memories, bucket, "top_k_hook", kCPU), share);
  };
}

CommHook powersgd_hook(const PowerSgdOptions& options) {
  TARN_CHECK_AS(ValueError, options.rank > 0, "powersgd_hook: the rank must be at least 1; got ",
                options.rank);
  const auto memories = std::make_shared<Memories>();
  return [memories, options](ProcessGroup& group, GradBucket& bucket) -> WorkPtr {
    Memory& memory = memory_of(*memories, bucket, "powersgd_hook", bucket.flat.device());
    const auto step = std::make_shared<PowerStep>(bucket, memory, options);
    return std::make_shared<Finishing>(step->send_p(group),
                                       [step, &group] { step->finish(group); });
  };
}

}  // namespace tarn::dist
