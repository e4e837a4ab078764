// apps_resnet_test.cpp - the program tarn-resnet as a stranger uses and misuses it.
#include <algorithm>
#include <chrono>
#include <regex>
#include <sstream>
#include <thread>

#include "apps_resnet_tools.h"
#include "tiny_images.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace {

namespace fs = std::filesystem;
using tarn::test::Ended;
using tarn::test::Process;
using tarn::test::slurp;
using tarn::test::TempFolder;

const std::string kProgram = tarn::test::built("tarn-resnet");

class Resnet : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kProgram)) GTEST_SKIP() << "built without apps";
    write_mnist(folder, "data", 48, 16);
  }

  /// The arguments with those of a quick run in front: 3 steps an epoch.
  std::vector<std::string> quick(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"--data-path",  "mnist:" + folder / "data",
                                    "-b",           "16",
                                    "--epochs",     "2",
                                    "--lr",         "0.02",
                                    "--threads",    "1",
                                    "--device",     "cpu",
                                    "--output-dir", folder / "runs",
                                    "--print-freq", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Ended run(const std::vector<std::string>& arguments, rlim_t file_limit = 0) {
    return Process(kProgram, arguments, folder, file_limit).wait();
  }
  /// Fails with this exit code, nothing but one message on standard error.
  void expect_error(const std::vector<std::string>& arguments, int code, const std::string& text) {
    const Ended end = run(arguments);
    EXPECT_EQ(end.code, code) << end.err;
    EXPECT_NE(end.err.find("tarn-resnet: error: "), std::string::npos) << end.err;
    EXPECT_NE(end.err.find(text), std::string::npos) << end.err;
  }
  std::string weights(const std::string& name) const {
    return tarn::test::content(folder / ("runs/" + name + "/checkpoints/last/model.safetensors"));
  }

  TempFolder folder;
};

TEST_F(Resnet, a_run_leaves_all_it_promises) {
  const Ended end = run(quick({"--name", "a", "--no-augment"}));
  ASSERT_EQ(end.code, 0) << end.err;
  const std::string last = end.out.substr(end.out.rfind('\n', end.out.size() - 2) + 1);
  EXPECT_TRUE(last.starts_with("Test: Acc@1 ")) << last;
  EXPECT_TRUE(last.ends_with("/16)\n")) << last;

  const std::string root = folder / "runs/a/";
  for (const char* file :
       {"plots/loss.svg", "plots/loss.png", "plots/accuracy.svg", "plots/accuracy.png",
        "plots/lr.svg", "plots/lr.png", "checkpoints/last/manifest.json",
        "checkpoints/best/model.safetensors"}) {
    EXPECT_GT(fs::file_size(root + file), 100u) << file;
  }
  const auto config = nlohmann::json::parse(slurp(root + "config.json"));
  EXPECT_EQ(config.at("flags").at("lr"), 0.02);
  EXPECT_EQ(config.at("threads"), 1);
  EXPECT_NE(slurp(root + "args.txt").find("tarn-resnet --data-path mnist:"), std::string::npos);

  std::istringstream metrics(slurp(root + "metrics.jsonl"));
  int64_t steps = 0, epochs = 0;
  for (std::string line; std::getline(metrics, line);) {
    const auto j = nlohmann::json::parse(line);
    j.contains("test_acc") ? ++epochs : ++steps;
    EXPECT_GT(j.at("step"), 0);
    EXPECT_TRUE(j.contains("epoch") && j.contains("lr") && j.contains("img_s")) << line;
  }
  EXPECT_EQ(steps, 6);
  EXPECT_EQ(epochs, 2);
  // The form of torchvision's trainer.
  const std::regex form(
      R"(Epoch: \[0\]  \[1/3\]  eta: 0:00:0\d  lr: 0\.\d+  img/s: [\d.]+  loss: [\d.]+ \([\d.]+\)  )"
      R"(acc1: [\d.]+ \([\d.]+\)  time: [\d.]+  data: [\d.]+  max mem: \d+)");
  const std::string log = slurp(root + "train.log");
  EXPECT_TRUE(std::regex_search(log, form)) << log;
}

