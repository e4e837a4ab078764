// dist_balance_test.cpp - shares of a batch by measured speed.
#include <memory>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tarn/core/error.h"
#include "tarn/core/factory.h"
#include "tarn/data/loader.h"
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

TEST(BatchShares, hold_from_the_first_batch_that_nobody_has_begun) {
  BatchShares shares(Balancer(2, 2), 3);
  const std::vector<double> seconds{1, 3};
  for (int64_t step = 0; step < 2; ++step)
    EXPECT_FALSE(shares.add(step, shares.cut(step, 8), seconds));
  EXPECT_TRUE(shares.add(2, shares.cut(2, 8), seconds));  // the first does not count
  EXPECT_NEAR(shares.shares()[0], 0.75, 1e-12);           // 8 rows in 2 seconds, 8 in 6
  // Batches 3, 4 and 5 may be under way.
  for (int64_t step = 2; step < 6; ++step) EXPECT_EQ(shares.cut(step, 8), (Rows{4, 4})) << step;
  for (int64_t step = 6; step < 9; ++step) EXPECT_EQ(shares.cut(step, 8), (Rows{6, 2})) << step;
  // What these take is not measured: else the next shares would come of the last ones' rows.
  for (int64_t step = 3; step < 6; ++step)
    EXPECT_FALSE(shares.add(step, shares.cut(step, 8), seconds));
  EXPECT_FALSE(shares.add(6, shares.cut(6, 8), std::vector<double>{1, 0.5}));
  EXPECT_TRUE(shares.add(7, shares.cut(7, 8), std::vector<double>{1, 0.5}));
  EXPECT_NEAR(shares.shares()[0], 0.6, 1e-12);  // 12 rows in 2 seconds, 4 in 1
  EXPECT_EQ(shares.cut(10, 8), (Rows{6, 2}));
  EXPECT_EQ(shares.cut(11, 8), (Rows{5, 3}));
  shares.restart(Balancer(2, 2, {1, 7}));
  EXPECT_EQ(shares.cut(8, 8), (Rows{1, 7}));
}

TEST(BatchShares, rows_that_a_part_could_not_read_are_not_counted_for_its_speed) {
  BatchShares shares(Balancer(2, 1), 0);
  const std::vector<double> seconds{1, 1};
  EXPECT_FALSE(shares.add(0, Rows{4, 4}, seconds));  // the first does not count
  EXPECT_TRUE(shares.add(1, Rows{3, 1}, seconds));
  EXPECT_NEAR(shares.shares()[0], 0.75, 1e-12);
  EXPECT_FALSE(shares.add(2, Rows{6, 0}, std::vector<double>{1, 1e-6}));
  EXPECT_NEAR(shares.shares()[0], 0.75, 1e-12) << "one that had none keeps its share";
}

TEST(BatchShares, parts_stand_one_after_another) {
  using Part = std::pair<int64_t, int64_t>;
  const Rows counts{3, 0, 4};
  EXPECT_EQ(rows_of(counts, 0), (Part{0, 3}));
  EXPECT_EQ(rows_of(counts, 1), (Part{3, 3}));
  EXPECT_EQ(rows_of(counts, 2), (Part{3, 7}));
}

// One rank's part of every batch, prepared by two threads.
struct Rank {
  Rank(const data::Dataset& all, int64_t number, int64_t batch)
      : loader(all, std::make_unique<data::RandomSampler>(all.size(), 5),
               {.batch_size = batch,
                .workers = 2,
                .part = [this, number](int64_t epoch, int64_t i, int64_t rows) {
                  return rows_of(shares.cut(epoch * loader.size() + i, rows), number);
                }}) {}
  BatchShares shares{Balancer(3, 2), 4};
  data::DataLoader loader;
};

TEST(BatchShares, ranks_lose_and_repeat_no_example_as_shares_change) {
  const data::TensorDataset all(zeros({100}), arange(100, {.dtype = DType::kI64}));
  const data::DataLoader whole(all, std::make_unique<data::RandomSampler>(100, 5),
                               {.batch_size = 12});
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int64_t r = 0; r < 3; ++r) ranks.push_back(std::make_unique<Rank>(all, r, 12));
  EXPECT_EQ(ranks[0]->loader.ahead(), 4);
  std::set<int64_t> sizes;
  int64_t step = 0;
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<data::Epoch> parts;
    for (const auto& rank : ranks) parts.push_back(rank->loader.epoch(epoch));
    for (const data::Batch& batch : whole.epoch(epoch)) {
      std::vector<int64_t> got;
      for (data::Epoch& part : parts) {
        const auto mine = part.next()->target.to_vector<int64_t>();
        if (&part == &parts[0]) sizes.insert(static_cast<int64_t>(mine.size()));
        got.insert(got.end(), mine.begin(), mine.end());
      }
      ASSERT_EQ(got, batch.target.to_vector<int64_t>()) << epoch << " " << step;
      const double slow = 1.0 + static_cast<double>(step % 7);
      for (const auto& rank : ranks) {
        const Rows rows = rank->shares.cut(step, batch.size());
        rank->shares.add(step, rows, std::vector<double>{slow, 2, 3});
      }
      ++step;
    }
    for (data::Epoch& part : parts) EXPECT_FALSE(part.next().has_value());
  }
  EXPECT_GT(sizes.size(), 3u);
}

TEST(BatchShares, a_part_outside_of_its_batch_is_refused) {
  const data::TensorDataset all(zeros({8}), zeros({8}));
  const data::DataLoader loader(all, {.batch_size = 4, .part = [](int64_t, int64_t, int64_t rows) {
                                        return std::pair{int64_t{1}, rows + 1};
                                      }});
  data::Epoch epoch = loader.epoch(0);
  EXPECT_THROWS_WITH(epoch.next(), ValueError,
                     "the part of batch 0 must lie in its 4 rows; got [1, 5)");
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
