// Who serves a pipe and who is its client, where processes end, ids are given
// out again, and programs of one user are not trusted alike.
#include "platform/ipc/peer_win.h"

#include <gmock/gmock.h>
#include <windows.h>
// After the line above.
#include <sddl.h>

#include "absl/strings/str_cat.h"
#include "platform/os/process.h"
#include "platform/os/utf16_win.h"
#include "tests/os/win_test.h"
#include "tests/support/child.h"

namespace vmm::platform {
namespace {

using testing::Child;
using ::testing::HasSubstr;
using testing::RegisterChild;

constexpr char kStranger[] = "S-1-5-21-1-2-3-1001";
constexpr std::uint32_t kLow = 0x1000;
constexpr std::uint32_t kMedium = 0x2000;
constexpr std::uint32_t kHigh = 0x3000;

class PeerTest : public WinTest {
 protected:
  const std::string address_ =
      absl::StrCat(kPipePrefix, "vmmshare-peer-", CurrentProcessId());
};

// Its process is of this user; the one who made it was another's.
TEST_F(PeerTest, APipeOfAnotherUserIsNotTrustedForTheIdOfItsProcess) {
  PSECURITY_DESCRIPTOR descriptor = nullptr;
  const std::string text =
      absl::StrCat("O:", kStranger, "D:P(A;;GA;;;", CurrentUser().text(), ")");
  ASSERT_NE(
      ::ConvertStringSecurityDescriptorToSecurityDescriptorW(
          Must(ToUtf16(text)).c_str(), SDDL_REVISION_1, &descriptor, nullptr),
      0);
  const LocalMemory owned = LocalMemory::Adopt(descriptor);
  const PeerPolicy listed = {{UserId(kStranger)}};
  for (const PeerPolicy& policy : {PeerPolicy{}, listed}) {
    const absl::StatusOr<OsHandle> pipe =
        CreatePipeInstance(Must(PipeName(address_)), descriptor, true);
    if (!pipe.ok()) {
      GTEST_SKIP() << "needs SeRestorePrivilege: " << pipe.status();
    }
    const absl::Status status =
        Channel::Connect(address_, policy, Late()).status();
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(kStranger));
  }
}

TEST_F(PeerTest, AServerIsItsPipesOwnersAndTrustedAsMuchAsItsClient) {
  const UserId self = CurrentUser();
  const UserId service("S-1-5-18");
  struct {
    ServerFacts facts;
    bool taken;
  } const cases[] = {
      {{self, self, kMedium, kMedium}, true},
      {{self, self, kHigh, kMedium}, true},
      {{self, self, kLow, kLow}, true},
      {{self, self, kLow, kMedium}, false},
      {{self, self, kMedium, kHigh}, false},
      {{service, service, kLow, kMedium}, false},
      // An id that was given out again.
      {{service, self, kMedium, kMedium}, false},
      {{self, service, kHigh, kMedium}, false},
      // A program can forbid its own user to ask about it.
      {{self, std::nullopt, std::nullopt, kLow}, false},
      // A service of a user whom the policy has to name.
      {{service, std::nullopt, std::nullopt, kHigh}, true},
  };
  for (const auto& [facts, taken] : cases) {
    const absl::Status status = CheckServer(facts, 12);
    EXPECT_EQ(status.ok(), taken)
        << facts.owner.text() << " " << facts.integrity.value_or(0) << " for "
        << facts.own_integrity << ": " << status;
    EXPECT_TRUE(taken || absl::IsPermissionDenied(status)) << status;
  }
}

// Lowers its own integrity, as browsers do with what they do not trust, and
// listens under a name that others expect to be somebody else's.
int LowServer(const std::vector<std::string>& args) {
  HANDLE token = nullptr;
  Check(::OpenProcessToken(::GetCurrentProcess(),
                           TOKEN_ADJUST_DEFAULT | TOKEN_QUERY, &token) != 0,
        "OpenProcessToken() failed");
  const OsHandle owned = Own(token);
  PSID low = nullptr;
  Check(::ConvertStringSidToSidW(L"S-1-16-4096", &low) != 0, "no SID");
  const LocalMemory sid = LocalMemory::Adopt(low);
  TOKEN_MANDATORY_LABEL label = {{low, SE_GROUP_INTEGRITY}};
  Check(::SetTokenInformation(token, TokenIntegrityLevel, &label,
                              sizeof(label) + ::GetLengthSid(low)) != 0,
        "SetTokenInformation() failed");
  Listener listener = Must(Listener::Bind({.name = args[0]}, {}));
  return listener.Accept(Late()).ok() ? 0 : 1;
}
const bool kLowServer = RegisterChild("low_server", &LowServer);

TEST_F(PeerTest, ARealServerOfLowIntegrityIsRefused) {
  if (UnderWine()) GTEST_SKIP() << "wine: an integrity level cannot be lowered";
  const std::string name = absl::StrCat("low-", CurrentProcessId());
  Child child = Child::Start("low_server", {name});
  absl::Status status;
  do {
    status = Channel::Connect(absl::StrCat(kPipePrefix, "vmmshare-", name), {},
                              Late())
                 .status();
  } while (absl::IsNotFound(status));
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  child.Kill();
}

// Connects, and stays until it is hung up on.
int StayingClient(const std::vector<std::string>& args) {
  Channel channel = Must(Channel::Connect(args[0], {}, Late()));
  Must(channel.Send(1, {}, {}, Late()));
  return channel.WaitForHangUp(Late()).ok() ? 0 : 1;
}
const bool kStayingClient = RegisterChild("staying_client", &StayingClient);

// A service that began before the clock was set back serves and connects.
TEST_F(PeerTest, AProcessOfATimeYetToComeIsNotTakenForAYoungerOne) {
  EXPECT_TRUE(CanBePeer(/*created=*/90, /*connected=*/100, /*now=*/150));
  EXPECT_TRUE(CanBePeer(/*created=*/100, /*connected=*/100, /*now=*/150));
  EXPECT_FALSE(CanBePeer(/*created=*/120, /*connected=*/100, /*now=*/150));
  EXPECT_FALSE(CanBePeer(/*created=*/150, /*connected=*/100, /*now=*/150));
  EXPECT_TRUE(CanBePeer(/*created=*/200, /*connected=*/100, /*now=*/150));
}

TEST_F(PeerTest, AProcessThatIsYoungerThanTheConnectionIsNotItsClient) {
  OsHandle pipe = OwnPipe(address_);
  const std::uint64_t before = TimeOfDay();
  // The clock by which processes are dated ticks in between.
  while (TimeOfDay() == before) ::Sleep(1);
  Child child = Child::Start("staying_client", {address_});
  AwaitClient(pipe);
  const absl::Status status = ReadClient(pipe, before).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(Must(ReadClient(pipe, TimeOfDay())).credentials.pid, child.pid());
  AwaitWord(pipe);
  pipe.Reset();
  EXPECT_EQ(child.Wait(), 0);
}

}  // namespace
}  // namespace vmm::platform
