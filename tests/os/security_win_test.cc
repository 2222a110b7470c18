// Who may reach pipes and exported memory, and what a handle may be.
#include "platform/os/security_win.h"

#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
// After gtest's <windows.h>.
#include <aclapi.h>
#include <sddl.h>
#include <shellapi.h>
#include <winternl.h>

#include "absl/strings/str_cat.h"
#include "platform/cuda/handle_attributes.h"
#include "platform/cuda/memory_handle.h"
#include "platform/ipc/peer_win.h"
#include "platform/ipc/shared_memory.h"
#include "platform/os/kernel_object_win.h"
#include "platform/os/process.h"
#include "platform/os/utf16_win.h"
#include "tests/ipc/planted_handles.h"
#include "tests/os/win_test.h"
#include "tests/support/child.h"
#include "tests/support/test_driver.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/vmm.h"

namespace vmm::platform {
namespace {

using ::testing::HasSubstr;

constexpr char kStranger[] = "S-1-5-21-1-2-3-1001";
constexpr char kUsers[] = "S-1-5-32-545";

std::string SddlOf(void* descriptor, DWORD parts) {
  wchar_t* text = nullptr;
  Check(::ConvertSecurityDescriptorToStringSecurityDescriptorW(
            descriptor, SDDL_REVISION_1, parts, &text, nullptr) != 0,
        "a security descriptor cannot be read");
  const LocalMemory owned = LocalMemory::Adopt(text);
  return ToUtf8(text);
}

// The users that `descriptor`'s access list admits, in order.
std::vector<std::string> Admitted(PSECURITY_DESCRIPTOR descriptor) {
  BOOL present = FALSE;
  BOOL defaulted = FALSE;
  PACL list = nullptr;
  Check(::GetSecurityDescriptorDacl(descriptor, &present, &list, &defaulted) !=
                0 &&
            present != 0 && list != nullptr,
        "there is no access list");
  std::vector<std::string> users;
  for (DWORD i = 0; i < list->AceCount; ++i) {
    void* raw = nullptr;
    Check(::GetAce(list, i, &raw) != 0, "GetAce() failed");
    auto* rule = static_cast<ACCESS_ALLOWED_ACE*>(raw);
    Check(rule->Header.AceType == ACCESS_ALLOWED_ACE_TYPE, "another rule");
    users.push_back(Must(UserOfSid(&rule->SidStart)).text());
  }
  return users;
}

std::vector<std::string> OwnerAndSystem() {
  return {CurrentUser().text(), "S-1-5-18"};
}

class SecurityTest : public WinTest {};

TEST_F(SecurityTest, Pitfall32TheOwnerAndSystemAndNobodyElse) {
  const LocalMemory made = Must(OwnerAndSystemOnly({}, 0));
  EXPECT_EQ(Admitted(made.get()), OwnerAndSystem());
  EXPECT_THAT(SddlOf(made.get(), DACL_SECURITY_INFORMATION), HasSubstr("D:P"))
      << "it inherits";
  EXPECT_THAT(SddlOf(made.get(), DACL_SECURITY_INFORMATION),
              ::testing::Not(HasSubstr("WD")))
      << "everybody";
}

TEST_F(SecurityTest, FurtherUsersGetTheRightsNamedAndNoMore) {
  const LocalMemory made =
      Must(OwnerAndSystemOnly({UserId(kStranger)}, GENERIC_READ));
  const std::string text = SddlOf(made.get(), DACL_SECURITY_INFORMATION);
  EXPECT_THAT(text, HasSubstr(absl::StrCat("(A;;GR;;;", kStranger, ")")));
}

TEST_F(SecurityTest, AUserThatIsNoSidAddsNoRules) {
  for (const std::string user : {"", "root", "S-1-5-18)(A;;GA;;;WD", "WD",
                                 "WD)(A;;GA;;;WD", "s-1-5-18", "\xff"}) {
    const absl::Status status =
        OwnerAndSystemOnly({UserId(user)}, GENERIC_READ).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << user << ": " << status;
  }
}

TEST_F(SecurityTest, Pitfall31TheDriverIsGivenObjectAttributes) {
  const auto* attributes =
      static_cast<const OBJECT_ATTRIBUTES*>(Must(NativeHandleAttributes()));
  EXPECT_EQ(attributes->Length, sizeof(OBJECT_ATTRIBUTES));
  EXPECT_EQ(attributes->ObjectName, nullptr) << "a name can be squatted";
  EXPECT_EQ(Admitted(attributes->SecurityDescriptor), OwnerAndSystem());
  EXPECT_EQ(Must(NativeHandleAttributes()), attributes) << "not kept";
}

TEST_F(SecurityTest, HandleAttributesAreKeptForEachListOfUsers) {
  const std::vector<UserId> users = {UserId(kUsers)};
  void* const made = Must(NativeHandleAttributes(users));
  EXPECT_NE(made, Must(NativeHandleAttributes()));
  EXPECT_EQ(made, Must(NativeHandleAttributes(users)));
  std::vector<std::string> expected = OwnerAndSystem();
  expected.push_back(kUsers);
  EXPECT_EQ(
      Admitted(static_cast<const OBJECT_ATTRIBUTES*>(made)->SecurityDescriptor),
      expected);
  EXPECT_TRUE(absl::IsInvalidArgument(
      NativeHandleAttributes({UserId("nobody")}).status()));
}

TEST_F(SecurityTest, AClientOfAnotherUserIsTurnedAwayUnlessNamed) {
  const PeerCredentials stranger = {UserId(kStranger), 12};
  const absl::Status refused = CheckPeer(stranger, {});
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(kStranger));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(CurrentUser().text()));
  EXPECT_TRUE(CheckPeer(stranger, {{UserId(kStranger)}}).ok());
  EXPECT_FALSE(CheckPeer({UserId("S-1-5-18"), 4}, {}).ok())
      << "SYSTEM is no exception";
  EXPECT_TRUE(CheckPeer({CurrentUser(), 12}, {}).ok());
}

