// Talking to systemd, being asked to end, and addresses of chosen names.
#include "platform/os/service_manager.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/base/check.h"
#include "platform/ipc/channel_address.h"
#include "platform/os/process.h"
#include "platform/os/termination.h"
#include "platform/os/termination_scope.h"
#include "tests/support/host_instance.h"
#include "tests/support/must.h"
#include "tests/support/open_handles.h"
#include "tests/support/test_driver.h"

namespace vmm::platform {
namespace {

using testing::ExpectNoNewHandles;
using ::testing::HasSubstr;
using testing::Late;
using testing::Must;

// A socket that takes what a service says, and reads it when it likes.
class ServiceManagerTest : public ::testing::Test {
 protected:
  ServiceManagerTest()
      : socket_(
            OsHandle::Adopt(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0))) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const std::string path =
        absl::StrCat("-vmmshare-", testing::HostInstanceName("notify"));
    std::memcpy(name.sun_path + 1, path.data() + 1, path.size() - 1);
    const auto size =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
    Check(::bind(Fd(), reinterpret_cast<sockaddr*>(&name), size) == 0,
          "a socket of no directory");
    address_ = "@" + path.substr(1);
    ::setenv("NOTIFY_SOCKET", address_.c_str(), 1);
  }
  ~ServiceManagerTest() override {
    ::unsetenv("NOTIFY_SOCKET");
    ::unsetenv("FDSTORE");
  }
  int Fd() const { return static_cast<int>(socket_.get()); }
  std::string Read() const {
    char text[512];
    const ssize_t size = ::recv(Fd(), text, sizeof text, MSG_DONTWAIT);
    return size < 0 ? "nothing" : std::string(text, size);
  }

  ExpectNoNewHandles no_new_handles_;
  OsHandle socket_;
  std::string address_;
};

TEST_F(ServiceManagerTest, SaysWhatTheManualOfSystemdSays) {
  ::setenv("FDSTORE", "17", 1);
  ServiceManager manager = Must(ServiceManager::Find());
  EXPECT_EQ(manager.capacity(), 17u);
  Must(manager.Ready(Late()));
  EXPECT_EQ(Read(), "READY=1");
  Must(manager.Store("name", socket_, Late()));
  EXPECT_EQ(Read(), "FDSTORE=1\nFDNAME=name\nFDPOLL=0");
  Must(manager.Remove("name", Late()));
  EXPECT_EQ(Read(), "FDSTOREREMOVE=1\nFDNAME=name");
}

TEST_F(ServiceManagerTest, ABarrierThatIsNotReadEndsByTheDeadline) {
  ServiceManager manager = Must(ServiceManager::Find());
  EXPECT_EQ(manager.capacity(), std::nullopt);
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      manager.Barrier(absl::Now() + absl::Milliseconds(30))));
  // Reading it without taking the descriptor closes that.
  EXPECT_EQ(Read(), "BARRIER=1");
}

TEST_F(ServiceManagerTest, AFullQueueIsWaitedForUntilTheDeadline) {
  ServiceManager manager = Must(ServiceManager::Find());
  absl::Status sent;
  int count = 0;
  for (; sent.ok() && count < 100'000; ++count) {
    sent = manager.Ready(absl::Now() + absl::Milliseconds(30));
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(sent)) << sent;
  while (Read() != "nothing") {
  }
  Must(manager.Ready(Late()));
}

TEST_F(ServiceManagerTest, WhereNobodyListensIsAnError) {
  ServiceManager manager = Must(ServiceManager::Find());
  socket_.Reset();
  EXPECT_FALSE(manager.Ready(Late()).ok());
  EXPECT_FALSE(ServiceManager::Find().ok());
  for (const std::string& address :
       {std::string("relative"), std::string("@"), std::string("/"),
        "/" + std::string(200, 'x'), std::string("vsock:2:1234")}) {
    ::setenv("NOTIFY_SOCKET", address.c_str(), 1);
    const absl::Status status = ServiceManager::Find().status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << address;
    EXPECT_THAT(std::string(status.message()), HasSubstr("NOTIFY_SOCKET"));
  }
  ::unsetenv("NOTIFY_SOCKET");
  EXPECT_TRUE(absl::IsNotFound(ServiceManager::Find().status()));
}

TEST_F(ServiceManagerTest, DescriptorsThatAreStatedAndNotThereAreAProblem) {
  ::setenv("LISTEN_PID", absl::StrCat(::getpid()).c_str(), 1);
  for (const char* count : {"x", "-1"}) {
    ::setenv("LISTEN_FDS", count, 1);
    const StoredHandles none = TakeStoredHandles();
    EXPECT_TRUE(none.handles.empty());
    EXPECT_EQ(none.problems.size(), 1u);
  }
  ::setenv("LISTEN_FDS", "0", 1);
  const StoredHandles none = TakeStoredHandles();
  EXPECT_TRUE(none.handles.empty() && none.problems.empty());
  ::unsetenv("LISTEN_PID");
  ::unsetenv("LISTEN_FDS");
}

TEST(Termination, ARequestWaitsUntilItIsAskedFor) {
  // Whoever runs the tests may have had them ignored.
  for (int request : {SIGINT, SIGHUP}) ::signal(request, SIG_DFL);
  const TerminationScope held;
  HoldTermination();
  EXPECT_TRUE(absl::IsDeadlineExceeded(WaitForTermination(absl::Now())));
  for (int request : {SIGTERM, SIGINT, SIGHUP}) {
    ASSERT_EQ(::kill(::getpid(), request), 0);
    EXPECT_TRUE(WaitForTermination(Late()).ok());
    EXPECT_TRUE(
        absl::IsDeadlineExceeded(WaitForTermination(absl::InfinitePast())));
  }
}

TEST(Termination, WhoIgnoresARequestOutlivesIt) {
  // As nohup does with one, and a shell with the other for what a script starts
  // in the background.
  for (int request : {SIGHUP, SIGINT}) {
    const auto before = ::signal(request, SIG_IGN);
    // What is blocked waits even if it is ignored: nothing of the round before may be.
    const TerminationScope held;
    HoldTermination();
    ASSERT_EQ(::kill(::getpid(), request), 0);
    EXPECT_TRUE(
        absl::IsDeadlineExceeded(WaitForTermination(absl::InfinitePast())));
    ::signal(request, before);
  }
}

TEST(ChannelAddress, IsWhereAListenerOfThatNameIs) {
  testing::UseAChannelDirectoryOfOwn();
  const std::string directory =
      absl::StrCat("/tmp/vmmshare-", testing::HostInstanceName("address"));
  std::filesystem::create_directory(directory);
  std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
  const Listener listener =
      Must(Listener::Bind(Must(ListenerAt(directory + "/keeper")), {}));
  EXPECT_EQ(listener.address(), directory + "/keeper");
  std::filesystem::remove_all(directory);
  EXPECT_EQ(Must(ListenerAt("/name")).directory, "/");
  for (const char* bad : {"", "name", "./name", "/", "/run/"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ListenerAt(bad).status())) << bad;
  }
  const std::string address = Must(DefaultAddressOf("keeper-test"));
  EXPECT_EQ(Must(Listener::Bind({.name = "keeper-test"}, {})).address(),
            address);
}

}  // namespace
}  // namespace vmm::platform
