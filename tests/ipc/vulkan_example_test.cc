// The example vulkan_memory, run as people run it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/ipc/program.h"
#include "tests/support/host_instance.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

struct Result {
  int status = 0;
  std::string output;
};

Result RunExample(const std::vector<std::string>& args,
                  std::map<std::string, std::string> env = {}) {
  env["VMMSHARE_HOST_INSTANCE"] = HostInstanceName("vulkan");
  Program program = Program::Start(
      absl::StrCat(FolderOfThisProgram(), "/../../docs/examples/vulkan_memory"),
      args, env);
  const int status = program.Wait();
  return {status, program.output()};
}

// The same where a driver of Vulkan's works. Mesa's llvmpipe (22.3) leaves 128
// bytes behind, which a build with AddressSanitizer must not take for ours.
Result RunOnVulkan(const std::vector<std::string>& args) {
  const char* options = std::getenv("ASAN_OPTIONS");
  return RunExample(
      args, {{"ASAN_OPTIONS", absl::StrCat(options == nullptr ? "" : options,
                                           ":detect_leaks=0")}});
}

std::string DriverFlag() {
  return OnHostMemoryDriver() ? "--driver=host" : "--driver=system";
}

// Whether the example says that Vulkan's loader or every driver of it is
// missing, which no test can mend.
bool LacksVulkan(const Result& result) {
  return result.status == 1 &&
         absl::StartsWith(result.output, "vulkan_memory: error: ") &&
         (absl::StrContains(result.output, "Vulkan's loader, ") ||
          absl::StrContains(result.output, "Vulkan has no driver here"));
}

// Needs a device of Vulkan's, which Mesa's llvmpipe is on any machine.
class VulkanExample : public ::testing::Test {
 protected:
  void SetUp() override {
    const Result result = RunOnVulkan({"--control", "--size=1"});
    if (LacksVulkan(result)) GTEST_SKIP() << "no Vulkan: " << result.output;
    if (absl::StrContains(result.output,
                          "UNIMPLEMENTED: the Vulkan device has no VK_KHR_")) {
      GTEST_SKIP() << "Vulkan shares no memory here: " << result.output;
    }
    ASSERT_EQ(result.status, 0) << result.output;
  }
};

TEST(VulkanExampleAlone, SaysByHelpWhatItDoes) {
  const Result result = RunExample({"--help"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.output, AllOf(HasSubstr("vulkan_memory --control"),
                                   Not(HasSubstr("//"))));
}

TEST(VulkanExampleAlone, NamesTheLoaderThatIsMissing) {
  const std::string nowhere = FolderOfThisProgram() + "/nowhere/vulkan";
  const Result result = RunExample({"--control", "--loader=" + nowhere});
  EXPECT_EQ(result.status, 1);
  EXPECT_TRUE(LacksVulkan(result));
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("nowhere"), HasSubstr("Vulkan's loader, "),
                    HasSubstr("install it, or name one by --loader=")));
}

TEST(VulkanExampleAlone, RefusesALibraryThatIsNoLoader) {
  const Result result =
      RunExample({"--control", "--loader=" + HostDriverPath()});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("FAILED_PRECONDITION"),
                    HasSubstr("has no vkGetInstanceProcAddr: it is no Vulkan "
                              "loader")));
}

TEST_F(VulkanExample, SaysThatVulkanHasNoDriver) {
  // Where the loader looks for drivers: its old name and its new one.
  const std::string nowhere = FolderOfThisProgram() + "/nowhere.json";
  const Result result =
      RunExample({"--control"},
                 {{"VK_ICD_FILENAMES", nowhere}, {"VK_DRIVER_FILES", nowhere}});
  EXPECT_EQ(result.status, 1);
  EXPECT_TRUE(LacksVulkan(result));
  EXPECT_THAT(result.output,
              HasSubstr("Vulkan has no driver here that works."));
}

TEST_F(VulkanExample, VulkanSharesWithItselfMemoryOfAnySize) {
  for (const char* size : {"1", "4097", "2M", "10485773"}) {
    const Result result =
        RunOnVulkan({"--control", absl::StrCat("--size=", size)});
    EXPECT_EQ(result.status, 0) << size << ": " << result.output;
    EXPECT_THAT(result.output,
                AllOf(HasSubstr("control: Vulkan's memory in Vulkan: works: "),
                      HasSubstr("OK: Vulkan shares memory with itself")));
  }
}