// Connects, and is hung up on.
int ClientTurnedAway(const std::vector<std::string>& args) {
  Channel channel = Must(Channel::Connect(args[0], {}, Late()));
  const std::size_t before = testing::OpenHandleCount();
  Must(channel.Send(1, {}, {}, Late()));
  const absl::Status status = channel.Receive(Late()).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_LE(testing::OpenHandleCount(), before);
  return 0;
}
const bool kClientTurnedAway =
    testing::RegisterChild("client_turned_away", &ClientTurnedAway);

TEST_F(SecurityTest, AClientThatIsTurnedAwayCostsNeitherSideAHandle) {
  const std::string address =
      absl::StrCat(kPipePrefix, "vmmshare-turned-", CurrentProcessId());
  OsHandle pipe = OwnPipe(address);
  testing::Child child = testing::Child::Start("client_turned_away", {address});
  AwaitClient(pipe);
  const std::size_t before = testing::OpenHandleCount();
  {
    // What a listener asks, but for the user.
    Peer client = Must(ReadClient(pipe, TimeOfDay()));
    EXPECT_EQ(client.credentials.pid, child.pid());
    EXPECT_TRUE(CheckPeer(client.credentials, {}).ok());
    client.credentials.user = UserId(kStranger);
    EXPECT_TRUE(absl::IsPermissionDenied(CheckPeer(client.credentials, {})));
  }
  EXPECT_EQ(testing::OpenHandleCount(), before);
  AwaitWord(pipe);
  pipe.Reset();
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(SecurityTest, ARealClientOfAnotherUserIsTurnedAway) {
  if (UnderWine()) GTEST_SKIP() << "wine: a prefix has one user";
  GTEST_SKIP() << "needs the password of a second account";
}

TEST_F(SecurityTest, ASecondServerOnAPipesNameIsToldThatItIsTaken) {
  // What Windows answers to FILE_FLAG_FIRST_PIPE_INSTANCE.
  for (const DWORD error : {ERROR_ACCESS_DENIED, ERROR_PIPE_BUSY}) {
    const absl::Status status =
        PipeCreationError(error, L"\\\\.\\pipe\\x", true);
    EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
    EXPECT_TRUE(IsTakenByProcess(status)) << status;
    EXPECT_FALSE(absl::IsAlreadyExists(
        PipeCreationError(error, L"\\\\.\\pipe\\x", false)));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(
      PipeCreationError(ERROR_NO_SYSTEM_RESOURCES, L"\\\\.\\pipe\\x", true)));
}

TEST_F(SecurityTest, ARealSecondServerOnAPipesNameIsRefused) {
  if (UnderWine()) {
    GTEST_SKIP() << "wine: does not enforce FILE_FLAG_FIRST_PIPE_INSTANCE";
  }
  const Listener first = Must(Listener::Bind({.name = "twice"}, {}));
  const absl::Status status = Listener::Bind({.name = "twice"}, {}).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
}

TEST_F(SecurityTest, ANameWhosePipeTakesNoMoreServersIsAlreadyExists) {
  const std::string name = absl::StrCat("taken-", CurrentProcessId());
  const OsHandle theirs = Own(::CreateNamedPipeW(
      Must(ToUtf16(absl::StrCat(kPipePrefix, "vmmshare-", name))).c_str(),
      PIPE_ACCESS_DUPLEX, kPipeMode, /*nMaxInstances=*/1, 4096, 4096, 0,
      nullptr));
  const std::size_t before = testing::OpenHandleCount();
  const absl::Status status = Listener::Bind({.name = name}, {}).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_EQ(testing::OpenHandleCount(), before);
}

TEST_F(SecurityTest, PipesRejectClientsOfOtherMachines) {
  EXPECT_NE(kPipeMode & PIPE_REJECT_REMOTE_CLIENTS, 0u);
  EXPECT_NE(kPipeMode & PIPE_TYPE_MESSAGE, 0u);
}

TEST_F(SecurityTest, ARealClientByTheNetworkIsRefused) {
  if (UnderWine()) GTEST_SKIP() << "wine: serves no pipes to the network";
  const Listener listener = Must(Listener::Bind({.name = "remote"}, {}));
  const HANDLE pipe = ::CreateFileW(L"\\\\127.0.0.1\\pipe\\vmmshare-remote",
                                    GENERIC_READ | GENERIC_WRITE, 0, nullptr,
                                    OPEN_EXISTING, 0, nullptr);
  EXPECT_EQ(pipe, INVALID_HANDLE_VALUE);
}

TEST_F(SecurityTest, AClientsRightsOnAPipeMakeNoInstancesOfIt) {
  EXPECT_EQ(kPipeClientAccess & FILE_CREATE_PIPE_INSTANCE, 0u);
  EXPECT_EQ(kPipeClientAccess & (WRITE_DAC | WRITE_OWNER | DELETE), 0u);
}

TEST_F(SecurityTest, AListenersNameIsOf128RandomBits) {
  const Listener a = Must(Listener::Bind({}, {}));
  const Listener b = Must(Listener::Bind({}, {}));
  EXPECT_NE(a.address(), b.address());
  EXPECT_EQ(a.address().size(), std::string(kPipePrefix).size() +
                                    std::string("vmmshare-").size() + 32);
}

TEST_F(SecurityTest, ThePipesOwnListAdmitsTheOwnerAndSystem) {
  if (UnderWine()) GTEST_SKIP() << "wine: keeps no access list of a pipe";
  const Listener listener = Must(Listener::Bind({}, {}));
  const OsHandle pipe =
      Must(OpenPipe(Must(PipeName(listener.address())), "a pipe", Late()));
  PSECURITY_DESCRIPTOR descriptor = nullptr;
  ASSERT_EQ(
      ::GetSecurityInfo(Raw(pipe), SE_KERNEL_OBJECT, DACL_SECURITY_INFORMATION,
                        nullptr, nullptr, nullptr, nullptr, &descriptor),
      static_cast<DWORD>(ERROR_SUCCESS));
  const LocalMemory owned = LocalMemory::Adopt(descriptor);
  EXPECT_EQ(Admitted(descriptor), OwnerAndSystem());
}

// The access list of memory that is exported under `policy`.
std::vector<std::string> AdmittedToMemory(const SharePolicy& policy) {
  const Device device = Must(Device::ByOrdinal(testing::TestDriver(), 0));
  const Allocation memory =
      Must(Allocation::Create(device, {.size = 2 << 20, .sharing = policy}));
  const protocol::Outgoing outgoing =
      Must(protocol::MakeOutgoing(memory.shareable()));
  const ExportedHandle exported = Must(outgoing.handle(0));
  PSECURITY_DESCRIPTOR descriptor = nullptr;
  Check(::GetSecurityInfo(Raw(std::get<OsHandle>(exported)), SE_KERNEL_OBJECT,
                          DACL_SECURITY_INFORMATION, nullptr, nullptr, nullptr,
                          nullptr, &descriptor) == ERROR_SUCCESS,
        "an exported handle has no access list");
  const LocalMemory owned = LocalMemory::Adopt(descriptor);
  return Admitted(descriptor);
}

TEST(ExportedMemory, Pitfall32AdmitsTheOwnerAndSystemAndWhomTheCallerNames) {
  EXPECT_EQ(AdmittedToMemory(SharePolicy::Native()), OwnerAndSystem());
  std::vector<std::string> expected = OwnerAndSystem();
  expected.push_back(kUsers);
  EXPECT_EQ(AdmittedToMemory(SharePolicy::Native().AndUsers({UserId(kUsers)})),
            expected);
}

TEST(ExportedMemory, IsNotMadeForAUserThatIsNoSid) {
  const Device device = Must(Device::ByOrdinal(testing::TestDriver(), 0));
  const absl::Status status =
      Allocation::Create(
          device, {.size = 2 << 20,
                   .sharing = SharePolicy::Native().AndUsers({UserId("me")})})
          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"me\""));
}

