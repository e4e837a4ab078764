// nccl_group_notes.cpp - what ranks tell each other beside NCCL when something is wrong.
#include "tarn/dist/nccl_group_notes.h"

#include <thread>

namespace tarn::dist {
namespace {

constexpr Millis kLook{20};

}  // namespace

Notes::Notes(std::shared_ptr<Store> store, const std::string& group, int rank, int size,
             std::vector<PeerProcess> peers)
    : store_(std::move(store)),
      prefix_("group " + group + "/nccl/"),
      rank_(rank),
      peers_(std::move(peers)) {
  peers_.resize(static_cast<size_t>(size));
}

std::string Notes::key(const std::string& what, int rank) const {
  return prefix_ + what + "/" + std::to_string(rank);
}

// The store is served by rank 0, which may be gone: then there is nothing to tell, and the process
// of rank 0 is known to have ended, or its host is out of reach.
void Notes::publish(const std::string& queue, const Header& at, bool ask) {
  try {
    store_->set(key("at/" + queue, rank_), at.bytes_of());
    if (ask) store_->add(prefix_ + "news", 1);
  } catch (const DistError&) {
  }
}

void Notes::publish(const Ending& ending) {
  try {
    store_->set(key("ended", rank_),
                (ending.failed ? "F" : "L") + std::to_string(ending.last) + " " + ending.text);
    store_->add(prefix_ + "news", 1);
  } catch (const DistError&) {
  }
}

int64_t Notes::news() {
  try {
    return std::stoll(store_->try_get(prefix_ + "news").value_or("0"));
  } catch (const DistError&) {
    return 0;
  }
}

std::optional<Header> Notes::read(const std::string& queue, int rank) {
  try {
    const auto value = store_->try_get(key("at/" + queue, rank));
    return value ? std::optional<Header>(Header::from_bytes(*value)) : std::nullopt;
  } catch (const DistError&) {
    return std::nullopt;
  }
}

std::optional<Ending> Notes::ending(int rank) {
  try {
    const auto value = store_->try_get(key("ended", rank));
    if (!value) return std::nullopt;
    const size_t space = value->find(' ');
    return Ending{.failed = value->front() == 'F',
                  .last = std::stoull(value->substr(1, space - 1)),
                  .text = value->substr(space + 1)};
  } catch (const DistError&) {
    return std::nullopt;
  }
}

std::vector<int> Notes::dead(const std::vector<int>& ranks) const {
  std::vector<int> dead;
  for (int r : ranks) {
    if (r != rank_ && peers_[static_cast<size_t>(r)].ended()) dead.push_back(r);
  }
  return dead;
}

// Which of several ended first cannot be seen.
void Notes::throw_dead(const std::vector<int>& dead) {
  std::string text;
  for (int r : dead) {
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(r) +
            " is gone: it ended or was killed";
  }
  throw PeerError(dead[0], text);
}

std::exception_ptr Notes::explain(const std::string& queue, const std::vector<int>& ranks,
                                  const Header& mine, const std::string& said, Millis waited) {
  publish(queue, mine, true);
  const auto who = [](int r) { return "rank " + std::to_string(r); };
  const auto deadline = Clock::now() + kGrace;
  std::vector<int> missing;
  try {
    for (;;) {
      missing.clear();
      for (int r : ranks) {
        if (r == rank_) continue;
        const auto theirs = read(queue, r);
        if (theirs && theirs->sequence == mine.sequence) mine.check(*theirs, r);
        if (!theirs || theirs->sequence < mine.sequence) missing.push_back(r);
        const auto end = ending(r);
        if (end && end->failed) throw PeerError(r, who(r) + " closed its connection: " + end->text);
      }
      const std::vector<int> gone = dead(missing);
      if (!gone.empty()) throw_dead(gone);
      if (missing.empty() || Clock::now() >= deadline) break;
      std::this_thread::sleep_for(kLook);
    }
    if (said.empty() && !missing.empty()) {
      throw TimeoutError(ranks_text(missing) + " did not answer within " + duration_text(waited));
    }
    if (said.empty()) {
      throw TimeoutError("it did not end within " + duration_text(waited) +
                         ", although all ranks are in it");
    }
    if (missing.empty()) throw DistError(said);
    throw PeerError(missing[0], said + "; " + ranks_text(missing) + " did not come");
  } catch (const DistError&) {
    return std::current_exception();
  }
}

}  // namespace tarn::dist
