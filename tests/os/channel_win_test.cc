// Named pipes: bytes and handle numbers that no Channel sends, peers that end
// at the wrong moment. Whoever sends such things loses the connection, and no
// handle of either process is opened or closed by it.
#include <gmock/gmock.h>
// First: the next one needs it.
#include <windows.h>
// After the line above.
#include <sddl.h>
#include <winternl.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "platform/ipc/channel.h"
#include "platform/os/kernel_object_win.h"
#include "platform/os/process.h"
#include "platform/os/utf16_win.h"
#include "tests/os/win_test.h"
#include "tests/support/child.h"
#include "tests/unit/vmm_ticket_samples.h"
#include "vmm/share/internal/protocol.h"

// Exported by ntdll.dll.
extern "C" NTSTATUS NTAPI
NtQueryInformationFile(HANDLE file, PIO_STATUS_BLOCK status, void* information,
                       ULONG length, FILE_INFORMATION_CLASS information_class);

namespace vmm::platform {
namespace {

using testing::Child;
using ::testing::HasSubstr;
using testing::OpenHandleCount;
using testing::RegisterChild;

// A number that is no open handle of a test's process.
constexpr std::int64_t kNotOpen = 0x7ffffff0;

OsHandle DialRaw(const std::string& address) {
  return Must(OpenPipe(Must(PipeName(address)), address, Late()));
}

class PipeTest : public WinTest {
 protected:
  PipeTest() : listener_(Must(Listener::Bind({}, {}))) {}

  // A raw client and the server's channel to it.
  std::pair<OsHandle, Channel> RawClient() {
    OsHandle raw = DialRaw(listener_.address());
    Channel server = Must(listener_.Accept(Late()));
    return {std::move(raw), std::move(server)};
  }

  // What a server's Receive() answers to `packet`. A refusal closes the
  // channel and leaves as many handles open as there were.
  absl::Status Answer(const Packet& packet) {
    auto [raw, server] = RawClient();
    SendRaw(raw, packet);
    const std::size_t before = OpenHandleCount();
    const absl::Status status = server.Receive(Late()).status();
    if (!status.ok()) {
      EXPECT_LE(OpenHandleCount(), before);
      EXPECT_FALSE(server.is_open());
      EXPECT_TRUE(OtherEndIsClosed(raw));
    }
    return status;
  }

  Listener listener_;
  OsHandle event_ = NewEvent();
};

TEST_F(PipeTest, APlainMessageIsTakenWithItsHandle) {
  auto [raw, server] = RawClient();
  SendRaw(raw, FrameWith({event_.get()}));
  const Message message = Must(server.Receive(Late()));
  ASSERT_EQ(message.handles.size(), 1u);
  EXPECT_NE(message.handles[0].get(), event_.get());
  ::SetEvent(Raw(message.handles[0]));
  EXPECT_EQ(::WaitForSingleObject(Raw(event_), 0), WAIT_OBJECT_0)
      << "it is another object";
}

TEST_F(PipeTest, AMessageCutAtEveryByteIsDataLoss) {
  const Packet whole = FrameWith({event_.get(), event_.get()}, 20);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const Packet cut(whole.begin(),
                     whole.begin() + static_cast<std::ptrdiff_t>(size));
    const absl::Status status = Answer(cut);
    EXPECT_TRUE(absl::IsDataLoss(status)) << size << ": " << status;
  }
}

TEST_F(PipeTest, EveryFlippedBitOfTheHeaderIsDataLossOrAnotherType) {
  for (std::size_t bit = 0; bit < 8 * kFrameHeaderSize; ++bit) {
    Packet packet = FrameWith({event_.get()}, 8);
    packet[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
    const absl::Status status = Answer(packet);
    const bool is_type = bit / 8 == 6 || bit / 8 == 7;
    EXPECT_EQ(status.code(),
              is_type ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss)
        << "bit " << bit << ": " << status;
  }
}

TEST_F(PipeTest, Pitfall33APseudoHandleIsNoHandleToTheReader) {
  for (const std::int64_t value : {-1, -2, -3, -4, -5, -6}) {
    const absl::Status status = Answer(FrameWith({value}));
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is no handle"));
  }
}

TEST_F(PipeTest, Pitfall33AHandleIsReadAs64BitsAndNotCut) {
  const std::int64_t wide = event_.get() | std::int64_t{1} << 32;
  const absl::Status status = Answer(FrameWith({wide}));
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(wide)));
}

