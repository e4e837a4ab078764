// balance.h - shares of a batch for parts (devices, ranks) that are not equally fast.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tarn::dist {

/// Whole numbers whose sum is `rows`, proportional to the shares as nearly as consecutive rounding
/// allows. Shares that are all 0 count as equal.
std::vector<int64_t> cut_by_share(int64_t rows, const std::vector<double>& shares);

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
  /// At least one row for every part, where there are enough, so that it goes on being measured.
  std::vector<int64_t> cut(int64_t rows) const;
  /// Their sum is 1.
  const std::vector<double>& shares() const { return shares_; }

 private:
  void rebalance();

  int64_t every_, steps_ = -1;  // since the last new shares
  std::vector<double> shares_, rows_, seconds_;
};

}  // namespace tarn::dist
