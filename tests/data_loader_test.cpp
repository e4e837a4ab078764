// data_loader_test.cpp - batches, their order, workers, errors, and leaving early.
#include <atomic>
#include <chrono>
#include <limits>
#include <set>
#include <thread>
#include <type_traits>

#include <gtest/gtest.h>

#include "tarn/core/device.h"
#include "tarn/core/factory.h"
#include "tarn/core/transfer.h"
#include "tarn/data/loader.h"
#include "tarn/tests/temp_folder.h"

namespace tarn::data {
namespace {

/// Pictures [4, 4, 1] whose pixels all equal the index.
MemoryImages numbered(int64_t n) {
  std::vector<uint8_t> pixels, labels;
  for (int64_t i = 0; i < n; ++i) {
    pixels.insert(pixels.end(), 16, static_cast<uint8_t>(i));
    labels.push_back(static_cast<uint8_t>(i % 10));
  }
  return MemoryImages(from_vector(pixels, {n, 4, 4, 1}), labels, {"any"});
}

std::vector<int> labels_of(Epoch epoch) {
  std::vector<int> all;
  for (const Batch& batch : epoch) {
    for (int label : batch.target.to_vector<int>()) all.push_back(label);
  }
  return all;
}

/// Fails or waits at chosen examples.
class Troubled : public Dataset {
 public:
  int64_t fails_at = -1, hangs_at = -1;
  std::atomic<bool> released{false};
  mutable std::atomic<int> prepared{0};
  int64_t size() const override { return 100; }
  Batch batch(std::span<const int64_t> indices, const EpochKey&) const override {
    ++prepared;
    for (int64_t i : indices) {
      TARN_CHECK_AS(FileError, i != fails_at, "example ", i, " (pictures/", i, ".png): broken");
      while (i == hangs_at && !released) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const auto n = static_cast<int64_t>(indices.size());
    return {zeros({n}), from_vector(std::vector<int64_t>(indices.begin(), indices.end()), {n}), {}};
  }
};

TEST(DatasetTest, gathers_rows_and_checks_indices) {
  const TensorDataset data(tensor({0, 1, 2, 3, 4, 5}, {3, 2}), tensor({7, 8, 9}));
  const Batch batch = data.batch(std::vector<int64_t>{2, 0}, {});
  EXPECT_EQ(batch.input.to_vector<int>(), (std::vector<int>{4, 5, 0, 1}));
  EXPECT_EQ(batch.target.to_vector<int>(), (std::vector<int>{9, 7}));
  EXPECT_MESSAGE(IndexError, data.batch(std::vector<int64_t>{3}, {}), "example 3 does not exist");
  EXPECT_MESSAGE(ShapeError, TensorDataset(zeros({2}), zeros({3})), "same first size");
}

TEST(DatasetTest, batches_pictures_in_channels_last) {
  MemoryImages data = numbered(3);
  const Batch batch = data.batch(std::vector<int64_t>{2, 1}, {});
  EXPECT_EQ(batch.input.sizes(), (Shape{2, 1, 4, 4}));
  EXPECT_TRUE(batch.input.is_contiguous(MemoryFormat::kChannelsLast));
  EXPECT_EQ(batch.input.to_vector<float>()[0], 2 / 255.0f);
  data.pipeline.steps = {
      [](Image image, Rng& rng) { return center_crop(1 + rng.below(4))(std::move(image), rng); }};
  EXPECT_MESSAGE(ShapeError, data.batch(std::vector<int64_t>{0, 1, 2}, {}),
                 "pictures of one batch must have one size");
  EXPECT_MESSAGE(ShapeError, MemoryImages(zeros({1}), {}, {}), "must be [N, H, W, C] u8");
  EXPECT_MESSAGE(ShapeError, MemoryImages(zeros({2, 1, 1, 1}, {.dtype = DType::kU8}), {0}, {}),
                 "one label per picture; got 2 pictures, 1 labels");
}

TEST(SamplerTest, permutes_anew_each_epoch_and_repeatably) {
  const RandomSampler sampler(100, 5);
  const auto first = sampler.order(0);
  EXPECT_EQ(first, sampler.order(0));
  EXPECT_NE(first, sampler.order(1));
  EXPECT_NE(first, RandomSampler(100, 6).order(0));
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 100u);
  EXPECT_EQ(SequentialSampler(3).order(9), (std::vector<int64_t>{0, 1, 2}));
}

TEST(SamplerTest, distributes_evenly_by_repeating_or_dropping) {
  const auto rank = [](int64_t r, bool drop) {
    return DistributedSampler(10, {.ranks = 4, .rank = r, .shuffle = false, .drop_last = drop})
        .order(0);
  };
  using V = std::vector<int64_t>;
  EXPECT_EQ(rank(0, false), (V{0, 4, 8}));
  EXPECT_EQ(rank(2, false), (V{2, 6, 0}));
  EXPECT_EQ(rank(3, false), (V{3, 7, 1}));
  EXPECT_EQ(rank(3, true), (V{3, 7}));
  std::set<int64_t> seen;
  for (int64_t r = 0; r < 5; ++r) {
    for (int64_t i : DistributedSampler(10, {.ranks = 5, .rank = r}).order(3)) seen.insert(i);
  }
  EXPECT_EQ(seen.size(), 10u);
  EXPECT_MESSAGE(ValueError, DistributedSampler(10, {.ranks = 2, .rank = 2}), "rank must be in");
}

TEST(DataLoaderTest, splits_an_epoch_into_batches) {
  const MemoryImages data = numbered(10);
  const DataLoader all(data, {.batch_size = 4});
  EXPECT_EQ(all.size(), 3);
  EXPECT_EQ(labels_of(all.epoch(0)), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(labels_of(all.epoch(0, 2)), (std::vector<int>{8, 9}));
  const DataLoader one(data, {.batch_size = std::numeric_limits<int64_t>::max()});
  EXPECT_EQ(one.size(), 1);
  EXPECT_EQ(labels_of(one.epoch(0)).size(), 10u);
  const DataLoader patient(data,
                           {.workers = 1, .timeout_s = std::numeric_limits<double>::infinity()});
  EXPECT_EQ(labels_of(patient.epoch(0)).size(), 10u);
  const DataLoader whole(data, {.batch_size = 4, .drop_last = true});
  EXPECT_EQ(whole.size(), 2);
  EXPECT_EQ(whole.examples(), 8);
  EXPECT_EQ(labels_of(whole.epoch(0)).size(), 8u);
  EXPECT_MESSAGE(ValueError, DataLoader(data, {.batch_size = 0}), "batch_size must be positive");
  EXPECT_MESSAGE(ValueError, DataLoader(data, {.workers = -1}), "needs workers >= 0");
  EXPECT_MESSAGE(ValueError, all.epoch(0, 4), "first_batch 4 is outside [0, 3]");
}

// A dataset that is made for the call would dangle.
static_assert(std::is_constructible_v<DataLoader, const TensorDataset&, LoaderOptions>);
static_assert(!std::is_constructible_v<DataLoader, TensorDataset, LoaderOptions>);
static_assert(!std::is_constructible_v<DataLoader, const TensorDataset, LoaderOptions>);
static_assert(std::is_constructible_v<DataLoader, TensorDataset&, std::unique_ptr<RandomSampler>,
                                      LoaderOptions>);
static_assert(!std::is_constructible_v<DataLoader, TensorDataset, std::unique_ptr<RandomSampler>,
                                       LoaderOptions>);
static_assert(!std::is_constructible_v<DataLoader, const TensorDataset, std::unique_ptr<Sampler>,
                                       LoaderOptions>);

// Says one size and gives an order that may be another.
class WrongSampler final : public Sampler {
 public:
  WrongSampler(int64_t n, std::vector<int64_t> order) : n_(n), order_(std::move(order)) {}
  int64_t size() const override { return n_; }
  std::vector<int64_t> order(int64_t) const override { return order_; }

 private:
  int64_t n_;
  std::vector<int64_t> order_;
};

TEST(DataLoaderTest, says_what_is_wrong_with_a_sampler) {
  const MemoryImages data = numbered(3);
  const auto start = [&](int64_t n, std::vector<int64_t> order, int64_t epoch = 0) {
    DataLoader(data, std::make_unique<WrongSampler>(n, std::move(order)), {.workers = 2})
        .epoch(epoch);
  };
  start(3, {2, 2, 0});
  EXPECT_MESSAGE(ValueError, DataLoader(data, nullptr, {}), "there is no sampler; leave it out");
  EXPECT_MESSAGE(ValueError, start(3, {0, 1}, 5),
                 "the sampler must order as many examples as its size(); got 2 for 3 in epoch 5");
  EXPECT_MESSAGE(ValueError, start(2, {0, 1, 2}), "got 3 for 2 in epoch 0");
  EXPECT_MESSAGE(IndexError, start(3, {0, 3, 1}, 7),
                 "the sampler orders example 3 at position 1 of epoch 7, but the dataset has 3");
  EXPECT_MESSAGE(IndexError, start(1, {-1}), "orders example -1 at position 0");
}

// A dataset with more to say about its examples than input and target.
class Sentences final : public Dataset {
 public:
  int64_t size() const override { return 10; }
  Batch batch(std::span<const int64_t> indices, const EpochKey&) const override {
    const auto n = static_cast<int64_t>(indices.size());
    return {.input = zeros({n, 4}),
            .target = zeros({n}),
            .extra = {{"length",
                       from_vector(std::vector<int64_t>(indices.begin(), indices.end()), {n})}}};
  }
};

TEST(DataLoaderTest, hands_on_what_else_belongs_to_the_examples) {
  const Sentences data;
  for (const int workers : {0, 2}) {
    const DataLoader loader(data, {.batch_size = 4, .workers = workers});
    std::vector<int> lengths;
    for (const Batch& batch : loader.epoch(0)) {
      EXPECT_TRUE(batch.skipped.empty());
      for (int n : batch.extra.at("length").to_vector<int>()) lengths.push_back(n);
    }
    EXPECT_EQ(lengths, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  }
}

TEST(DataLoaderTest, pins_all_tensors_of_a_batch) {
  if (available_devices().size() < 2) GTEST_SKIP() << "without a GPU there is no pinned memory";
  const Sentences data;
  const DataLoader loader(data, {.batch_size = 4, .pin_memory = true});
  const Batch batch = *loader.epoch(0).next();
  EXPECT_TRUE(is_pinned(batch.input));
  EXPECT_TRUE(is_pinned(batch.target));
  EXPECT_TRUE(is_pinned(batch.extra.at("length")));
  EXPECT_EQ(batch.extra.at("length").to_vector<int>(), (std::vector<int>{0, 1, 2, 3}));
}

TEST(DataLoaderTest, gives_the_same_batches_whatever_the_number_of_workers) {
  MemoryImages data = numbered(100);
  data.pipeline.steps = {random_crop(4, 2), random_horizontal_flip()};
  data.pipeline.erasing.probability = 0.5;
  std::vector<float> expected;
  for (const int workers : {0, 1, 2, 5}) {
    const DataLoader loader(data, std::make_unique<RandomSampler>(100, 3),
                            {.batch_size = 7, .workers = workers, .seed = 3});
    std::vector<float> values;
    for (int64_t e = 0; e < 2; ++e) {
      for (const Batch& batch : loader.epoch(e)) {
        for (float v : batch.input.to_vector<float>()) values.push_back(v);
      }
    }
    if (workers == 0) expected = values;
    EXPECT_EQ(values, expected) << workers << " workers";
  }
  EXPECT_EQ(expected.size(), 2u * 100 * 16);
}

TEST(DataLoaderTest, hands_errors_to_the_caller_after_the_batches_before) {
  Troubled data;
  data.fails_at = 17;
  for (const int workers : {0, 3}) {
    const DataLoader loader(data, {.batch_size = 5, .workers = workers});
    Epoch epoch = loader.epoch(0);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(epoch.next()->size(), 5);
    EXPECT_MESSAGE(FileError, epoch.next(), "example 17 (pictures/17.png): broken");
  }
}

TEST(DataLoaderTest, prepares_no_more_than_it_says_ahead) {
  Troubled data;
  const DataLoader loader(data, {.batch_size = 1, .workers = 2, .prefetch = 3});
  EXPECT_EQ(loader.ahead(), 6);
  Epoch epoch = loader.epoch(0);
  for (int taken = 1; taken < 5; ++taken) {
    epoch.next();
    for (int i = 0; i < 1000 && data.prepared < taken + 6; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // time to run too far
    EXPECT_EQ(data.prepared, taken + 6);
  }
  EXPECT_EQ(LoaderOptions{}.ahead(), 0) << "without threads";
}

TEST(DataLoaderTest, stops_its_threads_when_left_early) {
  Troubled data;
  const DataLoader loader(data, {.batch_size = 1, .workers = 2, .prefetch = 3});
  for (int i = 0; i < 20; ++i) {
    Epoch epoch = loader.epoch(0);
    epoch.next();
  }
  // At most the batch taken, six ahead of it, and one more per worker: workers do not run away.
  EXPECT_LE(data.prepared, 20 * 9);
}

TEST(DataLoaderTest, names_the_batch_that_does_not_come) {
  // Never destroyed: the worker that is let go may still be in it when the process ends.
  static Troubled& data = *new Troubled;
  data.hangs_at = 2;
  const DataLoader loader(data, {.batch_size = 2, .workers = 1, .timeout_s = 0.05});
  Epoch epoch = loader.epoch(4);
  struct Release {  // whatever fails below, the worker must not hang for ever
    ~Release() { data.released = true; }
  } const release;
  epoch.next();
  EXPECT_MESSAGE(Error, epoch.next(),
                 "batch 1 of epoch 4 (examples from position 2 of the order) was not ready");
}

TEST(DataLoaderTest, leaves_a_thread_behind_that_hangs_when_an_epoch_is_left) {
  static Troubled& data = *new Troubled;
  data.hangs_at = 2;
  const DataLoader loader(data, {.batch_size = 2, .workers = 1, .timeout_s = 0.05});
  struct Release {
    ~Release() { data.released = true; }
  } const release;
  const auto start = std::chrono::steady_clock::now();
  {
    Epoch epoch = loader.epoch(0);
    epoch.next();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60)) << "5 are allowed";
}

TEST(DataLoaderTest, gives_batches_of_which_nothing_could_be_read_empty_and_in_their_place) {
  class Broken final : public ImageDataset {
   public:
    Broken() { skip_unreadable = true; }
    int64_t size() const override { return 20; }
    Image image(int64_t index) const override {
      TARN_CHECK_AS(FileError, index < 4 || index > 11, "broken");
      return Image(2, 2, 1);
    }
    int64_t label(int64_t index) const override { return index; }
    const std::vector<std::string>& classes() const override { return classes_; }

   private:
    std::vector<std::string> classes_{"any"};
  } data;
  for (const int workers : {0, 2}) {
    // Batches of 5: of the first 4 can be read, of the second none, of the third 3, of the last 5.
    const DataLoader loader(data, {.batch_size = 5, .workers = workers});
    std::vector<int64_t> sizes;
    std::vector<std::string> names;
    for (const Batch& batch : loader.epoch(0)) {
      sizes.push_back(batch.size());
      EXPECT_EQ(batch.target.numel(), batch.size());
      names.insert(names.end(), batch.skipped.begin(), batch.skipped.end());
    }
    EXPECT_EQ(sizes, (std::vector<int64_t>{4, 0, 3, 5})) << workers;
    ASSERT_EQ(names.size(), 8u);
    EXPECT_EQ(names.front(), "example 4");
    EXPECT_EQ(names[3], "example 7");
    EXPECT_EQ(names.back(), "example 11");
    EXPECT_EQ(loader.epoch(0, 1).next()->skipped.size(), 5u) << "a place in an epoch stays it";
  }
}

}  // namespace
}  // namespace tarn::data
