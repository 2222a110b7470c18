// What to do where no fabric handle is handed out, on made-up machines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "fabric/access.h"
#include "tests/support/private_directory.h"

namespace vmm::fabric {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class AccessTest : public ::testing::Test {
 protected:
  AccessTest() { std::filesystem::create_directories(root_.path() + "/dev"); }

  std::string Folder() const {
    return root_.path() + "/dev/nvidia-caps-imex-channels";
  }
  std::string Owner() const {
    return AdviceFor(CUDA_ERROR_NOT_PERMITTED, root_.path());
  }
  std::string Importer() const {
    return ImportAdviceFor(CUDA_ERROR_NOT_PERMITTED, root_.path());
  }

  testing::PrivateDirectory root_;
};

TEST_F(AccessTest, WithoutAChannelSaysWhereOneWouldBe) {
  for (const std::string& advice : {Owner(), Importer()}) {
    EXPECT_THAT(advice, StartsWith("This process finds no IMEX channel node "
                                   "(/dev/nvidia-caps-imex-channels/channel"));
  }
  EXPECT_THAT(Owner(), HasSubstr("a running nvidia-imex daemon"));
  EXPECT_THAT(Importer(), HasSubstr("the same number on each node"));
}

TEST_F(AccessTest, NamesTheChannelsAndWhichOfThemDoNotOpen) {
  std::filesystem::create_directories(Folder() + "/channel1");
  std::filesystem::create_symlink("/dev/null", Folder() + "/channel0");
  for (const std::string& advice : {Owner(), Importer()}) {
    EXPECT_THAT(advice,
                StartsWith("IMEX channel nodes: " + Folder() + "/channel0, " +
                           Folder() + "/channel1 (not accessible). "));
  }
}

TEST_F(AccessTest, SaysWhyTheChannelsCouldNotBeSeen) {
  std::ofstream(Folder()) << "no folder";
  for (const std::string& advice : {Owner(), Importer()}) {
    EXPECT_THAT(advice, StartsWith("Whether there is an IMEX channel node ("));
    EXPECT_THAT(advice, HasSubstr(") could not be seen: "));
  }
}

// The nodes have no part in these.
TEST_F(AccessTest, OfOtherResultsSpeaksOfNoChannel) {
  for (const CUresult result :
       {CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_INVALID_VALUE,
        CUDA_ERROR_INVALID_DEVICE}) {
    EXPECT_THAT(AdviceFor(result), HasSubstr("CUDA 12.3")) << result;
  }
  EXPECT_THAT(ImportAdviceFor(CUDA_ERROR_INVALID_HANDLE),
              HasSubstr("leads nowhere from here"));
  EXPECT_THAT(ImportAdviceFor(CUDA_ERROR_INVALID_DEVICE),
              HasSubstr("must see the owner's GPU"));
  EXPECT_THAT(ImportAdviceFor(CUDA_ERROR_NOT_SUPPORTED),
              HasSubstr("No device of this process takes part"));
  EXPECT_EQ(AdviceFor(CUDA_ERROR_OUT_OF_MEMORY), "");
  EXPECT_EQ(ImportAdviceFor(CUDA_ERROR_OUT_OF_MEMORY), "");
}

}  // namespace
}  // namespace vmm::fabric
