// 22_ddp.cpp - DistributedDataParallel: buckets, overlap, and gradient accumulation.
#include <cstdio>

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/dist/ddp.h"
#include "tarn/dist/local_group.h"
#include "tarn/nn/models/mlp.h"
#include "tarn/optim/sgd.h"

using namespace tarn;

int main() {
  dist::run_local(2, [](dist::ProcessGroup& group) {
    nn::models::Mlp net({.sizes = {64, 256, 256, 256, 1}});
    // Gives all ranks rank 0's values. Gradients travel in buckets of at most 256 KiB, each as soon
    // as it is full: the last layers' are on their way while backward is at the first.
    dist::DistributedDataParallel ddp(net, group, {.bucket_cap_mb = 0.25, .first_bucket_mb = 0.1});
    optim::SGD sgd(net.parameters(), {.lr = 0.01});
    const Tensor x = ones({16, 64}) * (group.rank() + 1.0);

    const auto print = [&](const char* what) {
      if (group.rank() != 0) return;
      std::printf("%-32s %d buckets, %lld KiB\n", what, ddp.stats().buckets,
                  static_cast<long long>(ddp.stats().bytes / 1024));
    };
    for (int step = 0; step < 2; ++step) {
      sgd.zero_grad();
      mean(net(x)).backward();  // the net is used as ever; ddp works through hooks
      sgd.step();
      print(step == 0 ? "first backward" : "rebuilt in order of arrival");
    }

    // Four micro-batches as one batch: the first three only add up on their rank.
    sgd.zero_grad();
    {
      const auto guard = ddp.no_sync();
      for (int i = 0; i < 3; ++i) (mean(net(x.narrow(0, 4 * i, 4))) / 4.0).backward();
    }
    (mean(net(x.narrow(0, 12, 4))) / 4.0).backward();
    sgd.step();
    print("4 micro-batches, sent once");

    ddp.check_replicas();  // throws if a bit differs between the ranks
    if (group.rank() == 0) std::printf("the replicas are equal\n");
  });
  return 0;
}