TEST_F(VulkanExample, FindsOneWrongByteWhereverItIs) {
  for (const char* offset : {"0", "4096", "10485772"}) {
    const Result result = RunOnVulkan(
        {"--control", "--size=10485773", absl::StrCat("--corrupt=", offset)});
    EXPECT_EQ(result.status, 1) << offset;
    EXPECT_THAT(result.output,
                AllOf(HasSubstr(absl::StrCat("DATA_LOSS: control: byte ",
                                             offset, " of 10485773 is ")),
                      Not(HasSubstr("OK:"))));
  }
}

TEST_F(VulkanExample, EndsAtItsDeadlineWhenTheTimeDoesNotSuffice) {
  const Result result = RunOnVulkan({"--control", "--timeout=0"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output,
              HasSubstr("DEADLINE_EXCEEDED: control: the time was up"));
}

TEST_F(VulkanExample, RefusesACommandLineItDoesNotUnderstand) {
  for (const auto& [flag, expected] :
       {std::pair<const char*, const char*>{"--size=0", "'size'; expected"},
        {"--corrupt=16777216", "expected an offset below 16777216"},
        {"--vulkan=7777", "--vulkan=7777: Vulkan sees 0: "},
        {"--loader=libvulkan.so.1", "is not an absolute path"},
        {"--wrong", "Unknown command line flag 'wrong'"}}) {
    const Result result = RunOnVulkan({"--control", flag});
    EXPECT_EQ(result.status, 1) << flag;
    EXPECT_THAT(result.output, HasSubstr(expected));
  }
}

TEST_F(VulkanExample, TellsByTheUuidThatNoDeviceIsCudas) {
  if (!OnHostMemoryDriver()) GTEST_SKIP() << "Vulkan may see a real GPU";
  const Result result = RunOnVulkan({DriverFlag()});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("NOT_FOUND: no device of Vulkan's is device 0 ("),
                    HasSubstr("; it sees 0: "), Not(HasSubstr("REFUSED"))));
}

// Vulkan cannot know memory of the host-memory driver, nor that Vulkan's.
TEST_F(VulkanExample, CallsARefusalARefusalAndSaysWhatTheControlDid) {
  if (!OnHostMemoryDriver()) GTEST_SKIP() << "a GPU's driver may not refuse";
  const Result result = RunOnVulkan({DriverFlag(), "--vulkan=0"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(
      result.output,
      AllOf(HasSubstr("control: Vulkan's memory in Vulkan: works: 16.0 MiB"),
            HasSubstr("out: vmmshare's memory in Vulkan: REFUSED: "
                      "INVALID_ARGUMENT: vkAllocateMemory(import of "),
            HasSubstr("in: Vulkan's memory in vmmshare: REFUSED: "
                      "INVALID_ARGUMENT: "),
            HasSubstr("FAILED_PRECONDITION: refused: out, in. The control "
                      "works, so Vulkan is set up"),
            Not(HasSubstr("OK:"))));
}

TEST_F(VulkanExample, OnAGpuEachWayWorksOrIsRefused) {
  if (OnHostMemoryDriver()) GTEST_SKIP() << "needs a GPU";
  const Result result = RunOnVulkan({DriverFlag()});
  if (absl::StrContains(result.output, "no device of Vulkan's is ")) {
    GTEST_SKIP() << "Vulkan does not see the GPU: " << result.output;
  }
  // Whether a driver takes the memory is the driver's affair; that the example
  // says so, and that what was taken has the right bytes, is not.
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("control: Vulkan's memory in Vulkan: works: "),
                    ContainsRegex("\nout: .*: (works|REFUSED): "),
                    ContainsRegex("\nin: .*: (works|REFUSED): ")));
  if (absl::StrContains(result.output, "REFUSED")) {
    EXPECT_EQ(result.status, 1) << result.output;
    EXPECT_THAT(result.output,
                AllOf(HasSubstr("FAILED_PRECONDITION: refused: "),
                      Not(HasSubstr("OK:"))));
    GTEST_SKIP() << "this driver refuses a way: " << result.output;
  }
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("OK: CUDA and Vulkan share memory"));
  const Result corrupt = RunOnVulkan({DriverFlag(), "--corrupt=12345"});
  EXPECT_EQ(corrupt.status, 1);
  EXPECT_THAT(corrupt.output, HasSubstr("DATA_LOSS: "));
}

}  // namespace
}  // namespace vmm::testing
