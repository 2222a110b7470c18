// Servers among peers that lie, flood, and say nothing: they go on, honest
// clients are served about as fast as before, and nothing is left behind.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>

#include "platform/base/status_macros.h"
#include "tests/gpu/stream.h"
#include "tests/hostile/recording.h"
#include "tests/hostile/target.h"
#include "tests/support/emulator.h"
#include "tests/support/how_many.h"
#include "vmm/keeper/internal/protocol.h"
#include "vmm/keeper/keeper.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/pool/internal/pool_string.h"
#include "vmm/queue/ring.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/ticket.h"

namespace vmm::testing {
namespace {

constexpr int kAttackers = 2;
// A machine that does other things makes single calls late whoever attacks.
constexpr absl::Duration kNoise = absl::Seconds(2);

class Hostile : public IpcTest {
 protected:
  void SetUp() override {
    if (IsEmulated()) GTEST_SKIP() << kStartsNothing;
  }
  // What an honest client does with the server at an address.
  using Honest = std::function<absl::Status(const std::string& address)>;

  // `forget` has the server drop what it was told to keep. Messages of the types
  // `said` are among what is said otherwise.
  // REQUIRES: `honest` succeeds with a server whom nobody attacks.
  void Attack(
      Target& target, const std::string& address, const Honest& honest,
      const std::function<void()>& forget = [] {},
      const std::vector<std::uint16_t>& said = {}) {
    const std::string file = directory() + "/sessions";
    const std::vector<Session> recorded = Record(address, honest);
    for (const std::uint16_t type : said) {
      EXPECT_TRUE(std::ranges::any_of(
          recorded,
          [type](const Session& each) {
            return std::ranges::count(each, type, &Recorded::type) > 0;
          }))
          << "no message of type 0x" << absl::StrCat(absl::Hex(type));
    }
    Save(recorded, file);
    const absl::Duration quiet = SlowOf(Times(
        address, honest, [times = 0]() mutable { return times++ < 100; }));
    const ProcessUsage before = target.Uses();
    const std::string open = target.Open();

    // With few sessions the p99 is the slowest honest one, which a machine that
    // does other things makes late once: the least of three counts.
    const absl::Duration limit = std::max(10 * quiet, kNoise);
    absl::Duration loud = absl::InfiniteDuration();
    for (int time = 0; time < 3 && loud > limit; ++time) {
      loud = std::min(loud, SlowBesideAttackers(time, address, file, honest));
    }
    std::cout << "p99 in quiet " << absl::FormatDuration(quiet) << "\n";
    EXPECT_LE(loud, limit);

    forget();
    // That a peer has ended for good is known a while after it did. The moment
    // that counts is the one looked at: an honest client's own end is still being
    // noticed at the next.
    ProcessUsage after;
    ExpectSoon([&] {
      Must(honest(address));
      after = target.Uses();
      return after.descriptors <= before.descriptors &&
             after.threads <= before.threads;
    });
    EXPECT_LE(after.descriptors, before.descriptors) << "before:\n"
                                                     << open << "\nnow:\n"
                                                     << target.Open();
    EXPECT_LE(after.threads, before.threads);
    std::cout << "descriptors " << before.descriptors << ", then "
              << after.descriptors << "; threads " << before.threads
              << ", then " << after.threads << "; MiB resident "
              << before.resident / kMiB << ", then " << after.resident / kMiB
              << "\n";
    EXPECT_LE(
        after.resident,
        before.resident + HowMany("VMMSHARE_HOSTILE_GROWTH_MIB", 32) * kMiB);
  }

