// Descriptors in flight: the kernel limits them for a user, of all processes
// together, so that a peer that does not read could stop every other one.
#include <gmock/gmock.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "platform/base/check.h"
#include "tests/ipc/ask.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/support/receive_raw_posix.h"
#include "tests/support/syscall_faults.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/pool/pool.h"
#include "vmm/pool/pool_ticket.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::testing {
namespace {

using Args = std::vector<std::string>;

// What owners may have in flight here.
constexpr rlim_t kLimit = 512;

// From now on this process is one whose sends are limited, root or not.
void LimitDescriptorsInFlight() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  platform::Check(::syscall(SYS_capget, &header, data) == 0, "capget failed");
  data[CAP_TO_INDEX(CAP_SYS_RESOURCE)].effective &=
      ~CAP_TO_MASK(CAP_SYS_RESOURCE);
  data[CAP_TO_INDEX(CAP_SYS_ADMIN)].effective &= ~CAP_TO_MASK(CAP_SYS_ADMIN);
  platform::Check(::syscall(SYS_capset, &header, data) == 0, "capset failed");
  const rlimit limit = {kLimit, kLimit};
  platform::Check(::setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit failed");
}

// Serves memory of 40 chunks and of one, and a pool, of which it allocates more
// whenever it is told to.
int ServeWithLimit(const Args& args) {
  LimitDescriptorsInFlight();
  const Here here;
  platform::Channel boss = Dial(args[0]);
  EndpointOptions options;
  options.listener.directory = args[1];
  const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start(options));
  const Allocation large = Must(Allocation::Create(
      here.device, {.size = 40 * kGranule, .max_chunk_size = kGranule}));
  const Allocation small =
      Must(Allocation::Create(here.device, {.size = kGranule}));
  const std::unique_ptr<Pool> pool = Must(Pool::Create(here.device, {}));
  const Share of_large = Must(endpoint->Publish(large.shareable()));
  const Share of_small = Must(endpoint->Publish(small.shareable()));
  const Share of_pool = Must(endpoint->Serve(*pool));
  Tell(boss, of_large.ticket());
  Tell(boss, of_small.ticket());
  Tell(boss, of_pool.ticket());
  for (;;) {
    const absl::Status told = boss.Receive(Late()).status();
    if (absl::IsUnavailable(told)) return 0;
    Must(told);
    const CUdeviceptr block = Must(pool->Allocate(64 << 20, nullptr));
    const PoolTicketBytes bytes = EncodePoolTicket(Must(pool->Export(block)));
    Must(boss.Send(kText, bytes, {}, Late()));
  }
}
const bool kServeWithLimit = RegisterChild("serve-with-limit", &ServeWithLimit);

