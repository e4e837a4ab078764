// core_checkpoint_manager_test.cpp - which checkpoints are kept, which is taken, saving in the
// background, and a kill at every system call of a save.
#include <algorithm>
#include <set>

#include "temp_folder.h"
#include "tests_throws.h"
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tarn/core/checkpoint_manager.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using Steps = std::vector<int64_t>;

Checkpoint at(int64_t step, bool best = false) {
  Checkpoint c{.step = step, .best = best};
  c.tensors["model"] = {{"w", full({64}, static_cast<double>(step))}};
  c.tensors["optim"] = {{"m", full({64}, static_cast<double>(2 * step))}};
  return c;
}

void expect_is(const Checkpoint& c, int64_t step) {
  EXPECT_EQ(c.step, step);
  EXPECT_EQ(c.dict("model").at("w").to_vector<double>(), std::vector<double>(64, double(step)));
  EXPECT_EQ(c.dict("optim").at("m").to_vector<double>(), std::vector<double>(64, 2.0 * step));
}

std::set<std::string> names(const std::string& folder) {
  std::set<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    found.insert(entry.path().filename().string());
  }
  return found;
}

std::string link_of(const TempFolder& folder, const std::string& name) {
  return fs::read_symlink(folder / name).string();
}

TEST(CheckpointManager, links_that_a_kill_left_behind_are_put_right) {
  const TempFolder folder;
  CheckpointManager m(folder.str(), {.keep_last = 2});
  m.save(at(1, true));
  save_checkpoint(m.path(2), at(2, true));  // whole, but killed before the links moved
  EXPECT_EQ(link_of(folder, "last"), "step-000001");
  m.relink();
  EXPECT_EQ(link_of(folder, "last"), "step-000002");
  EXPECT_EQ(link_of(folder, "best"), "step-000002");
  CheckpointManager(folder / "nothing").relink();
  EXPECT_TRUE(CheckpointManager(folder.write("file", "no folder")).steps().empty());
}

// As `cp -rL` leaves them.
TEST(CheckpointManager, links_that_became_folders_are_links_again) {
  const TempFolder folder;
  CheckpointManager(folder / "run").save(at(1, true));
  fs::copy(folder / "run", folder / "copy", fs::copy_options::recursive);
  ASSERT_TRUE(fs::is_directory(fs::symlink_status(folder / "copy/last")));
  CheckpointManager m(folder / "copy");
  m.relink();
  EXPECT_EQ(fs::read_symlink(folder / "copy/last"), "step-000001");
  EXPECT_EQ(fs::read_symlink(folder / "copy/best"), "step-000001");
  m.save(at(2));
  EXPECT_EQ(fs::read_symlink(folder / "copy/last"), "step-000002");
  expect_is(m.load_best(), 1);
  EXPECT_EQ(names(folder / "copy"),
            (std::set<std::string>{"step-000001", "step-000002", "last", "best"}));
}

// A resume that finds no checkpoints begins anew.
TEST(CheckpointManager, a_folder_that_cannot_be_asked_about_is_no_empty_one) {
  const TempFolder folder;
  fs::create_symlink(folder / "loop", folder / "loop");
  EXPECT_THROWS_WITH((void)CheckpointManager(folder / "loop").steps(), FileError,
                     "checkpoint: cannot read folder");
}

TEST(CheckpointManager, keeps_the_last_few_and_the_best) {
  const TempFolder folder;
  CheckpointManager m(folder.str(), {.keep_last = 2});
  EXPECT_FALSE(m.load_newest());
  EXPECT_THROWS_WITH(m.load_best(), FileError, "no best one in " + folder.str());
  m.save(at(1));
  EXPECT_EQ(names(folder.str()), (std::set<std::string>{"step-000001", "last"}));
  m.save(at(2, true));
  m.save(at(3));
  m.save(at(10));
  EXPECT_EQ(m.steps(), (Steps{2, 3, 10}));
  EXPECT_EQ(link_of(folder, "last"), "step-000010");
  EXPECT_EQ(link_of(folder, "best"), "step-000002");
  expect_is(m.load_best(), 2);
  m.save(at(12345678, true));
  EXPECT_EQ(m.steps(), (Steps{10, 12345678}));
  EXPECT_EQ(link_of(folder, "best"), "step-12345678");
  m.save(at(12345678, true));  // replaces
  EXPECT_EQ(names(folder.str()),
            (std::set<std::string>{"step-000010", "step-12345678", "last", "best"}));
  expect_is(*m.load_newest(), 12345678);
  EXPECT_THROWS_WITH(m.load(11), FileError, "no folder " + folder / "step-000011");
  EXPECT_THROWS_WITH(CheckpointManager("x", {.keep_last = 0}), ValueError,
                     "keep_last must be at least 1; got 0");
}

