// CUDA events between two processes, by tickets.
#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/base/hex.h"
#include "platform/cuda/driver_table.h"
#include "tests/gpu/held_stream.h"
#include "tests/gpu/stream.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "vmm/sync/ipc_event.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Args = std::vector<std::string>;

constexpr absl::Duration kMoment = absl::Milliseconds(20);
constexpr std::uint64_t kBytes = 1 << 20;

std::string Hex(const IpcEventTicket& ticket) {
  const IpcEventTicketBytes bytes = EncodeIpcEventTicket(ticket);
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

IpcEventTicket FromHex(const std::string& text) {
  const std::string bytes = platform::BytesFromHex(text).value_or("");
  return Must(DecodeIpcEventTicket(
      {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}));
}

// A process with one event, its own or imported; args: where to dial.
int EventPeerMain(const Args& args) {
  const Here here;
  platform::Channel orders = Dial(args[0]);
  const Stream stream;
  std::optional<IpcEvent> event;
  std::optional<HeldStream> held;
  std::optional<ImportedAllocation> memory;
  const auto act = [&](const std::string& order) -> std::string {
    std::istringstream words(order);
    std::string what;
    std::string text;
    words >> what >> text;
    if (what == "hello") return "OK";
    if (what == "import") {
      absl::StatusOr<IpcEvent> imported =
          IpcEvent::Import(TestDriver(), FromHex(text));
      if (!imported.ok()) return imported.status().ToString();
      event.emplace(*std::move(imported));
      return "OK";
    }
    if (what == "own") {
      event.emplace(Must(IpcEvent::Create(TestDriver())));
      return Hex(Must(event->Export()));
    }
    if (what == "export") return event->Export().status().ToString();
    if (what == "drop") {
      event.reset();
      return "OK";
    }
    if (what == "memory") {
      memory.emplace(Must(ReceiveAllocation(orders, TestDriver(), {}, Late())));
      return "OK";
    }
    if (what == "wait") return event->Wait(stream.get()).ToString();
    if (what == "idle") return stream.IsIdle() ? "idle" : "busy";
    if (what == "record") return event->Record(stream.get()).ToString();
    if (what == "record-late") {  // Behind what does not pass.
      held.emplace(here.device);
      return event->Record(held->get()).ToString();
    }
    if (what == "go-on") {
      held->Release();
      return "OK";
    }
    if (what == "exhaust") {
      std::vector<IpcEvent> events;
      for (;;) {
        absl::StatusOr<IpcEvent> one = IpcEvent::Create(TestDriver());
        if (!one.ok()) {
          EXPECT_GE(events.size(), 4000u);
          return one.status().ToString();
        }
        events.push_back(*std::move(one));
      }
    }
    if (what == "check") {  // Behind the wait, in the stream's order.
      const Allocation copy = Must(Allocation::Create(
          here.device, {.size = kBytes, .sharing = SharePolicy::Private()}));
      EXPECT_EQ(TestDriver()->cuMemcpyDtoDAsync(
                    copy.address(), memory->address(), kBytes, stream.get()),
                CUDA_SUCCESS);
      Tell(orders, "copying", kText);
      stream.Sync();
      std::vector<std::uint8_t> bytes(kBytes);
      EXPECT_EQ(
          TestDriver()->cuMemcpyDtoH(bytes.data(), copy.address(), kBytes),
          CUDA_SUCCESS);
      return bytes == std::vector<std::uint8_t>(kBytes, 77) ? "right" : "wrong";
    }
    platform::Die(absl::StrCat("a peer was told: ", order));
  };
  for (;;) {
    absl::StatusOr<platform::Message> message = orders.Receive(Late());
    if (!message.ok()) return ::testing::Test::HasFailure() ? 1 : 0;
    Tell(orders, act({message->payload.begin(), message->payload.end()}),
         kText);
  }
}
const bool kEventPeer = RegisterChild("ipc-event-peer", &EventPeerMain);

class IpcEventTest : public IpcTest {
 protected:
  void SetUp() override {
    child_.emplace(Child::Start("ipc-event-peer", {address()}));
    orders_.emplace(Accept());
    // Not every test asks it more, and it must not still be dialling then.
    EXPECT_EQ(Ask("hello"), "OK");
  }
  void TearDown() override {
    orders_->Close();
    EXPECT_EQ(child_->Wait(), killed_ ? Child::kKilled : 0);
  }
  std::string Ask(const std::string& what) {
    Tell(*orders_, what, kText);
    return Hear(*orders_);
  }
  void Kill() {
    child_->Kill();
    killed_ = true;
  }
  static void ExpectOk(const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
  }
  static void ExpectFails(absl::StatusCode code, const absl::Status& status,
                          const char* words) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }

  std::optional<Child> child_;
  std::optional<platform::Channel> orders_;
  bool killed_ = false;
};