// Sends a handle to one that has said that it sends no more, and receives nothing.
int SendToOneHalfClosed(const Args&) {
  LimitDescriptorsInFlight();
  auto ends = Must(platform::Channel::Pair());
  const platform::CancelEvent event = Must(platform::CancelEvent::Create());
  platform::Check(
      ::shutdown(static_cast<int>(ends.second.handle().get()), SHUT_WR) == 0,
      "shutdown failed");
  const absl::Time start = absl::Now();
  const absl::Status sent =
      ends.first.Send(1, {}, {&event.handle()}, start + absl::Seconds(20));
  EXPECT_TRUE(absl::IsUnavailable(sent)) << sent;
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_TRUE(ends.first.is_open());  // What it said before can be received.
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kSendToOneHalfClosed =
    RegisterChild("send-to-one-half-closed", &SendToOneHalfClosed);

// As many descriptors as owners may have, on their way to nobody.
class Flood {
 public:
  Flood() : ends_(Must(platform::Channel::Pair())) {
    const platform::CancelEvent event = Must(platform::CancelEvent::Create());
    const std::vector<const platform::OsHandle*> some(platform::kMaxHandles,
                                                      &event.handle());
    for (rlim_t sent = 0; sent <= kLimit; sent += some.size()) {
      Must(ends_.first.Send(1, {}, some, Late()));
    }
  }

 private:
  std::pair<platform::Channel, platform::Channel> ends_;
};

class InFlight : public IpcTest {
 protected:
  InFlight()
      : child_(Child::Start("serve-with-limit",
                            {address(), listener_directory()})),
        owner_(Accept()),
        large_(Hear(owner_)),
        small_(Hear(owner_)),
        pool_(Hear(owner_)) {}
  ~InFlight() override {
    owner_.Close();
    EXPECT_EQ(child_.Wait(), 0);
  }
  absl::Status OpenSmall(absl::Time deadline) {
    return OpenTicket(driver(), small_, {}, deadline).status();
  }

  Child child_;
  platform::Channel owner_;
  const std::string large_;
  const std::string small_;
  const std::string pool_;
};

TEST_F(InFlight, PeersThatDoNotReadStopNobody) {
  std::vector<platform::Channel> hostile;
  while (hostile.size() < 14) {
    hostile.push_back(Dial(InvitationIn(large_).address));
    AskAndBeGranted(hostile.back(), large_);
  }
  // Each was sent what can be on its way to it.
  for (platform::Channel& each : hostile) {
    EXPECT_EQ(Must(each.Receive(Late())).type, protocol::kBegin);
  }
  Must(OpenSmall(Late()));
}

TEST_F(InFlight, ASendThatTheKernelRefusesIsMadeAgain) {
  std::optional<Flood> flood(std::in_place);
  absl::Status opened;
  std::thread opens([&] { opened = OpenSmall(Late()); });
  // Refused for longer than the time that it takes otherwise.
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      OpenSmall(absl::Now() + absl::Milliseconds(300))));
  flood.reset();
  opens.join();
  EXPECT_TRUE(opened.ok()) << opened;
}

// Or its sender would ask the kernel again without a pause until its deadline.
TEST_F(InFlight, ASendToOneThatHasHungUpEndsAtOnce) {
  const Flood flood;
  EXPECT_EQ(Child::Start("send-to-one-half-closed", {}).Wait(), 0);
}

TEST_F(InFlight, ASubscriberGetsItsSegmentWhenTheKernelAllowsItAgain) {
  const std::unique_ptr<ImportedPool> imported =
      Must(ImportedPool::Subscribe(driver(), pool_, {}, Late()));
  // Its session waits for it by then.
  Tell(owner_);
  Must(imported->Import(
      Must(DecodePoolTicket(Must(owner_.Receive(Late())).payload)), Late()));
  std::optional<Flood> flood(std::in_place);
  Tell(owner_);
  const PoolTicket ticket =
      Must(DecodePoolTicket(Must(owner_.Receive(Late())).payload));
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      imported->Import(ticket, absl::Now() + absl::Milliseconds(300))
          .status()));
  flood.reset();
  Must(imported->Import(ticket, Late()));
  EXPECT_TRUE(imported->connection().ok()) << imported->connection();
}

