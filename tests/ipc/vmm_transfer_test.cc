// Sending and receiving allocations over a channel, between processes.
#include <gmock/gmock.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;
using Args = std::vector<std::string>;

class TransferTest : public IpcTest {};

std::uint64_t Number(const std::string& text) {
  std::uint64_t number = 0;
  platform::Check(absl::SimpleAtoi(text, &number), "a child needs a number");
  return number;
}

// Reads pattern 1, is kept from writing it, and writes pattern 2 elsewhere.
int ReadAndReply(const Args& args) {
  const Here here;
  platform::Channel channel = Dial(args[0]);
  const ImportedAllocation input =
      Must(ReceiveAllocation(channel, TestDriver(), Readable(), Late()));
  ExpectPattern(input.address(), input.size(), 1);
  ExpectReadOnly(input.address());
  ExpectReadOnly(input.address() + input.size() - 1);
  const ImportedAllocation output = Must(ReceiveAllocation(
      channel, TestDriver(), {.access = Access::kReadWrite}, Late()));
  WritePattern(output.address(), output.size(), 2);
  Tell(channel);
  return 0;
}
const bool kReadAndReply = RegisterChild("read-and-reply", &ReadAndReply);

TEST_F(TransferTest, EachSideReadsWhatTheOtherWrote) {
  const Allocation input = MakePattern(6 * kMiB, 1);
  const Allocation output = Make(4 * kMiB);
  Child child = Child::Start("read-and-reply", {address()});
  platform::Channel channel = Accept();
  ASSERT_TRUE(SendAllocation(channel, input.shareable(), Late()).ok());
  ASSERT_TRUE(SendAllocation(channel, output.shareable(), Late()).ok());
  Hear(channel);
  EXPECT_EQ(child.Wait(), 0);
  ExpectPattern(output.address(), output.size(), 2);
  ExpectPattern(input.address(), input.size(), 1);
}

// What came, first with the flag for network cards and then without.
int ReadRdma(const Args& args) {
  const Here here;
  platform::Channel channel = Dial(args[0]);
  const std::vector<ImportedAllocation> both =
      Must(ReceiveAllocations(channel, TestDriver(), {}, Late()));
  EXPECT_EQ(both.size(), 2u);
  EXPECT_EQ(both.front().rdma_capable(), args[1] == "true");
  EXPECT_FALSE(both.back().rdma_capable());
  return 0;
}
const bool kReadRdma = RegisterChild("read-rdma", &ReadRdma);

TEST_F(TransferTest, AnImporterIsToldOfTheFlagForNetworkCards) {
  const Allocation with =
      Must(Allocation::Create(device, {.size = 1, .rdma = Rdma::kTry}));
  const Allocation without = Make(1);
  const bool had = Must(with.IsRdmaCapable());
  EXPECT_TRUE(had || !with.rdma_refusal().ok());
  Child child = Child::Start("read-rdma", {address(), had ? "true" : "false"});
  platform::Channel channel = Accept();
  const absl::Status sent =
      SendAllocations(channel, {with.shareable(), without.shareable()}, Late());
  EXPECT_TRUE(sent.ok()) << sent;
  EXPECT_EQ(child.Wait(), 0);
}

// Receives `count` allocations in one exchange; the n-th holds pattern n.
int ReadMany(const Args& args) {
  const Here here;
  platform::Channel channel = Dial(args[0]);
  const std::vector<ImportedAllocation> many =
      Must(ReceiveAllocations(channel, TestDriver(), Readable(), Late()));
  EXPECT_EQ(many.size(), Number(args[1]));
  for (std::size_t i = 0; i < many.size(); ++i) {
    ExpectPattern(many[i].address(), many[i].requested_size(), i);
    ExpectReadOnly(many[i].address());
  }
  return 0;
}
const bool kReadMany = RegisterChild("read-many", &ReadMany);

TEST_F(TransferTest, TwoHundredAllocationsGoInOneCall) {
  std::vector<Allocation> many;
  std::vector<Shareable> shareables;
  many.reserve(200);
  for (std::size_t i = 0; i < 200; ++i) {
    const std::uint64_t size = 1000 + i;
    many.push_back(Make(size));
    WritePattern(many.back().address(), size, i);
    shareables.push_back(many.back().shareable());
  }
  Child child = Child::Start("read-many", {address(), "200"});
  platform::Channel channel = Accept();
  const absl::Status sent = SendAllocations(channel, shareables, Late());
  EXPECT_TRUE(sent.ok()) << sent;
  EXPECT_EQ(child.Wait(), 0);
}

