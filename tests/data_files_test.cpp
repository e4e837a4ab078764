// data_files_test.cpp - MNIST, CIFAR-10 and image folders from tiny made-up files.
#include <cmath>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include "tarn/data/cifar10.h"
#include "tarn/data/image_folder.h"
#include "tarn/data/mnist.h"
#include "tarn/tests/temp_folder.h"
#include "tarn/tests/tiny_images.h"

namespace tarn::data {
namespace {

using test::TempFolder;

std::string idx(const std::vector<uint32_t>& sizes, const std::string& data, char type = 8) {
  std::string out{0, 0, type, static_cast<char>(sizes.size())};
  for (uint32_t s : sizes) {
    for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(s >> shift);
  }
  return out + data;
}

std::string gzip(const std::string& bytes) {
  const TempFolder folder;
  gzFile file = gzopen((folder / "x.gz").c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  return test::slurp(folder / "x.gz");
}

const std::string kTwoPictures = idx({2, 1, 2}, "abcd");
const std::string kTwoLabels = idx({2}, "\x09\x01");

TEST(MnistTest, reads_gzipped_and_unpacked_files_alike) {
  const TempFolder folder;
  folder.write("train-images-idx3-ubyte.gz", gzip(kTwoPictures));
  folder.write("train-labels-idx1-ubyte", kTwoLabels);
  folder.write("t10k-images.idx3-ubyte", kTwoPictures);
  folder.write("t10k-labels.idx1-ubyte.gz", gzip(kTwoLabels));
  for (const bool train : {true, false}) {
    const auto data = load_mnist(folder.str(), train, kFashionMnistClasses);
    EXPECT_EQ(data->size(), 2);
    EXPECT_EQ(data->label(0), 9);
    EXPECT_EQ(data->classes()[9], "Ankle boot");
    const Image second = data->image(1);
    EXPECT_EQ(second.pixels, (std::vector<uint8_t>{'c', 'd'}));
    EXPECT_EQ(second.width, 2);
    EXPECT_EQ(second.channels, 1);
  }
  EXPECT_EQ(load_mnist(folder.str(), true)->classes()[3], "3");
}

TEST(MnistTest, names_what_is_wrong_with_a_file) {
  const TempFolder folder;
  const auto load = [&](const std::string& bytes) { load_idx(folder.write("x", bytes)); };
  EXPECT_MESSAGE(FileError, load("PNG"), "truncated: the magic number needs 4 bytes, there are 3");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_MESSAGE(FileError, load_idx(folder / "pipe"), "pipe: not a plain file");
  EXPECT_MESSAGE(FileError, load("abcdef"), "not an IDX file");
  EXPECT_MESSAGE(FileError, load(idx({1}, "abcd", 0x0D)), "IDX type 13");
  EXPECT_MESSAGE(FileError, load(idx({}, "")), "0 dimensions");
  EXPECT_MESSAGE(FileError, load(idx({3}, "ab")), "sizes [3] need 3 bytes, there are 2");
  EXPECT_MESSAGE(FileError, load(idx({1}, "ab")), "longer than its sizes [1] say");
  EXPECT_MESSAGE(FileError, load(idx({0xFFFFFFFF, 0xFFFFFFFF}, "")), "beyond 1 TiB");
  EXPECT_MESSAGE(FileError, load(idx({0x7FFFFFFF}, "ab")), "there are 2");
  EXPECT_MESSAGE(FileError, load_idx(folder / "none"), "none: No such file");
  EXPECT_MESSAGE(FileError, load_idx(folder.str()), "it is a folder");
}

TEST(MnistTest, folders_that_are_called_as_the_files_are_passed_over) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "train-images-idx3-ubyte");
  std::filesystem::create_directory(folder / "train-labels-idx1-ubyte");
  folder.write("train-images.idx3-ubyte", kTwoPictures);
  folder.write("train-labels.idx1-ubyte", kTwoLabels);
  EXPECT_EQ(load_mnist(folder.str(), true)->size(), 2);
}

TEST(MnistTest, a_link_to_itself_is_a_missing_file) {
  const TempFolder folder;
  for (const char* name : {"train-images-idx3-ubyte", "x"}) {
    std::filesystem::create_symlink(folder / name, folder / name);
  }
  EXPECT_MESSAGE(FileError, load_idx(folder / "x"), "x: Too many levels of symbolic links");
  EXPECT_MESSAGE(FileError, load_mnist(folder.str(), true), "neither train-images-idx3-ubyte nor");
  EXPECT_MESSAGE(FileError, load_mnist(folder / "x", true), "neither train-images-idx3-ubyte nor");
  folder.write("train-images-idx3-ubyte.gz", gzip(kTwoPictures));
  folder.write("train-labels-idx1-ubyte", kTwoLabels);
  EXPECT_EQ(load_mnist(folder.str(), true)->size(), 2);
}

TEST(MnistTest, refuses_a_gzip_cut_at_any_length_or_damaged) {
  const TempFolder folder;
  std::string data;
  for (int i = 0; i < 200; ++i) data += static_cast<char>(i * i * 31);
  const std::string whole = gzip(idx({200}, data));
  for (size_t n = 0; n < whole.size(); ++n) {
    const std::string path = folder.write("x.gz", whole.substr(0, n));
    const std::string message = test::message_of<FileError>([&] { load_idx(path); });
    EXPECT_TRUE(message.ends_with(": truncated gzip: the file ends too early") ||
                message.find("truncated: the magic number") != std::string::npos || n < 3)
        << n << ": " << message;
    EXPECT_NE(message, "") << n;
  }
  std::string bad = whole;
  bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 1);
  const std::string path = folder.write("y.gz", bad);
  EXPECT_MESSAGE(FileError, load_idx(path), "load_idx: " + path);
  EXPECT_MESSAGE(FileError, load_idx(path), ": corrupt gzip: ");
  const std::string message = test::message_of<FileError>([&] { load_idx(path); });
  EXPECT_EQ(message.find(path), message.rfind(path)) << message;  // named once
}