TEST(CheckpointManager, other_names_are_left_alone) {
  const TempFolder folder;
  fs::create_directory(folder / "step-12");
  folder.write("step-000013", "a file");
  folder.write("step-000014.tmp/model.safetensors", "half written");
  folder.write("step-000002.old/model.safetensors", "half deleted");
  folder.write("notes.txt", "mine");
  CheckpointManager m(folder.str());
  EXPECT_FALSE(m.load_newest());
  m.save(at(20));
  EXPECT_EQ(names(folder.str()),
            (std::set<std::string>{"step-12", "step-000013", "notes.txt", "step-000020", "last"}));
}

TEST(CheckpointManager, a_damaged_one_is_named_and_the_one_before_taken) {
  const TempFolder folder;
  for (const int64_t step : {20, 40, 60}) {
    CheckpointManager(folder.str(), {.keep_last = 3}).save(at(step, step != 20));
  }
  fs::resize_file(folder / "step-000060/optim.safetensors", 40);
  fs::remove(folder / "step-000040/manifest.json");
  CheckpointManager m(folder.str(), {.keep_last = 2});
  std::vector<std::string> damaged;
  const auto c = m.load_newest([&](const std::string& what) { damaged.push_back(what); });
  expect_is(*c, 20);
  ASSERT_EQ(damaged.size(), 2u);
  EXPECT_NE(damaged[0].find("step-000060 is damaged: optim.safetensors has 40 bytes instead of "),
            std::string::npos);
  EXPECT_NE(damaged[1].find("step-000040 has no manifest.json"), std::string::npos);
  m.save(at(30, true));
  EXPECT_EQ(m.steps(), (Steps{20, 30, 40, 60})) << "later ones wait for the run to get there";
  expect_is(m.load_best(), 30);
  m.save(at(40));
  m.save(at(61));
  EXPECT_EQ(m.steps(), (Steps{30, 40, 61})) << "a damaged one is not among the last two";
  EXPECT_EQ(link_of(folder, "best"), "step-000030");
  expect_is(*m.load_newest([](const std::string& what) { ADD_FAILURE() << what; }), 61);
}

TEST(CheckpointManager, a_folder_in_the_place_of_a_file_is_damage_too) {
  const TempFolder folder;
  CheckpointManager m(folder.str());
  m.save(at(1));
  m.save(at(2));
  fs::remove(folder / "step-000002/optim.safetensors");
  fs::create_directory(folder / "step-000002/optim.safetensors");
  std::string damaged;
  expect_is(*m.load_newest([&](const std::string& what) { damaged += what; }), 1);
  EXPECT_NE(damaged.find("step-000002 is damaged: optim.safetensors is not a plain file"),
            std::string::npos);
}

TEST(CheckpointManager, what_is_damaged_throughout_or_newer_is_refused) {
  const TempFolder folder;
  CheckpointManager m(folder.str());
  m.save(at(1));
  m.save(at(2));
  for (const char* step : {"step-000001", "step-000002"}) {
    fs::resize_file(folder / step + "/model.safetensors", 0);
  }
  EXPECT_THROWS_WITH(m.load_newest(), FileError,
                     "none of the 2 in " + folder.str() + " is whole; the newest: checkpoint: " +
                         folder / "step-000002 is damaged: model.safetensors has 0 bytes");
}

TEST(CheckpointManager, the_background_writes_the_state_of_the_call) {
  const TempFolder folder;
  CheckpointManager m(folder.str(), {.keep_last = 1});
  const Tensor w = full({1 << 20}, 0.0);
  for (int step = 1; step <= 4; ++step) {
    raw::fill_(w, static_cast<double>(step));
    m.save_async({.step = step, .tensors = {{"model", {{"w", w}}}}});
  }
  raw::fill_(w, 100.0);
  m.wait();
  EXPECT_TRUE(m.idle());
  EXPECT_EQ(m.steps(), (Steps{4})) << "each waited for the one before";
  EXPECT_EQ(m.load_newest()->dict("model").at("w").to_vector<float>(),
            std::vector<float>(1 << 20, 4.0f));
}

