// The example of the keeper, with `vmmshare keep`, run as people run them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/ipc/channel_address.h"
#include "tests/ipc/program.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/support/emulator.h"
#include "tests/support/host_instance.h"
#include "tests/support/must.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class KeeperExample : public ::testing::Test {
 protected:
  KeeperExample()
      : address_(platform::kNativeHandleIsPosixFd
                     ? directory_.path() + "/keeper"
                     : Must(platform::DefaultAddressOf(
                           HostInstanceName("example")))) {}

  Program Start(const std::string& path, std::vector<std::string> args) {
    args.push_back("--address=" + address_);
    return Program::Start(
        absl::StrCat(FolderOfThisProgram(), "/../../", path), args,
        {{"VMMSHARE_HOST_INSTANCE", HostInstanceName("keeper")}});
  }
  Program StartExample(std::vector<std::string> args = {}) {
    args.insert(args.begin(),
                {"weights",
                 OnHostMemoryDriver() ? "--driver=host" : "--driver=system"});
    return Start("docs/examples/keeper", args);
  }
  Program StartKeeper() {
    Program keeper = Start("vmm/tool/vmmshare", {"keep"});
    EXPECT_TRUE(keeper.WaitForText(address_)) << keeper.output();
    return keeper;
  }

  PrivateDirectory directory_;
  const std::string address_;
};

TEST_F(KeeperExample, TheFirstLoadsAndTheOthersAttach) {
  Program keeper = StartKeeper();
  Program first = StartExample();
  EXPECT_EQ(first.Wait(), 0) << first.output();
  EXPECT_THAT(first.output(), AllOf(HasSubstr("keeper: load and seal"),
                                    HasSubstr("OK: 64.0 MiB of weights")));
  Program listed = Start("vmm/tool/vmmshare", {"keep", "--list"});
  EXPECT_EQ(listed.Wait(), 0);
  EXPECT_THAT(listed.output(), AllOf(HasSubstr("weights\n  sealed\n"),
                                     HasSubstr("67108864 bytes")));
  for (int i = 0; i < 2; ++i) {
    Program next = StartExample();
    EXPECT_EQ(next.Wait(), 0) << next.output();
    EXPECT_THAT(next.output(),
                AllOf(HasSubstr("keeper: attach"), Not(HasSubstr("load")),
                      HasSubstr("OK: 64.0 MiB of weights")));
  }
  Program other_size = StartExample({"--size=1M"});
  EXPECT_EQ(other_size.Wait(), 1);
  EXPECT_THAT(other_size.output(), HasSubstr("FAILED_PRECONDITION"));
  Program dropped = Start("vmm/tool/vmmshare", {"keep", "--drop=weights"});
  EXPECT_EQ(dropped.Wait(), 0) << dropped.output();
  Program again = StartExample({"--size=1M"});
  EXPECT_EQ(again.Wait(), 0) << again.output();
}

TEST_F(KeeperExample, OfManyAtOnceOneLoads) {
  Program keeper = StartKeeper();
  std::vector<Program> programs;
  for (int i = 0; i < 4; ++i) programs.push_back(StartExample());
  int loaded = 0;
  for (Program& program : programs) {
    EXPECT_EQ(program.Wait(), 0) << program.output();
    loaded += program.output().find("load and seal") != std::string::npos;
  }
  EXPECT_EQ(loaded, 1);
}

// What ./dev demo weights runs.
TEST_F(KeeperExample, EnginesShareOneSetOfWeightsWhoeverComesAndGoes) {
  if (IsEmulated()) GTEST_SKIP() << kStartsNothing;
  Program keeper = StartKeeper();
  Program engines =
      Start("docs/examples/engines",
            {"--size=4M",
             OnHostMemoryDriver() ? "--driver=host" : "--driver=system"});
  EXPECT_EQ(engines.Wait(), 0) << engines.output();
  const std::string output = engines.output();
  // In this order.
  std::size_t at = 0;
  for (const char* line :
       {"engine A: loaded and published generation 1, 102 tensors",
        "engine B: attached generation 1", "engine A is killed",
        "engine B: still has generation 1: all 101 tensors are right",
        "engine A: attached generation 1", "engine A: published generation 2",
        "engine B: still has generation 1", "engine B: attached generation 2",
        "engine B: still has generation 2: all 101 tensors are right", "OK"}) {
    at = output.find(line, at);
    ASSERT_NE(at, std::string::npos) << line << "\n" << output;
  }
}

TEST_F(KeeperExample, WithoutAKeeperItSaysWhatToStart) {
  Program alone = StartExample();
  EXPECT_EQ(alone.Wait(), 1);
  EXPECT_THAT(alone.output(), HasSubstr("Start one: vmmshare keep"));
}

}  // namespace
}  // namespace vmm::testing
