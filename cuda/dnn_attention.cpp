// dnn_attention.cpp - the attention slots by cuDNN, with our own kernels behind them.
//
// Both keep the same log-sum-exps, so forward and backward need not be by the same library.
// Bytes: as our own kernels; backward in between 4 B H T S more if it is to be deterministic.
#if TARN_HAVE_CUDNN

#include "tarn/cuda/dnn_attention.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "tarn/cuda/attention.h"
#include "tarn/cuda/dnn_run.h"
#include "tarn/cuda/dnn_settings.h"
#include "tarn/cuda/scratch.h"
#include "tarn/cuda/table.h"

namespace tarn::cuda {
namespace {

constexpr size_t kOldestVersion = 91600;  // earlier ones err for some lengths
constexpr int64_t kFewestQueries = 64, kMostWidth = 128;
constexpr int64_t kAlignment = 16;  // bytes

/// Steps of dimensions of one element are free: as if the tensor were dense.
DnnHeads heads_of(const Tensor& x) {
  const Shape dense = contiguous_strides(x.sizes());
  const auto step = [&](int d) { return x.size(d) == 1 ? dense[d] : x.strides()[d]; };
  return {step(0), step(1), step(2)};
}

bool is_laid_out_for_dnn(const Tensor& x) {
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  if (reinterpret_cast<uintptr_t>(x.data()) % kAlignment != 0) return false;
  const DnnHeads step = heads_of(x);
  const int64_t unit = kAlignment / item_size(x.dtype());
  for (int64_t s : {step.batch, step.head, step.row}) {
    if (s <= 0 || s % unit != 0) return false;
  }
  const int64_t last = (x.size(0) - 1) * step.batch + (x.size(1) - 1) * step.head +
                       (x.size(2) - 1) * step.row + x.size(3) - 1;
  return last < kMost && x.strides()[3] == 1;
}

DnnAttention describe(const AttentionCall& call, const Tensor& out, Stream stream) {
  return {.dtype = call.q.dtype(),
          .causal = call.causal,
          .deterministic = dnn_settings().deterministic,
          .device = stream.device.index,
          .batch = call.q.size(0),
          .heads = call.q.size(1),
          .groups = call.k.size(1),
          .queries = call.q.size(2),
          .keys = call.k.size(2),
          .depth = call.q.size(3),
          .width = call.v.size(3),
          .q = heads_of(call.q),
          .k = heads_of(call.k),
          .v = heads_of(call.v),
          .out = heads_of(out)};
}

/// The scalars of a graph, alive while it is queued.
struct Scalars {
  float scale, minus_infinity = -std::numeric_limits<float>::infinity(), one = 1;

