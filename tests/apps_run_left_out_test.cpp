// apps_run_left_out_test.cpp - tarn-run tarn-resnet: images that any rank could not read are named.
#include <filesystem>
#include <string>
#include <vector>

#include "apps_process.h"
#include <gtest/gtest.h>

namespace {

using tarn::test::Ended;
using tarn::test::Process;
using tarn::test::slurp;
using tarn::test::TempFolder;

const std::string kRun = tarn::test::built("tarn-run");
const std::string kResnet = tarn::test::built("tarn-resnet");

// n pictures in each of two classes, of which numbers 3 to 5 cannot be read; returns the paths of
// those.
std::vector<std::string> write_pictures(const TempFolder& folder, const std::string& place, int n) {
  std::vector<std::string> unreadable;
  for (int i = 0; i < 2 * n; ++i) {
    const bool light = i % 2 == 0;
    const bool broken = i / 2 >= 3 && i / 2 <= 5;
    std::string picture = "P6 16 16 255\n";
    for (int p = 0; p < 3 * 16 * 16; ++p) {
      picture += static_cast<char>((light ? 150 : 20) + (37 * p + 11 * i) % 80);
    }
    const std::string path = folder.write(
        "pictures/" + place + (light ? "/a/" : "/b/") + std::to_string(100 + i / 2) + ".ppm",
        broken ? "not a picture" : picture);
    if (broken) unreadable.push_back(path);
  }
  return unreadable;
}

TEST(RunLeftOut, images_that_any_rank_cannot_read_are_in_the_log) {
  if (!std::filesystem::exists(kRun) || !std::filesystem::exists(kResnet)) {
    GTEST_SKIP() << "built without apps";
  }
  const TempFolder folder;
  std::vector<std::string> unreadable = write_pictures(folder, "train", 24);
  for (const std::string& path : write_pictures(folder, "val", 6)) unreadable.push_back(path);
  ASSERT_EQ(unreadable.size(), 12u);
  const std::vector<std::string> flags = {"--nproc",
                                          "3",
                                          "--log-dir",
                                          folder / "logs",
                                          kResnet,
                                          "--data-path",
                                          "imagefolder:" + folder / "pictures",
                                          "--device",
                                          "cpu",
                                          "--threads",
                                          "1",
                                          "-b",
                                          "12",
                                          "--epochs",
                                          "2",
                                          "--lr",
                                          "0.0005",
                                          "--skip-unreadable",
                                          "--train-crop-size",
                                          "16",
                                          "--val-resize-size",
                                          "16",
                                          "--val-crop-size",
                                          "16"};
  std::vector<std::string> train = flags;
  train.insert(train.end(), {"--output-dir", folder / "runs", "--name", "r"});
  const Ended end = Process(kRun, train, folder).wait();
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_NE(end.out.find("Left out 12 images that cannot be read, the first: "), std::string::npos)
      << end.out;
  const std::string log = slurp(folder / "runs/r/train.log");
  for (const std::string& path : unreadable) {
    const std::string line = "left out, cannot be read: " + path + "\n";
    const size_t at = log.find(line);
    EXPECT_NE(at, std::string::npos) << path << " is not in\n" << log;
    EXPECT_EQ(log.find(line, at + 1), std::string::npos) << path << " is there twice";
  }

  std::vector<std::string> test_only = flags;
  test_only.insert(test_only.end(), {"--test-only", "--resume", folder / "runs/r"});
  const Ended tested = Process(kRun, test_only, folder).wait();
  ASSERT_EQ(tested.code, 0) << tested.err;
  EXPECT_NE(tested.out.find("Left out 6 images that cannot be read"), std::string::npos)
      << tested.out;
}

}  // namespace