TEST(MnistTest, checks_that_pictures_and_labels_belong_together) {
  const TempFolder folder;
  EXPECT_MESSAGE(FileError, load_mnist(folder.str(), true),
                 "neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz is in");
  folder.write("train-images-idx3-ubyte", kTwoPictures);
  folder.write("train-labels-idx1-ubyte", idx({3}, "\1\2\3"));
  EXPECT_MESSAGE(FileError, load_mnist(folder.str(), true),
                 "2 pictures need as many labels; got [3]");
  folder.write("train-labels-idx1-ubyte", idx({2}, "\1\x0a"));
  EXPECT_MESSAGE(FileError, load_mnist(folder.str(), true), "label 1 is 10; must be below 10");
  folder.write("train-images-idx3-ubyte", idx({2, 2}, "abcd"));
  EXPECT_MESSAGE(FileError, load_mnist(folder.str(), true), "must be [N, H, W]; got [2, 2]");
}

TEST(MnistTest, reads_the_published_fashion_mnist) {
  if (!std::filesystem::exists(kFashionMnistFolder)) GTEST_SKIP() << "dataset-fashion-mnist absent";
  const auto data = load_mnist(kFashionMnistFolder, true, kFashionMnistClasses);
  ASSERT_EQ(data->size(), 60000);
  std::string labels;
  for (int64_t i = 0; i < 8; ++i) labels += static_cast<char>('0' + data->label(i));
  EXPECT_EQ(labels, "90030272");
  double sum = 0, squares = 0;
  const uint8_t* pixels = data->pixels().data<uint8_t>();
  for (int64_t i = 0; i < data->pixels().numel(); ++i) {
    sum += pixels[i];
    squares += pixels[i] * pixels[i];
  }
  const double n = static_cast<double>(data->pixels().numel()), mean = sum / n;
  EXPECT_NEAR(mean / 255, 0.286041, 1e-6);
  EXPECT_NEAR(std::sqrt(squares / n - mean * mean) / 255, 0.353024, 1e-6);
}

std::string cifar_record(char label, char red, char green, char blue) {
  return std::string(1, label) + std::string(1024, red) + std::string(1024, green) +
         std::string(1024, blue);
}

TEST(Cifar10Test, interleaves_the_colour_planes) {
  const TempFolder folder;
  folder.write("cifar-10-batches-bin/test_batch.bin",
               cifar_record(3, 1, 2, 3) + cifar_record(9, 4, 5, 6));
  const auto data = load_cifar10(folder.str(), false);
  ASSERT_EQ(data->size(), 2);
  EXPECT_EQ(data->classes()[static_cast<size_t>(data->label(0))], "cat");
  const Image second = data->image(1);
  EXPECT_EQ(second.height, 32);
  EXPECT_EQ(std::vector<uint8_t>(second.pixels.begin(), second.pixels.begin() + 6),
            (std::vector<uint8_t>{4, 5, 6, 4, 5, 6}));
  for (int i = 1; i <= 5; ++i) {
    folder.write("data_batch_" + std::to_string(i) + ".bin", cifar_record(0, 0, 0, 0));
    folder.write("cifar-10-batches-bin/data_batch_" + std::to_string(i) + ".bin",
                 cifar_record(static_cast<char>(i), 0, 0, 0));
  }
  EXPECT_EQ(load_cifar10(folder.str(), true)->size(), 5);
  EXPECT_EQ(load_cifar10(folder.str(), true)->label(4), 5);
}

