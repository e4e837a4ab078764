// apps_scripts_test.cpp - apps/quickstart and tests/run on machines that lack this or that.
//
// The scripts run with a PATH of their own: links to the few system tools they need, and fakes of
// dpkg-query, apt-get, sudo, cmake and id that say what each test wants to hear.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

namespace fs = std::filesystem;

class Scripts : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tarn-test-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder = pattern;
    fs::create_directory(folder / "bin");
    for (const char* tool :
         {"bash", "env", "dirname", "basename", "sed", "awk", "sort", "nproc", "cat", "printf"}) {
      for (const char* place : {"/bin", "/usr/bin"}) {
        const fs::path real = fs::path(place) / tool;
        if (fs::exists(real) && !fs::exists(folder / "bin" / tool)) {
          fs::create_symlink(real, folder / "bin" / tool);
        }
      }
    }
    // A bare Debian: nothing installed, root, a network.
    fake("dpkg-query", "exit 1");
    fake("apt-get", "echo \"apt-get $*\"");
    fake("id", "echo 0");
  }
  void TearDown() override { fs::remove_all(folder); }

  void fake(const std::string& name, const std::string& body) {
    const fs::path path = folder / "bin" / name;
    std::ofstream(path) << "#!/bin/bash\n" << body << "\n";
    fs::permissions(path, fs::perms::owner_all);
  }

  // Runs a script; keeps what it printed (both streams) and its exit code.
  void run(const std::string& command) {
    const std::string line = "cd '" + std::string(TARN_SOURCE_DIR) + "' && env -i PATH='" +
                             (folder / "bin").string() + "' TARN_BUILD_DIR='" +
                             (folder / "build").string() + "' " + command + " 2>&1";
    out.clear();
    FILE* pipe = popen(line.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    char buffer[512];
    while (std::fgets(buffer, sizeof buffer, pipe)) out += buffer;
    code = WEXITSTATUS(pclose(pipe));
  }
  bool has(const std::string& text) const { return out.find(text) != std::string::npos; }

  fs::path folder;
  std::string out;
  int code = -1;
};

TEST_F(Scripts, quickstart_shows_every_command_of_a_bare_machine) {
  run("apps/quickstart --dry-run --epochs 1");
  EXPECT_EQ(code, 0) << out;
  EXPECT_TRUE(has("  env DEBIAN_FRONTEND=noninteractive apt-get update -q\n")) << out;
  EXPECT_TRUE(has("apt-get install -y -q --no-install-recommends g++ cmake ninja-build ")) << out;
  EXPECT_TRUE(has(" dataset-fashion-mnist\n")) << out;
  EXPECT_TRUE(has("  cmake --preset release -DTARN_CUDA=")) << out;
  EXPECT_TRUE(
      has(" -B " + (folder / "build").string() + " -DTARN_BUILD_APPS=ON -DTARN_BUILD_TESTS=OFF\n"))
      << out;
  EXPECT_TRUE(has("--target tarn-resnet\n")) << out;
  EXPECT_TRUE(out.ends_with("==> Training: build/bin/tarn-resnet --epochs 1\n")) << out;
  EXPECT_FALSE(has("sudo")) << out;
}

TEST_F(Scripts, an_exported_cdpath_leads_nowhere) {
  fs::create_directories(folder / "apps/common");  // where cd would go
  for (const std::string& path : {std::string("."), folder.string()}) {
    run("CDPATH=" + path + " apps/quickstart --dry-run");
    EXPECT_EQ(code, 0) << out;
    EXPECT_TRUE(out.ends_with("==> Training: build/bin/tarn-resnet\n")) << out;
    run("CDPATH=" + path + " tests/run --help");
    EXPECT_EQ(code, 0) << out;
    EXPECT_TRUE(out.starts_with("usage: tests/run")) << out;
  }
}

// As plain `cmake -B build` makes it.
TEST_F(Scripts, a_build_folder_with_makefiles_is_used_as_it_is) {
  fake("dpkg-query", "echo installed");
  fake("cmake", "echo cmake version 3.25.1");
  fs::create_directory(folder / "build");
  std::ofstream(folder / "build/CMakeCache.txt")
      << "CMAKE_HOME_DIRECTORY:INTERNAL=" << TARN_SOURCE_DIR << "\nTARN_BUILD_APPS:BOOL=ON\n"
      << "CMAKE_GENERATOR:INTERNAL=Unix Makefiles\n";
  std::ofstream(folder / "build/Makefile") << "";
  run("apps/quickstart --dry-run");
  EXPECT_EQ(code, 0) << out;
  EXPECT_TRUE(out.starts_with("==> Building tarn-resnet")) << out;
  EXPECT_TRUE(has("  cmake --build " + (folder / "build").string())) << out;
}

TEST_F(Scripts, quickstart_gpt_takes_the_text_and_its_own_trainer) {
  run("apps/quickstart --dry-run gpt --max-iters 9");
  EXPECT_EQ(code, 0) << out;
  EXPECT_TRUE(has(" bible-kjv\n")) << out;
  EXPECT_FALSE(has("dataset-fashion-mnist")) << out;
  EXPECT_TRUE(has("--target tarn-gpt\n")) << out;
  EXPECT_TRUE(out.ends_with("==> Training: build/bin/tarn-gpt --max-iters 9\n")) << out;
}