TEST_F(PipeTest, NumbersThatAreNoOpenHandleAreDataLoss) {
  for (const std::int64_t value :
       {std::int64_t{0}, std::int64_t{2}, event_.get() + 1, kNotOpen,
        std::numeric_limits<std::int64_t>::min(),
        std::numeric_limits<std::int64_t>::max()}) {
    const absl::Status status = Answer(FrameWith({value}));
    EXPECT_TRUE(absl::IsDataLoss(status)) << value << ": " << status;
  }
}

TEST_F(PipeTest, AHandleNamedTwiceIsDataLoss) {
  const absl::Status status = Answer(FrameWith({event_.get(), event_.get()}));
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("twice"));
}

TEST_F(PipeTest, TheGoodHandlesBeforeABadOneAreClosed) {
  std::vector<OsHandle> events;
  std::vector<std::int64_t> values;
  for (int i = 0; i < 15; ++i) {
    events.push_back(NewEvent());
    values.push_back(events.back().get());
  }
  values.push_back(kNotOpen);
  EXPECT_TRUE(absl::IsDataLoss(Answer(FrameWith(values))));
}

TEST_F(PipeTest, MoreHandlesThanTheLimitAreDataLoss) {
  for (const std::size_t count : {17u, 64u, 255u, 65535u}) {
    Packet packet = FrameWith({}, 0);
    packet[12] = static_cast<std::uint8_t>(count);
    packet[13] = static_cast<std::uint8_t>(count >> 8);
    packet.resize(packet.size() +
                  std::min<std::size_t>(count, 64) * kHandleBytes);
    const absl::Status status = Answer(packet);
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  }
}

