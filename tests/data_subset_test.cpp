// data_subset_test.cpp - Subset, random_split and ConcatDataset: which examples, errors.
#include <numeric>
#include <set>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "tarn/core/factory.h"
#include "tarn/data/concat.h"
#include "tarn/data/loader.h"
#include "tarn/data/subset.h"
#include "tarn/tests/temp_folder.h"

namespace tarn::data {
namespace {

// Rows [first + i, 10 (first + i)] with target first + i.
TensorDataset numbered(int64_t n, int64_t first = 0) {
  std::vector<float> rows;
  std::vector<int64_t> numbers;
  for (int64_t i = first; i < first + n; ++i) {
    rows.push_back(static_cast<float>(i));
    rows.push_back(static_cast<float>(10 * i));
    numbers.push_back(i);
  }
  return TensorDataset(from_vector(rows, {n, 2}), from_vector(numbers, {n}));
}

std::vector<int> targets(const Dataset& data, const std::vector<int64_t>& indices) {
  return data.batch(indices, {}).target.to_vector<int>();
}

// Pictures that differ in what a random step makes of them; some cannot be read.
class Pictures final : public ImageDataset {
 public:
  Pictures(int64_t n, std::set<int64_t> broken, int64_t side = 4)
      : n_(n), broken_(std::move(broken)), side_(side) {
    skip_unreadable = true;
    pipeline.steps = {[](Image image, Rng& rng) {
      for (uint8_t& p : image.pixels) p = static_cast<uint8_t>(rng.below(256));
      return image;
    }};
  }
  int64_t size() const override { return n_; }
  Image image(int64_t index) const override {
    TARN_CHECK_AS(FileError, !broken_.contains(index), "broken");
    return Image(side_, side_, 3);
  }
  int64_t label(int64_t index) const override { return index; }
  const std::vector<std::string>& classes() const override { return classes_; }

 private:
  int64_t n_;
  std::set<int64_t> broken_;
  int64_t side_;
  std::vector<std::string> classes_{"any"};
};

// What only refers to a dataset cannot be made of one that is gone at the end of the line.
static_assert(std::is_constructible_v<Subset, const TensorDataset&, std::vector<int64_t>>);
static_assert(!std::is_constructible_v<Subset, TensorDataset, std::vector<int64_t>>);
static_assert(!std::is_constructible_v<std::reference_wrapper<const Dataset>, TensorDataset>);

TEST(SubsetTest, gives_its_examples_in_its_order) {
  const TensorDataset data = numbered(10);
  const Subset part(data, {7, 2, 2, 9});
  EXPECT_EQ(part.size(), 4);
  EXPECT_EQ(targets(part, {0, 1, 2, 3}), (std::vector<int>{7, 2, 2, 9}));
  EXPECT_EQ(targets(Subset(part, {3, 0}), {0, 1}), (std::vector<int>{9, 7}));
  const DataLoader loader(part, {.batch_size = 3, .workers = 1});
  EXPECT_EQ(loader.size(), 2);
  EXPECT_EQ(loader.epoch(0, 1).next()->input.to_vector<int>(), (std::vector<int>{9, 90}));
  EXPECT_MESSAGE(IndexError, Subset(data, {0, 10}),
                 "example 10 does not exist; the dataset has 10");
  EXPECT_MESSAGE(IndexError, Subset(data, {-1}), "Subset: example -1 does not exist");
  EXPECT_MESSAGE(IndexError, targets(part, {4}), "Subset: example 4 does not exist; there are 4");
}

TEST(SubsetTest, augments_and_names_examples_as_the_dataset_does) {
  const Pictures data(10, {5});
  const Subset part(data, {5, 3});
  const Batch whole = data.batch(std::vector<int64_t>{3}, {.seed = 2, .epoch = 1});
  const Batch mine = part.batch(std::vector<int64_t>{0, 1}, {.seed = 2, .epoch = 1});
  EXPECT_EQ(mine.input.to_vector<float>(), whole.input.to_vector<float>());
  EXPECT_EQ(mine.skipped, std::vector<std::string>{"example 5"});
}

TEST(RandomSplit, puts_every_example_into_one_part) {
  const TensorDataset data = numbered(100);
  const auto parts = random_split(data, {70, 0, 30}, 4);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].size(), 70);
  EXPECT_EQ(parts[1].size(), 0);
  EXPECT_EQ(parts[2].size(), 30);
  std::set<int64_t> seen;
  for (const Subset& part : parts) seen.insert(part.indices().begin(), part.indices().end());
  EXPECT_EQ(seen.size(), 100u);
  // A random third of 0 ... 99 has a mean of about 49.5, give or take 29 / sqrt(30) * 0.84 = 4.4.
  const auto& last = parts[2].indices();
  EXPECT_NEAR(std::accumulate(last.begin(), last.end(), 0.0) / 30, 49.5, 18);
  EXPECT_EQ(random_split(data, {70, 30}, 4)[0].indices(), parts[0].indices());
  EXPECT_NE(random_split(data, {70, 30}, 5)[0].indices(), parts[0].indices());
  auto shuffled = RandomSampler(100, 4).order(0);
  shuffled.resize(70);
  EXPECT_NE(parts[0].indices(), shuffled) << "a loader with the same seed draws other numbers";
}