TEST_F(Resnet, every_flag_works) {
  const Ended end = run(quick({"--model",
                               "resnet18",
                               "--stem",
                               "cifar",
                               "--zero-init-residual",
                               "--limit",
                               "8",
                               "-b",
                               "4",
                               "-j",
                               "2",
                               "--random-erase",
                               "0.5",
                               "--opt",
                               "adamw",
                               "--lr",
                               "0.001",
                               "--wd",
                               "0.01",
                               "--norm-weight-decay",
                               "0",
                               "--label-smoothing",
                               "0.1",
                               "--clip-grad-norm",
                               "1",
                               "--lr-scheduler",
                               "cosineannealinglr",
                               "--lr-min",
                               "1e-5",
                               "--lr-warmup-epochs",
                               "1",
                               "--lr-warmup-method",
                               "linear",
                               "--lr-warmup-decay",
                               "0.1",
                               "--model-ema",
                               "--model-ema-decay",
                               "0.9",
                               "--model-ema-steps",
                               "2",
                               "--gradient-accumulation-steps",
                               "2",
                               "--keep-last",
                               "1",
                               "--save-interval",
                               "1",
                               "--async-save",
                               "--seed",
                               "7",
                               "--no-progress",
                               "--start-epoch",
                               "1",
                               "--device",
                               "cpu",
                               "--skip-unreadable",
                               "--lr-step-size",
                               "3",
                               "--lr-gamma",
                               "0.5",
                               "--momentum",
                               "0.8"}));
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(end.err, "");
  EXPECT_NE(end.out.find(": 8 of 48 training and 16 test images, 1 thread, cpu"), std::string::npos)
      << end.out;
  const Ended nesterov = run(quick({"--nesterov", "--lr-scheduler", "steplr", "--shortcut", "B"}));
  EXPECT_EQ(nesterov.code, 0) << nesterov.err;
}