TEST_F(PipeTest, AMessageOverTheLimitIsDataLoss) {
  const absl::Status status =
      Answer(FrameWith({event_.get()}, kMaxPayload + 4096));
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

TEST_F(PipeTest, AClientMayNotSayThatHandlesWereTaken) {
  const auto taken = EncodeTaken(1);
  EXPECT_TRUE(absl::IsDataLoss(Answer(Packet(taken.begin(), taken.end()))));
}

TEST_F(PipeTest, TheErrorNamesThePeerAndNoneOfItsBytes) {
  const absl::Status status = Answer(Bytes("VMSX-secret-secret-secret"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("process ", CurrentProcessId())));
  EXPECT_THAT(std::string(status.message()),
              ::testing::Not(HasSubstr("secret")));
}

TEST_F(PipeTest, AHostileClientHarmsNoOther) {
  auto [raw, server] = RawClient();
  EXPECT_TRUE(absl::IsDataLoss(Answer(Bytes("garbage"))));
  SendRaw(raw, FrameWith({}));
  EXPECT_TRUE(server.Receive(Late()).ok());
}

TEST_F(PipeTest, ARequestOfSixteenHandlesGoesBothWays) {
  auto [a, b] = Must(Channel::Pair());
  std::vector<OsHandle> events;
  std::vector<const OsHandle*> sent;
  for (std::size_t i = 0; i < kMaxHandles; ++i) events.push_back(NewEvent());
  for (const OsHandle& one : events) sent.push_back(&one);
  for (auto [from, to] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
    Must(from->Send(7, Bytes("all"), sent, Late()));
    const Message message = Must(to->Receive(Late()));
    EXPECT_EQ(message.handles.size(), kMaxHandles);
    for (std::size_t i = 0; i < message.handles.size(); ++i) {
      EXPECT_TRUE(IsSameObject(message.handles[i].get(), events[i].get()));
    }
  }
}

TEST_F(PipeTest, APeerGetsNoRightToChangeWhoMayUseTheObject) {
  auto [a, b] = Must(Channel::Pair());
  const OsHandle* const sent[] = {&event_};
  ASSERT_NE(Must(InspectHandle(event_.get())).access & WRITE_DAC, 0u);
  for (auto [from, to] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
    Must(from->Send(1, {}, sent, Late()));
    const Message message = Must(to->Receive(Late()));
    EXPECT_EQ(Must(InspectHandle(message.handles.at(0).get())).access &
                  (WRITE_DAC | WRITE_OWNER),
              0u);
  }
}

TEST_F(PipeTest, AClientsChannelThatBrokeTouchesNoOtherPipe) {
  auto [a, b] = Must(Channel::Pair());
  // b is closed by an error; its number becomes another pipe's.
  const std::intptr_t number = b.handle().get();
  const Packet payload(kMaxPayload);
  absl::Status status;
  do {
    status = b.Send(1, payload, {}, absl::InfinitePast());
  } while (status.ok());
  std::vector<OsHandle> events;
  do {
    events.push_back(NewEvent());
    ASSERT_LT(events.size(), 1000u) << "no event got the number";
  } while (events.back().get() != number);
  events.pop_back();
  const OsHandle raw = DialRaw(listener_.address());
  ASSERT_EQ(raw.get(), number);
  Channel server = Must(listener_.Accept(Late()));
  Must(server.Send(1, Bytes("kept"), {}, Late()));
  b.Close();
  Packet message(64);
  EXPECT_TRUE(ReadMessage(raw, NewEvent(), absl::MakeSpan(message), Late(), {},
                          "the message")
                  .ok())
      << "a channel that was closed took it";
}

// Also when it was just about to begin.
TEST_F(PipeTest, WhoeverReceivesWakesWhenTheOtherThreadsCallBreaksTheChannel) {
  const std::vector<std::uint8_t> payload(kMaxPayload, 1);
  for (int round = 0; round < 500; ++round) {
    auto [raw, server] = RawClient();
    absl::Status received;
    const absl::Time start = absl::Now();
    std::thread receiver([&, &channel = server] {
      received = channel.Receive(Late()).status();
    });
    // Nobody reads: the last one does not fit.
    while (server.Send(1, payload, {}, absl::InfinitePast()).ok()) {
    }
    receiver.join();
    EXPECT_TRUE(absl::IsUnavailable(received)) << received;
    ASSERT_LT(absl::Now() - start, absl::Seconds(10)) << "in round " << round;
  }
}

// As of an importer that returns its memory while its owner asks for that.
TEST_F(PipeTest, WhatAPeerSaidLastIsReceivedAfterASendThatFailed) {
  for (const bool server_speaks : {false, true}) {
    auto [server, client] = Must(Channel::Pair());
    Channel& speaker = server_speaks ? server : client;
    Channel& other = server_speaks ? client : server;
    Must(other.Send(1, Bytes("not read"), {}, Late()));
    Must(speaker.Send(2, Bytes("bye"), {}, Late()));
    speaker.Close();
    for (int i = 0; i < 2; ++i) {
      const absl::Status status = other.Send(1, Bytes("x"), {}, Late());
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    }
    EXPECT_EQ(Must(other.Receive(Late())).type, 2);
    EXPECT_TRUE(absl::IsUnavailable(other.Receive(Late()).status()));
    EXPECT_FALSE(other.is_open());
  }
}

TEST_F(PipeTest, SendingAHandleThatIsNotOpenLeavesTheChannelOpen) {
  auto [a, b] = Must(Channel::Pair());
  OsHandle closed = OsHandle::Adopt(kNotOpen);
  const OsHandle* const sent[] = {&event_, &closed};
  for (Channel* channel : {&a, &b}) {
    const std::size_t before = OpenHandleCount();
    const absl::Status status = channel->Send(1, {}, sent, Late());
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(OpenHandleCount(), before);
    EXPECT_TRUE(channel->is_open());
  }
  static_cast<void>(std::move(closed).Relinquish());
}

TEST_F(PipeTest, AMessageThatCannotBeDeliveredLeavesNoHandleInThePeer) {
  auto [server, client] = Must(Channel::Pair());
  const OsHandle* const sent[] = {&event_};
  const Packet payload(kMaxPayload);
  std::size_t before = 0;
  absl::Status status;
  // The pipe's buffer fills up: nobody reads.
  do {
    before = OpenHandleCount();
    status = server.Send(1, payload, sent, absl::InfinitePast());
  } while (status.ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_LE(OpenHandleCount(), before) << "client and server are one process";
}

TEST_F(PipeTest, UnreadMessagesAreClosedWithTheirHandles) {
  const std::size_t before = OpenHandleCount();
  {
    auto [a, b] = Must(Channel::Pair());
    const OsHandle* const sent[] = {&event_};
    for (int i = 0; i < 3; ++i) {
      Must(a.Send(1, Bytes("x"), sent, Late()));
      Must(b.Send(1, Bytes("y"), sent, Late()));
    }
    a.Close();
  }
  EXPECT_LE(OpenHandleCount(), before + 2);
}

// Many: they get the numbers of handles that were closed before.
std::vector<OsHandle> NewEvents() {
  std::vector<OsHandle> events;
  while (events.size() < 50) events.push_back(NewEvent());
  return events;
}

// The client's handle is closed when it has waited for the server.
TEST_F(PipeTest, AHandleOfAClientThatHungUpIsLostAndNoOtherIsTakenForIt) {
  auto [server, client] = Must(Channel::Pair());
  const OsHandle* const sent[] = {&event_};
  Must(client.Send(1, Bytes("without handles"), {}, Late()));
  Must(client.Send(2, Bytes("with one"), sent, Late()));
  client.Close();
  const std::vector<OsHandle> others = NewEvents();
  EXPECT_EQ(Must(server.Receive(Late())).type, 1);
  const absl::Status status = server.Receive(Late()).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_FALSE(server.is_open());
}

// And at once when a call of its own broke its channel.
TEST_F(PipeTest, AHandleOfAClientWhoseChannelBrokeIsLostAndNoOtherIsTaken) {
  auto [server, client] = Must(Channel::Pair());
  const OsHandle* const sent[] = {&event_};
  const Packet payload(kMaxPayload);
  // The pipe's buffer fills up: nobody reads.
  while (client.Send(1, payload, sent, absl::InfinitePast()).ok()) {
  }
  ASSERT_FALSE(client.is_open());
  const std::vector<OsHandle> others = NewEvents();
  absl::StatusOr<Message> message;
  while ((message = server.Receive(Late())).ok()) {
    ASSERT_EQ(message->handles.size(), 1u);
    EXPECT_TRUE(IsSameObject(message->handles[0].get(), event_.get()));
  }
  EXPECT_TRUE(absl::IsUnavailable(message.status())) << message.status();
}

// Tells `address` what it is told to send; its own handles stay as they are.
// args: an address, the packet's kind.
int HostileClient(const std::vector<std::string>& args) {
  const OsHandle raw = DialRaw(args[0]);
  const OsHandle event = NewEvent();
  const OsHandle read_event = NewEvent();
  // Open in the server, and not here.
  const std::int64_t foreign = std::stoll(args[1]);
  const std::size_t before = OpenHandleCount();
  SendRaw(raw, FrameWith({event.get(), foreign}));
  Packet answer(64);
  const auto hung_up = ReadMessage(raw, read_event, absl::MakeSpan(answer),
                                   Late(), {}, "hang-up");
  EXPECT_TRUE(absl::IsUnavailable(hung_up.status())) << hung_up.status();
  EXPECT_LE(OpenHandleCount(), before);
  EXPECT_EQ(::WaitForSingleObject(Raw(event), 0), WAIT_TIMEOUT);
  return 0;
}
const bool kHostileClient = RegisterChild("hostile_client", &HostileClient);

// A handle with a number that no small process has given out.
OsHandle HighHandle() {
  std::vector<OsHandle> fill;
  while (fill.size() < 4000) fill.push_back(NewEvent());
  return std::move(fill.back());
}

TEST_F(PipeTest, ANumberThatIsRightInTheServerIsNotTakenFromAClient) {
  const OsHandle high = HighHandle();
  Child child = Child::Start("hostile_client",
                             {listener_.address(), absl::StrCat(high.get())});
  Channel server = Must(listener_.Accept(Late()));
  const std::size_t before = OpenHandleCount();
  const absl::Status status = server.Receive(Late()).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_LE(OpenHandleCount(), before);
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_NE(::SetEvent(Raw(high)), 0) << "it was closed";
}

// Receives from `address` one message with a handle that is none here.
int MisledClient(const std::vector<std::string>& args) {
  Channel channel = Must(Channel::Connect(args[0], {}, Late()));
  const std::size_t before = OpenHandleCount();
  const absl::Status status = channel.Receive(Late()).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no open handle"));
  EXPECT_FALSE(channel.is_open());
  EXPECT_LE(OpenHandleCount(), before);
  return 0;
}
const bool kMisledClient = RegisterChild("misled_client", &MisledClient);

TEST_F(PipeTest, ANumberThatIsRightInTheServerAndWrongInTheClientIsDataLoss) {
  const OsHandle high = HighHandle();
  const std::string address = absl::StrCat(listener_.address(), "-raw");
  const OsHandle pipe = OwnPipe(address);
  Child child = Child::Start("misled_client", {address});
  AwaitClient(pipe);
  const std::size_t before = OpenHandleCount();
  SendRaw(pipe, FrameWith({high.get()}));
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_LE(OpenHandleCount(), before);
  EXPECT_NE(::SetEvent(Raw(high)), 0) << "it was closed";
}

// Forbids its own user to duplicate handles into and out of this process.
void GuardThisProcess() {
  PSECURITY_DESCRIPTOR descriptor = nullptr;
  const std::string text = absl::StrFormat(
      "D:P(A;;0x%x;;;%s)", SYNCHRONIZE | PROCESS_QUERY_LIMITED_INFORMATION,
      CurrentUser().text());
  Check(::ConvertStringSecurityDescriptorToSecurityDescriptorW(
            Must(ToUtf16(text)).c_str(), SDDL_REVISION_1, &descriptor,
            nullptr) != 0,
        "no security descriptor");
  const LocalMemory owned = LocalMemory::Adopt(descriptor);
  Check(::SetKernelObjectSecurity(::GetCurrentProcess(),
                                  DACL_SECURITY_INFORMATION, descriptor) != 0,
        "SetKernelObjectSecurity() failed");
}

// Whether this process may duplicate them all the same: by SeDebugPrivilege, or on
// a system (wine) that does not guard processes. Ends `child` then.
bool MayDuplicateAllTheSame(Child& child) {
  const OsHandle process =
      OsHandle::Adopt(reinterpret_cast<std::intptr_t>(::OpenProcess(
          PROCESS_DUP_HANDLE, FALSE, static_cast<DWORD>(child.pid()))));
  if (!process.has_value()) return false;
  child.Kill();
  child.Wait();
  return true;
}
constexpr char kMayDuplicate[] =
    "SeDebugPrivilege, or a system (wine) that does not guard processes: this "
    "one may open every other";

// Hears why it gets no handles, and sends one itself.
int GuardedClient(const std::vector<std::string>& args) {
  GuardThisProcess();
  Channel channel = Must(Channel::Connect(args[0], {}, Late()));
  const Message why = Must(channel.Receive(Late()));
  EXPECT_EQ(Text(why.payload), "why");
  EXPECT_TRUE(why.handles.empty());
  const OsHandle event = NewEvent();
  const OsHandle* const sent[] = {&event};
  Must(channel.Send(1, {}, sent, Late()));
  Must(channel.WaitForHangUp(Late()));
  return 0;
}
const bool kGuardedClient = RegisterChild("guarded_client", &GuardedClient);

TEST_F(PipeTest, AListenerThatMayNotDuplicateSaysSoAndCanTellItsPeer) {
  Child child = Child::Start("guarded_client", {listener_.address()});
  Channel server = Must(listener_.Accept(Late()));
  if (MayDuplicateAllTheSame(child)) GTEST_SKIP() << kMayDuplicate;
  const OsHandle* const sent[] = {&event_};
  const absl::Status refused = server.Send(1, Bytes("x"), sent, Late());
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("PROCESS_DUP_HANDLE"));
  EXPECT_TRUE(server.is_open());
  Must(server.Send(1, Bytes("why"), {}, Late()));
  const absl::Status received = server.Receive(Late()).status();
  EXPECT_TRUE(absl::IsPermissionDenied(received)) << received;
  EXPECT_THAT(std::string(received.message()), HasSubstr("PROCESS_DUP_HANDLE"));
  EXPECT_FALSE(server.is_open());
  EXPECT_EQ(child.Wait(), 0);
}

// Asks for memory, and hears that none comes.
int GuardedImporter(const std::vector<std::string>& args) {
  GuardThisProcess();
  Channel channel = Must(Channel::Connect(args[0], {}, Late()));
  Must(channel.Send(1, {}, {}, Late()));
  EXPECT_EQ(Must(channel.Receive(Late())).type, protocol::kBegin);
  EXPECT_EQ(Must(channel.Receive(Late())).type, protocol::kAbort);
  Must(channel.WaitForHangUp(Late()));
  return 0;
}
const bool kGuardedImporter =
    RegisterChild("guarded_importer", &GuardedImporter);

// Or its owner would have a lease with it until it ends.
TEST_F(PipeTest, WhoMayBeSentNoHandleIsNotTakenToHaveOne) {
  Child child = Child::Start("guarded_importer", {listener_.address()});
  Channel server = Must(listener_.Accept(Late()));
  if (MayDuplicateAllTheSame(child)) GTEST_SKIP() << kMayDuplicate;
  // It has looked who serves: a hang-up waits two seconds for that, no more.
  Must(server.Receive(Late()));
  const std::vector<protocol::Outgoing> memory = {
      {testing::TicketOfChunks(1, SharePolicy::Native().kinds().front()),
       [this](std::size_t) -> absl::StatusOr<ExportedHandle> {
         return ExportedHandle(Must(Duplicate(event_)));
       }}};
  bool gave = true;
  const absl::Status sent =
      protocol::SendAll(server, memory, Late(), nullptr, &gave);
  EXPECT_TRUE(absl::IsPermissionDenied(sent)) << sent;
  EXPECT_FALSE(gave);
  server.Close();
  EXPECT_EQ(child.Wait(), 0);
}

// Connects, and stands still until it is killed.
int SilentClient(const std::vector<std::string>& args) {
  Channel channel = Must(Channel::Connect(args[0], {}, Late()));
  return channel.WaitForHangUp(Late()).ok() ? 0 : 1;
}
const bool kSilentClient = RegisterChild("silent_client", &SilentClient);

TEST_F(PipeTest, AClientThatEndsBetweenDuplicationAndMessageCostsNothing) {
  Child child = Child::Start("silent_client", {listener_.address()});
  Channel server = Must(listener_.Accept(Late()));
  const OsHandle process =
      Own(::OpenProcess(PROCESS_DUP_HANDLE | SYNCHRONIZE, FALSE,
                        static_cast<DWORD>(child.pid())));
  const std::size_t before = OpenHandleCount();
  {
    PushedHandles pushed(process);
    Must(pushed.Push(event_));
    EXPECT_NE(pushed.values().at(0), 0);
    child.Kill();
    EXPECT_EQ(child.Wait(), Child::kKilled);
    const OsHandle* const sent[] = {&event_};
    const absl::Status status = server.Send(1, Bytes("x"), sent, Late());
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  }
  EXPECT_LE(OpenHandleCount(), before);
  EXPECT_TRUE(absl::IsUnavailable(server.Receive(Late()).status()));
  EXPECT_FALSE(server.is_open());
}

TEST_F(PipeTest, Pitfall34AClientNeverGetsTheRightToDuplicateFromTheServer) {
  auto [server, client] = Must(Channel::Pair());
  for (const Channel* channel : {&server, &client}) {
    const Process peer = Must(channel->OpenPeer());
    EXPECT_EQ(
        Must(InspectHandle(peer.handle().get())).access & PROCESS_DUP_HANDLE,
        0u);
  }
}

TEST_F(PipeTest, AnAddressOfAnotherMachineIsRefused) {
  for (const std::string address :
       {"\\\\server\\pipe\\vmmshare-x", "\\\\127.0.0.1\\pipe\\vmmshare-x",
        "\\\\.\\pipe\\", "\\\\.\\pipe\\a\\b", "C:\\x", "vmmshare-x", "",
        "\\\\.\\pipe\\\xff",
        // A file that is there, for the system takes this slash as well.
        "\\\\.\\pipe\\../C:/windows/win.ini", "\\\\.\\pipe/vmmshare-x",
        "\\\\.\\pipe\\../UNC/server/pipe/vmmshare-x"}) {
    EXPECT_FALSE(PipeName(address).ok()) << address;
    const absl::Status status = Channel::Connect(address, {}, Late()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << address << ": " << status;
  }
}

// Windows takes back what a thread that ends has begun, and so the waits for
// clients that Bind() began.
TEST_F(PipeTest, AListenerOutlivesTheThreadThatBoundIt) {
  std::optional<Listener> listener;
  std::thread([&] { listener = Must(Listener::Bind({}, {})); }).join();
  const OsHandle raw = DialRaw(listener->address());
  SendRaw(raw, FrameWith({}));
  Channel first = Must(listener->Accept(Late()));
  Must(first.Receive(Late()).status());
  EXPECT_EQ(listener->refused(), 0u);
  // Nobody is there; and one who comes later is accepted as well.
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      listener->Accept(absl::InfinitePast()).status()));
  const OsHandle second = DialRaw(listener->address());
  Must(listener->Accept(Late()).status());
  EXPECT_EQ(listener->refused(), 0u);
}

