// A keeper, and a client that creates memory, seals it, and keeps some more.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "tests/ipc/keeper_ipc_test.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/kill/scenes.h"
#include "vmm/keeper/internal/server.h"
#include "vmm/keeper/keeper.h"

namespace vmm::testing {
namespace {

constexpr std::uint64_t kBytes = 64 << 10;
constexpr std::uint64_t kWeights = 1;  // The pattern of what is sealed,
constexpr std::uint64_t kScratch = 2;  // and of what is not.

absl::StatusOr<AttachedOrCreated> AttachOrCreate(
    Party& me, Again again, KeeperClient& client,
    const std::function<absl::Status()>& before_it_creates) {
  return me.Try(
      "KeeperClient::AttachOrCreate", again, [&](absl::Time deadline) {
        return client.AttachOrCreate(
            "weights", kBytes, me.driver(), {.until_sealed = true},
            [&]() -> absl::StatusOr<Allocation> {
              absl::Status said = before_it_creates();
              if (!said.ok()) return said;
              return Allocation::Create(me.device(), {.size = kBytes});
            },
            deadline);
      });
}

// Fills and seals memory if this process has to; it is complete then.
absl::Status Complete(Party& me, KeeperClient& client,
                      const AttachedOrCreated& weights) {
  Contents contents(weights.address(), kBytes, {kWeights});
  if (weights.outcome == KeptMemoryFrom::kAttached) return absl::OkStatus();
  contents.Write(kWeights);
  return me.Try("KeeperClient::Seal", Again::kNo, [&](absl::Time deadline) {
    return client.Seal("weights", deadline);
  });
}

// Puts memory and drops it again.
absl::Status KeepScratch(Party& me, KeeperClient& client) {
  const absl::StatusOr<Allocation> memory =
      Allocation::Create(me.device(), {.size = kBytes});
  if (!memory.ok()) return memory.status();
  Contents contents(memory->address(), kBytes, {kScratch});
  contents.Write(kScratch);
  absl::Status done =
      me.Try("KeeperClient::Put", Again::kNo, [&](absl::Time deadline) {
        return client.Put("scratch", memory->shareable(), deadline);
      });
  if (!done.ok()) return done;
  done = me.Try("KeeperClient::Unlock", Again::kNo, [&](absl::Time deadline) {
    return client.Unlock("scratch", deadline);
  });
  if (!done.ok()) return done;
  done = me.Try("KeeperClient::Lock", Again::kNo, [&](absl::Time deadline) {
    return client.Lock("scratch", deadline);
  });
  if (!done.ok()) return done;
  return me.Try("KeeperClient::Drop", Again::kNo, [&](absl::Time deadline) {
    return client.Drop("scratch", deadline);
  });
}

// For calls that no client that stands still keeps waiting.
absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

// What the client had come to with the other memory, once it has ended or is
// done: that is there whole and can be locked, or is not there.
void ExpectScratchWholeOrGone(Party& me, KeeperClient& client,
                              const std::string& address) {
  const absl::Status locked =
      me.Try("KeeperClient::Lock", Again::kYes, [&](absl::Time deadline) {
        const absl::Status status = client.Lock("scratch", deadline);
        // On a busy machine the keeper answers after a deadline as near as the
        // first, which ends the connection.
        if (absl::IsDeadlineExceeded(status) &&
            absl::StrContains(status.message(), "connect anew")) {
          client = Must(KeeperClient::Connect({.address = address}, Soon()));
        }
        return status;
      });
  if (absl::IsNotFound(locked)) return;
  EXPECT_TRUE(locked.ok()) << locked;
  const absl::StatusOr<ImportedAllocation> memory =
      me.Now("KeeperClient::Attach", [&] {
        return client.Attach("scratch", me.driver(), {.expected_size = kBytes},
                             Soon());
      });
  EXPECT_TRUE(memory.ok()) << memory.status();
  if (!memory.ok()) return;
  const Contents contents(memory->address(), kBytes, {kScratch});
  const absl::Status dropped = me.Now(
      "KeeperClient::Drop", [&] { return client.Drop("scratch", Soon()); });
  EXPECT_TRUE(dropped.ok()) << dropped;
}

}  // namespace

// The keeper's process has a client of its own, which waits for the same
// memory.
absl::Status RunKeeper(Party& me) {
  absl::StatusOr<std::unique_ptr<keeper::Server>> server =
      keeper::Server::Start({.address = KeeperAddressIn(me.directory())},
                            absl::NotFoundError("none in this test"), {});
  if (!server.ok()) return server.status();
  absl::Status done = me.Tell((*server)->address());
  if (done.ok()) done = me.Hear().status();  // "creating"
  absl::StatusOr<KeeperClient> client =
      me.Try("KeeperClient::Connect", Again::kYes, [&](absl::Time deadline) {
        return KeeperClient::Connect({.address = (*server)->address()},
                                     deadline);
      });
  if (!client.ok()) return client.status();
  const absl::StatusOr<AttachedOrCreated> weights =
      AttachOrCreate(me, Again::kYes, *client, [] { return absl::OkStatus(); });
  if (!weights.ok()) return weights.status();
  absl::Status complete = Complete(me, *client, *weights);
  if (!complete.ok()) return complete;
  if (done.ok()) done = me.Hear().status();  // "done"
  // What a client had sent before it ended may come to pass a little later, and
  // what it had only reserved goes when its end is noticed.
  ExpectSoon([&] {
    ExpectScratchWholeOrGone(me, *client, (*server)->address());
    const absl::StatusOr<KeeperListing> listed =
        me.Now("KeeperClient::List", [&] { return client->List(Soon()); });
    EXPECT_TRUE(listed.ok()) << listed.status();
    return !listed.ok() || (listed->memory.size() == 1 &&
                            listed->memory[0].state == KeptState::kSealed);
  });
  return done.ok() ? me.Tell("gone") : done;
}

absl::Status UseKeeper(Party& me) {
  const absl::StatusOr<std::string> address = me.Hear();
  if (!address.ok()) return address.status();
  absl::StatusOr<KeeperClient> client =
      me.Try("KeeperClient::Connect", Again::kNo, [&](absl::Time deadline) {
        return KeeperClient::Connect({.address = *address}, deadline);
      });
  if (!client.ok()) return client.status();
  const absl::StatusOr<AttachedOrCreated> weights = AttachOrCreate(
      me, Again::kNo, *client, [&me] { return me.Tell("creating"); });
  if (!weights.ok()) return weights.status();
  absl::Status done = Complete(me, *client, *weights);
  // It is ours, whether the keeper lives or is killed.
  const Contents contents(weights->address(), kBytes, {kWeights});
  if (done.ok()) done = KeepScratch(me, *client);
  if (done.ok()) done = me.Tell("done");
  if (done.ok()) done = me.Hear().status();  // "gone"
  return done;
}

}  // namespace vmm::testing