 private:
  // The p99 of honest sessions beside attackers, others each `time`.
  absl::Duration SlowBesideAttackers(int time, const std::string& address,
                                     const std::string& file,
                                     const Honest& honest) {
    const std::uint64_t sessions =
        HowMany("VMMSHARE_HOSTILE_SESSIONS", 2000) / kAttackers;
    std::vector<Child> attackers;
    for (int i = 0; i < kAttackers; ++i) {
      const int seed = time * kAttackers + i + 1;
      const std::string mount = absl::StrCat(directory(), "/mount", seed);
      std::filesystem::create_directory(mount);
      attackers.push_back(Child::Start(
          "hostile-peer",
          {address, file, absl::StrCat(seed), absl::StrCat(sessions), mount}));
    }
    std::atomic<int> attacking = kAttackers;
    std::vector<std::thread> ends;
    for (Child& each : attackers) {
      ends.emplace_back([&] {
        const int status = each.Wait(absl::Now() + absl::Hours(1));
        EXPECT_TRUE(status == 0 || status == 3) << status;
        if (status == 3) std::cout << "no file that blocks was to be had\n";
        --attacking;
      });
    }
    const std::vector<absl::Duration> times =
        Times(address, honest, [&] { return attacking > 0; });
    for (std::thread& each : ends) each.join();
    const absl::Duration loud = SlowOf(times);
    std::cout << sessions * kAttackers << " hostile sessions beside "
              << times.size() << " honest ones; p99 of these "
              << absl::FormatDuration(loud) << "\n";
    return loud;
  }

  std::vector<Session> Record(const std::string& address,
                              const Honest& honest) {
    Relay relay(listener_directory(), address);
    for (int i = 0; i < 3; ++i) Must(honest(relay.address()));
    std::vector<Session> sessions = relay.Finish();
    std::erase_if(sessions, [](const Session& each) { return each.empty(); });
    EXPECT_GE(sessions.size(), 3u);
    return sessions;
  }

  static std::vector<absl::Duration> Times(const std::string& address,
                                           const Honest& honest,
                                           const std::function<bool()>& more) {
    std::vector<absl::Duration> times;
    while (more()) {
      const absl::Time start = absl::Now();
      const absl::Status done = honest(address);
      EXPECT_TRUE(done.ok()) << done;
      if (!done.ok()) break;
      times.push_back(absl::Now() - start);
    }
    return times;
  }