TEST_F(Scripts, quickstart_gpt_needs_no_package_for_a_text_of_the_users) {
  run("apps/quickstart --dry-run gpt --data gpt");
  EXPECT_EQ(code, 0) << out;
  EXPECT_FALSE(has("bible-kjv")) << out;
  EXPECT_TRUE(out.ends_with("==> Training: build/bin/tarn-gpt --data gpt\n")) << out;
}

TEST_F(Scripts, quickstart_refuses_words_it_does_not_know_before_it_builds) {
  run("apps/quickstart --dry-run gpt resnet");
  EXPECT_EQ(code, 1);
  EXPECT_EQ(out, "quickstart: error: 'resnet' after gpt is neither a flag nor its value\n");
  run("apps/quickstart --dry-run gtp");
  EXPECT_EQ(code, 1);
  EXPECT_TRUE(has("the first word is resnet or gpt, or a flag; got 'gtp'")) << out;
  EXPECT_FALSE(has("==>")) << out;
  run("apps/quickstart --dry-run --name 'a b'");
  EXPECT_TRUE(out.ends_with("build/bin/tarn-resnet --name a\\ b\n")) << out;
}

TEST_F(Scripts, sudo_is_used_only_when_not_root) {
  fake("id", "echo 1000");
  run("apps/quickstart --dry-run");
  EXPECT_EQ(code, 1);
  EXPECT_TRUE(has("needs root, and there is no sudo\n  As root: apt-get install g++")) << out;
  fake("sudo", "exit 9");
  run("apps/quickstart --dry-run");
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(has("  sudo env DEBIAN_FRONTEND=noninteractive apt-get update -q\n")) << out;
}

TEST_F(Scripts, nothing_is_installed_or_configured_twice) {
  fake("dpkg-query", "echo installed");
  fake("cmake", "echo cmake version 3.25.1");
  fs::create_directory(folder / "build");
  std::ofstream(folder / "build/CMakeCache.txt")
      << "CMAKE_HOME_DIRECTORY:INTERNAL=" << TARN_SOURCE_DIR << "\nTARN_BUILD_APPS:BOOL=ON\n"
      << "TARN_BUILD_TESTS:BOOL=OFF\n";
  std::ofstream(folder / "build/build.ninja") << "";
  run("apps/quickstart --dry-run");
  EXPECT_EQ(code, 0) << out;
  EXPECT_TRUE(out.starts_with("==> Building tarn-resnet")) << out;
  run("tests/run --help");
  EXPECT_EQ(code, 0);
  run("DRY_RUN=1 tests/run -R matmul");  // the same build folder, with tests switched on
  EXPECT_EQ(code, 0) << out;
  EXPECT_TRUE(has("==> Configuring in build/ (-DTARN_BUILD_TESTS=ON)\n")) << out;
  EXPECT_TRUE(has("--output-on-failure -j2 -R matmul\n")) << out;
}

TEST_F(Scripts, a_system_without_apt_gets_the_list_of_packages) {
  fs::remove(folder / "bin/apt-get");
  run("apps/quickstart");
  EXPECT_EQ(code, 1);
  EXPECT_TRUE(has("quickstart: error: this system has no apt-get")) << out;
  EXPECT_TRUE(has("g++ cmake ninja-build libeigen3-dev")) << out;
}

TEST_F(Scripts, a_machine_without_a_network_is_told_so) {
  fake("apt-get", "echo 'E: could not resolve' >&2; exit 100");
  run("apps/quickstart");
  EXPECT_EQ(code, 1);
  EXPECT_TRUE(has("apt-get update failed: is there a network?\n  Missing packages: g++")) << out;
}

TEST_F(Scripts, an_old_cmake_is_named) {
  fake("cmake", "echo cmake version 3.18.4");
  run("apps/quickstart");
  EXPECT_EQ(code, 1);
  EXPECT_TRUE(has("CMake 3.25 or newer is needed; found: cmake version 3.18.4")) << out;
}

TEST_F(Scripts, an_old_cmake_is_named_where_all_packages_are_there) {
  fake("dpkg-query", "echo installed");
  fake("cmake", "echo cmake version 3.18.4");
  run("apps/quickstart");
  EXPECT_EQ(code, 1);
  EXPECT_TRUE(has("CMake 3.25 or newer is needed; found: cmake version 3.18.4")) << out;
}

TEST_F(Scripts, a_build_folder_of_another_tree_is_named) {
  fake("dpkg-query", "echo installed");
  fake("cmake", "echo cmake version 3.25.1");
  fs::create_directory(folder / "build");
  std::ofstream(folder / "build/CMakeCache.txt") << "CMAKE_HOME_DIRECTORY:INTERNAL=/elsewhere\n";
  run("apps/quickstart");
  EXPECT_EQ(code, 1);
  EXPECT_TRUE(has("was configured for /elsewhere\n  Remove it and run this again.")) << out;
}

}  // namespace
