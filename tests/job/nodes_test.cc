// Jobs over several nodes, each a network namespace with a host name, a boot id
// and an IMEX of its own; and each trouble that keeps a node from the others.
#include "tests/support/nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/job/local_job.h"
#include "tests/job/rank_process.h"
#include "tests/support/host_instance.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kNodes = 3;
constexpr int kBad = 2;  // The node with the trouble.

class JobOverNodes : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!OnHostMemoryDriver()) {
      GTEST_SKIP() << "nodes are the host-memory driver's";
    }
    if (!WhyNoNodes().empty()) GTEST_SKIP() << WhyNoNodes();
    std::filesystem::create_directories(folder_);
    for (int node = 0; node < kNodes; ++node) {
      env_[node] = imex_[node].Environment();
      tasks_.push_back(Task(node, node));
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  RankTask Task(int rank, int node) const {
    RankTask task;
    task.folder = folder_;
    task.rank = rank;
    task.node = absl::StrCat("node", node);
    task.root = imex_[node].path();
    return task;
  }

  // What each of `ranks` was told. Rank r is on node r.
  std::vector<RankReport> Run(int ranks = kNodes) {
    std::vector<Child> children;
    for (int node = 0; node < kNodes; ++node) {
      tasks_[static_cast<std::size_t>(node)].ranks = ranks;
      auto env = env_[static_cast<std::size_t>(node)];
      env["VMMSHARE_HOST_INSTANCE"] = instance_;
      children.push_back(
          StartRank(tasks_[static_cast<std::size_t>(node)], env));
    }
    for (Child& child : children) EXPECT_EQ(child.Wait(), 0);
    std::vector<RankReport> reports;
    for (int rank = 0; rank < ranks; ++rank) {
      RankTask task = tasks_[0];
      task.rank = rank;
      reports.push_back(ReadReport(task));
      EXPECT_TRUE(reports.back().there);
      EXPECT_LE(reports.back().after_deadline, kRankGrace);
    }
    for (const RankReport& report : reports) {
      EXPECT_EQ(report.cells, reports.front().cells);
    }
    return reports;
  }

  // Every rank is told that the others reach each other, and the pairs with
  // the bad node are refused for `from_bad` (importer: a good one) and
  // `to_bad`, in words that have `remedy`.
  void ExpectRefused(const std::string& from_bad, const std::string& to_bad,
                     const std::string& remedy) {
    for (const RankReport& report : Run()) {
      ASSERT_EQ(report.code, "OK") << report.message;
      EXPECT_EQ(report.cells.at({0, 1}), "fabric");
      EXPECT_EQ(report.cells.at({1, 0}), "fabric");
      for (int good = 0; good < kBad; ++good) {
        EXPECT_EQ(report.cells.at({good, kBad}),
                  absl::StrCat("other-host,", from_bad));
        EXPECT_EQ(report.cells.at({kBad, good}),
                  absl::StrCat("other-host,", to_bad));
        EXPECT_THAT(report.why.at({good, kBad}),
                    AllOf(HasSubstr("rank 2 (host node2, GPU-"),
                          HasSubstr("fabric: "), HasSubstr(remedy)));
      }
    }
  }

  const std::string instance_ = HostInstanceName("job-nodes");
  const std::string folder_ =
      absl::StrCat(::testing::TempDir(), "/vmmshare-", instance_);
  std::array<ImexRoot, kNodes> imex_;
  std::array<std::map<std::string, std::string>, kNodes> env_;
  std::vector<RankTask> tasks_;
};

TEST_F(JobOverNodes, EveryNodeReachesEveryOtherByFabricHandles) {
  for (const RankReport& report : Run()) {
    ASSERT_EQ(report.code, "OK") << report.message;
    for (const auto& [pair, cell] : report.cells) EXPECT_EQ(cell, "fabric");
    EXPECT_EQ(report.cells.size(), 6u);
  }
}

TEST_F(JobOverNodes, RanksOfOneNodeUseDescriptorsAmongThemselves) {
  tasks_[2].beside = 3;
  for (const RankReport& report : Run(4)) {
    ASSERT_EQ(report.code, "OK") << report.message;
    EXPECT_EQ(report.cells.at({2, 3}), "fd");
    EXPECT_EQ(report.cells.at({3, 2}), "fd");
    EXPECT_EQ(report.cells.at({0, 3}), "fabric");
    EXPECT_EQ(report.cells.at({3, 0}), "fabric");
    EXPECT_EQ(report.cells.at({1, 2}), "fabric");
  }
}

TEST_F(JobOverNodes, SymmetricMemoryAndItsFencesWorkAcrossNodes) {
  for (RankTask& task : tasks_) task.symmetric = true;
  for (const RankReport& report : Run()) {
    EXPECT_EQ(report.code, "OK") << report.message;
  }
}

