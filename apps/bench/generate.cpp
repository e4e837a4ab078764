// generate.cpp - times generation with the key-value cache.
#include "tarn/apps/bench/generate.h"

#include "tarn/apps/bench/timing.h"
#include "tarn/apps/bench/train.h"
#include "tarn/apps/common/text.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/backend.h"
#include "tarn/core/random.h"
#include "tarn/nn/models/gpt.h"

namespace tarn::bench {
namespace {

constexpr int64_t kPrompt = 8, kChecked = 4;

// The first tokens again, each from the whole text.
void check(nn::models::Gpt& gpt, const Tensor& text) {
  for (int64_t i = 0; i < kChecked; ++i) {
    const Tensor logits = gpt(text.narrow(1, 0, kPrompt + i));
    const int64_t want = argmax(logits.select(1, kPrompt + i - 1), 1).item<int64_t>();
    const int64_t got = text.select(1, kPrompt + i).item<int64_t>();
    TARN_CHECK(want == got, "bench: token ", i, " differs with and without the cache: ", got,
               " and ", want);
  }
}

}  // namespace

GenerateResult bench_generate(const GenerateSettings& s) {
  const NoGradGuard no_grad;
  manual_seed(0);
  const Device device(s.device);
  const TrainWork work = make_work({.model = s.model, .batch = 1, .block = kPrompt + s.tokens});
  auto* gpt = dynamic_cast<nn::models::Gpt*>(work.net.get());
  TARN_CHECK(gpt != nullptr, "bench: generate needs --model gpt or gpt2; got ", s.model);
  gpt->to(device);
  gpt->eval();
  const Tensor prompt = work.x.narrow(1, 0, kPrompt).to(device);
  const nn::SampleOptions greedy{.temperature = 0};
  check(*gpt, gpt->generate(prompt, kChecked, greedy));
  const DType dtype = parse_dtype(s.dtype);
  gpt->to(dtype);

  nn::KeyValueCache cache = gpt->make_cache();
  Tensor next = nn::sample_tokens(gpt->next_logits(prompt, cache), greedy).unsqueeze(1);
  std::vector<double> times;
  for (int64_t i = 0; i < s.tokens; ++i) {
    const double start = now_s();
    next = nn::sample_tokens(gpt->next_logits(next, cache), greedy).unsqueeze(1);
    synchronize(device);
    times.push_back(now_s() - start);
  }
  GenerateResult r{};
  r.tokens_per_s = 1 / median(times);
  r.read_gbps = device.is_cpu() ? measure_read_gbps() : measure_peak(device).gbps;
  const double bytes =
      static_cast<double>(item_size(dtype) * gpt->num_parameters_without_positions());
  r.limit = r.read_gbps * 1e9 / bytes;
  r.weights_mib = bytes / (1 << 20);
  return r;
}

std::string generate_text(const GenerateSettings& s, const GenerateResult& r) {
  const std::string rate = apps::format("%s, %s: %.1f tokens/s, batch 1; ", s.model.c_str(),
                                        s.dtype.c_str(), r.tokens_per_s);
  if (r.tokens_per_s > r.limit) {
    // Then memory is not what limits, and a share of it means nothing.
    return rate + apps::format(
                      "the %.1f MiB of weights stay in the caches: from memory, at %.1f "
                      "GB/s, it would be %.1f at most",
                      r.weights_mib, r.read_gbps, r.limit);
  }
  return rate + apps::format("%.0f %% of the %.1f that reading the weights at %.1f GB/s allows",
                             100 * r.tokens_per_s / r.limit, r.limit, r.read_gbps);
}

}  // namespace tarn::bench
