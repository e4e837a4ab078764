// balance.h - shares of a batch for parts (devices, ranks) that are not equally fast.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace tarn::dist {

/// Whole numbers whose sum is `rows`, proportional to the shares as nearly as consecutive rounding
/// allows. Shares that are all 0 count as equal.
std::vector<int64_t> cut_by_share(int64_t rows, const std::vector<double>& shares);
/// The same with at least one row for every part, where there are enough.
std::vector<int64_t> cut_for_all(int64_t rows, const std::vector<double>& shares);
/// The rows [first, second) of part number `part`, where the parts stand one after another.
std::pair<int64_t, int64_t> rows_of(std::span<const int64_t> counts, int64_t part);

/// Measures how many rows a second each part does, and cuts batches so that all take equally long:
/// shares that lead to equal times stay what they are. Parts that feed it the same figures cut
/// alike. Not thread-safe.
class Balancer {
 public:
  /// every: steps between new shares. shares: those at the start; empty: equal ones. Throws
  /// ValueError unless parts and every are positive and there is one share per part.
  Balancer(int64_t parts, int64_t every, std::vector<double> shares = {});

  /// After a step: what each part had to do, and how long it took. The first step of all is left
  /// out, since much is made in it that stays.
  void add(std::span<const int64_t> rows, std::span<const double> seconds);
  /// cut_for_all, so that every part goes on being measured.
  std::vector<int64_t> cut(int64_t rows) const { return cut_for_all(rows, shares_); }
  /// Their sum is 1.
  const std::vector<double>& shares() const { return shares_; }

 private:
  void rebalance();

  int64_t every_, steps_ = -1;  // since the last new shares
  std::vector<double> shares_, rows_, seconds_;
};

/// A Balancer of batches that are prepared ahead: new shares hold from the first batch on that
/// nobody can have begun, and until then nothing is measured. Parts that call it alike cut alike.
/// Thread safety: cut() may be called from any thread.
class BatchShares {
 public:
  /// ahead: how many batches after the current one may have been begun.
  BatchShares(Balancer balancer, int64_t ahead) : balancer_(std::move(balancer)), ahead_(ahead) {
    restart();
  }

  /// How many of `rows` each part takes of a batch. step: its number among all batches of the run.
  /// REQUIRES: not before the step that add() had last.
  std::vector<int64_t> cut(int64_t step, int64_t rows) const;
  /// After a step, in their order: how many rows each part had (those of cut(), or fewer), and how
  /// long they took it. True if there are new shares.
  bool add(int64_t step, std::span<const int64_t> rows, std::span<const double> seconds);
  /// The newest.
  const std::vector<double>& shares() const { return balancer_.shares(); }
  /// Goes on with another's shares and figures, while no batch is under way.
  void restart(Balancer balancer);

 private:
  struct Since {
    int64_t step;
    std::vector<double> shares;
  };
  void restart() { since_ = {{INT64_MIN, balancer_.shares()}}; }

  Balancer balancer_;
  int64_t ahead_;
  mutable std::mutex mutex_;
  std::deque<Since> since_;  // ascending; the first holds at the step that add() had last
};

}  // namespace tarn::dist
