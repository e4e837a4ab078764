// dist_environment_test.cpp - ranks from the variables of torchrun, mpirun and srun.
#include <cstdlib>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "tarn/core/error.h"
#include "tarn/dist/environment.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::dist {
namespace {

using Variables = std::map<std::string, std::string>;

Environment read(const Variables& variables) {
  return read_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return {};
    return found->second;
  });
}

const Variables kTorchrun = {
    {"RANK", "5"},         {"WORLD_SIZE", "8"},       {"LOCAL_RANK", "1"},
    {"MASTER_ADDR", "h0"}, {"LOCAL_WORLD_SIZE", "4"}, {"MASTER_PORT", "29500"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "1234@5"}};
const Variables kSlurm = {{"SLURM_PROCID", "4"},
                          {"SLURM_STEP_NUM_TASKS", "7"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                          {"SLURM_STEP_NODELIST", "node[03-05,9]"},
                          {"SLURM_JOB_ID", "1500"},
                          {"SLURM_STEP_ID", "3"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(Environment, nothing_set_is_a_world_of_one) {
  const Environment e = read({});
  EXPECT_EQ(e.rank, 0);
  EXPECT_EQ(e.size, 1);
  EXPECT_EQ(e.launcher, "none");
  // What an interactive Slurm allocation sets, without srun.
  EXPECT_EQ(read({{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}).size, 1);
}

TEST(Environment, torchrun_is_read) {
  const Environment e = read(kTorchrun);
  EXPECT_EQ(e.rank, 5);
  EXPECT_EQ(e.size, 8);
  EXPECT_EQ(e.local_rank, 1);
  EXPECT_EQ(e.local_size, 4);
  EXPECT_EQ(e.host, "h0");
  EXPECT_EQ(e.port, 29500);
}

TEST(Environment, the_port_of_torchruns_own_store_is_left_alone) {
  EXPECT_EQ(read(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "True")).port, 29501);
  EXPECT_EQ(read(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "False")).port, 29500);
}

TEST(Environment, mpirun_on_one_host_needs_no_address) {
  const Environment e = read(kOpenMpi);
  EXPECT_EQ(e.rank, 1);
  EXPECT_EQ(e.size, 2);
  EXPECT_EQ(e.host, "127.0.0.1");
  EXPECT_GE(e.port, 20000);
  EXPECT_LT(e.port, 40000);
  EXPECT_EQ(e.port, read(with(kOpenMpi, "OMPI_COMM_WORLD_RANK", "0")).port);
  EXPECT_NE(e.port, read(with(kOpenMpi, "PMIX_NAMESPACE", "1234@6")).port);
  EXPECT_EQ(read(with(kOpenMpi, "MASTER_PORT", "4000")).port, 4000);
}

TEST(Environment, mpirun_on_several_hosts_needs_the_address) {
  const Variables several =
      with(with(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "1"), "OMPI_COMM_WORLD_LOCAL_RANK", "0");
  EXPECT_THROWS_WITH(read(several), ValueError, "mpirun -x MASTER_ADDR=HOST");
  EXPECT_EQ(read(with(several, "MASTER_ADDR", "h1")).host, "h1");
}

TEST(Environment, srun_is_read) {
  const Environment e = read(kSlurm);
  EXPECT_EQ(e.rank, 4);
  EXPECT_EQ(e.size, 7);
  EXPECT_EQ(e.local_rank, 0);
  EXPECT_EQ(e.local_size, 2);
  EXPECT_EQ(e.host, "node03");
  EXPECT_EQ(e.port, 20000 + (1500 * 16 + 3) % 20000);
  EXPECT_EQ(read(with(without(kSlurm, "SLURM_STEP_NUM_TASKS"), "SLURM_NTASKS", "9")).size, 9);
}

TEST(Environment, the_first_launcher_of_the_list_wins) {
  Variables all = kTorchrun;
  all.insert(kOpenMpi.begin(), kOpenMpi.end());
  all.insert(kSlurm.begin(), kSlurm.end());
  EXPECT_EQ(read(all).launcher, "RANK");
  for (const auto& [name, value] : kTorchrun) all.erase(name);
  EXPECT_EQ(read(all).launcher, "Open MPI");
}

TEST(Environment, a_partial_set_is_an_error_that_names_the_variable) {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_THROWS_WITH(read(without(kTorchrun, name)), ValueError,
                       std::string(name) + " is not set, but ");
  }
  EXPECT_THROWS_WITH(read({{"LOCAL_RANK", "0"}}), ValueError, "RANK is not set, but LOCAL_RANK is");
  for (const auto& [name, value] : kOpenMpi) {
    EXPECT_THROWS_WITH(read(without(kOpenMpi, name)), ValueError, name + " is not set");
  }
  for (const char* name : {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"}) {
    EXPECT_THROWS_WITH(read(without(kSlurm, name)), ValueError, std::string(name) + " is not set");
  }
}

TEST(Environment, an_empty_variable_is_an_error_under_every_launcher) {
  for (const Variables& launcher : {kTorchrun, kOpenMpi, kSlurm}) {
    for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
      EXPECT_THROWS_WITH(read(with(launcher, name, "")), ValueError,
                         std::string(name) + " is empty; give it a value, or unset it");
    }
  }
}

TEST(Environment, contradictions_are_errors) {
  EXPECT_THROWS_WITH(read(with(kTorchrun, "RANK", "8")), ValueError,
                     "RANK must be below WORLD_SIZE; got RANK=8, WORLD_SIZE=8");
  EXPECT_THROWS_WITH(read(with(kTorchrun, "LOCAL_RANK", "4")), ValueError,
                     "LOCAL_RANK must be below LOCAL_WORLD_SIZE");
  EXPECT_THROWS_WITH(read(with(kTorchrun, "RANK", "one")), ValueError,
                     "RANK must be a number of at least 0; got \"one\"");
  EXPECT_THROWS_WITH(read(with(kTorchrun, "WORLD_SIZE", "0")), ValueError,
                     "WORLD_SIZE must be a number of at least 1; got \"0\"");
}

TEST(Environment, a_process_keeps_the_number_that_it_was_launched_with) {
  setenv("RANK", "5", 1);
  EXPECT_EQ(launched_rank(1), 5);
  setenv("RANK", "5th", 1);
  EXPECT_EQ(launched_rank(1), 1);
  unsetenv("RANK");
  EXPECT_EQ(launched_rank(1), 1);
}

TEST(Environment, the_number_is_that_of_the_launcher_which_is_read) {
  const char* all[] = {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "SLURM_STEP_NODELIST"};
  for (const char* name : all) unsetenv(name);
  setenv("SLURM_PROCID", "7", 1);
  EXPECT_EQ(launched_rank(1), 1) << "a batch script has it too";
  setenv("SLURM_STEP_NODELIST", "node[1-2]", 1);
  EXPECT_EQ(launched_rank(1), 7);
  setenv("OMPI_COMM_WORLD_RANK", "6", 1);
  EXPECT_EQ(launched_rank(1), 6);
  setenv("RANK", "5", 1);
  EXPECT_EQ(launched_rank(1), 5);
  for (const char* name : all) unsetenv(name);
}

TEST(Environment, slurms_short_forms_are_read) {
  EXPECT_EQ(first_slurm_host("node7"), "node7");
  EXPECT_EQ(first_slurm_host("a,b"), "a");
  EXPECT_EQ(first_slurm_host("node[03-05,9],gpu1"), "node03");
  EXPECT_EQ(first_slurm_host("rack[1-2]n[08,09]x"), "rack1n08x");
  EXPECT_THROWS_WITH(first_slurm_host("node[1"), ValueError, "has no ']'");
  EXPECT_EQ(slurm_tasks_on_node("4", 0), 4);
  EXPECT_EQ(slurm_tasks_on_node("2(x3),1", 2), 2);
  EXPECT_EQ(slurm_tasks_on_node("2(x3),1", 3), 1);
  EXPECT_THROWS_WITH(slurm_tasks_on_node("2(x3),1", 4), ValueError, "has 4 nodes");
  EXPECT_THROWS_WITH(slurm_tasks_on_node("2(x3", 0), ValueError, "has no ')'");
}

}  // namespace
}  // namespace tarn::dist
