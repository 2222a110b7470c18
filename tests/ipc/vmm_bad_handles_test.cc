// Handles that are not what their ticket says.
#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/ipc/planted_handles.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/support/open_handles.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::testing {
namespace {

using platform::OsHandle;
using ::testing::HasSubstr;

// What a handle is refused with, here and by the importer.
struct Case {
  Planted planted;
  std::vector<std::string> expected;  // What came, and what should have.
};

std::vector<Case> Cases(std::uint64_t size, std::vector<Planted> objects) {
  std::vector<Case> cases;
  const std::string memory = OnHostMemoryDriver()
                                 ? "expected memory exported by the "
                                   "host-memory driver"
                                 : "expected GPU memory exported by the NVIDIA "
                                   "driver";
  for (Planted& planted : objects) {
    std::vector<std::string> words = {" is " + planted.name, memory};
    cases.push_back({std::move(planted), std::move(words)});
  }
  const bool host = OnHostMemoryDriver();
  cases.push_back({{"an unsealed memfd", PlantedMemory(size, false)},
                   {host ? WordsForUnsealed() : memory}});
  cases.push_back(
      {{"a short memfd", PlantedMemory(size / 2, true)},
       {host ? absl::StrCat(WordsForSize(size / 2), "; expected ", size)
             : memory}});
  cases.push_back(
      {{"a long memfd", PlantedMemory(size * 2, true)},
       {host ? absl::StrCat(WordsForSize(size * 2), "; expected ", size)
             : memory}});
  return cases;
}

class BadHandleTest : public IpcTest {
 protected:
  absl::Status Open(const Ticket& ticket, ExportedHandle handle) {
    handles_.clear();
    handles_.push_back(std::move(handle));
    return ImportedAllocation::Open(driver(), ticket, handles_, {}).status();
  }
  std::vector<ExportedHandle> handles_;
};

class Pitfall12 : public BadHandleTest {};
TEST_F(Pitfall12, ADescriptorIsCheckedBeforeTheDriverSeesIt) {
  const Allocation memory = Make(kGranule);
  const Ticket ticket = Must(MakeTicket(memory.shareable(), kNativeKind));
  for (Case& c : Cases(kGranule, PlantedObjects())) {
    const absl::Status status = Open(ticket, std::move(c.planted.handle));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
        << c.planted.name << ": " << status;
    for (const std::string& words : c.expected) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(words));
    }
    EXPECT_THAT(std::string(status.message()), HasSubstr("chunk 1 of 1"));
    EXPECT_FALSE(platform::ResultOf(status).has_value())
        << "the driver saw " << c.planted.name;
  }
  handles_.clear();
}

// Only the driver can tell that, and it answers UNKNOWN (measured, of others).
TEST_F(BadHandleTest,
       WhatLooksLikeTheDriversMemoryAndIsNotIsAnInvalidArgument) {
  if (!OnHostMemoryDriver() || !platform::kNativeHandleIsPosixFd) {
    GTEST_SKIP() << "nobody can make what looks like the real driver's memory";
  }
  const Allocation memory = Make(kGranule);
  const Ticket ticket = Must(MakeTicket(memory.shareable(), kNativeKind));
  const absl::Status refused = Open(ticket, PlantedMemory(kGranule, true));
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(platform::ResultOf(refused), CUDA_ERROR_UNKNOWN);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("must come from cuMemExportToShareableHandle"));
  handles_.clear();
}

TEST_F(BadHandleTest, AClosedDescriptorIsRefused) {
  const Allocation memory = Make(kGranule);
  const Ticket ticket = Must(MakeTicket(memory.shareable(), kNativeKind));
  const absl::Status status = Open(ticket, ClosedHandle());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("Expected an open "));
  static_cast<void>(
      std::move(std::get<OsHandle>(handles_.front())).Relinquish());
  handles_.clear();
}