class MemoryHandleTest : public WinTest {};

TEST_F(MemoryHandleTest, WhatCannotBeMemoryIsRefusedByNameForEitherDriver) {
  for (const testing::Planted& planted : testing::PlantedObjects()) {
    for (const MemoryBacking backing :
         {MemoryBacking::kHostMemory, MemoryBacking::kNvidiaDriver}) {
      const std::size_t before = testing::OpenHandleCount();
      const absl::Status status =
          CheckMemoryHandle(planted.handle, backing, 2 << 20);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(planted.name));
      EXPECT_EQ(testing::OpenHandleCount(), before);
    }
  }
}

TEST_F(MemoryHandleTest, Pitfall33PseudoHandlesAndClosedOnesAreRefused) {
  for (const std::intptr_t value : {-1, -2, -6, 0, 0x7ffffff0}) {
    OsHandle handle = OsHandle::Adopt(value);
    for (const MemoryBacking backing :
         {MemoryBacking::kHostMemory, MemoryBacking::kNvidiaDriver}) {
      const std::size_t before = testing::OpenHandleCount();
      const absl::Status status = CheckMemoryHandle(handle, backing, 2 << 20);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << value << ": " << status;
      EXPECT_EQ(testing::OpenHandleCount(), before);
    }
    static_cast<void>(std::move(handle).Relinquish());
  }
}