  static absl::Duration SlowOf(std::vector<absl::Duration> times) {
    if (times.empty()) return absl::ZeroDuration();
    std::ranges::sort(times);
    return times[(times.size() * 99 - 1) / 100];
  }
};

TEST_F(Hostile, AnEndpointServesOn) {
  Target target("endpoint", listener(), listener_directory());
  AddressedTicket memory = Must(ParseTicketString(target.says().at(0)));
  AddressedPool pool = Must(ParsePoolString(target.says().at(1)));
  const std::string server = memory.invitation.address;
  Attack(target, server, [&](const std::string& address) {
    memory.invitation.address = pool.invitation.address = address;
    RETURN_IF_ERROR(
        OpenTicket(driver(), FormatTicketString(memory), {}, Late()).status());
    return ImportedPool::Subscribe(driver(), FormatPoolString(pool), {}, Late())
        .status();
  });
  target.End();
}

TEST_F(Hostile, AKeeperServesOn) {
  Target target("keeper", listener(), listener_directory());
  const Allocation memory = MakePattern(kGranule, 1);
  // Has the writer lock when it gives up, and so says kAbort.
  const auto create_and_give_up = [&](const std::string& address,
                                      const std::string& name) -> absl::Status {
    ASSIGN_OR_RETURN(KeeperClient keeper,
                     KeeperClient::Connect({.address = address}, Late()));
    const auto fails = keeper.AttachOrCreate(
        name, kGranule, driver(), {},
        []() -> absl::StatusOr<Allocation> { return absl::AbortedError(""); },
        Late());
    if (fails.ok()) return absl::InternalError("made of nothing");
    RETURN_IF_ERROR(keeper
                        .AttachOrCreate(
                            name, kGranule, driver(), {},
                            [&] { return Make(kGranule); }, Late())
                        .status());
    keeper.List(absl::InfinitePast()).status().IgnoreError();
    ASSIGN_OR_RETURN(KeeperClient other,
                     KeeperClient::Connect({.address = address}, Late()));
    return other.Drop(name, Late());
  };
  int names = 0;
  const auto honest = [&](const std::string& address) -> absl::Status {
    const std::string name = absl::StrCat("honest-", ++names);
    ASSIGN_OR_RETURN(KeeperClient keeper,
                     KeeperClient::Connect({.address = address}, Late()));
    RETURN_IF_ERROR(keeper.Put(name, memory.shareable(), Late()));
    RETURN_IF_ERROR(keeper.Unlock(name, Late()));
    RETURN_IF_ERROR(keeper.Lock(name, Late()));
    RETURN_IF_ERROR(keeper.Seal(name, Late()));
    ASSIGN_OR_RETURN(const ImportedAllocation kept,
                     keeper.Attach(name, driver(), {}, Late()));
    ASSIGN_OR_RETURN(const Allocation next,
                     Allocation::Create(device, {.size = kGranule}));
    RETURN_IF_ERROR(
        keeper.Replace(name, next.shareable(), kept.ticket().id, Late()));
    RETURN_IF_ERROR(keeper.List(Late()).status());
    RETURN_IF_ERROR(keeper.Drop(name, Late()));
    return create_and_give_up(address, name);
  };
  // Memory that is what it should be was kept, whoever sent it.
  const auto forget = [&] {
    KeeperClient keeper =
        Must(KeeperClient::Connect({.address = target.says().at(0)}, Late()));
    for (const KeptMemory& kept : Must(keeper.List(Late())).memory) {
      Must(keeper.Drop(kept.name, Late()));
    }
  };
  Attack(target, target.says().at(0), honest, forget,
         {keeper::kPut, keeper::kLock, keeper::kUnlock, keeper::kSeal,
          keeper::kAttach, keeper::kAttachOrCreate, keeper::kAbandon,
          keeper::kReplace, keeper::kList, keeper::kDrop, keeper::kGoodbye,
          protocol::kAbort});
  target.End();
}

TEST_F(Hostile, TheWriterOfARingServesOn) {
  Target target("ring", listener(), listener_directory());
  const Stream stream;
  Attack(target, target.says().at(0), [&](const std::string& address) {
    ASSIGN_OR_RETURN(auto ring,
                     RingReader::Open(device, Dial(address), {}, Late()));
    for (;;) {
      const auto buffer = ring->Acquire(stream.get(), Late());
      if (absl::IsOutOfRange(buffer.status())) return ring->Finish(Late());
      RETURN_IF_ERROR(buffer.status());
      RETURN_IF_ERROR(ring->Release(*buffer, stream.get()));
    }
  });
  target.End();
}

TEST_F(Hostile, TheReaderOfARingServesOn) {
  Target target("ring", listener(), listener_directory());
  const auto home = Must(RingHome::Create(
      device, {.endpoint = {.listener = {listener_directory(), ""},
                            // Of the target, all whose visitors send it here.
                            .max_sessions = 512,
                            .max_process_sessions = 512}}));
  const Stream stream;
  Attack(target, target.says().at(1), [&](const std::string& address) {
    ASSIGN_OR_RETURN(auto ring, RingWriter::Open(*home, Dial(address),
                                                 {.buffers = kTargetRingBuffers,
                                                  .bytes = kTargetRingBytes},
                                                 Late()));
    for (int i = 0; i < kTargetRingItems; ++i) {
      ASSIGN_OR_RETURN(const RingBuffer buffer,
                       ring->Acquire(stream.get(), Late()));
      RETURN_IF_ERROR(ring->Publish(buffer, stream.get(), Late()));
    }
    return ring->Finish(Late());
  });
  target.End();
}

}  // namespace
}  // namespace vmm::testing