class Pitfall15 : public IpcTest {};
TEST_F(Pitfall15, FortyChunksNeedFewDescriptorsAtATimeToBeSent) {
  const Allocation memory = MakePattern(40 * kGranule, 0, kGranule);
  Child child = Child::Start("read-many", {address(), "1"});
  platform::Channel channel = Accept();
  const absl::Status sent = SendAllocation(channel, memory.shareable(), Late());
  EXPECT_TRUE(sent.ok()) << sent;
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(TransferTest, NothingOrPrivateMemoryToSendIsRefused) {
  auto [owner, importer] = Must(platform::Channel::Pair());
  const absl::Status nothing = SendAllocations(owner, {}, Late());
  EXPECT_EQ(nothing.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(owner.is_open());
}

// The importer maps the memory on another device, or on the first that it
// sees: args[1] is "default" or "granted".
int ImportHidden(const Args& args) {
  const Here here;
  platform::Channel channel = Dial(args[0]);
  const auto refused = ReceiveAllocation(channel, TestDriver(), {}, Late());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("does not see GPU-"));
  const ImportedAllocation granted = Must(ReceiveAllocation(
      channel, TestDriver(),
      {.grants = {{Location::On(here.device), Access::kReadWrite}}}, Late()));
  ExpectPattern(granted.address(), granted.size(), 7);
  WritePattern(granted.address(), granted.size(), 8);
  Tell(channel);
  return 0;
}
const bool kImportHidden = RegisterChild("import-hidden", &ImportHidden);

class Pitfall19 : public IpcTest {};
TEST_F(Pitfall19, AnImporterThatDoesNotSeeTheDeviceMapsItOnItsOwn) {
  const Device* const peer = Peer();
  if (peer == nullptr) GTEST_SKIP();
  const Allocation memory = MakePattern(2 * kGranule, 7, kGranule);
  Child child =
      Child::Start("import-hidden", {address()},
                   {{"CUDA_VISIBLE_DEVICES", peer->uuid().ToString()}});
  platform::Channel channel = Accept();
  const absl::Status refused =
      SendAllocation(channel, memory.shareable(), Late());
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("the importer refused: "));
  const absl::Status sent = SendAllocation(channel, memory.shareable(), Late());
  ASSERT_TRUE(sent.ok()) << sent;
  Hear(channel);
  EXPECT_EQ(child.Wait(), 0);
  ExpectPattern(memory.address(), memory.size(), 8);
}

int ImportOnPeer(const Args& args) {
  const Device other = Must(Device::ByOrdinal(TestDriver(), 1));
  const PrimaryContext context = Must(PrimaryContext::Retain(other));
  const CurrentContext current = Must(context.MakeCurrent());
  platform::Channel channel = Dial(args[0]);
  const ImportedAllocation memory = Must(ReceiveAllocation(
      channel, TestDriver(),
      {.grants = {{Location::On(other), Access::kReadWrite}}}, Late()));
  ExpectPattern(memory.address(), memory.size(), 3);
  WritePattern(memory.address(), memory.size(), 4);
  Tell(channel);
  return 0;
}
const bool kImportOnPeer = RegisterChild("import-on-peer", &ImportOnPeer);

TEST_F(TransferTest, AnImporterOnAPeerDeviceSeesTheSameBytes) {
  if (Peer() == nullptr) GTEST_SKIP();
  const Allocation memory = MakePattern(4 * kMiB, 3);
  Child child = Child::Start("import-on-peer", {address()});
  platform::Channel channel = Accept();
  ASSERT_TRUE(SendAllocation(channel, memory.shareable(), Late()).ok());
  Hear(channel);
  EXPECT_EQ(child.Wait(), 0);
  ExpectPattern(memory.address(), memory.size(), 4);
}

