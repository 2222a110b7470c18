// An allocation of its own that one process shares with another.
#include <memory>
#include <optional>
#include <utility>

#include "tests/ipc/vmm_ipc_test.h"
#include "tests/kill/scenes.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/transfer.h"

namespace vmm::testing {
namespace {

constexpr std::uint64_t kBytes = 64 << 10;
constexpr std::uint64_t kOwners = 1;     // The pattern that the owner writes.
constexpr std::uint64_t kImporters = 2;  // Then the importer does.
constexpr std::uint64_t kOthers = 7;     // Of memory that is not shared.

// What the owner shares, and what it keeps for itself.
struct Owned {
  explicit Owned(Party& me)
      : memory(Must(Allocation::Create(me.device(), {.size = kBytes}))),
        other(Must(Allocation::Create(me.device(), {.size = kBytes}))),
        contents(memory.address(), kBytes, {}),
        others(other.address(), kBytes, {}) {
    contents.Write(kOwners);
    others.Write(kOthers);
    contents.SetSeeds({kOwners, kImporters});
  }
  // After the importer has said that it wrote.
  absl::Status AwaitWritten(Party& me) {
    absl::StatusOr<std::string> written = me.Hear();
    if (!written.ok()) return written.status();
    contents.SetSeeds({kImporters});
    contents.Expect({kImporters});
    return absl::OkStatus();
  }

  const Allocation memory;
  const Allocation other;
  Contents contents;
  Contents others;
};

// The importer's part from when it has the memory.
absl::Status Use(Party& me, ImportedAllocation memory) {
  Contents contents(memory.address(), kBytes, {kOwners});
  contents.Expect({kOwners});
  contents.Write(kImporters);
  absl::Status told = me.Tell("written");
  // It is ours, whether the owner lives, has ended, or was killed.
  if (told.ok()) told = me.Hear().status();
  contents.Expect({kImporters});
  return told;
}

}  // namespace

absl::Status OwnPublished(Party& me) {
  std::optional<Owned> owned(me);
  absl::StatusOr<std::unique_ptr<Endpoint>> endpoint =
      Endpoint::Start({.listener = {.directory = me.directory()}});
  if (!endpoint.ok()) return endpoint.status();
  absl::StatusOr<Share> published = me.Now("Endpoint::Publish", [&] {
    return (*endpoint)->Publish(owned->memory.shareable());
  });
  if (!published.ok()) return published.status();
  absl::Status done = me.Tell(published->ticket());
  if (done.ok()) done = owned->AwaitWritten(me);
  owned.reset();
  return done.ok() ? me.Tell("gone") : done;
}

absl::Status ImportPublished(Party& me) {
  absl::StatusOr<std::string> ticket = me.Hear();
  if (!ticket.ok()) return ticket.status();
  absl::StatusOr<ImportedAllocation> memory =
      me.Try("OpenTicket", Again::kYes, [&](absl::Time deadline) {
        return OpenTicket(me.driver(), *ticket, {.access = Access::kReadWrite},
                          deadline);
      });
  if (!memory.ok()) return memory.status();
  return Use(me, *std::move(memory));
}

absl::Status OwnSent(Party& me) {
  std::optional<Owned> owned(me);
  platform::Channel channel = me.TakeSecond();
  absl::Status done =
      me.Try("SendAllocation", Again::kNo, [&](absl::Time deadline) {
        return SendAllocation(channel, owned->memory.shareable(), deadline);
      });
  if (done.ok()) {
    done = owned->AwaitWritten(me);
  } else {
    // It may have the memory all the same, and be writing: until it has said
    // that it wrote, or has hung up.
    me.Hear().IgnoreError();
  }
  owned.reset();
  return done.ok() ? me.Tell("gone") : done;
}

absl::Status ImportSent(Party& me) {
  platform::Channel channel = me.TakeSecond();
  absl::StatusOr<ImportedAllocation> memory =
      me.Try("ReceiveAllocation", Again::kNo, [&](absl::Time deadline) {
        return ReceiveAllocation(channel, me.driver(),
                                 {.access = Access::kReadWrite}, deadline);
      });
  if (!memory.ok()) return memory.status();
  return Use(me, *std::move(memory));
}

}  // namespace vmm::testing