TEST_F(JobOverNodes, SymmetricMemoryOfDifferentSizesIsRefusedOnAllNodes) {
  for (RankTask& task : tasks_) task.symmetric = true;
  tasks_[1].fault = "size";
  for (const RankReport& report : Run()) {
    EXPECT_EQ(report.code, "INVALID_ARGUMENT");
    EXPECT_THAT(report.message, HasSubstr("rank 1 (host node1, GPU-"));
  }
}

TEST_F(JobOverNodes, SymmetricMemoryNamesTheNodeWithoutAChannelOnAll) {
  for (RankTask& task : tasks_) task.symmetric = true;
  imex_[kBad].RemoveChannel(0);
  for (const RankReport& report : Run()) {
    EXPECT_EQ(report.code, "PERMISSION_DENIED");
    EXPECT_THAT(report.message,
                AllOf(HasSubstr("rank 2 (host node2, GPU-"),
                      HasSubstr("[no-channel]"), HasSubstr("mknod")));
  }
}

// --- One trouble each, told to all ranks ------------------------------------

TEST_F(JobOverNodes, ANodeWithoutAChannelIsNamedToAll) {
  imex_[kBad].RemoveChannel(0);
  ExpectRefused("no-channel", "no-channel", "mknod");
}

TEST_F(JobOverNodes, AChannelThatMayNotBeOpenedIsNamedToAll) {
  imex_[kBad].MakeChannel(0, 0);
  tasks_[kBad].obey_permissions = true;
  ExpectRefused("channel-denied", "channel-denied", "this user");
}

TEST_F(JobOverNodes, ADaemonThatIsDownIsNamedToAll) {
  imex_[kBad].KillDaemon();
  ExpectRefused("no-daemon", "no-daemon", "systemctl enable --now nvidia-imex");
}

TEST_F(JobOverNodes, AnotherChannelIsNamedToAll) {
  imex_[kBad].MakeChannel(5);
  imex_[kBad].RemoveChannel(0);
  ExpectRefused("other-channel", "other-channel", "the same number");
}

// A passed test of its own says nothing of the peer.
using Pitfall03 = JobOverNodes;
TEST_F(Pitfall03, AnotherCliqueIsNamedToAllThoughItsOwnTestPasses) {
  env_[kBad] = imex_[kBad].Environment(kCluster, 2);
  ExpectRefused("two-domains", "two-domains",
                "clique 2 of " + std::string(kCluster));
}

TEST_F(JobOverNodes, AnotherDomainIsNamedToAll) {
  env_[kBad] = imex_[kBad].Environment(kOtherCluster, 1);
  ExpectRefused("two-domains", "two-domains", kOtherCluster);
}

TEST_F(JobOverNodes, AHostWithoutADomainIsNamedToAll) {
  env_[kBad] =
      imex_[kBad].Environment("00000000-0000-0000-0000-000000000000", 0);
  ExpectRefused("no-cluster", "no-cluster", "Share within the host");
}

TEST_F(JobOverNodes, AHandleThatLeadsNowhereIsRefusedByAll) {
  for (const char* fault : {"random-handle", "stale-handle"}) {
    tasks_[kBad].fault = fault;
    tasks_[kBad].folder = tasks_[1].folder = tasks_[0].folder =
        absl::StrCat(folder_, "/", fault);
    std::filesystem::create_directories(tasks_[0].folder);
    for (const RankReport& report : Run()) {
      ASSERT_EQ(report.code, "OK") << report.message;
      EXPECT_EQ(report.cells.at({0, kBad}), "other-host,import-refused");
      EXPECT_EQ(report.cells.at({1, kBad}), "other-host,import-refused");
      EXPECT_EQ(report.cells.at({kBad, 0}), "fabric");
      EXPECT_THAT(report.why.at({0, kBad}),
                  HasSubstr("cuMemImportFromShareableHandle"));
    }
  }
}

TEST_F(JobOverNodes, WithoutNvmlTheChannelIsNamedAllTheSame) {
  for (RankTask& task : tasks_) task.fault = "no-nvml";
  imex_[kBad].RemoveChannel(0);
  ExpectRefused("no-channel", "no-channel", "mknod");
}

TEST_F(JobOverNodes, ANodeOfAnotherVersionIsNamedToAll) {
  tasks_[kBad].fault = "version";
  for (const RankReport& report : Run()) {
    EXPECT_EQ(report.code, "FAILED_PRECONDITION");
    EXPECT_THAT(report.message, AllOf(HasSubstr("the card of rank 2"),
                                      HasSubstr("Install the same vmmshare")));
  }
}

}  // namespace
}  // namespace vmm::testing