int ImportHostMemory(const Args& args) {
  const Here here;
  platform::Channel channel = Dial(args[0]);
  const ImportedAllocation memory = Must(ReceiveAllocation(
      channel, TestDriver(),
      {.grants = {{Location::On(here.device), Access::kReadWrite},
                  {Location::HostNuma(0), Access::kReadWrite}}},
      Late()));
  ExpectPattern(memory.address(), memory.size(), 5);
  auto* const bytes = reinterpret_cast<volatile std::uint8_t*>(
      static_cast<std::uintptr_t>(memory.address()));
  bytes[memory.size() - 1] = 0x77;
  Tell(channel);
  return 0;
}
const bool kImportHostMemory =
    RegisterChild("import-host-memory", &ImportHostMemory);

TEST_F(TransferTest, HostMemoryIsSharedWithTheCpusOfBothProcesses) {
  const Allocation memory = Must(Allocation::Create(
      device, {.size = kGranule,
               .host_numa_node = 0,
               .also = {{Location::HostNuma(0), Access::kReadWrite}}}));
  WritePattern(memory.address(), memory.size(), 5);
  Child child = Child::Start("import-host-memory", {address()});
  platform::Channel channel = Accept();
  ASSERT_TRUE(SendAllocation(channel, memory.shareable(), Late()).ok());
  Hear(channel);
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_EQ(reinterpret_cast<volatile std::uint8_t*>(
                static_cast<std::uintptr_t>(memory.address()))[kGranule - 1],
            0x77);
}

// Owns memory of 3 chunks with pattern 6, sends it, and stays.
int OwnAndStay(const Args& args) {
  const Here here;
  platform::Channel channel = Dial(args[0]);
  const Allocation memory = Must(Allocation::Create(
      here.device, {.size = 3 * kGranule, .max_chunk_size = kGranule}));
  WritePattern(memory.address(), memory.size(), 6);
  Must(SendAllocation(channel, memory.shareable(), Late()));
  Must(channel.WaitForHangUp(absl::InfiniteFuture()));
  return 0;
}
const bool kOwnAndStay = RegisterChild("own-and-stay", &OwnAndStay);

TEST_F(TransferTest, MemorySurvivesItsOwnerBeingKilled) {
  Child owner = Child::Start("own-and-stay", {address()});
  platform::Channel channel = Accept();
  const ImportedAllocation memory =
      Must(ReceiveAllocation(channel, driver(), {}, Late()));
  owner.Kill();
  EXPECT_EQ(owner.Wait(), Child::kKilled);
  ExpectPattern(memory.address(), memory.size(), 6);
}