TEST(RandomSplit, takes_fractions_through_split_lengths) {
  using V = std::vector<int64_t>;
  EXPECT_EQ(split_lengths(10, {0.8, 0.2}), (V{8, 2}));
  EXPECT_EQ(split_lengths(11, {0.5, 0.25, 0.25}), (V{6, 3, 2}));  // 5.5, 2.75, 2.75: two are left
  EXPECT_EQ(split_lengths(3, std::vector<double>(10, 0.1)), (V{1, 1, 1, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(split_lengths(0, {1}), V{0});
  EXPECT_MESSAGE(ValueError, split_lengths(10, {0.5, 0.4}), "must add up to 1; got 0.9");
  EXPECT_MESSAGE(ValueError, split_lengths(10, {1.5, -0.5}), "must be in [0, 1]; got 1.5");
  EXPECT_MESSAGE(ValueError, split_lengths(10, {}), "must add up to 1; got 0");
}

TEST(RandomSplit, refuses_lengths_that_do_not_add_up) {
  const TensorDataset data = numbered(10);
  EXPECT_MESSAGE(ValueError, random_split(data, {5, 4}, 0),
                 "must add up to that of the dataset, 10; they leave 1 examples over");
  EXPECT_MESSAGE(ValueError, random_split(data, {5, 6}, 0),
                 "add up to that of the dataset, 10; got a length of 6 with 5 examples left");
  EXPECT_MESSAGE(ValueError, random_split(data, {11, -1}, 0), "got a length of 11");
  EXPECT_MESSAGE(ValueError, random_split(data, {-1, 11}, 0), "got a length of -1");
  EXPECT_MESSAGE(ValueError, random_split(data, {}, 0), "they leave 10 examples over");
}

TEST(ConcatDatasetTest, numbers_the_examples_on) {
  const TensorDataset a = numbered(3), none = numbered(0), b = numbered(2, 100);
  const ConcatDataset all({a, none, b});
  EXPECT_EQ(all.size(), 5);
  EXPECT_EQ(targets(all, {0, 1, 2, 3, 4}), (std::vector<int>{0, 1, 2, 100, 101}));
  const Batch mixed = all.batch(std::vector<int64_t>{4, 1, 0, 3}, {});
  EXPECT_EQ(mixed.target.to_vector<int>(), (std::vector<int>{101, 1, 0, 100}));
  EXPECT_EQ(mixed.target.dtype(), DType::kI64);
  EXPECT_EQ(mixed.input.to_vector<int>(), (std::vector<int>{101, 1010, 1, 10, 0, 0, 100, 1000}));
  EXPECT_EQ(all.batch(std::vector<int64_t>{}, {}).input.sizes(), (Shape{0, 2}));
  EXPECT_EQ(targets(ConcatDataset({all, a}), {5, 3}), (std::vector<int>{0, 100}));
  EXPECT_MESSAGE(IndexError, targets(all, {5}), "ConcatDataset: example 5 does not exist");
  EXPECT_MESSAGE(IndexError, targets(all, {-1}), "ConcatDataset: example -1 does not exist");
  EXPECT_MESSAGE(ValueError, ConcatDataset({}), "at least one dataset is needed");
}

TEST(ConcatDatasetTest, gives_every_dataset_a_seed_of_its_own_when_nested_too) {
  class Seeds final : public Dataset {
   public:
    int64_t size() const override { return 3; }
    Batch batch(std::span<const int64_t>, const EpochKey& key) const override {
      EXPECT_EQ(key.epoch, 4);
      seen.insert(key.seed);
      return {.input = zeros({1})};
    }
    mutable std::set<uint64_t> seen;
  };
  const Seeds data;
  const ConcatDataset pair({data, data}), left({pair, data}), right({data, pair}),
      both({left, right, data});
  int64_t parts = 0;
  for (const ConcatDataset* all : {&left, &right, &both}) {
    data.seen.clear();
    for (int64_t i = 0; i < all->size(); i += 3) {
      all->batch(std::vector<int64_t>{i}, {.seed = 9, .epoch = 4});
    }
    parts = all->size() / 3;
    EXPECT_EQ(static_cast<int64_t>(data.seen.size()), parts);
    EXPECT_TRUE(data.seen.contains(9)) << "the first is augmented as it is alone";
  }
  EXPECT_EQ(parts, 7);
}

TEST(ConcatDatasetTest, keeps_the_order_around_pictures_that_cannot_be_read) {
  const Pictures a(4, {1, 3}), b(4, {0});
  const ConcatDataset all({a, b});
  const EpochKey key{.seed = 6, .epoch = 2};
  const Batch batch = all.batch(std::vector<int64_t>{5, 1, 2, 4, 6, 0}, key);
  EXPECT_EQ(batch.target.to_vector<int>(), (std::vector<int>{1, 2, 2, 0}));
  EXPECT_EQ(batch.input.sizes(), (Shape{4, 3, 4, 4}));
  EXPECT_TRUE(batch.input.is_contiguous(MemoryFormat::kChannelsLast));
  EXPECT_EQ(batch.skipped, (std::vector<std::string>{"example 1", "example 0"}));
  // Example 2 of a as a alone gives it; that of b is augmented otherwise.
  const auto rows = batch.input.to_vector<float>();
  const std::vector<float> of_a(rows.begin() + 48, rows.begin() + 96),
      of_b(rows.begin() + 96, rows.begin() + 144);
  EXPECT_EQ(of_a, a.batch(std::vector<int64_t>{2}, key).input.to_vector<float>());
  EXPECT_NE(of_a, of_b);
  const Batch nothing = all.batch(std::vector<int64_t>{4, 1}, key);
  EXPECT_EQ(nothing.size(), 0);
  EXPECT_EQ(nothing.target.numel(), 0);
  EXPECT_EQ(nothing.skipped.size(), 2u);
}

// A dataset of one example with extras of its own.
class OneOf final : public Dataset {
 public:
  explicit OneOf(std::map<std::string, Tensor> extra, DType dtype = DType::kF32)
      : extra_(std::move(extra)), dtype_(dtype) {}
  int64_t size() const override { return 1; }
  Batch batch(std::span<const int64_t> indices, const EpochKey&) const override {
    const auto n = static_cast<int64_t>(indices.size());
    return {.input = zeros({n, 2}, {.dtype = dtype_}), .extra = extra_};
  }

 private:
  std::map<std::string, Tensor> extra_;
  DType dtype_;
};

TEST(ConcatDatasetTest, joins_the_other_members_by_name) {
  const OneOf a({{"length", tensor({3})}, {"id", tensor({30})}});
  const OneOf b({{"length", tensor({4})}, {"id", tensor({40})}});
  const Batch batch = ConcatDataset({a, b}).batch(std::vector<int64_t>{1, 0}, {});
  EXPECT_EQ(batch.extra.at("length").to_vector<int>(), (std::vector<int>{4, 3}));
  EXPECT_EQ(batch.extra.at("id").to_vector<int>(), (std::vector<int>{40, 30}));
  EXPECT_FALSE(batch.target.defined()) << "neither has one";
}

TEST(ConcatDatasetTest, refuses_rows_that_do_not_fit_together) {
  const std::vector<int64_t> both = {0, 1};
  const OneOf a({{"length", tensor({3})}}), without({}), halves({}, DType::kF16);
  EXPECT_MESSAGE(ValueError, ConcatDataset({a, without}).batch(both, {}),
                 "some have no extra length");
  EXPECT_MESSAGE(ValueError, ConcatDataset({without, halves}).batch(both, {}),
                 "the datasets must have one dtype; got input=[1, 2] f32");
  const Pictures small(1, {}), large(1, {}, 5);
  EXPECT_MESSAGE(ShapeError, ConcatDataset({small, large}).batch(both, {}),
                 "the rows of the datasets must have one size; got input=[1, 3, 4, 4]");
  const TensorDataset numbers = numbered(1);
  EXPECT_MESSAGE(ValueError, ConcatDataset({without, numbers}).batch(both, {}),
                 "the datasets must have the same members; some have no target");
}

}  // namespace
}  // namespace tarn::data
