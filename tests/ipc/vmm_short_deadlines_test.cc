// Importers that give up again and again, before, while and after they are
// served: nothing is left of them, though their process lives on.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/support/how_many.h"
#include "tests/support/open_handles.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/pool/internal/pool_string.h"
#include "vmm/pool/pool.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/ticket.h"

namespace vmm::testing {
namespace {

using Args = std::vector<std::string>;

// Opens args[0] or subscribes to args[1], once.
int ImportOnce(const Args& args) {
  const Here here;
  if (!args[0].empty()) Must(OpenTicket(TestDriver(), args[0], {}, Late()));
  if (!args[1].empty()) {
    Must(ImportedPool::Subscribe(TestDriver(), args[1], {}, Late()));
  }
  return 0;
}
const bool kImportOnce = RegisterChild("import-once", &ImportOnce);

class ShortDeadlines : public IpcTest {
 protected:
  void SetUp() override {
    if (platform::kHangingUpMayLoseHandles) {
      GTEST_SKIP() << "here handles are put into the importer before it hears "
                      "of them";
    }
  }
  std::unique_ptr<Endpoint> Start() {
    EndpointOptions options;
    options.listener.directory = listener_directory();
    return Must(Endpoint::Start(options));
  }
  // Has `once` tried with deadlines of 0 to 1 ms, on several threads so that
  // they pass anywhere. The owner, in this process too, keeps nothing open.
  static void TryOften(const std::function<absl::Status(absl::Time)>& once) {
    Must(once(Late()));
    const std::size_t open = OpenHandleCount();
    const std::uint64_t tries = HowMany("VMMSHARE_SHORT_DEADLINES", 4000);
    std::atomic<std::uint64_t> next = 0, late = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&] {
        for (std::uint64_t each = next++; each < tries; each = next++) {
          const absl::Status done =
              once(absl::Now() + absl::Microseconds(
                                     each * 7 % (each % 2 == 0 ? 1000 : 4000)));
          late += done.ok() ? 0 : 1;
          // Its own hang-ups may not have been seen yet.
          EXPECT_TRUE(done.ok() || absl::IsDeadlineExceeded(done) ||
                      absl::IsResourceExhausted(done))
              << done;
        }
      });
    }
    for (std::thread& each : threads) each.join();
    EXPECT_GE(late, tries / 20);
    ExpectSoon([&] { return OpenHandleCount() <= open; });
  }
  static void ExpectAnotherIsServed(const Args& args) {
    Child other = Child::Start("import-once", args);
    EXPECT_EQ(other.Wait(), 0);
  }
};

// Passes what an importer says on to its owner, but nothing that the owner says;
// and what the importer says after its request only when the owner has sent it
// handles.
class DeafRelay {
 public:
  DeafRelay(const std::string& directory, std::string owner)
      : owner_(std::move(owner)),
        listener_(Must(platform::Listener::Bind({.directory = directory}, {}))),
        thread_([this] { PassOn(); }) {}
  ~DeafRelay() { thread_.join(); }
  const std::string& address() const { return listener_.address(); }

 private:
  static void Pass(const platform::Message& message, platform::Channel& to) {
    std::vector<const platform::OsHandle*> handles;
    for (const platform::OsHandle& each : message.handles) {
      handles.push_back(&each);
    }
    Must(to.Send(message.type, message.payload, handles, Late()));
  }
  void PassOn() {
    platform::Channel importer = Must(listener_.Accept(Late()));
    platform::Channel owner = Dial(owner_);
    for (std::uint16_t type = 0; type != protocol::kOpen;) {
      const platform::Message message = Must(importer.Receive(Late()));
      type = message.type;
      Pass(message, owner);
    }
    while (Must(owner.Receive(Late())).handles.empty()) {
    }
    for (;;) {
      const auto message = importer.Receive(Late());
      if (!message.ok()) return;
      Pass(*message, owner);
    }
  }

  const std::string owner_;
  platform::Listener listener_;
  std::thread thread_;
};

TEST_F(ShortDeadlines, WhoGivesUpWhenItHasBeenSentHandlesHoldsNothing) {
  const std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation memory = MakePattern(kGranule, 4);
  const Share published = Must(endpoint->Publish(memory.shareable()));
  const Share served = Must(endpoint->Serve(*pool));
  const std::size_t open = OpenHandleCount();
  for (const bool of_pool : {false, true}) {
    SCOPED_TRACE(of_pool);
    absl::Status gave_up;
    {
      const DeafRelay relay(listener_directory(), endpoint->address());
      const auto deadline = absl::Now() + absl::Milliseconds(50);
      AddressedTicket ticket = Must(ParseTicketString(published.ticket()));
      AddressedPool domain = Must(ParsePoolString(served.ticket()));
      ticket.invitation.address = domain.invitation.address = relay.address();
      gave_up = of_pool ? ImportedPool::Subscribe(
                              driver(), FormatPoolString(domain), {}, deadline)
                              .status()
                        : OpenTicket(driver(), FormatTicketString(ticket), {},
                                     deadline)
                              .status();
    }
    EXPECT_TRUE(absl::IsDeadlineExceeded(gave_up)) << gave_up;
    Must(endpoint->WaitUntilAllReturned(Late()));
    ExpectSoon([&] { return OpenHandleCount() <= open; });
  }
}

TEST_F(ShortDeadlines, OfOpenTicketLeaveNoLease) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation memory = MakePattern(kGranule, 4);
  const Share share = Must(endpoint->Publish(memory.shareable()));
  TryOften([&](absl::Time deadline) {
    return OpenTicket(driver(), share.ticket(), {}, deadline).status();
  });
  Must(endpoint->WaitUntilAllReturned(Late()));
  ExpectAnotherIsServed({share.ticket(), ""});
}

TEST_F(ShortDeadlines, OfSubscribeLeaveNoSubscriber) {
  const std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
  const CUdeviceptr block = Must(pool->Allocate(1000, nullptr));
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Share share = Must(endpoint->Serve(*pool));
  TryOften([&](absl::Time deadline) {
    return ImportedPool::Subscribe(driver(), share.ticket(), {}, deadline)
        .status();
  });
  ExpectSoon([&] { return pool->statistics().peers == 0; });
  Must(pool->WaitUntilAllReturned(Late()));
  ExpectAnotherIsServed({"", share.ticket()});
  Must(pool->Free(block, nullptr));
}

}  // namespace
}  // namespace vmm::testing
