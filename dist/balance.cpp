// balance.cpp - shares of a batch by measured speed.
#include "tarn/dist/balance.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tarn/core/error.h"

namespace tarn::dist {

std::vector<int64_t> cut_by_share(int64_t rows, const std::vector<double>& shares) {
  const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
  const auto parts = static_cast<double>(shares.size());
  std::vector<int64_t> counts;
  double passed = 0;
  int64_t given = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    passed += total > 0 ? shares[i] / total : 1 / parts;
    const int64_t end =
        i + 1 == shares.size() ? rows : std::llround(static_cast<double>(rows) * passed);
    counts.push_back(end - given);
    given = end;
  }
  return counts;
}

Balancer::Balancer(int64_t parts, int64_t every, std::vector<double> shares)
    : every_(every), shares_(std::move(shares)) {
  TARN_CHECK_AS(ValueError, parts > 0 && every > 0,
                "balancer: parts and the steps between new shares must be positive; got ", parts,
                " and ", every);
  const auto n = static_cast<size_t>(parts);
  if (shares_.empty()) shares_.assign(n, 1.0);
  TARN_CHECK_AS(ValueError, shares_.size() == n, "balancer: one share per part; got ",
                shares_.size(), " for ", parts);
  const double total = std::accumulate(shares_.begin(), shares_.end(), 0.0);
  for (double& share : shares_) share = total > 0 ? share / total : 1 / static_cast<double>(parts);
  rows_.assign(n, 0);
  seconds_.assign(n, 0);
}

void Balancer::add(std::span<const int64_t> rows, std::span<const double> seconds) {
  TARN_CHECK_AS(ValueError, rows.size() == shares_.size() && seconds.size() == shares_.size(),
                "balancer: figures of ", shares_.size(), " parts; got ", rows.size(), " and ",
                seconds.size());
  if (steps_++ < 0) return;
  for (size_t i = 0; i < rows.size(); ++i) {
    rows_[i] += static_cast<double>(rows[i]);
    seconds_[i] += seconds[i];
  }
  if (steps_ >= every_) rebalance();
}

// The share of a part that was not measured stays; the others divide the rest by their speeds.
void Balancer::rebalance() {
  steps_ = 0;
  double speed = 0, rest = 0;
  const auto measured = [&](size_t i) { return rows_[i] > 0 && seconds_[i] > 0; };
  for (size_t i = 0; i < shares_.size(); ++i) {
    if (!measured(i)) continue;
    speed += rows_[i] / seconds_[i];
    rest += shares_[i];
  }
  for (size_t i = 0; i < shares_.size(); ++i) {
    if (measured(i)) shares_[i] = rest * rows_[i] / seconds_[i] / speed;
    rows_[i] = seconds_[i] = 0;
  }
}

std::vector<int64_t> cut_for_all(int64_t rows, const std::vector<double>& shares) {
  std::vector<int64_t> counts = cut_by_share(rows, shares);
  if (rows < static_cast<int64_t>(counts.size())) return counts;
  for (int64_t& count : counts) {
    if (count > 0) continue;
    --*std::max_element(counts.begin(), counts.end());
    count = 1;
  }
  return counts;
}

std::pair<int64_t, int64_t> rows_of(std::span<const int64_t> counts, int64_t part) {
  const auto mine = counts.begin() + part;
  const int64_t begin = std::accumulate(counts.begin(), mine, int64_t{0});
  return {begin, begin + *mine};
}

std::vector<int64_t> BatchShares::cut(int64_t step, int64_t rows) const {
  const std::lock_guard lock(mutex_);
  auto at = since_.rbegin();
  while (at->step > step && std::next(at) != since_.rend()) ++at;
  return cut_for_all(rows, at->shares);
}

bool BatchShares::add(int64_t step, std::span<const int64_t> rows,
                      std::span<const double> seconds) {
  const std::lock_guard lock(mutex_);
  while (since_.size() > 1 && since_[1].step <= step) since_.pop_front();
  if (since_.size() > 1) return false;  // the newest shares do not hold yet
  balancer_.add(rows, seconds);
  if (balancer_.shares() == since_[0].shares) return false;
  since_.push_back({step + 1 + ahead_, balancer_.shares()});
  return true;
}

void BatchShares::restart(Balancer balancer) {
  const std::lock_guard lock(mutex_);
  balancer_ = std::move(balancer);
  restart();
}

}  // namespace tarn::dist