TEST_F(IpcEventTest, APeersStreamWaitsForWhatWasRecorded) {
  const Allocation memory = Make(kGranule);
  Tell(*orders_, "memory", kText);
  ExpectOk(SendAllocation(*orders_, memory.shareable(), Late()));
  EXPECT_EQ(Hear(*orders_), "OK");
  IpcEvent event = Must(IpcEvent::Create(driver()));
  EXPECT_TRUE(Must(event.Query())) << "nothing is recorded";
  HeldStream held(device);
  EXPECT_EQ(driver()->cuMemsetD8Async(memory.address(), 77, kBytes, held.get()),
            CUDA_SUCCESS);
  ExpectOk(event.Record(held.get()));
  EXPECT_EQ(Ask("import " + Hex(Must(event.Export()))), "OK");
  EXPECT_EQ(Ask("wait"), "OK");
  EXPECT_EQ(Ask("check"), "copying");
  absl::SleepFor(kMoment);
  EXPECT_FALSE(Must(event.Query()));
  held.Release();
  EXPECT_EQ(Hear(*orders_), "right");
  ExpectOk(event.WaitOnHost(Late()));
}

TEST_F(IpcEventTest, APeerRecordsToo) {
  const IpcEvent event = Must(IpcEvent::Create(driver()));
  EXPECT_EQ(Ask("import " + Hex(Must(event.Export()))), "OK");
  const platform::Process peer = Must(orders_->OpenPeer());
  EXPECT_EQ(Ask("record-late"), "OK");
  const Stream stream;
  ExpectOk(event.Wait(stream.get()));
  EXPECT_FALSE(stream.IsIdle());
  ExpectFails(absl::StatusCode::kDeadlineExceeded,
              event.WaitOnHost(absl::Now() + kMoment, &peer), "not passed");
  EXPECT_EQ(Ask("go-on"), "OK");
  ExpectOk(event.WaitOnHost(Late(), &peer));
  stream.Sync();
  // And again: a wait is for what was recorded last.
  EXPECT_EQ(Ask("record-late"), "OK");
  EXPECT_FALSE(Must(event.Query()));
  EXPECT_EQ(Ask("go-on"), "OK");
  ExpectOk(event.WaitOnHost(Late(), &peer));
}

// Why events do not stand in for fences: docs/ordering.md.
TEST_F(IpcEventTest, AWaitForWhatIsYetToBeRecordedIsNoWait) {
  IpcEvent event = Must(IpcEvent::Create(driver()));
  EXPECT_EQ(Ask("import " + Hex(Must(event.Export()))), "OK");
  EXPECT_EQ(Ask("wait"), "OK");
  HeldStream held(device);
  ExpectOk(event.Record(held.get()));
  ExpectSoon([&] { return Ask("idle") == "idle"; });
  EXPECT_FALSE(Must(event.Query())) << "this test tests nothing";
  EXPECT_EQ(Ask("wait"), "OK");
  EXPECT_EQ(Ask("idle"), "busy") << "this test cannot fail";
  held.Release();
}

TEST_F(IpcEventTest, AWaitOnTheHostEndsWhenTheRecorderIsKilled) {
  if (!OnHostMemoryDriver()) {
    GTEST_SKIP() << "what a GPU makes of the event then is CUDA's to say";
  }
  const IpcEvent event = Must(IpcEvent::Create(driver()));
  EXPECT_EQ(Ask("import " + Hex(Must(event.Export()))), "OK");
  const platform::Process peer = Must(orders_->OpenPeer());
  EXPECT_EQ(Ask("record-late"), "OK");
  Kill();
  ExpectFails(absl::StatusCode::kUnavailable, event.WaitOnHost(Late(), &peer),
              "has ended");
}

TEST_F(IpcEventTest, AnEventThatIsGoneIsNotFound) {
  if (!OnHostMemoryDriver()) {
    GTEST_SKIP() << "what a GPU's driver answers then was not measured";
  }
  std::optional<IpcEvent> event = Must(IpcEvent::Create(driver()));
  const std::string ticket = Hex(Must(event->Export()));
  event.reset();
  EXPECT_THAT(Ask("import " + ticket), StartsWith("NOT_FOUND"));
  const IpcEventTicket theirs = FromHex(Ask("own"));
  EXPECT_EQ(Ask("drop"), "OK");
  ExpectFails(absl::StatusCode::kNotFound,
              IpcEvent::Import(driver(), theirs).status(),
              "cuIpcOpenEventHandle()");
}

TEST_F(IpcEventTest, OnlyItsMakerExportsAnEvent) {
  const IpcEvent event = Must(IpcEvent::Create(driver()));
  EXPECT_EQ(Ask("import " + Hex(Must(event.Export()))), "OK");
  EXPECT_THAT(Ask("export"), StartsWith("INVALID_ARGUMENT"));
  CUevent plain = nullptr;
  ASSERT_EQ(driver()->cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING),
            CUDA_SUCCESS);
  ExpectFails(absl::StatusCode::kInvalidArgument,
              ExportEvent(driver(), plain).status(), "CU_EVENT_INTERPROCESS");
  EXPECT_EQ(driver()->cuEventDestroy(plain), CUDA_SUCCESS);
  ExpectFails(absl::StatusCode::kInvalidArgument,
              ExportEvent(driver(), nullptr).status(), "null");
  // One that the program made itself.
  CUevent own = nullptr;
  ASSERT_EQ(driver()->cuEventCreate(
                &own, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
            CUDA_SUCCESS);
  EXPECT_EQ(Ask("import " + Hex(Must(ExportEvent(driver(), own)))), "OK");
  EXPECT_EQ(driver()->cuEventDestroy(own), CUDA_SUCCESS);
}

