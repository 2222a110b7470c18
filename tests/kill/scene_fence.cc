// Two fences by which two processes take turns, with streams and hosts that
// wait.
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/gpu/stream.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/kill/scenes.h"
#include "tests/support/steps.h"
#include "vmm/share/endpoint.h"
#include "vmm/sync/fence.h"
#include "vmm/sync/fence_pool.h"

namespace vmm::testing {
namespace {

constexpr std::uint64_t kRounds = 3;

// Ends waits on the host when the other one hangs up or ends.
FenceWatch WatchOf(Party& me) {
  FenceWatch watch;
  watch.signaller = &me.peer();
  watch.still_worth = [&me] {
    const absl::Status hung_up = me.link().WaitForHangUp(absl::InfinitePast());
    return hung_up.ok() ? absl::UnavailableError("the other party hung up")
           : absl::IsDeadlineExceeded(hung_up) ? absl::OkStatus()
                                               : hung_up;
  };
  return watch;
}

// Waits on the host; measured. A watch costs a system call a look, so the
// importer, whose steps are counted more often than the owner's, has none.
absl::Status Await(Party& me, Fence& fence, std::uint64_t value) {
  return me.Try("Fence::WaitOnHost", Again::kYes, [&](absl::Time deadline) {
    return fence.WaitOnHost(value, deadline, WatchOf(me));
  });
}

// What who has lost the other one does: nobody waits for ever.
void LetGo(Fence& fence, const Stream& stream) {
  EXPECT_TRUE(fence.Abandon().ok());
  stream.Sync();
  EXPECT_TRUE(absl::IsAborted(fence.Query().status()));
}

absl::Status TakeTurns(Party& me, Fence& mine, Fence& theirs, bool first) {
  const Stream stream;
  absl::Status done;
  for (std::uint64_t round = 1; round <= kRounds && done.ok(); ++round) {
    if (!first) done = theirs.Wait(stream.get(), round);
    MarkStep("before it signals");
    // By turns from the stream and from the host.
    if (done.ok() && round % 2 == 1) done = mine.Signal(stream.get(), round);
    if (done.ok() && round % 2 == 0) {
      if (!first) done = Await(me, theirs, round);
      if (done.ok()) done = mine.SignalFromHost(round);
    }
    MarkStep("after it signalled");
    if (done.ok() && first) done = theirs.Wait(stream.get(), round);
    if (done.ok()) done = Await(me, theirs, round);
  }
  if (!done.ok()) LetGo(theirs, stream);
  return done;
}

std::string Hex(const FenceTicket& ticket) {
  return ToHex(EncodeFenceTicket(ticket));
}

}  // namespace

absl::Status OwnFences(Party& me) {
  const std::unique_ptr<FencePool> fences =
      Must(FencePool::Create(me.device()));
  const std::unique_ptr<Endpoint> endpoint =
      Must(Endpoint::Start({.listener = {.directory = me.directory()}}));
  const Share served = Must(endpoint->Serve(fences->pool()));
  absl::Status done;
  {
    Fence ping = Must(fences->New());
    Fence pong = Must(fences->New());
    done = me.Tell(absl::StrCat(served.ticket(), " ",
                                Hex(Must(fences->Export(ping))), " ",
                                Hex(Must(fences->Export(pong)))));
    if (done.ok()) done = TakeTurns(me, ping, pong, /*first=*/true);
    if (done.ok()) done = me.Hear().status();
  }
  me.HearTheRest();
  me.PeerIsLost();
  // What the importer had comes back.
  ExpectSoon([&] {
    Must(fences->pool().Trim());
    const PoolStatistics now = fences->pool().statistics();
    return now.held == 0 && now.peers == 0 && now.live_blocks == 0 &&
           now.reserved == 0;
  });
  EXPECT_EQ(fences->statistics().fences, 0u);
  EXPECT_EQ(fences->statistics().waiting, 0u);
  // A new one begins at 0, whatever has become of its memory before.
  const Fence next = Must(fences->New());
  EXPECT_EQ(Must(next.Query()), 0u);
  return done;
}

absl::Status ImportFences(Party& me) {
  absl::StatusOr<std::string> words = me.Hear();
  if (!words.ok()) return words.status();
  std::istringstream in(*words);
  std::string text, ping_ticket, pong_ticket;
  in >> text >> ping_ticket >> pong_ticket;
  absl::StatusOr<std::unique_ptr<ImportedFencePool>> fences = me.Try(
      "ImportedFencePool::Subscribe", Again::kYes, [&](absl::Time deadline) {
        return ImportedFencePool::Subscribe(
            me.driver(), text, {.devices = {me.device()}}, deadline);
      });
  if (!fences.ok()) return fences.status();
  const auto import = [&](const std::string& ticket) {
    return me.Try("ImportedFencePool::Import", Again::kYes,
                  [&](absl::Time deadline) {
                    return (*fences)->Import(
                        Must(DecodeFenceTicket(FromHex(ticket))), deadline);
                  });
  };
  absl::StatusOr<Fence> ping = import(ping_ticket);
  if (!ping.ok()) return ping.status();
  absl::StatusOr<Fence> pong = import(pong_ticket);
  if (!pong.ok()) return pong.status();
  MarkStep("after it imported the fences");
  absl::Status done = TakeTurns(me, *pong, *ping, /*first=*/false);
  if (done.ok()) done = me.Tell("done");
  return done;
}

}  // namespace vmm::testing