  void bind(const DnnAttention& a, std::vector<DnnBinding>& to) {
    to.push_back({kDnnScale, &scale});
    if (a.causal) to.push_back({kDnnMinusInfinity, &minus_infinity});
    if (a.pass == AttentionPass::kBackward) to.push_back({kDnnOne, &one});
  }
};

/// x from batch `first` on.
void* from_batch(const Tensor& x, int64_t first) {
  return static_cast<char*>(x.data()) + first * x.strides()[0] * item_size(x.dtype());
}

void forward(const AttentionCall& call, const Tensor& out, const Tensor& logsumexp, Stream stream) {
  const Tensor tensors[] = {call.q, call.k, call.v, out};
  if (dnn_attention_fits(call, tensors)) {
    const DnnAttention a = describe(call, out, stream);
    Scalars scalars{.scale = static_cast<float>(call.scale)};
    std::vector<DnnBinding> bindings{{kDnnQuery, call.q.data()},
                                     {kDnnKey, call.k.data()},
                                     {kDnnValue, call.v.data()},
                                     {kDnnOut, out.data()},
                                     {kDnnLogSumExp, logsumexp.data()}};
    scalars.bind(a, bindings);
    if (run_dnn(a, bindings, stream)) return;
  }
  own_attention_kernels().scaled_dot_product_attention(call, out, logsumexp, stream);
}

/// How many batches at once leave their workspace within the limit, about evenly cut; all of them
/// if no cut does. As cuDNN 9.19 asks on an H200: scores in tiles of 64 x 128, and k's and v's
/// gradients per head where heads share them.
///
/// Parts begin at aligned addresses: of operands in halves at any batch, since their steps are
/// multiples of the alignment, but of log-sum-exps, which are dense, only at every few.
int64_t batches_at_once(const DnnAttention& a) {
  const auto tiled = [](int64_t n, int64_t tile) { return (n + tile - 1) / tile * tile; };
  const int64_t scores = a.deterministic ? tiled(a.queries, 64) * tiled(a.keys, 128) : 0;
  const int64_t shared = a.groups < a.heads ? a.keys * (a.depth + a.width) : 0;
  const int64_t each = a.heads * (scores + shared) * item_size(a.dtype);
  constexpr int64_t kBesides = 4096;  // 256 bytes were seen
  const int64_t most = each > 0 ? (dnn_settings().workspace - kBesides) / each : a.batch;
  constexpr int64_t kUnit = kAlignment / static_cast<int64_t>(sizeof(float));
  const int64_t unit = kUnit / std::gcd(kUnit, a.heads * a.queries);  // batches
  const int64_t fit = most / unit * unit;
  if (fit < 1 || most >= a.batch) return a.batch;
  const int64_t parts = (a.batch + fit - 1) / fit;
  return tiled((a.batch + parts - 1) / parts, unit);
}

struct BackwardTensors {
  const AttentionCall& call;
  const Tensor &out, &logsumexp, &gout, &gq, &gk, &gv;
};

/// Batches [first, first + a.batch).
bool run_backward(const BackwardTensors& x, const DnnAttention& a, int64_t first, Stream stream) {
  const int64_t rows = a.batch * a.heads * a.queries;
  const Scratch delta(static_cast<size_t>(rows) * sizeof(float), stream);
  std::optional<Scratch> sums;
  Scalars scalars{.scale = static_cast<float>(x.call.scale)};
  std::vector<DnnBinding> bindings{{kDnnQuery, from_batch(x.call.q, first)},
                                   {kDnnKey, from_batch(x.call.k, first)},
                                   {kDnnValue, from_batch(x.call.v, first)},
                                   {kDnnOut, from_batch(x.out, first)},
                                   {kDnnLogSumExp, from_batch(x.logsumexp, first)},
                                   {kDnnOutGradient, from_batch(x.gout, first)},
                                   {kDnnDelta, delta.as<void>()},
                                   {kDnnQueryGradient, from_batch(x.gq, first)},
                                   {kDnnKeyGradient, from_batch(x.gk, first)},
                                   {kDnnValueGradient, from_batch(x.gv, first)}};
  scalars.bind(a, bindings);
  if (!a.deterministic) {
    sums.emplace(static_cast<size_t>(rows * a.depth) * sizeof(float), stream);
    bindings.push_back({kDnnQuerySums, sums->as<void>()});
  }
  return run_dnn(a, bindings, stream);
}

void backward(const AttentionCall& call, const Tensor& out, const Tensor& logsumexp,
              const Tensor& gout, const Tensor& gq, const Tensor& gk, const Tensor& gv,
              Stream stream) {
  const Tensor tensors[] = {call.q, call.k, call.v, out, gout, gq, gk, gv};
  bool done = false;
  if (dnn_attention_fits(call, tensors)) {
    const BackwardTensors x{call, out, logsumexp, gout, gq, gk, gv};
    DnnAttention a = describe(call, out, stream);
    a.pass = AttentionPass::kBackward;
    a.gout = heads_of(gout), a.gq = heads_of(gq), a.gk = heads_of(gk), a.gv = heads_of(gv);
    const int64_t all = a.batch, step = batches_at_once(a);
    done = true;
    for (int64_t first = 0; done && first < all; first += step) {
      a.batch = std::min(step, all - first);
      done = run_backward(x, a, first, stream);
    }
  }
  if (done) return;
  own_attention_kernels().scaled_dot_product_attention_backward(call, out, logsumexp, gout, gq, gk,
                                                                gv, stream);
}

}  // namespace

bool dnn_attention_fits(const AttentionCall& call, std::span<const Tensor> tensors) {
  const DType dtype = call.q.dtype();
  const auto is_width = [](int64_t n) { return n % 8 == 0 && n <= kMostWidth; };
  if (dtype != DType::kF16 && dtype != DType::kBF16) return false;
  if (call.mask.defined() || call.dropout > 0 || call.k.size(2) == 0) return false;
  if (call.q.size(2) < kFewestQueries) return false;
  if (!is_width(call.q.size(3)) || !is_width(call.v.size(3))) return false;
  if (!std::all_of(tensors.begin(), tensors.end(), is_laid_out_for_dnn)) return false;
  if (limits(call.q.device().index).compute_capability < 80 || !dnn_settings().attention) {
    return false;
  }
  const DnnApi* api = dnn_api();
  return api != nullptr && api->version() >= kOldestVersion;
}

void add_dnn_attention_kernels(KernelTable& table) {
  table.attention = {forward, backward};
}

}  // namespace tarn::cuda

#endif  // TARN_HAVE_CUDNN
