// core_file_test.cpp - asking about paths, also those that the system refuses to look at.
#include <algorithm>
#include <filesystem>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tarn/core/file.h"
#include "tarn/tests/temp_folder.h"

namespace tarn {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

TEST(FileTest, files_and_folders_are_told_apart_also_behind_links) {
  const TempFolder folder;
  const std::string file = folder.write("sub/file", "x");
  fs::create_symlink(file, folder / "to_file");
  fs::create_directory_symlink(folder / "sub", folder / "to_folder");
  fs::create_symlink(folder / "gone", folder / "to_nothing");
  for (const std::string& path : {file, folder / "to_file"}) {
    EXPECT_TRUE(is_there(path)) << path;
    EXPECT_FALSE(is_folder(path)) << path;
  }
  for (const std::string& path : {folder.str(), folder / "to_folder", folder.str() + "/"}) {
    EXPECT_TRUE(is_there(path)) << path;
    EXPECT_TRUE(is_folder(path)) << path;
  }
  for (const std::string& path : {std::string(), folder / "none", folder / "to_nothing"}) {
    EXPECT_FALSE(is_there(path)) << path;
    EXPECT_FALSE(is_folder(path)) << path;
  }
}

TEST(FileTest, what_cannot_be_asked_about_is_not_there) {
  const TempFolder folder;
  fs::create_symlink(folder / "loop", folder / "loop");
  const std::string in_a_file = folder.write("file", "x") + "/x";
  const std::string too_long = folder / std::string(300, 'x');
  for (const std::string& path : {folder / "loop", folder / "loop/x", in_a_file, too_long}) {
    EXPECT_FALSE(is_there(path)) << path;
    EXPECT_FALSE(is_folder(path)) << path;
  }
}

// Opened without a thought, it waits for a writer that never comes.
TEST(FileTest, a_named_pipe_is_refused_at_once) {
  const TempFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_MESSAGE(FileError, read_file("test", folder / "pipe"), "pipe: not a plain file");
}

TEST(FileTest, what_a_locked_folder_hides_is_not_there) {
  if (geteuid() == 0) GTEST_SKIP() << "nothing is locked to root";
  const TempFolder folder;
  const std::string file = folder.write("locked/sub/file", "x");
  fs::permissions(folder / "locked", fs::perms::none);
  EXPECT_TRUE(is_folder(folder / "locked"));
  EXPECT_FALSE(is_there(file));
  EXPECT_FALSE(is_folder(folder / "locked/sub"));
  EXPECT_MESSAGE(FileError, list_folder("test", folder / "locked"), "locked: Permission denied");
  fs::permissions(folder / "locked", fs::perms::owner_all);  // so that it can be removed
}

TEST(FileTest, a_folder_is_listed_and_one_that_cannot_be_read_is_named) {
  const TempFolder folder;
  folder.write("b/deep", "x");
  folder.write("a", "x");
  fs::create_symlink(folder / "loop", folder / "loop");
  std::vector<std::string> paths = list_folder("test", folder.str());
  std::sort(paths.begin(), paths.end());
  EXPECT_EQ(paths, (std::vector<std::string>{folder / "a", folder / "b", folder / "loop"}));
  fs::create_directory(folder / "empty");
  EXPECT_TRUE(list_folder("test", folder / "empty").empty());
  EXPECT_MESSAGE(FileError, list_folder("test", folder / "none"),
                 "test: cannot read folder " + (folder / "none") + ": No such file or directory");
  EXPECT_MESSAGE(FileError, list_folder("test", folder / "a"), "a: Not a directory");
  EXPECT_MESSAGE(FileError, list_folder("test", folder / "loop"), "loop: Too many levels");
}

TEST(OutputFileTest, a_link_in_a_circle_is_an_error_and_stays) {
  const TempFolder folder;
  fs::create_symlink(folder / "loop", folder / "loop");
  EXPECT_MESSAGE(FileError, OutputFile("test", folder / "loop"), "levels of symbolic links");
  EXPECT_TRUE(fs::is_symlink(folder / "loop"));
}

// What is written stands where the descriptor was, and what follows behind it.
TEST(OutputFileTest, a_descriptor_of_this_process_keeps_its_place) {
  const TempFolder folder;
  const std::string path = folder.write("log", "");
  const int fd = ::open(path.c_str(), O_WRONLY);
  ASSERT_GE(fd, 0);
  for (const char* prefix : {"/dev/fd/", "/proc/self/fd/"}) {
    EXPECT_EQ(::write(fd, "a", 1), 1);
    OutputFile file("test", prefix + std::to_string(fd));
    file.write("b", 1);
    file.commit();
  }
  EXPECT_EQ(::write(fd, "c", 1), 1);
  ::close(fd);
  EXPECT_EQ(test::slurp(path), "ababc");
}

}  // namespace
}  // namespace tarn