class Pitfall25 : public IpcTest {};
TEST_F(Pitfall25, AnImportPinsTheMemoryUntilItIsReleased) {
  const auto free_bytes = [this] {
    std::size_t free = 0, total = 0;
    EXPECT_EQ(driver()->cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return free;
  };
  Child owner = Child::Start("own-and-stay", {address()});
  platform::Channel channel = Accept();
  std::optional<ImportedAllocation> memory =
      Must(ReceiveAllocation(channel, driver(), {}, Late()));
  owner.Kill();
  EXPECT_EQ(owner.Wait(), Child::kKilled);
  // What the owner's context took comes back a little later on a real device.
  const std::size_t pinned = free_bytes();
  memory.reset();
  EXPECT_GE(free_bytes(), pinned + 3 * kGranule);
}

// Never touches the driver: takes a ticket and a descriptor from one process,
// and hands both on when told.
int HoldDescriptor(const Args& args) {
  platform::Channel boss = Dial(args[0]);
  platform::Listener listener =
      Must(platform::Listener::Bind({.directory = args[1]}, {}));
  Tell(boss, listener.address());
  platform::Channel owner = Must(listener.Accept(Late()));
  const platform::Message held = Must(owner.Receive(Late()));
  Tell(boss);
  Hear(boss);
  std::vector<const platform::OsHandle*> handles;
  for (const platform::OsHandle& handle : held.handles) {
    handles.push_back(&handle);
  }
  Must(boss.Send(held.type, held.payload, handles, Late()));
  return 0;
}
const bool kHoldDescriptor = RegisterChild("hold-descriptor", &HoldDescriptor);

int OwnAndExport(const Args& args) {
  const Here here;
  platform::Channel channel = Dial(args[0]);
  const Allocation memory =
      Must(Allocation::Create(here.device, {.size = kGranule}));
  WritePattern(memory.address(), memory.size(), 11);
  const protocol::Outgoing out =
      Must(protocol::MakeOutgoing(memory.shareable()));
  const ExportedHandle handle = Must(out.handle(0));
  Must(channel.Send(kRawMemory, EncodeTicket(out.ticket),
                    {&std::get<platform::OsHandle>(handle)}, Late()));
  Must(channel.WaitForHangUp(absl::InfiniteFuture()));
  return 0;
}
const bool kOwnAndExport = RegisterChild("own-and-export", &OwnAndExport);

TEST_F(TransferTest, ADescriptorAloneKeepsMemoryWhoseOwnerWasKilled) {
  Child holder =
      Child::Start("hold-descriptor", {address(), listener_directory()});
  platform::Channel channel = Accept();
  const std::string holders_address = Hear(channel);
  Child owner = Child::Start("own-and-export", {holders_address});
  Hear(channel);
  owner.Kill();
  EXPECT_EQ(owner.Wait(), Child::kKilled);
  Tell(channel);
  platform::Message message = Must(channel.Receive(Late()));
  ASSERT_EQ(message.handles.size(), 1u);
  EXPECT_EQ(holder.Wait(), 0);
  std::vector<ExportedHandle> handles;
  handles.push_back(std::move(message.handles[0]));
  const ImportedAllocation memory = Must(ImportedAllocation::Open(
      driver(), Must(DecodeTicket(message.payload)), handles, {}));
  ExpectPattern(memory.address(), memory.size(), 11);
}

// Begins to send three chunks and ends after the number of messages given. Not
// before it was accepted: some systems accept nobody who has ended.
int DieWhileSending(const Args& args) {
  const Here here;
  platform::Channel channel = Dial(args[0]);
  Hear(channel);
  const Allocation memory = Must(Allocation::Create(
      here.device, {.size = 20 * kGranule, .max_chunk_size = kGranule}));
  const protocol::Outgoing out =
      Must(protocol::MakeOutgoing(memory.shareable()));
  std::uint64_t left = Number(args[1]);
  const auto die = [] { KillThisProcess(); };
  if (left-- == 0) die();
  std::vector<std::uint8_t> count;
  WireWriter(count).Put<std::uint32_t>(1);
  Must(channel.Send(protocol::kBegin, count, {}, Late()));
  if (left-- == 0) die();
  std::vector<std::uint8_t> part;
  WireWriter writer(part);
  writer.Put<std::uint16_t>(1);
  writer.Put<std::uint16_t>(0);
  writer.PutBytes(EncodeTicket(out.ticket));
  std::vector<ExportedHandle> handles;
  std::vector<const platform::OsHandle*> pointers;
  for (std::size_t i = 0; i < 16; ++i) handles.push_back(Must(out.handle(i)));
  for (const ExportedHandle& handle : handles) {
    pointers.push_back(&std::get<platform::OsHandle>(handle));
  }
  Must(channel.Send(protocol::kPart, part, pointers, Late()));
  die();
  return 0;
}
const bool kDieWhileSending =
    RegisterChild("die-while-sending", &DieWhileSending);

TEST_F(TransferTest, AnOwnerKilledAtAnyMessageLeavesNothingBehind) {
  for (int messages = 0; messages < 3; ++messages) {
    Child owner =
        Child::Start("die-while-sending", {address(), absl::StrCat(messages)});
    platform::Channel channel = Accept();
    Tell(channel);
    const auto received = ReceiveAllocation(channel, driver(), {}, Late());
    EXPECT_EQ(received.status().code(), absl::StatusCode::kUnavailable)
        << messages << ": " << received.status();
    EXPECT_EQ(owner.Wait(), Child::kKilled);
  }
}

// Reads the number of messages given and is killed.
int DieWhileReceiving(const Args& args) {
  platform::Channel channel = Dial(args[0]);
  Hear(channel);
  for (std::uint64_t i = 0; i < Number(args[1]); ++i) {
    Must(channel.Receive(Late()));
  }
  KillThisProcess();
  return 0;
}
const bool kDieWhileReceiving =
    RegisterChild("die-while-receiving", &DieWhileReceiving);

TEST_F(TransferTest, AnImporterKilledAtAnyMessageHarmsNobodyElse) {
  const Allocation memory = MakePattern(20 * kGranule, 0, kGranule);
  // Its one handle over legacy IPC goes in one message, its 20 in two.
  const int count = IsTestOfLegacyIpc() ? 3 : 4;
  for (int messages = 0; messages < count; ++messages) {
    Child importer = Child::Start("die-while-receiving",
                                  {address(), absl::StrCat(messages)});
    platform::Channel channel = Accept();
    Tell(channel);
    const absl::Status sent =
        SendAllocation(channel, memory.shareable(), Late());
    EXPECT_EQ(sent.code(), absl::StatusCode::kUnavailable)
        << messages << ": " << sent;
    EXPECT_EQ(importer.Wait(), Child::kKilled);
  }
  Child child = Child::Start("read-many", {address(), "1"});
  platform::Channel channel = Accept();
  EXPECT_TRUE(SendAllocation(channel, memory.shareable(), Late()).ok());
  EXPECT_EQ(child.Wait(), 0);
}

// Imports, says so, and stays until it is killed.
int ImportAndStay(const Args& args) {
  const Here here;
  platform::Channel channel = Dial(args[0]);
  const ImportedAllocation memory = Must(ReceiveAllocation(
      channel, TestDriver(), {.access = Access::kReadWrite}, Late()));
  WritePattern(memory.address(), memory.size(), 12);
  Tell(channel);
  Must(channel.WaitForHangUp(absl::InfiniteFuture()));
  return 0;
}
const bool kImportAndStay = RegisterChild("import-and-stay", &ImportAndStay);

class Pitfall26 : public IpcTest {};
TEST_F(Pitfall26, AConsumerThatIsKilledLeavesNoCountBehind) {
  {
    const Allocation memory = Make(4 * kGranule);
    Child importer = Child::Start("import-and-stay", {address()});
    platform::Channel channel = Accept();
    ASSERT_TRUE(SendAllocation(channel, memory.shareable(), Late()).ok());
    Hear(channel);
    importer.Kill();
    EXPECT_EQ(importer.Wait(), Child::kKilled);
    ExpectPattern(memory.address(), memory.size(), 12);
  }
  // All of it can be had again: nothing waits for the dead one.
  std::size_t free = 0, total = 0;
  ASSERT_EQ(driver()->cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  if (OnHostMemoryDriver()) {
    EXPECT_EQ(free, total);
  }
}

TEST_F(TransferTest, AnImporterThatStandsStillCostsTheDeadline) {
  const Allocation memory = MakePattern(kGranule, 0);
  Child child = Child::Start("read-many", {address(), "1"});
  platform::Channel channel = Accept();
  child.Stop();
  const absl::Time begun = absl::Now();
  const absl::Status sent = SendAllocation(channel, memory.shareable(),
                                           begun + absl::Milliseconds(100));
  EXPECT_EQ(sent.code(), absl::StatusCode::kDeadlineExceeded) << sent;
  EXPECT_GE(absl::Now() - begun, absl::Milliseconds(100));
  EXPECT_LT(absl::Now() - begun, absl::Seconds(10));
  EXPECT_FALSE(channel.is_open());
  ExpectPattern(memory.address(), memory.size(), 0);
}

TEST_F(TransferTest, OneIsExpectedAndTwoAreTooMany) {
  const Allocation a = MakePattern(kGranule, 0);
  const Allocation b = MakePattern(kGranule, 1);
  auto [owner, importer] = Must(platform::Channel::Pair());
  std::thread sender([&, end = &owner] {
    SendAllocations(*end, {a.shareable(), b.shareable()}, Late()).IgnoreError();
  });
  const auto received = ReceiveAllocation(importer, driver(), {}, Late());
  sender.join();
  EXPECT_EQ(received.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(received.status().message()),
              HasSubstr("2 allocations came in one exchange"));
}

TEST_F(TransferTest, TheProgramsOwnMessagesGoBetweenExchanges) {
  const Allocation memory = MakePattern(kGranule, 1);
  auto [a, b] = Must(platform::Channel::Pair());
  for (int i = 0; i < 3; ++i) {
    Tell(a, absl::StrCat("before ", i), kText);
    std::thread sender([&, end = &a] {
      EXPECT_TRUE(SendAllocation(*end, memory.shareable(), Late()).ok());
    });
    EXPECT_EQ(Hear(b), absl::StrCat("before ", i));
    const ImportedAllocation imported =
        Must(ReceiveAllocation(b, driver(), {}, Late()));
    sender.join();
    ExpectPattern(imported.address(), imported.size(), 1);
  }
}

}  // namespace
}  // namespace vmm::testing
