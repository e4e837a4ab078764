// optim_norms.cpp - norms of many tensors in one pass, in f64, the same at any thread count.
//
// Every tensor is cut into fixed chunks; a chunk is summed by 16 interleaved accumulators and the
// chunks of a tensor are added in order.
#include <cmath>
#include <limits>
#include <vector>

#include "tarn/core/cpu/multi_tensor.h"
#include "tarn/core/cpu/table.h"

namespace tarn::cpu {
namespace {

constexpr int64_t kChunk = 8192;
constexpr int kLanes = 16;
enum class Norm { kAbs, kSquare, kMax };

/// The larger, and NaN where either is.
double nan_max(double a, double b) {
  return b > a || std::isnan(b) ? b : a;
}

template <Norm kNorm, class T>
double chunk_norm(const T* v, int64_t n, double divisor) {
  double lanes[kLanes] = {};
  const auto take = [&](double& lane, T value) {
    const double x = std::abs(static_cast<double>(static_cast<compute_t<T>>(value)));
    if constexpr (kNorm == Norm::kAbs) {
      lane += x;
    } else if constexpr (kNorm == Norm::kSquare) {
      const double y = x * divisor;
      lane += y * y;
    } else {
      lane = x > lane || x != x ? x : lane;  // once NaN, nothing compares greater
    }
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) take(lanes[l], v[i + l]);
  }
  for (; i < n; ++i) take(lanes[i % kLanes], v[i]);
  double sum = 0;
  for (double lane : lanes) sum = kNorm == Norm::kMax ? nan_max(sum, lane) : sum + lane;
  return sum;
}

double chunk_of(Norm norm, const Tensor& t, int64_t begin, int64_t end, double factor) {
  double result = 0;
  visit_floating(t.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* v = typed<const T>(t) + begin;
    switch (norm) {
      case Norm::kAbs:
        result = chunk_norm<Norm::kAbs>(v, end - begin, 1);
        break;
      case Norm::kSquare:
        result = chunk_norm<Norm::kSquare>(v, end - begin, factor);
        break;
      case Norm::kMax:
        result = chunk_norm<Norm::kMax>(v, end - begin, 1);
        break;
    }
  });
  return result;
}

int64_t chunks_of(const Tensor& t) {
  return (t.numel() + kChunk - 1) / kChunk;
}

/// out[i] = sum (or maximum) over tensors[i].
void reduce_all(Norm norm, std::span<const Tensor> tensors, double factor, double* out) {
  int64_t total = 0;
  for (const Tensor& t : tensors) total += chunks_of(t);
  double few[256];
  std::vector<double> many(total > 256 ? static_cast<size_t>(total) : 0);
  double* partial = many.empty() ? few : many.data();
  parallel_for(total, 4, [&](int64_t begin, int64_t end) {
    int64_t at = 0;  // of tensor i in the list of all chunks
    for (size_t i = 0; i < tensors.size() && at < end; ++i) {
      const int64_t n = chunks_of(tensors[i]);
      for (int64_t c = std::max(begin - at, int64_t{0}); c < std::min(end - at, n); ++c) {
        const int64_t stop = std::min(tensors[i].numel(), (c + 1) * kChunk);
        partial[at + c] = chunk_of(norm, tensors[i], c * kChunk, stop, factor);
      }
      at += n;
    }
  });
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t n = chunks_of(tensors[i]);
    double sum = 0;
    for (int64_t c = 0; c < n; ++c) {
      sum = norm == Norm::kMax ? nan_max(sum, partial[c]) : sum + partial[c];
    }
    out[i] = sum;
    partial += n;
  }
}

/// The squares of f64 values may leave f64's range although the norm does not: then divide by the
/// largest first.
double scaled_norm(const Tensor& t) {
  double largest = 0, sum = 0;
  const std::span<const Tensor> one(&t, 1);
  reduce_all(Norm::kMax, one, 1, &largest);
  if (largest == 0 || !std::isfinite(largest)) return largest;
  // A power of two divides exactly and has a finite inverse.
  const int exponent = std::min(1000, std::max(-1000, std::ilogb(largest)));
  reduce_all(Norm::kSquare, one, std::ldexp(1.0, -exponent), &sum);
  return std::ldexp(std::sqrt(sum), exponent);
}

void norms(std::span<const Tensor> tensors, double p, const Tensor& out, Stream) {
  auto* result = typed<double>(out);
  if (p == 1) return reduce_all(Norm::kAbs, tensors, 1, result);
  if (std::isinf(p)) return reduce_all(Norm::kMax, tensors, 1, result);
  reduce_all(Norm::kSquare, tensors, 1, result);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const double sum = result[i];
    const bool left_range = std::isinf(sum) || sum < 1e-280;
    result[i] =
        tensors[i].dtype() == DType::kF64 && left_range ? scaled_norm(tensors[i]) : std::sqrt(sum);
  }
}

}  // namespace

void add_optim_norm_kernels(KernelTable& table) {
  table.optim.norms = norms;
}

}  // namespace tarn::cpu