TEST_F(MemoryHandleTest, AReadOnlySectionIsRefused) {
  const OsHandle section = testing::PlantedMemory(2 << 20, /*sealed=*/false);
  const std::size_t before = testing::OpenHandleCount();
  const absl::Status status =
      CheckMemoryHandle(section, MemoryBacking::kHostMemory, 2 << 20);
  EXPECT_EQ(testing::OpenHandleCount(), before);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("read and written"));
}

// Its pages would fault at the first look.
TEST_F(MemoryHandleTest, ASectionThatIsOnlyReservedIsRefused) {
  constexpr std::uint64_t kSize = 2 << 20;
  const OsHandle section = Own(
      ::CreateFileMappingW(INVALID_HANDLE_VALUE, nullptr,
                           PAGE_READWRITE | SEC_RESERVE, 0, kSize, nullptr));
  for (const absl::Status& status :
       {CheckMemoryHandle(section, MemoryBacking::kHostMemory, kSize),
        SharedMemory::Open(section, kSize, PeerAccess::kReadWrite).status()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("only reserved"));
  }
}

TEST_F(MemoryHandleTest, ACommittedSectionIsTaken) {
  constexpr std::uint64_t kSize = 2 << 20;
  const OsHandle section = testing::PlantedMemory(kSize, /*sealed=*/true);
  Must(CheckMemoryHandle(section, MemoryBacking::kHostMemory, kSize));
  Must(SharedMemory::Open(section, kSize, PeerAccess::kReadWrite));
}

class OwnershipTest : public WinTest {};

TEST_F(OwnershipTest, APseudoHandleIsNothingToOwn) {
  EXPECT_FALSE(OsHandle::Adopt(-1).has_value());
  EXPECT_FALSE(OsHandle::Adopt(0).has_value());
  const OsHandle pseudo = OsHandle::Adopt(-1);
  EXPECT_TRUE(absl::IsInvalidArgument(Duplicate(pseudo).status()));
}

