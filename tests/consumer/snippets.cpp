// snippets.cpp - README.md's pieces of programs: they compile and link with tarn.h alone.
#include <iostream>
#include <memory>
#include <vector>

#include <tarn/tarn.h>

namespace snippets {

using namespace tarn;

// "The trainer"
void halves_checkpoints_and_saving(nn::Module& net, optim::Adam& adam, int64_t step, Tensor x,
                                   Tensor (*block)(const Tensor&)) {
  const AutocastGuard autocast(DeviceType::kCPU, DType::kBF16);
  Tensor y = checkpoint([&](const Tensor& x) { return block(x); }, x);

  CheckpointManager saved("checkpoints", {.keep_last = 2});
  if (auto c = saved.load_newest()) net.load_state_dict(c->dict("model"));
  saved.save_async(
      {.step = step, .tensors = {{"model", net.state_dict()}, {"optim", adam.state_dict()}}});
}

// "Several processes"
void ranks(nn::Module& net, const std::vector<data::Batch>& mine,
           void (*step)(const data::Batch&)) {
  auto group = dist::init_process_group();
  dist::DistributedDataParallel ddp(net, *group);
  dist::Join join(ddp);
  for (const data::Batch& batch : mine) step(batch);
  join.finish();
}

void sharded(nn::Module& net, Tensor (*loss)(nn::Module&)) {
  auto group = dist::init_process_group();
  dist::ZeroDataParallel zero(net, *group, {.stage = 2});
  optim::AdamW adamw(zero.shards(), {.lr = 1e-3});
  zero.attach(adamw);
  loss(net).backward();
  zero.clip_grad_norm_(1.0);
  adamw.step();
  const auto whole = zero.gathered();
  const TensorDict state = zero.full_optimizer_state(adamw);
  std::cout << state.size() << "\n";
}

// "Where time and memory go"
void measuring(nn::Module& net, void (*train_step)()) {
  Profiler profiler({.schedule = ProfilerSchedule{.wait = 1, .warmup = 1, .active = 3}});
  for (int i = 0; i < 5; ++i) {
    train_step();
    profiler.step();
  }
  profiler.stop();
  std::cout << profiler.table({.sort_by = "flops"});
  profiler.save_trace("trace.pt.trace.json");

  nn::ModuleMemory memory(net);
  std::cout << memory.table() << memory_summary();
  const SaveOnCpu offload;
  const AnomalyGuard anomaly;
  LeakGuard leaks;
  leaks.mark();
  leaks.check("a step");
}

// What else a program with ranks, and one with data of its own, calls.
void ranks_and_data(nn::Module& net, const data::Dataset& a, const data::Dataset& b) {
  const data::ConcatDataset all({a, b});
  const auto parts =
      data::random_split(all, data::split_lengths(all.size(), {0.9, 0.1}), /*seed=*/1);
  const data::DataLoader loader(
      parts[0],
      std::make_unique<data::WeightedRandomSampler>(
          std::vector<double>(static_cast<size_t>(parts[0].size()), 1.0), 10),
      {.batch_size = 2});
  auto group = dist::init_process_group();
  dist::convert_sync_batch_norm(net, *group);
  dist::DataParallel replicas(net, {Device("cpu")}, [] {
    return std::make_unique<nn::Linear>(nn::Linear::Options{1, 1});
  });
  for (const data::Batch& batch : loader.epoch(0)) group->all_reduce(batch.input)->wait();
}

}  // namespace snippets