TEST(CheckpointManager, a_failure_in_the_background_is_heard_of_once) {
  const TempFolder folder;
  folder.write("file", "x");
  CheckpointManager m(folder / "file/checkpoints");
  const std::string text = "checkpoint: cannot save " + folder / "file/checkpoints/step-000001";
  m.save_async(at(1));
  EXPECT_THROWS_WITH(m.wait(), FileError, text);
  EXPECT_TRUE(m.idle());
  m.save_async(at(1));
  EXPECT_THROWS_WITH(m.save_async(at(2)), FileError, text);
  m.save_async(at(1));
  EXPECT_THROWS_WITH(m.wait_for(60), FileError, text);
  m.save_async(at(1));  // the destructor throws nothing
}

TEST(CheckpointManager, the_end_of_the_manager_waits_for_what_is_written) {
  const TempFolder folder;
  { CheckpointManager(folder.str()).save_async(at(5)); }
  expect_is(*CheckpointManager(folder.str()).load_newest(), 5);
}

TEST(CheckpointManager, a_full_disk_costs_none_of_the_old_ones) {
  const TempFolder folder;
  CheckpointManager m(folder.str(), {.keep_last = 1});
  m.save(at(1));
  const pid_t child = fork();
  if (child == 0) {  // may write files of at most 2000 bytes
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{2000, 2000};
    setrlimit(RLIMIT_FSIZE, &limit);
    Checkpoint c = at(2);
    c.tensors["large"] = {{"x", full({1000}, 1.0)}};
    try {
      m.save(c);
    } catch (const FileError& e) {
      const std::string what = e.what();
      _exit(what.find("cannot save " + folder / "step-000002: ") != std::string::npos &&
                    what.find("File too large") != std::string::npos &&
                    what.ends_with("; that of step 1 is whole")
                ? 0
                : 2);
    }
    _exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(names(folder.str()), (std::set<std::string>{"step-000001", "last"}));
  expect_is(*m.load_newest(), 1);
}

// Saves step 3 in a child that is killed when its n-th system call has been made. Returns false if
// it made fewer; none if this machine lets no process be traced.
std::optional<bool> save_killed_after(const std::string& folder, int n) {
  const pid_t child = fork();
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(77);
    raise(SIGSTOP);
    CheckpointManager(folder, {.keep_last = 2}).save(at(3, true));
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFSTOPPED(status)) return std::nullopt;
  ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  bool before = false;  // stops come in pairs, before and after a call
  for (int calls = 0; calls < n;) {
    if (ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) != 0) return std::nullopt;
    waitpid(child, &status, 0);
    if (WIFEXITED(status)) return false;
    before = !before;
    if (!before) ++calls;
  }
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return true;
}

TEST(CheckpointManager, a_kill_at_any_system_call_leaves_a_whole_one) {
  const TempFolder prepared(test::memory_folder());
  {
    CheckpointManager m(prepared.str(), {.keep_last = 2});
    m.save(at(1));
    m.save(at(2, true));
  }
  bool seen_2 = false, seen_3 = false;
  int calls = 1;
  for (;; ++calls) {
    const TempFolder folder(test::memory_folder());
    fs::copy(prepared.str(), folder.str(),
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    const auto killed = save_killed_after(folder.str(), calls);
    if (!killed) GTEST_SKIP() << "no process may be traced here";
    CheckpointManager m(folder.str(), {.keep_last = 2});
    const auto c = m.load_newest([](const std::string& what) { ADD_FAILURE() << what; });
    ASSERT_TRUE(c) << "killed after " << calls << " calls";
    expect_is(*c, c->step == 2 ? 2 : 3);
    expect_is(m.load_best(), c->step);
    (c->step == 2 ? seen_2 : seen_3) = true;
    EXPECT_TRUE(fs::exists(folder / "last/manifest.json")) << calls;
    m.save(at(4));
    // Step 4 and the one before are the last two, and the one before is the best as well.
    const std::string best = c->step == 2 ? "step-000002" : "step-000003";
    EXPECT_EQ(names(folder.str()), (std::set<std::string>{best, "step-000004", "last", "best"}))
        << "killed after " << calls << " calls";
    EXPECT_EQ(link_of(folder, "best"), best);
    if (!*killed) break;
  }
  EXPECT_TRUE(seen_2 && seen_3);
  EXPECT_GT(calls, 50);
}

}  // namespace
}  // namespace tarn