// Who is given 16 chunks of 17, since the owner has no descriptor for the last,
// has nothing once it says so, and is not waited for until it ends.
TEST_F(IpcTest, AnOwnerThatFailsHalfwayWaitsForTheWordOfWhoGotAPart) {
  if (!SyscallFaultsSupported()) GTEST_SKIP() << "no system call fails here";
  EndpointOptions options;
  options.listener.directory = listener_directory();
  const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start(options));
  const Allocation memory = Must(
      Allocation::Create(device, {.size = 17 * kGranule,
                                  .sharing = SharePolicy::Require(kNativeKind),
                                  .max_chunk_size = kGranule}));
  const Share share = Must(endpoint->Publish(memory.shareable()));
  platform::Channel importer = Dial(endpoint->address());
  AskAndBeGranted(importer, share.ticket());
  EXPECT_EQ(Must(importer.Receive(Late())).type, protocol::kBegin);
  // The first 16 are on their way; the last waits until they are received.
  pollfd part = {static_cast<int>(importer.handle().get()), POLLIN, 0};
  ASSERT_EQ(::poll(&part, 1, 60'000), 1);
  ArmSyscallFault({.only_error = EMFILE, .only_call = "fcntl"});
  // Without a call of this thread that could be the one that fails.
  EXPECT_EQ(ReceiveRaw(importer).size(), 16u);
  const platform::Message abort = Must(importer.Receive(Late()));
  EXPECT_EQ(DisarmSyscallFault().fired, 1u);
  EXPECT_EQ(abort.type, protocol::kAbort);
  EXPECT_EQ(endpoint->Leases().size(), 1u) << "it has not said so yet";
  protocol::GiveUp(importer, absl::ResourceExhaustedError("as the owner says"));
  Must(endpoint->WaitUntilReturned(memory.id(), Late()));
}

// The same where it fails for its deadline, which has passed when it asks for that
// word: bytes went, and the kernel has no room for descriptors.
TEST_F(IpcTest, AnOwnerThatFailsAtItsDeadlineWaitsForTheWordOfWhoGotAPart) {
  if (!SyscallFaultsSupported()) GTEST_SKIP() << "no system call fails here";
  EndpointOptions options;
  options.listener.directory = listener_directory();
  options.request_timeout = absl::Minutes(5);
  options.transfer_timeout = absl::ZeroDuration();
  const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start(options));
  const Allocation bytes = Must(Allocation::Create(
      device, {.size = kGranule,
               .sharing = SharePolicy::Require(HandleKind::kLegacyIpc)}));
  const Allocation memory = Must(Allocation::Create(
      device,
      {.size = kGranule, .sharing = SharePolicy::Require(kNativeKind)}));
  const Share of_bytes = Must(endpoint->Publish(bytes.shareable()));
  const Share of_memory = Must(endpoint->Publish(memory.shareable()));
  platform::Channel importer = Dial(endpoint->address());
  // Two by the importer, and the owner's third after kGranted and kBegin.
  ArmSyscallFault({.point = {.nth = 5},
                   .only_error = ETOOMANYREFS,
                   .only_call = "sendmsg"});
  Must(protocol::SendOpen(importer,
                          {InvitationIn(of_bytes.ticket()).key,
                           InvitationIn(of_memory.ticket()).key},
                          Late()));
  Must(protocol::ReceiveGranted(importer, Late()));
  EXPECT_EQ(Must(importer.Receive(Late())).type, protocol::kBegin);
  EXPECT_EQ(Must(importer.Receive(Late())).type, protocol::kPart);
  const platform::Message abort = Must(importer.Receive(Late()));
  EXPECT_EQ(DisarmSyscallFault().fired, 1u);
  EXPECT_EQ(abort.type, protocol::kAbort);
  const absl::Status why = protocol::DecodeError(abort.payload, "the owner");
  EXPECT_TRUE(absl::IsResourceExhausted(why)) << why;
  EXPECT_EQ(endpoint->Leases().size(), 2u) << "it has not said so yet";
  protocol::GiveUp(importer, why);
  Must(endpoint->WaitUntilReturned(bytes.id(), Late()));
  Must(endpoint->WaitUntilReturned(memory.id(), Late()));
}

// A subscriber that has stopped is given no more than some of many segments,
// and all when it goes on.
int SubscribeAndStop(const Args& args) {
  const Here here;
  platform::Channel boss = Dial(args[0]);
  const std::unique_ptr<ImportedPool> imported =
      Must(ImportedPool::Subscribe(TestDriver(), args[1], {}, Late()));
  Tell(boss);
  for (int i = 0; i < 20; ++i) {
    Must(imported->Import(
        Must(DecodePoolTicket(Must(boss.Receive(Late())).payload)), Late()));
  }
  Tell(boss);
  return 0;
}
const bool kSubscribeAndStop =
    RegisterChild("subscribe-and-stop", &SubscribeAndStop);

TEST_F(InFlight, ASubscriberThatLagsGetsAllInTheEnd) {
  Child child = Child::Start("subscribe-and-stop", {address(), pool_});
  platform::Channel subscriber = Accept();
  Hear(subscriber);
  child.Stop();
  ExpectSoon([&] { return child.IsStopped(); });
  for (int i = 0; i < 20; ++i) {
    Tell(owner_);
    Must(subscriber.Send(kText, Must(owner_.Receive(Late())).payload, {},
                         Late()));
  }
  child.Continue();
  Hear(subscriber);
  EXPECT_EQ(child.Wait(), 0);
}

}  // namespace
}  // namespace vmm::testing
