// apps_run_hosts_test.cpp - tarn-run over two hosts, which are network namespaces of this one.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tarn/dist/gloo_group.h"
#include "tarn/tests/apps_process.h"

namespace {

const std::string kRun = tarn::test::built("tarn-run");
const std::string kBench = tarn::test::built("tarn-bench");

int shell(const std::string& command) {
  return std::system((command + " 2>/dev/null").c_str());
}

// Two namespaces with a cable between them: 10.77.0.1 and 10.77.0.2.
class TwoHosts : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kRun) || !std::filesystem::exists(kBench)) {
      GTEST_SKIP() << "built without apps";
    }
    if (!tarn::dist::gloo_available()) GTEST_SKIP() << "built without Gloo";
    const std::string make = "ip netns add " + a + " && ip netns add " + b + " && ip link add " +
                             a + " type veth peer name " + b + " && ip link set " + a + " netns " +
                             a + " && ip link set " + b + " netns " + b;
    const auto up = [](const std::string& host, const std::string& address) {
      return "ip -n " + host + " addr add " + address + "/24 dev " + host + " && ip -n " + host +
             " link set lo up && ip -n " + host + " link set " + host + " up";
    };
    if (shell(make) != 0 || shell(up(a, "10.77.0.1")) != 0 || shell(up(b, "10.77.0.2")) != 0) {
      GTEST_SKIP() << "network namespaces need root and iproute2";
    }
  }
  void TearDown() override { shell("ip netns del " + a + "; ip netns del " + b); }

  // Runs the collectives' benchmark, which checks its values, on one host.
  int run(const std::string& host, int number) {
    return shell("ip netns exec " + host + " env TARN_DIST_TRANSPORT=gloo OMP_NUM_THREADS=1 " +
                 kRun + " --nnodes 2 --node-rank " + std::to_string(number) +
                 " --master-addr 10.77.0.1 --nproc 2 " + kBench +
                 " collectives --filter all_reduce --min-bytes 65536 --max-bytes 65536 >" +
                 (folder / ("out" + std::to_string(number))));
  }

  const std::string a = "ta" + std::to_string(getpid()), b = "tb" + std::to_string(getpid());
  tarn::test::TempFolder folder;
};

TEST_F(TwoHosts, ranks_meet_and_reduce_over_the_network) {
  int second = -1;
  std::thread other([&] { second = run(b, 1); });
  EXPECT_EQ(run(a, 0), 0);
  other.join();
  EXPECT_EQ(second, 0);
  const std::string out = tarn::test::slurp(folder / "out0");
  EXPECT_NE(out.find("4 ranks over gloo"), std::string::npos) << out;
  EXPECT_EQ(tarn::test::slurp(folder / "out1"), "") << "only rank 0 prints";
}

}  // namespace