TEST(Cifar10Test, names_the_file_and_the_record_that_is_wrong) {
  const TempFolder folder;
  EXPECT_MESSAGE(FileError, load_cifar10(folder.str(), false), "test_batch.bin: No such file");
  folder.write("test_batch.bin", cifar_record(0, 0, 0, 0) + "x");
  EXPECT_MESSAGE(FileError, load_cifar10(folder.str(), false),
                 "it has 3074 bytes, 1 records and 1 bytes");
  folder.write("test_batch.bin", "");
  EXPECT_MESSAGE(FileError, load_cifar10(folder.str(), false), "must hold whole records");
  folder.write("test_batch.bin", cifar_record(0, 0, 0, 0) + cifar_record(10, 0, 0, 0));
  EXPECT_MESSAGE(FileError, load_cifar10(folder.str(), false),
                 "record 1 at offset 3073 has label 10");
}

TEST(Cifar10Test, a_link_to_itself_is_a_missing_folder) {
  const TempFolder folder;
  const std::string inner = folder / "cifar-10-batches-bin";
  std::filesystem::create_symlink(inner, inner);
  EXPECT_MESSAGE(FileError, load_cifar10(folder.str(), false), "test_batch.bin: No such file");
  EXPECT_MESSAGE(FileError, load_cifar10(inner, false), "test_batch.bin: Too many levels");
  folder.write("test_batch.bin", cifar_record(0, 0, 0, 0));
  EXPECT_EQ(load_cifar10(folder.str(), false)->size(), 1);
}

TEST(ImageFolderTest, sorts_classes_and_files_and_follows_links) {
  const TempFolder folder;
  folder.write("b/2.png", test::kTinyPng);
  folder.write("b/10.JPG", test::kTinyJpeg);
  folder.write("b/notes.txt", "no picture");
  folder.write("a/deep/er/x.PNG", test::kTinyPng);
  folder.write("a/z.png", test::kTinyPng);
  folder.write("loose.png", test::kTinyPng);
  std::filesystem::create_directory_symlink(folder / "b", folder / "c");
  std::filesystem::create_directory_symlink(folder.str(), folder / "a/loop");  // back to the root
  std::filesystem::remove(folder / "a/loop");
  std::filesystem::create_directory_symlink(folder / "a", folder / "a/loop");
  const ImageFolder data(folder.str());
  EXPECT_EQ(data.classes(), (std::vector<std::string>{"a", "b", "c"}));
  ASSERT_EQ(data.size(), 6);
  EXPECT_EQ(data.name(0), folder / "a/z.png");
  EXPECT_EQ(data.name(1), folder / "a/deep/er/x.PNG");
  EXPECT_EQ(data.name(2), folder / "b/10.JPG");  // byte order, not numbers
  EXPECT_EQ(data.name(5), folder / "c/2.png");
  EXPECT_EQ(data.label(5), 2);
  EXPECT_EQ(data.image(3).pixels[0], 255);
}

TEST(ImageFolderTest, explains_an_unusable_root) {
  const TempFolder folder;
  EXPECT_MESSAGE(FileError, ImageFolder(folder / "none"), "cannot read folder");
  EXPECT_MESSAGE(FileError, ImageFolder(folder.str()), "no class folders in " + folder.str());
  folder.write("cats/readme.txt", "");
  EXPECT_MESSAGE(FileError, ImageFolder(folder.str()),
                 "class folder " + (folder / "cats") + " holds no pictures");
}

TEST(ImageFolderTest, a_link_to_itself_is_no_folder_and_a_picture_that_does_not_decode) {
  const TempFolder folder;
  folder.write("a/1.png", test::kTinyPng);
  for (const char* name : {"loop", "a/loop", "a/2.png"}) {
    std::filesystem::create_symlink(folder / name, folder / name);
  }
  const ImageFolder data(folder.str());
  EXPECT_EQ(data.classes(), std::vector<std::string>{"a"});
  ASSERT_EQ(data.size(), 2);
  EXPECT_EQ(data.image(0).width, 2);
  EXPECT_MESSAGE(FileError, data.image(1), folder / "a/2.png");
  EXPECT_MESSAGE(FileError, ImageFolder(folder / "loop"), "cannot read folder");
}

TEST(ImageFolderTest, names_or_skips_a_picture_that_does_not_decode) {
  const TempFolder folder;
  folder.write("a/1.png", test::kTinyPng);
  const std::string bad = folder.write("a/2.png", "broken");
  folder.write("b/3.png", test::kTinyPng);
  ImageFolder data(folder.str());
  const std::vector<int64_t> all{0, 1, 2};
  EXPECT_MESSAGE(FileError, data.batch(all, {}), "example 1 (" + bad + "): decode_image: " + bad);
  data.skip_unreadable = true;
  const Batch batch = data.batch(all, {});
  EXPECT_EQ(batch.size(), 2);
  EXPECT_EQ(batch.input.sizes(), (Shape{2, 3, 2, 2}));
  EXPECT_EQ(batch.target.to_vector<int>(), (std::vector<int>{0, 1}));
  EXPECT_EQ(batch.skipped, std::vector<std::string>{bad});
  EXPECT_EQ(data.batch(std::vector<int64_t>{1}, {}).size(), 0);
}

}  // namespace
}  // namespace tarn::data