TEST_F(Resnet, test_only_scores_a_file_or_the_best_checkpoint) {
  ASSERT_EQ(run(quick({"--name", "a", "--model-ema"})).code, 0);
  const auto best = nlohmann::json::parse(slurp(folder / "runs/a/checkpoints/best/manifest.json"));
  const int right =
      static_cast<int>(best.at("values").at("best_accuracy").get<double>() * 16 / 100 + 0.5);
  const std::string score = " (" + std::to_string(right) + "/16)\n";
  const Ended resumed = run({"--test-only", "--resume", folder / "runs/a", "--no-progress"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_TRUE(resumed.out.ends_with(score)) << resumed.out << score;
  const Ended file = run(quick({"--test-only", "--no-progress", "--weights",
                                folder / "runs/a/checkpoints/last/model.safetensors"}));
  EXPECT_EQ(file.code, 0) << file.err;
  EXPECT_NE(file.out.find("\nTest: Acc@1 "), std::string::npos) << file.out;
}

TEST_F(Resnet, a_command_line_that_cannot_be_run_ends_with_2) {
  expect_error({"--epoch", "3"}, 2, "unknown option --epoch; did you mean --epochs?");
  expect_error({"--model", "resnet21"}, 2, "did you mean 'resnet20'?");
  expect_error({"--epochs", "9223372036854775807"}, 2, "an integer from 1 to 1000000000; got ");
  expect_error({"--data-path", "cifra10:x"}, 2, "got 'cifra10:x'; did you mean cifar10?");
  expect_error({"--data-path", "cifar10"}, 2, "cifar10:DIR or imagefolder:DIR; got 'cifar10'");
  expect_error({"--test-only"}, 2, "--test-only needs weights to test");
}

TEST_F(Resnet, missing_and_damaged_data_is_named) {
  const auto data = [&](const std::string& path) { return quick({"--data-path", path}); };
  expect_error(data("mnist:" + folder / "no"), 1,
               "train-images-idx3-ubyte.gz is in " + folder / "no");
  expect_error(data("cifar10:" + folder / "no"), 1,
               "cannot open " + folder / "no/data_batch_1.bin: No such file or directory");
  expect_error(data("imagefolder:" + folder / "no"), 1,
               "cannot read folder " + folder / "no: No such file or directory");
  fs::create_directories(folder / "pictures/empty");
  expect_error(data("imagefolder:" + folder / "pictures"), 1,
               "class folder " + folder / "pictures/empty holds no pictures");

  fs::resize_file(folder / "data/train-images-idx3-ubyte", 1000);
  expect_error(quick({}), 1, "data/train-images-idx3-ubyte: truncated: sizes [48, 28, 28] need ");
  write_mnist(folder, "data", 48, 16);
  std::string labels = slurp(folder / "data/t10k-labels-idx1-ubyte");
  labels[8 + 5] = 17;
  folder.write("data/t10k-labels-idx1-ubyte", labels);
  expect_error(quick({}), 1, "data/t10k-labels-idx1-ubyte: label 5 is 17; must be below 10");
  for (int i = 1; i <= 5; ++i) {
    folder.write("cifar/data_batch_" + std::to_string(i) + ".bin", std::string(3073, '\0'));
  }
  folder.write("cifar/test_batch.bin", "\x0b" + std::string(3072, '\0'));
  expect_error(data("cifar10:" + folder / "cifar"), 1,
               "cifar/test_batch.bin: record 0 at offset 0 has label 11; must be 0 to 9");
  EXPECT_FALSE(fs::exists(folder / "runs")) << "a run that cannot start leaves no folder";
}

TEST_F(Resnet, a_folder_of_images_without_val_is_tested_with_its_training_images_and_says_so) {
  const auto picture = [&](const std::string& path) { folder.write(path, tarn::test::kTinyPng); };
  for (const char* name : {"x/a/1.png", "x/b/1.png", "x/train/1.png"}) picture(name);
  const auto flags = [&](const std::string& of) {
    return quick({"--data-path", "imagefolder:" + folder / of, "--train-crop-size", "16",
                  "--val-resize-size", "16", "--val-crop-size", "16", "--epochs", "1"});
  };
  const std::string note = "note: no folder val in " + folder / "x";
  Ended end = run(flags("x"));
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_NE(end.out.find(note + ": tests with the training images\n"), std::string::npos)
      << end.out;

  for (const char* name : {"y/train/a/1.png", "y/train/c/1.png"}) picture(name);
  expect_error(flags("y"), 1, "y/train needs the test images beside it, in " + folder / "y/val");
  picture("y/val/a/1.png");
  expect_error(flags("y"), 1, "must have the same class folders; 'c' is missing in val");
  picture("y/val/b/1.png");
  expect_error(flags("y"), 1, "must have the same class folders; 'b' is missing in train");
  fs::rename(folder / "y/val/b", folder / "y/val/c");
  end = run(flags("y"));
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(end.out.find("note: "), std::string::npos) << end.out;
}

TEST_F(Resnet, a_picture_that_does_not_decode_is_named_or_left_out) {
  for (int i = 0; i < 8; ++i) {
    folder.write("pictures/a/" + std::to_string(i) + ".jpg", tarn::test::kTinyJpeg);
    folder.write("pictures/b/" + std::to_string(i) + ".png", tarn::test::kTinyPng);
  }
  const std::string bad = folder.write("pictures/a/bad.jpg", "not a picture");
  const std::vector<std::string> flags = {"--data-path",       "imagefolder:" + folder / "pictures",
                                          "--train-crop-size", "16",
                                          "--val-resize-size", "16",
                                          "--val-crop-size",   "16",
                                          "--epochs",          "1"};
  std::vector<std::string> stop = flags;
  stop.insert(stop.end(), {"--name", "stopping", "-b", "2"});
  expect_error(quick(stop), 1, bad);
  expect_error({"--resume", folder / "runs/stopping"}, 1, " goes on, with --skip-unreadable ");
  const Ended on = run({"--resume", folder / "runs/stopping", "--skip-unreadable"});
  EXPECT_EQ(on.code, 0) << on.err;
  EXPECT_TRUE(on.out.ends_with("/16)\n")) << on.out;
  std::vector<std::string> skip = flags;
  skip.insert(skip.end(), {"--skip-unreadable", "--name", "skipping"});
  const Ended end = run(quick(skip));
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_NE(end.out.find("Left out 1 image that cannot be read, the first: " + bad + "\n"),
            std::string::npos)
      << end.out;
  EXPECT_TRUE(end.out.ends_with("/16)\n")) << end.out;
  for (int i = 0; i < 8; ++i) {
    folder.write("pictures/a/" + std::to_string(i) + ".jpg", "no picture");
    folder.write("pictures/b/" + std::to_string(i) + ".png", "no picture");
  }
  expect_error(quick(skip), 1, "training: none of the ");
}

TEST_F(Resnet, weights_of_another_model_are_refused_with_every_difference) {
  ASSERT_EQ(run(quick({"--name", "a", "--epochs", "1", "--shortcut", "B"})).code, 0);
  const std::string file = folder / "runs/a/checkpoints/last/model.safetensors";
  const Ended end = run(quick({"--weights", file, "--model", "resnet20"}));
  EXPECT_EQ(end.code, 1);
  EXPECT_NE(end.err.find("the weights in " + file + " do not fit resnet20 on this data: "),
            std::string::npos)
      << end.err;
  for (const char* name : {"layer1.1.conv1.weight", "layer3.2.bn2.running_var",
                           "layer2.0.shortcut.0.weight", "missing: ", "unexpected: "}) {
    EXPECT_NE(end.err.find(name), std::string::npos) << name << " in " << end.err;
  }
  expect_error(quick({"--weights", folder / "none.safetensors"}), 1,
               "cannot open " + folder / "none.safetensors: No such file or directory");
  fs::resize_file(file, 5000);
  expect_error(quick({"--weights", file}), 1, file);
}

TEST_F(Resnet, a_run_that_cannot_go_on_says_why) {
  ASSERT_EQ(run(quick({"--name", "a", "--epochs", "1"})).code, 0);
  const std::string a = folder / "runs/a";
  expect_error({"--resume", folder / "runs/b"}, 1,
               "no run to go on with: cannot read " + folder / "runs/b/config.json");
  expect_error({"--resume", a, "--model", "resnet20", "--epochs", "2"}, 1,
               "resume: " + a + " trains a resnet8, not a resnet20; pass --model resnet8");
  expect_error({"--resume", a, "--shortcut", "B", "--epochs", "2"}, 1,
               "resume: " + a + " trains another network than these flags and data make; leave ");
  expect_error({"--resume", a, "--model", "resnet20", "--test-only"}, 1,
               "the weights in " + a + " do not fit resnet20 on this data: ");
  const Ended done = run({"--resume", a});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.out.find("All 1 epochs are done; a larger --epochs goes on."), std::string::npos);
  fs::resize_file(a + "/checkpoints/last/optim.safetensors", 30);
  const Ended on = run({"--resume", a});
  EXPECT_EQ(on.code, 0) << on.err;
  EXPECT_NE(on.err.find(a + "/checkpoints/step-000003 is damaged: optim.safetensors has 30 bytes"),
            std::string::npos)
      << on.err;
  EXPECT_NE(on.err.find("; taking that of step 0 instead"), std::string::npos) << on.err;
  for (const auto& entry : fs::directory_iterator(a + "/checkpoints")) {
    if (entry.is_directory() && !entry.is_symlink()) fs::remove(entry.path() / "manifest.json");
  }
  expect_error({"--resume", a, "--epochs", "2"}, 1, "checkpoint: none of the 2 in " + a);
  expect_error({"--resume", a, "--test-only"}, 1, "checkpoint: no best one in " + a);
  fs::remove_all(a + "/checkpoints");
  expect_error({"--resume", a, "--epochs", "2"}, 1, "resume: no checkpoint in " + a);
}

TEST_F(Resnet, a_curve_that_is_spread_anew_is_told) {
  for (const auto& [scheduler, what] :
       {std::pair{"onecycle", "one cycle"}, std::pair{"cosineannealinglr", "cosine"}}) {
    const std::vector<std::string> once{"--lr-scheduler", scheduler, "--name", scheduler};
    ASSERT_EQ(run(quick(once)).code, 0);
    const Ended on = run({"--resume", folder / "runs/" + scheduler, "--epochs", "3"});
    EXPECT_NE(on.out.find(std::string("note: the ") + what + " of 2 epochs was over"),
              std::string::npos)
        << on.out << on.err;
  }
}

TEST_F(Resnet, an_output_folder_that_cannot_be_made_is_named) {
  const std::string file = folder.write("file", "x");
  expect_error(quick({"--output-dir", file + "/runs"}), 1,
               "cannot create folder " + file + "/runs: Not a directory");
}

TEST_F(Resnet, a_loss_that_is_not_a_number_ends_the_run_with_advice) {
  const Ended end = run(quick({"--name", "a", "--lr", "1e30", "--lr-scheduler", "constant"}));
  EXPECT_EQ(end.code, 1);
  EXPECT_NE(end.err.find(" at step 2 (epoch 1, lr 1e+30); try a lower --lr"), std::string::npos)
      << end.err;
}

TEST_F(Resnet, a_full_disk_while_saving_leaves_the_old_checkpoint) {
  ASSERT_EQ(run(quick({"--name", "a", "--epochs", "1"})).code, 0);
  const std::string a = folder / "runs/a", before = weights("a");
  // The weights take about 300 KB: their file is the one that does not fit.
  const Ended full = run({"--resume", a, "--epochs", "2"}, 150'000);
  EXPECT_EQ(full.code, 1) << full.err;
  EXPECT_NE(full.err.find("checkpoint: cannot save " + a + "/checkpoints/step-000006: "),
            std::string::npos)
      << full.err;
  EXPECT_NE(full.err.find("; that of step 3 is whole"), std::string::npos) << full.err;
  EXPECT_TRUE(weights("a") == before);
  const Ended end = run({"--resume", a, "--epochs", "2"});
  EXPECT_EQ(end.code, 0) << end.err;
  // Nothing stands twice in the records, the second epoch of the failed run included.
  std::string metrics = slurp(a + "/metrics.jsonl");
  EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'), 8) << metrics;
}

TEST_F(Resnet, ctrl_c_saves_and_the_run_goes_on_to_the_same_bits) {
  ASSERT_EQ(run(quick({"--name", "whole", "-b", "2", "--epochs", "3"})).code, 0);
  for (const int number : {SIGINT, SIGTERM}) {
    const std::string name = "stopped" + std::to_string(number), path = folder / ("runs/" + name);
    Process process(kProgram, quick({"--name", name, "-b", "2", "--epochs", "3"}), folder);
    while (process.running() && slurp(path + "/metrics.jsonl").size() < 300) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    process.signal(number);
    const Ended end = process.wait();
    EXPECT_EQ(end.code, 0) << end.err;
    EXPECT_NE(end.err.find("stopping after this step and saving"), std::string::npos) << end.err;
    EXPECT_NE(end.out.find("Stopped and saved after "), std::string::npos) << end.out;
    EXPECT_NE(end.out.find("tarn-resnet --resume " + path + "\n"), std::string::npos) << end.out;
    const Ended on = run({"--resume", path});
    EXPECT_EQ(on.code, 0) << on.err;
    EXPECT_TRUE(weights(name) == weights("whole"));
    std::string metrics = slurp(path + "/metrics.jsonl");
    EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'), 3 * 24 + 3);
  }
}

TEST_F(Resnet, two_runs_with_one_seed_are_equal_whatever_the_workers) {
  for (const char* workers : {"0", "1", "3"}) {
    ASSERT_EQ(run(quick({"--name", workers, "-j", workers})).code, 0);
  }
  ASSERT_EQ(run(quick({"--name", "other", "--seed", "2"})).code, 0);
  EXPECT_TRUE(weights("0") == weights("1"));
  EXPECT_TRUE(weights("0") == weights("3"));
  EXPECT_FALSE(weights("0") == weights("other"));
}

}  // namespace
