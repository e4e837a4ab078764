// dist_balance_test.cpp - shares of a batch by measured speed.
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tarn/core/error.h"
#include "tarn/dist/balance.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::dist {
namespace {

using Rows = std::vector<int64_t>;

TEST(Balance, rows_are_cut_by_share) {
  EXPECT_EQ(cut_by_share(10, {3, 1}), (Rows{8, 2}));
  EXPECT_EQ(cut_by_share(10, {1, 0, 1}), (Rows{5, 0, 5}));
  EXPECT_EQ(cut_by_share(10, {1, 1, 1}), (Rows{3, 4, 3}));
  EXPECT_EQ(cut_by_share(7, {0, 0}), (Rows{4, 3}));
  EXPECT_EQ(cut_by_share(0, {2, 1}), (Rows{0, 0}));
}

// Steps on parts that take so many seconds a row, and a fixed time besides.
void run(Balancer& balancer, const std::vector<double>& per_row, double fixed, int steps,
         int64_t batch) {
  for (int i = 0; i < steps; ++i) {
    const Rows rows = balancer.cut(batch);
    EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), int64_t{0}), batch);
    std::vector<double> seconds;
    for (size_t p = 0; p < rows.size(); ++p) {
      seconds.push_back(fixed + per_row[p] * static_cast<double>(rows[p]));
    }
    balancer.add(rows, seconds);
  }
}

TEST(Balance, shares_become_the_speeds) {
  Balancer balancer(3, 4);
  EXPECT_EQ(balancer.cut(60), (Rows{20, 20, 20}));
  run(balancer, {1, 2, 3}, 0, 4, 60);  // the first does not count, so this is one too few
  EXPECT_EQ(balancer.cut(60), (Rows{20, 20, 20}));
  run(balancer, {1, 2, 3}, 0, 1, 60);
  // Speeds 1, 1/2, 1/3 of 11/6 in all: 60 * 6/11 = 32.7, 60 * 9/11 = 49.1.
  EXPECT_EQ(balancer.cut(60), (Rows{33, 16, 11}));
  EXPECT_NEAR(balancer.shares()[0], 6.0 / 11, 1e-12);
}

TEST(Balance, equal_times_are_where_it_stays) {
  // 10 + a = 10 + 3 b with a + b = 400: 300 and 100 rows, although speeds in rows a second are not
  // as 3 to 1 in equal parts.
  Balancer balancer(2, 1);
  run(balancer, {1, 3}, 10, 30, 400);
  EXPECT_NEAR(static_cast<double>(balancer.cut(400)[0]), 300, 1);
}

TEST(Balance, every_part_goes_on_being_measured) {
  Balancer balancer(2, 1);
  run(balancer, {1e-6, 1}, 0, 3, 8);
  EXPECT_EQ(balancer.cut(8), (Rows{7, 1}));
  run(balancer, {1, 1}, 0, 1, 8);  // it is as fast as the other now
  EXPECT_EQ(balancer.cut(8), (Rows{4, 4}));
  // Fewer rows than parts: somebody has none, and keeps the share it had.
  Balancer few(3, 1, {1, 1, 0.1});
  run(few, {1, 1, 1}, 0, 3, 2);
  EXPECT_NEAR(few.shares()[2], 0.1 / 2.1, 1e-12);
}

TEST(Balance, what_does_not_fit_is_said) {
  EXPECT_THROWS_WITH(Balancer(2, 0), ValueError,
                     "parts and the steps between new shares must be positive; got 2 and 0");
  EXPECT_THROWS_WITH(Balancer(2, 1, {1}), ValueError, "one share per part; got 1 for 2");
  Balancer balancer(2, 1);
  EXPECT_THROWS_WITH(balancer.add(Rows{1}, std::vector<double>{1, 1}), ValueError,
                     "figures of 2 parts; got 1 and 2");
}

}  // namespace
}  // namespace tarn::dist