TEST_F(IpcEventTest, ATicketOfElsewhereIsAFailedPrecondition) {
  const IpcEvent event = Must(IpcEvent::Create(driver()));
  const IpcEventTicket mine = Must(event.Export());
  ExpectFails(absl::StatusCode::kFailedPrecondition,
              IpcEvent::Import(driver(), mine).status(),
              "made by this process");
  const IpcEventTicket good = FromHex(Ask("own"));
  IpcEventTicket bad = good;
  bad.boot_id[3] ^= 1;
  ExpectFails(absl::StatusCode::kFailedPrecondition,
              IpcEvent::Import(driver(), bad).status(), "another machine");
  bad = good;
  bad.host_memory_driver = !bad.host_memory_driver;
  ExpectFails(absl::StatusCode::kFailedPrecondition,
              IpcEvent::Import(driver(), bad).status(), "uses the other");
  bad = good;
  bad.handle.fill(7);
  ExpectFails(absl::StatusCode::kNotFound,
              IpcEvent::Import(driver(), bad).status(), "is gone");
  // With a lie about whose it is, it is the driver that says it.
  bad = mine;
  bad.owner = good.owner;
  ExpectFails(absl::StatusCode::kFailedPrecondition,
              IpcEvent::Import(driver(), bad).status(),
              "cuIpcOpenEventHandle()");
  ExpectOk(IpcEvent::Import(driver(), good).status());
}

TEST_F(IpcEventTest, MovedIntoAnotherGivesBackWhatThatHad) {
  IpcEvent one = Must(IpcEvent::Create(driver()));
  const Inventory before = TakeInventory(driver());
  IpcEvent other = Must(IpcEvent::Create(driver()));
  const IpcEventTicket ticket = Must(other.Export());
  one = std::move(other);
  EXPECT_THAT(Differences(before, TakeInventory(driver())),
              ::testing::IsEmpty());
  EXPECT_EQ(Must(one.Export()).handle, ticket.handle);
}

TEST_F(IpcEventTest, NoContextOrNoMoreEventsSaysSo) {
  const IpcEventTicket theirs = FromHex(Ask("own"));
  CUcontext current = nullptr;
  ASSERT_EQ(driver()->cuCtxPopCurrent(&current), CUDA_SUCCESS);
  EXPECT_EQ(IpcEvent::Create(driver()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(IpcEvent::Import(driver(), theirs).status().code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(driver()->cuCtxPushCurrent(current), CUDA_SUCCESS);
  // In a process of its own: others may hold some.
  const std::string full = Ask("exhaust");
  EXPECT_THAT(full, StartsWith("RESOURCE_EXHAUSTED"));
  EXPECT_THAT(full, HasSubstr("some 4,095"));
}

// The driver of this test without the two entry points.
platform::Driver WithoutIpcEvents() {
  return Must(platform::Driver::LoadFromLookup(
      "without IPC events", [](const char* symbol) -> void* {
        static const auto answer = [](const char* name, void** out, int,
                                      cuuint64_t) -> CUresult {
          *out = nullptr;
          platform::ForEachDriverEntry([&](auto entry) {
            if (std::string(entry.name) != name) return;
            if (std::string(name).find("EventHandle") != std::string::npos) {
              return;
            }
            *out = reinterpret_cast<void*>(TestDriver().table().*
                                           (decltype(entry)::kMember));
          });
          return *out == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
        };
        if (std::string(symbol) != "cuGetProcAddress") return nullptr;
        CUresult(CUDAAPI * function)(const char*, void**, int, cuuint64_t) =
            answer;
        return reinterpret_cast<void*>(function);
      }));
}

TEST_F(IpcEventTest, WithoutThemItSaysWhatToUse) {
  const platform::Driver without = WithoutIpcEvents();
  ExpectFails(absl::StatusCode::kUnimplemented,
              IpcEvent::Create(without).status(), "vmm::Fence");
  ExpectFails(absl::StatusCode::kUnimplemented,
              IpcEvent::Import(without, {}).status(), "vmm::Fence");
  CUevent event = nullptr;
  ASSERT_EQ(driver()->cuEventCreate(
                &event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
            CUDA_SUCCESS);
  ExpectFails(absl::StatusCode::kUnimplemented,
              ExportEvent(without, event).status(), "vmm::Fence");
  EXPECT_EQ(driver()->cuEventDestroy(event), CUDA_SUCCESS);
}

}  // namespace
}  // namespace vmm::testing