TEST_F(PipeTest, NobodyListeningIsNotFound) {
  const absl::Status status =
      Channel::Connect("\\\\.\\pipe\\vmmshare-nobody", {}, Late()).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
}

TEST_F(PipeTest, APipeThatIsNoChannelsIsNotAdopted) {
  HANDLE read = nullptr;
  HANDLE write = nullptr;
  ASSERT_NE(::CreatePipe(&read, &write, nullptr, 0), 0);
  const OsHandle other = Own(write);
  EXPECT_TRUE(absl::IsInvalidArgument(Channel::Adopt(Own(read), {}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Channel::Adopt(NewEvent(), {}).status()));
}

// A client's end of `listener` that was opened with `flags` and set to `state`.
OsHandle OpenedWith(const Listener& listener, DWORD flags, DWORD state) {
  const HANDLE raw = ::CreateFileW(
      Must(PipeName(listener.address())).c_str(), kPipeClientAccess,
      /*sharing=*/0, nullptr, OPEN_EXISTING, flags, nullptr);
  OsHandle pipe = Own(raw);
  Check(::SetNamedPipeHandleState(raw, &state, nullptr, nullptr) != 0,
        "a test's pipe could not be set");
  return pipe;
}

TEST_F(PipeTest, APipeOnWhichMessagesRunTogetherIsNotAdopted) {
  Must(Channel::Adopt(
           OpenedWith(listener_, FILE_FLAG_OVERLAPPED, PIPE_READMODE_MESSAGE),
           {})
           .status());
  for (const DWORD state :
       {PIPE_READMODE_BYTE | PIPE_WAIT, PIPE_READMODE_MESSAGE | PIPE_NOWAIT}) {
    const absl::Status status =
        Channel::Adopt(OpenedWith(listener_, FILE_FLAG_OVERLAPPED, state), {})
            .status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << state << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the state 0x"));
  }
}

TEST_F(PipeTest, APipeOnWhichNoDeadlineHoldsIsNotAdopted) {
  OsHandle pipe = OpenedWith(listener_, /*flags=*/0, PIPE_READMODE_MESSAGE);
  IO_STATUS_BLOCK answered = {};
  ULONG mode = 0;
  constexpr int kModeInformation = 16;
  if (::NtQueryInformationFile(
          Raw(pipe), &answered, &mode, sizeof(mode),
          static_cast<FILE_INFORMATION_CLASS>(kModeInformation)) < 0) {
    GTEST_SKIP() << "this system (wine) does not tell how a handle was opened";
  }
  const absl::Status status = Channel::Adopt(std::move(pipe), {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("OVERLAPPED"));
}

}  // namespace
}  // namespace vmm::platform