TEST_F(OwnershipTest, ADuplicateIsNotInherited) {
  const OsHandle event = NewEvent();
  ::SetHandleInformation(Raw(event), HANDLE_FLAG_INHERIT, HANDLE_FLAG_INHERIT);
  const OsHandle copy = Must(Duplicate(event));
  DWORD flags = HANDLE_FLAG_INHERIT;
  EXPECT_NE(::GetHandleInformation(Raw(copy), &flags), 0);
  EXPECT_EQ(flags & HANDLE_FLAG_INHERIT, 0u);
}

TEST(OwnershipDeathTest, ClosingWhatSomebodyElseClosedStopsTheProgram) {
  EXPECT_DEATH(OsHandle::Adopt(0x7ffffff0).Reset(), "closed by somebody");
}

TEST_F(OwnershipTest, TheCountOfHandlesSeesOneOfEveryType) {
  const std::size_t before = testing::OpenHandleCount();
  const OsHandle event = NewEvent();
  EXPECT_EQ(testing::OpenHandleCount(), before + 1);
  const OsHandle section = testing::PlantedMemory(4096, true);
  EXPECT_EQ(testing::OpenHandleCount(), before + 2);
}

// The control of WinTest: what it counts by type is not let pass in any number.
TEST(NoNewHandles, NamesTheTypeOfWhichTooManyAreOpen) {
  std::vector<OsHandle> left_open;
  EXPECT_NONFATAL_FAILURE(
      {
        const testing::ExpectNoNewHandles no_new_handles;
        while (left_open.size() < 5) left_open.push_back(NewEvent());
      },
      "handles of type Event were open");
}

class ProcessTest : public WinTest {};

TEST_F(ProcessTest, Pitfall33AnIdThatIsNoProcessIsNotFound) {
  // OpenProcess() answers null; -1 would be this process.
  for (const std::int64_t pid : {0x7ffffff0LL, 3LL}) {
    const absl::Status status = Process::Open(pid).status();
    EXPECT_FALSE(status.ok()) << pid;
    EXPECT_FALSE(absl::IsUnknown(status)) << status;
  }
  for (const std::int64_t pid : {0LL, -1LL, 0x100000000LL}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Process::Open(pid).status())) << pid;
  }
}

TEST_F(ProcessTest, ThisOneLives) {
  const Process process = Must(Process::Open(CurrentProcessId()));
  EXPECT_FALSE(Must(process.HasExited()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      process.WaitForExit(absl::Now() + absl::Milliseconds(5))));
}

TEST(Utf16, TakesTextAndRefusesTheRest) {
  EXPECT_EQ(Must(ToUtf16("caf\xc3\xa9")), L"caf\u00e9");
  EXPECT_EQ(Must(ToUtf16("")), L"");
  EXPECT_TRUE(absl::IsInvalidArgument(ToUtf16("\xff").status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(ToUtf16(std::string_view("a\0b", 3)).status()));
  EXPECT_EQ(ToUtf8(L"caf\u00e9"), "caf\xc3\xa9");
  EXPECT_EQ(ToUtf8(L""), "");
}

TEST(Utf16, AQuotedWordIsSplitOffAsItWas) {
  std::vector<std::wstring> words = {L"",           L"a",         L"a b",
                                     L"\t",         L"C:\\x y\\", L"\"",
                                     L"say \"hi\"", L"\\\"",      L"\u00e9"};
  // Every text of up to five of the letters that matter.
  for (int length = 1; length <= 5; ++length) {
    for (int number = 0; number < 1 << (2 * length); ++number) {
      std::wstring word;
      for (int i = 0; i < length; ++i) {
        word += L"\\\" a"[number >> (2 * i) & 3];
      }
      words.push_back(word);
    }
  }
  for (const std::wstring& word : words) {
    const std::wstring line =
        L"program " + QuotedWord(word) + L" " + QuotedWord(L"end");
    int count = 0;
    wchar_t** const split = ::CommandLineToArgvW(line.c_str(), &count);
    ASSERT_NE(split, nullptr);
    const LocalMemory owned = LocalMemory::Adopt(split);
    ASSERT_EQ(count, 3) << ToUtf8(line);
    EXPECT_EQ(word, split[1]) << ToUtf8(line);
  }
}

}  // namespace
}  // namespace vmm::platform