TEST_F(BadHandleTest, NoDescriptorAtAllIsRefused) {
  const Allocation memory = Make(kGranule);
  const Ticket ticket = Must(MakeTicket(memory.shareable(), kNativeKind));
  EXPECT_EQ(Open(ticket, OsHandle()).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(BadHandleTest, SealedMemoryThatNoDriverMadeIsRefusedByTheDriver) {
  if (!OnHostMemoryDriver()) {
    GTEST_SKIP() << "a real driver's descriptors are of another class";
  }
  const Allocation memory = Make(kGranule);
  const Ticket ticket = Must(MakeTicket(memory.shareable(), kNativeKind));
  const absl::Status status = Open(ticket, PlantedMemory(kGranule, true));
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(platform::ResultOf(status).has_value()) << status;
  handles_.clear();
}

// Receives until it is told to stop; says what each exchange came to, and how
// many handles are open after it.
int ReportImports(const std::vector<std::string>& args) {
  const Here here;
  const ExpectNoNewHandles no_new_handles;
  const ExpectDriverUnchanged driver_unchanged;
  platform::Channel channel = Dial(args[0]);
  while (Hear(channel) != "stop") {
    const auto received = ReceiveAllocations(channel, TestDriver(), {}, Late());
    Tell(channel, received.status().ToString(), kText);
    if (received.ok()) {
      ExpectPattern(received->front().address(), received->front().size(), 1);
    }
    // The memory just received is still here.
    Tell(channel, absl::StrCat(OpenHandleCount()), kText);
  }
  return 0;
}
const bool kReportImports = RegisterChild("report-imports", &ReportImports);

// A sender that puts other handles beside its tickets.
void SendPlanted(platform::Channel& channel, const Ticket& ticket,
                 const std::vector<const OsHandle*>& handles) {
  std::vector<std::uint8_t> count, part;
  WireWriter(count).Put<std::uint32_t>(1);
  WireWriter writer(part);
  writer.Put<std::uint16_t>(1);
  writer.Put<std::uint16_t>(0);
  writer.PutBytes(EncodeTicket(ticket));
  Tell(channel, "next");
  Must(channel.Send(protocol::kBegin, count, {}, Late()));
  Must(channel.Send(protocol::kPart, part, handles, Late()));
}

TEST_F(BadHandleTest, FromAPeerIsRefusedAndBothSidesGoOn) {
  const Allocation memory = MakePattern(kGranule, 1);
  const Ticket ticket = Must(MakeTicket(memory.shareable(), kNativeKind));
  Child importer = Child::Start("report-imports", {address()});
  platform::Channel channel = Accept();
  std::vector<Case> cases = Cases(kGranule, CarriedObjects());
  // What is kept from the first exchange on is not a bad handle's doing.
  const auto refused_event = [&] {
    SendPlanted(channel, ticket, {&cases.front().planted.handle});
    EXPECT_EQ(Must(channel.Receive(Late())).type, protocol::kRefused);
    Hear(channel);
    return Hear(channel);
  };
  refused_event();
  const std::string count_there = refused_event();
  const std::size_t count_here = OpenHandleCount();
  for (Case& c : cases) {
    SendPlanted(channel, ticket, {&c.planted.handle});
    const platform::Message word = Must(channel.Receive(Late()));
    EXPECT_EQ(word.type, protocol::kRefused);
    const absl::Status refused = protocol::DecodeError(word.payload, "it");
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    const std::string heard = Hear(channel);
    for (const std::string& words : c.expected) {
      EXPECT_THAT(std::string(refused.message()), HasSubstr(words));
      EXPECT_THAT(heard, HasSubstr(words));
    }
    EXPECT_EQ(Hear(channel), count_there) << c.planted.name;
    EXPECT_EQ(OpenHandleCount(), count_here) << c.planted.name;
  }
  // And now an honest one, on the same channel.
  Tell(channel, "next");
  EXPECT_TRUE(SendAllocation(channel, memory.shareable(), Late()).ok());
  EXPECT_EQ(Hear(channel), "OK");
  Hear(channel);
  Tell(channel, "stop");
  EXPECT_EQ(importer.Wait(), 0);
}

TEST_F(BadHandleTest, InAnotherNumberThanStatedClosesTheChannel) {
  const Allocation memory = MakePattern(kGranule, 1);
  const protocol::Outgoing out =
      Must(protocol::MakeOutgoing(memory.shareable()));
  const ExportedHandle handle = Must(out.handle(0));
  const OsHandle* const good = &std::get<OsHandle>(handle);
  for (const auto& [handles, words] :
       std::vector<std::pair<std::vector<const OsHandle*>, std::string>>{
           {{}, "a part without a handle"},
           {{good, good}, "more handles than stated"},
           {{good, good, good}, "more handles than stated"}}) {
    auto [sender, receiver] = Must(platform::Channel::Pair());
    SendPlanted(sender, out.ticket, handles);
    EXPECT_EQ(Hear(receiver), "next");
    const auto received = ReceiveAllocations(receiver, driver(), {}, Late());
    EXPECT_EQ(received.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(received.status().message()), HasSubstr(words));
    EXPECT_FALSE(receiver.is_open());
    EXPECT_TRUE(sender.WaitForHangUp(Late()).ok());
  }
}

class Pitfall03 : public BadHandleTest {};
TEST_F(Pitfall03, AnImportThatFailsIsToldWhateverTheLocalProbeSaid) {
  EXPECT_TRUE(device.Probe(kNativeKind).ok());
  const Allocation memory = MakePattern(kGranule, 1);
  Child importer = Child::Start("report-imports", {address()});
  platform::Channel channel = Accept();
  Ticket ticket = Must(MakeTicket(memory.shareable(), kNativeKind));
  ticket.boot_id[0] ^= 1;  // The peer finds that it is elsewhere.
  const protocol::Outgoing out =
      Must(protocol::MakeOutgoing(memory.shareable()));
  Tell(channel, "next");
  const absl::Status sent =
      protocol::SendAll(channel, {{ticket, out.handle}}, Late());
  EXPECT_EQ(sent.code(), absl::StatusCode::kFailedPrecondition) << sent;
  EXPECT_THAT(std::string(sent.message()), HasSubstr("the importer refused"));
  EXPECT_THAT(Hear(channel), HasSubstr("FAILED_PRECONDITION"));
  Hear(channel);
  Tell(channel, "stop");
  EXPECT_EQ(importer.Wait(), 0);
}

}  // namespace
}  // namespace vmm::testing
