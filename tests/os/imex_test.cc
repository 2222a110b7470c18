#include "platform/os/imex.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/os/os_test.h"
#include "tests/support/child.h"

namespace vmm::platform {
namespace {

using testing::Child;
using ::testing::IsEmpty;

// A root of its own: folders and files of the test's making.
class ImexTest : public OsTest {
 protected:
  std::string root() const { return temp_.path(); }
  std::string Folder() const {
    return absl::StrCat(root(), "/dev/nvidia-caps-imex-channels");
  }
  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = absl::StrCat(root(), "/", path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  // A node that everybody may open: it leads to /dev/null.
  void Link(const std::string& name) const {
    std::filesystem::create_directories(Folder());
    std::filesystem::create_symlink("/dev/null",
                                    absl::StrCat(Folder(), "/", name));
  }
  std::vector<ImexChannel> Channels() const {
    return Must(ImexChannels(root()));
  }

  TempDirectory temp_;
};

TEST_F(ImexTest, WithoutAFolderThereAreNoChannels) {
  EXPECT_THAT(Channels(), IsEmpty());
  std::filesystem::create_directories(Folder());
  EXPECT_THAT(Channels(), IsEmpty());
}

TEST_F(ImexTest, ChannelsComeByNumberWithTheirFacts) {
  for (const char* name : {"channel10", "channel2", "channel0", "other"}) {
    Link(name);
  }
  const std::vector<ImexChannel> channels = Channels();
  ASSERT_EQ(channels.size(), 3u);
  EXPECT_EQ(channels[0].number, 0u);
  EXPECT_EQ(channels[1].number, 2u);
  EXPECT_EQ(channels[2].number, 10u);
  for (const ImexChannel& channel : channels) {
    EXPECT_TRUE(channel.usable) << channel.reason;
    EXPECT_TRUE(channel.is_device);
    EXPECT_EQ(channel.major, 1u) << "that of /dev/null";
    EXPECT_EQ(channel.mode, 0666u);
    EXPECT_TRUE(channel.world_writable());
    EXPECT_EQ(channel.owner.text(), "0");
  }
}

TEST_F(ImexTest, WhatIsNoDeviceIsNotUsable) {
  std::filesystem::create_directories(absl::StrCat(Folder(), "/channel0"));
  Write("dev/nvidia-caps-imex-channels/channel1", "");
  Write("dev/nvidia-caps-imex-channels/channelx", "");
  const std::vector<ImexChannel> channels = Channels();
  ASSERT_EQ(channels.size(), 3u);
  EXPECT_FALSE(channels[0].number.has_value()) << "channelx";
  for (const ImexChannel& channel : channels) {
    EXPECT_FALSE(channel.usable);
    EXPECT_FALSE(channel.is_device);
    EXPECT_TRUE(absl::IsFailedPrecondition(channel.reason)) << channel.reason;
  }
}

TEST_F(ImexTest, ANodeThatLeadsNowhereSaysSo) {
  std::filesystem::create_directories(Folder());
  std::filesystem::create_symlink("/nowhere", Folder() + "/channel0");
  const std::vector<ImexChannel> channels = Channels();
  ASSERT_EQ(channels.size(), 1u);
  EXPECT_TRUE(absl::IsNotFound(channels[0].reason)) << channels[0].reason;
}

// As another user: root may open everything. args: the root folder.
int ListAsNobody(const std::vector<std::string>& args) {
  constexpr uid_t kNobody = 65534;
  Check(::setuid(kNobody) == 0, "setuid() failed");
  const std::vector<ImexChannel> channels = Must(ImexChannels(args[0]));
  EXPECT_EQ(channels.size(), 1u);
  EXPECT_FALSE(channels[0].usable);
  EXPECT_TRUE(absl::IsPermissionDenied(channels[0].reason))
      << channels[0].reason;
  EXPECT_EQ(channels[0].mode, 0600u);
  return 0;
}
const bool kListAsNobody =
    testing::RegisterChild("list_as_nobody", &ListAsNobody);

TEST_F(ImexTest, ANodeOfAnotherUserIsListedWithTheReason) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  std::filesystem::create_directories(Folder());
  const std::string node = Folder() + "/channel0";
  if (::mknod(node.c_str(), S_IFCHR | 0600, makedev(1, 3)) != 0) {
    GTEST_SKIP() << "this container may make no device nodes";
  }
  Check(::chmod(root().c_str(), 0755) == 0, "chmod() failed");
  EXPECT_EQ(Child::Start("list_as_nobody", {root()}).Wait(), 0);
}

TEST_F(ImexTest, TheMajorNumberIsThatOfTheClass) {
  EXPECT_TRUE(absl::IsNotFound(ImexChannelMajor(root()).status()));
  Write("proc/devices", "Character devices:\n  1 mem\n240 nvidia-nvlink\n");
  EXPECT_EQ(Must(ImexChannelMajor(root())), std::nullopt);
  Write("proc/devices",
        "Character devices:\n241 nvidia-caps\n"
        "242 nvidia-caps-imex-channels\n\nBlock devices:\n259 blkext\n");
  EXPECT_EQ(Must(ImexChannelMajor(root())), 242u);
  Write("proc/devices", "x nvidia-caps-imex-channels\n");
  EXPECT_EQ(Must(ImexChannelMajor(root())), std::nullopt);
}

TEST_F(ImexTest, TheDaemonIsAProcessOfThatName) {
  EXPECT_TRUE(absl::IsNotFound(ImexDaemonSeen(root()).status()));
  Write("proc/1/comm", "systemd\n");
  Write("proc/77/comm", "nvidia-imex-ctl\n");
  Write("proc/self/comm", "nvidia-imex\n");                  // No number.
  std::filesystem::create_directories(root() + "/proc/99");  // Just ended.
  EXPECT_FALSE(Must(ImexDaemonSeen(root())));
  Write("proc/78/comm", "nvidia-imex\n");
  EXPECT_TRUE(Must(ImexDaemonSeen(root())));
}

TEST_F(ImexTest, ThisMachineCanBeAsked) {
  EXPECT_TRUE(ImexChannels().ok());
  EXPECT_TRUE(ImexDaemonSeen().ok());
  EXPECT_TRUE(ImexChannelMajor().ok());
}

}  // namespace
}  // namespace vmm::platform
