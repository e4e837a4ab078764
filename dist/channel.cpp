// channel.cpp - the meeting of the ranks of a channel.
#include "tarn/dist/channel.h"

#include <vector>

namespace tarn::dist {

void meet(Channel& channel, int rank, int size, Clock::time_point deadline) {
  constexpr uint64_t kSlot = 0;  // collectives count from 1
  std::vector<std::byte> words(static_cast<size_t>(size));
  std::vector<TransferPtr> transfers;
  for (int r = 0; r < size; ++r) {
    if (r == rank) continue;
    transfers.push_back(channel.receive(r, kSlot, &words[static_cast<size_t>(r)], 1));
    transfers.push_back(channel.send(r, kSlot, &words[static_cast<size_t>(rank)], 1));
  }
  for (const TransferPtr& transfer : transfers) transfer->wait(deadline);
}

}  // namespace tarn::dist
