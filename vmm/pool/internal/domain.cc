#include "vmm/pool/internal/domain.h"

#include <new>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "platform/os/machine.h"
#include "vmm/pool/internal/range.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::pool {

absl::Status Domain::MakeTable() {
  if (table_.has_value()) return absl::OkStatus();
  DomainId id;
  RETURN_IF_ERROR(platform::FillRandom(absl::MakeSpan(id.bytes)));
  ASSIGN_OR_RETURN(table_, ShareTable::Create(id));
  return absl::OkStatus();
}

absl::StatusOr<SlotRef> Domain::Publish(const Segment& segment,
                                        std::uint64_t offset,
                                        std::uint64_t size) {
  RETURN_IF_ERROR(MakeTable());
  return table_->Publish(segment.number, offset, size);
}

bool Domain::IsQuarantined(std::uint32_t slot) const {
  bool held = false;
  for (const Peer& peer : peers_) {
    if (HoldOf(peer, slot) == 0) continue;
    if (!peer.left && peer.end == platform::PeerEnd::kNotEnded) return false;
    held = true;
  }
  return held;
}

absl::StatusOr<std::shared_ptr<SharedSegment>> Domain::Share(
    const Segment& segment) {
  ASSIGN_OR_RETURN(protocol::Outgoing outgoing,
                   protocol::MakeOutgoing(segment.allocation->shareable()));
  platform::Check(outgoing.ticket.layout.count() == 1,
                  "a segment of a pool has several chunks");
  ASSIGN_OR_RETURN(ExportedHandle handle, outgoing.handle(0));
  auto shared = std::make_shared<SharedSegment>();
  shared->number = segment.number;
  shared->ticket = std::move(outgoing.ticket);
  shared->handle = std::move(handle);
  if (segment.range != nullptr && segment.range->addresses() != nullptr) {
    shared->place = {segment.range->number(), segment.offset,
                     segment.range->size()};
  }
  return shared;
}

void Domain::AddShared(std::shared_ptr<const SharedSegment> shared) {
  const std::uint32_t number = shared->number;
  shared_.emplace(number, std::move(shared));
}

absl::Status Domain::Serve() {
  RETURN_IF_ERROR(MakeTable());
  served_ = true;
  return absl::OkStatus();
}

void Domain::StopSharing() {
  if (!served_) shared_.clear();
}

void Domain::Tell(Segment& segment, std::shared_ptr<SharedSegment> shared,
                  absl::Status* error) {
  if (!served_) return;
  platform::Check(shared != nullptr, "a segment of a served domain is secret");
  shared->number = segment.number;
  shared_.emplace(segment.number, shared);
  try {
    SendToAll(std::shared_ptr<const SharedSegment>(std::move(shared)), error);
  } catch (const std::bad_alloc&) {
    // Each one's session sends it what it was not.
    for (Peer& peer : peers_) {
      if (peer.channel != nullptr && peer.sent < segment.number) {
        LeaveToSession(peer);
      }
    }
  }
  segment.exposed = !peers_.empty();
}

void Domain::Forget(std::uint32_t number, absl::Status* error) {
  if (shared_.erase(number) == 0) return;
  for (Peer& peer : peers_) {
    const bool may_have_it = peer.sent >= number;
    if (peer.channel == nullptr && !peer.left && !peer.is_dead() &&
        may_have_it) {
      peer.to_forget.push_back(number);
    }
  }
  SendToAll(ForgetSegment{number}, error);
}

void Domain::Close() {
  absl::Status ignored;  // Nobody is left to be told.
  SendToAll(Closed(), &ignored);
  shared_.clear();
  closed_ = true;
}

}  // namespace vmm::pool
