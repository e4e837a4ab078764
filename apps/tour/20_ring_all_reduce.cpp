// 20_ring_all_reduce.cpp - an all-reduce from nothing but send and recv.
//
// W ranks stand in a ring, and a vector is cut into W chunks. In W-1 steps each chunk travels once
// round the ring and picks up every rank's part (reduce-scatter); in W-1 more the sums travel once
// round (all-gather). Each rank sends 2 (W-1)/W of the vector, however many ranks there are.
#include <cstdio>
#include <mutex>

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/dist/local_group.h"

using namespace tarn;

Tensor chunk(const Tensor& x, int i, int ranks) {
  const int64_t n = x.numel() / ranks, k = (i % ranks + ranks) % ranks;
  return x.narrow(0, k * n, n);
}

// One step: a chunk to the right, another from the left. Both are started before either is waited
// for; if all ranks waited for their send first, nobody would receive.
void pass_on(dist::ProcessGroup& group, const Tensor& out, const Tensor& in) {
  const int right = (group.rank() + 1) % group.size();
  const int left = (group.rank() + group.size() - 1) % group.size();
  const dist::WorkPtr sent = group.send(out, right), received = group.recv(in, left);
  sent->wait();
  received->wait();
}

void ring_all_reduce(dist::ProcessGroup& group, const Tensor& x) {
  const int W = group.size(), r = group.rank();
  for (int step = 0; step < W - 1; ++step) {
    const Tensor arrived = empty({x.numel() / W});
    pass_on(group, chunk(x, r - step, W), arrived);
    chunk(x, r - step - 1, W).add_(arrived);
  }
  // Rank r now holds the whole sum of chunk r + 1.
  for (int step = 0; step < W - 1; ++step) {
    pass_on(group, chunk(x, r + 1 - step, W), chunk(x, r - step, W));
  }
}

int main() {
  constexpr int kRanks = 4;
  std::mutex printing;
  // Ranks as threads of this process; over processes the code is the same.
  dist::run_local(kRanks, [&](dist::ProcessGroup& group) {
    const Tensor mine = full({8}, group.rank() + 1.0);  // 1, 2, 3, 4: the sum is 10
    ring_all_reduce(group, mine);

    const Tensor check = full({8}, group.rank() + 1.0);
    group.all_reduce(check)->wait();  // the library's own

    const std::lock_guard lock(printing);
    std::printf("rank %d: %g %g ... %g, as all_reduce: %s\n", group.rank(), mine[0].item(),
                mine[1].item(), mine[7].item(), equal(mine, check) ? "yes" : "no");
  });
  return 0;
}
