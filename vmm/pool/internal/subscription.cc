#include "vmm/pool/internal/subscription.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "platform/os/start_thread.h"
#include "vmm/memory/stream_capture.h"
#include "vmm/pool/internal/share_layout.h"

namespace vmm::pool {
namespace {

// How long taking leave may wait for an owner that does not read.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<Subscription>> Subscription::Start(
    const platform::Driver& driver, platform::Channel channel,
    std::unique_ptr<SharedTableView> table, const ImportOptions& options) {
  absl::StatusOr<platform::CancelEvent> stop = platform::CancelEvent::Create();
  if (!stop.ok()) {
    SendBye(channel, Deadline::In(kLeaveTimeout)).IgnoreError();
    return stop.status();
  }
  const SharedTableView* const view = table.get();
  std::unique_ptr<Subscription> made(new Subscription(
      driver, std::move(channel), *std::move(stop), std::move(table), options));
  RETURN_IF_ERROR(platform::StartThread(
      made->receiver_, "vmmshare-recv", kThreadsAreFor,
      [raw = made.get(), view] { raw->ReceiveLoop(*view); }));
  return made;
}

Subscription::Subscription(const platform::Driver& driver,
                           platform::Channel channel,
                           platform::CancelEvent stop,
                           std::unique_ptr<SharedTableView> table,
                           const ImportOptions& options)
    : driver_(driver),
      options_(options),
      table_(std::move(table)),
      channel_(std::move(channel)),
      stop_(std::move(stop)) {}

Subscription::~Subscription() {
  stop_.Notify();
  {
    platform::MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  if (receiver_.joinable()) receiver_.join();
  if (releaser_.joinable()) releaser_.join();
  const RelaxedCapture relaxed(driver_);
  for (const Batch& batch : releasing_) {
    platform::ReportReleaseFailure(
        driver_.Error(driver_->cuEventSynchronize(batch.point.get().event),
                      "cuEventSynchronize() of blocks to be given back"));
    GiveBack(batch.places);
  }
  platform::Check(imported_ == 0,
                  "an ImportedPool is destroyed while ImportedBlocks of it "
                  "live; destroy them first");
  releasing_.clear();
  segments_.clear();
  kept_.clear();
  // Only now is it true. If it cannot be sent, be it for want of memory, the owner
  // waits for the end of this process instead.
  try {
    SendBye(channel_, Deadline::In(kLeaveTimeout)).IgnoreError();
  } catch (const std::bad_alloc&) {
  }
}

absl::StatusOr<ImportedBlock> Subscription::Import(const PoolTicket& ticket,
                                                   Deadline deadline) {
  platform::MutexLock lock(mutex_);
  RETURN_IF_ERROR(table_->Acquire(ticket));
  const absl::StatusOr<Segment*> segment = Locate(ticket, deadline);
  if (segment.ok()) [[likely]] {
    return BlockOf(**segment, ticket);
  }
  table_->Release(ticket.slot);
  return segment.status();
}

absl::StatusOr<std::vector<ImportedBlock>> Subscription::ImportAll(
    absl::Span<const PoolTicket> tickets, Deadline deadline) {
  std::vector<ImportedBlock> blocks;
  blocks.reserve(tickets.size());
  while (!tickets.empty()) {
    const absl::Span<const PoolTicket> some = tickets.subspan(0, kBlocksAtOnce);
    RETURN_IF_ERROR(ImportSome(some, deadline, blocks));
    tickets.remove_prefix(some.size());
  }
  return blocks;
}

absl::Status Subscription::ImportSome(absl::Span<const PoolTicket> tickets,
                                      Deadline deadline,
                                      std::vector<ImportedBlock>& out) {
  platform::MutexLock lock(mutex_);
  RETURN_IF_ERROR(table_->Acquire(tickets));
  for (std::size_t i = 0; i < tickets.size(); ++i) {
    const absl::StatusOr<Segment*> segment = Locate(tickets[i], deadline);
    if (!segment.ok()) [[unlikely]] {
      for (const PoolTicket& ticket : tickets.subspan(i)) {
        table_->Release(ticket.slot);
      }
      return segment.status();
    }
    out.push_back(BlockOf(**segment, tickets[i]));
  }
  return absl::OkStatus();
}

Subscription::Segments::iterator Subscription::FindSegment(
    std::uint32_t number) {
  if (recent_ != segments_.end() && recent_->first == number) return recent_;
  const auto found = segments_.find(number);
  if (found != segments_.end()) recent_ = found;
  return found;
}

absl::StatusOr<Subscription::Segment*> Subscription::Locate(
    const PoolTicket& ticket, Deadline deadline) {
  for (;;) {
    const auto found = FindSegment(ticket.segment);
    if (found != segments_.end()) {
      ASSIGN_OR_RETURN(const bool is_here, IsHere(found->second, ticket));
      if (is_here) return &found->second;
    }
    if (!connection_.ok()) {
      return absl::UnavailableError(
          absl::StrCat("the memory of the ", ticket.Describe(),
                       " has not come: ", connection_.message()));
    }
    if (deadline.Passed()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the memory of the ", ticket.Describe(), " has not come yet",
          lacking_.ok() ? "" : ": ", lacking_.message()));
    }
    changed_.WaitFor(mutex_, deadline.Slice());
  }
}

absl::StatusOr<bool> Subscription::IsHere(const Segment& first,
                                          const PoolTicket& ticket) const {
  if (!first.memory.ok()) return first.memory.status();
  if (ticket.offset <= first.size && ticket.size <= first.size - ticket.offset)
      [[likely]] {
    return true;
  }
  const SegmentPlace& place = first.place;
  if (ticket.offset >= first.size ||
      ticket.size >
          place.size - std::min(place.size, place.offset + ticket.offset)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the ", ticket.Describe(), " ends outside of its segment, which has ",
        first.size, " bytes", place.range == 0 ? "" : ", and of its range"));
  }
  const std::uint64_t end = place.offset + ticket.offset + ticket.size;
  for (std::uint64_t at = place.offset + first.size; at < end;) {
    const auto next = placed_.find({place.range, at});
    if (next == placed_.end()) return false;
    const Segment& segment = segments_.find(next->second)->second;
    if (!segment.memory.ok()) return segment.memory.status();
    at += segment.size;
  }
  return true;
}

Subscription::Segments::iterator Subscription::Next(const Segment& segment) {
  const auto next =
      placed_.find({segment.place.range, segment.place.offset + segment.size});
  return next == placed_.end() ? segments_.end() : segments_.find(next->second);
}

ImportedBlock Subscription::BlockOf(Segment& segment,
                                    const PoolTicket& ticket) {
  ++segment.blocks;
  segment.used = true;
  std::uint64_t end = ticket.offset + ticket.size;
  for (Segment* part = &segment; end > part->size;) {
    end -= part->size;
    part = &Next(*part)->second;
    ++part->blocks;
    part->used = true;
  }
  ++imported_;
  return ImportedBlock(this, segment.memory->address() + ticket.offset,
                       ticket.size, ticket.segment, ticket.slot);
}

}  // namespace vmm::pool
