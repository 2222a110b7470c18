#include "vmm/job/handshake.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fabric/job_card.h"
#include "fabric/job_matrix.h"
#include "platform/base/keepable.h"
#include "platform/base/status_macros.h"
#include "platform/os/machine.h"
#include "vmm/job/internal/offer.h"
#include "vmm/memory/device.h"
#include "vmm/memory/internal/own_stream.h"
#include "vmm/memory/stream_capture.h"

namespace vmm::job {
namespace {

using fabric::JobCard;
using fabric::JobRow;
using fabric::JobTry;
using platform::Driver;

using Nonce = std::array<std::uint8_t, 16>;

// The owner's nonce is at offset 0; each importer writes at a place of its own.
constexpr std::uint64_t kTrialBytes = 2 << 20;
constexpr std::uint64_t SlotOf(std::uint32_t rank) {
  return sizeof(Nonce) * (rank + std::uint64_t{1});
}
static_assert(SlotOf(fabric::kMaxRanks) <= kTrialBytes);

// For a copy to come, however little time is left: one takes microseconds, and is
// never there at the first look.
constexpr absl::Duration kLeastPatience = absl::Seconds(1);

// The nonce is in the memory when this returns: whoever is told of it next may
// be another rank, whose reads nothing else orders after ours. Calls `keep` where it
// is not, and may come at any time: the memory must stay.
template <typename Keep>
absl::Status Write(const Driver& driver, CUdeviceptr to, const Nonce& nonce,
                   Deadline deadline, const Keep& keep) {
  ASSIGN_OR_RETURN(const OwnedStream own, MakeOwnStream(driver));
  const CUstream stream = own.get().stream;
  absl::Status written = driver.Error(
      driver->cuMemcpyHtoDAsync(to, nonce.data(), nonce.size(), stream),
      "cuMemcpyHtoDAsync(trial memory)");
  const absl::StatusOr<bool> ended =
      HasEndedBy(own, Deadline::In(std::max(deadline.Left(), kLeastPatience)));
  if (ended.ok() && !*ended) {
    keep();
    return StandsStill("a copy to trial memory in time");
  }
  written.Update(ended.status());
  written.Update(driver.Error(driver->cuStreamSynchronize(stream),
                              "cuStreamSynchronize(trial memory)"));
  return written;
}

absl::Status Expect(const Driver& driver, CUdeviceptr at, const Nonce& nonce,
                    absl::string_view who) {
  Nonce read{};
  ASSIGN_OR_RETURN(const OwnedStream own, MakeOwnStream(driver));
  const CUstream stream = own.get().stream;
  absl::Status done = driver.Error(
      driver->cuMemcpyDtoHAsync(read.data(), at, read.size(), stream),
      "cuMemcpyDtoHAsync(trial memory)");
  done.Update(driver.Error(driver->cuStreamSynchronize(stream),
                           "cuStreamSynchronize(trial memory)"));
  RETURN_IF_ERROR(done);
  if (read == nonce) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("trial memory does not hold what ", who, " wrote"));
}

// Of a rank that cannot use its own device.
fabric::Refusal NoContext(const absl::Status& status) {
  return Refuse(status, "no-context",
                "`vmmshare doctor --touch` on that host says more.");
}

// This rank's part: its device, its context, its card.
class Self {
 public:
  Self(const absl::StatusOr<Device>& device, fabric::Exchange& exchange,
       const HandshakeOptions& options, Deadline deadline)
      : device_(device),
        options_(options),
        offer_(Offer::Make(device, kTrialBytes, JobSharing(), exchange,
                           options.job)) {
    if (!offer_.card().trouble.empty()) return;
    const absl::Status ready = Prepare(deadline);
    if (!ready.ok()) offer_.card().trouble = NoContext(ready);
  }

  const JobCard& card() const { return offer_.card(); }

  // What it finds with every other rank.
  JobRow TryEach(const std::vector<JobCard>& cards, Deadline deadline) {
    const std::size_t ranks = cards.size();
    std::vector<std::vector<JobTry>> found(ranks);
    // Each begins with its right neighbour, so that not all go to one at once.
    // One that hangs gets its share of the time, not that of the others.
    for (std::size_t step = 1; step < ranks; ++step) {
      const std::size_t owner = (card().rank + step) % ranks;
      const Deadline by =
          Deadline::In(deadline.Left() / static_cast<double>(ranks - step));
      found[owner] = TryKinds(cards[owner], by);
    }
    JobRow row(card().rank);
    for (std::vector<JobTry>& tries : found) row.Append(std::move(tries));
    return row;
  }

 private:
  absl::Status Prepare(Deadline deadline) {
    ASSIGN_OR_RETURN(context_, PrimaryContext::Retain(*device_));
    ASSIGN_OR_RETURN(current_, context_->MakeCurrent());
    Nonce nonce{};
    RETURN_IF_ERROR(platform::FillRandom(absl::MakeSpan(nonce)));
    offer_.card().nonce = nonce;
    platform::Keepable<std::optional<Allocation>> kept(std::nullopt);
    return Write(device_->driver(), offer_.memory()->address(), nonce, deadline,
                 [&] {
                   *kept = std::move(offer_).TakeMemory();
                   std::move(kept).KeepForGood();
                 });
  }

  // Tries every kind with `owner` until one works.
  std::vector<JobTry> TryKinds(const JobCard& owner, Deadline deadline) {
    std::vector<JobTry> tries;
    const SharePolicy sharing = JobSharing();
    for (HandleKind kind : sharing.kinds()) {
      JobTry& one = tries.emplace_back();
      one.kind = CudaKind(kind);
      one.by_cards = !RefusedByCards(card(), owner, kind).empty();
      if (one.by_cards) continue;
      if (!stands_.empty()) {
        one.refusal = stands_;
        continue;
      }
      const bool had_time = !deadline.Passed();
      const absl::Status tried = Try(owner, kind, deadline);
      if (!tried.ok()) {
        one.refusal = stands_.empty()
                          ? Explain(tried, card(), owner, kind, had_time)
                          : stands_;
      }
      if (one.ok() && !options_.try_all_kinds) break;
    }
    return tries;
  }

  absl::Status Try(const JobCard& owner, HandleKind kind, Deadline deadline) {
    const Driver& driver = device_->driver();
    ASSIGN_OR_RETURN(
        ImportedAllocation imported,
        ImportFrom(*device_, owner, kind,
                   {.grants = {{Location::On(*device_), Access::kReadWrite}}},
                   options_.job, deadline));
    platform::Keepable memory(std::move(imported));
    const CUdeviceptr base = memory->address();
    if (memory->size() < kTrialBytes) {
      return absl::DataLossError(absl::StrCat(
          memory->size(), " bytes of trial memory; expected ", kTrialBytes));
    }
    RETURN_IF_ERROR(Expect(driver, base, owner.nonce, "its owner"));
    Nonce mine{};
    RETURN_IF_ERROR(platform::FillRandom(absl::MakeSpan(mine)));
    const CUdeviceptr slot = base + SlotOf(card().rank);
    bool stands = false;
    const absl::Status written = Write(driver, slot, mine, deadline, [&] {
      std::move(memory).KeepForGood();
      stands = true;
    });
    if (stands) stands_ = fabric::OfRank(card(), NoContext(written));
    RETURN_IF_ERROR(written);
    return Expect(driver, slot, mine, "this rank");
  }

  absl::StatusOr<Device> device_;
  const HandshakeOptions& options_;
  Offer offer_;
  std::optional<PrimaryContext> context_;
  std::optional<CurrentContext> current_;
  // Why nothing more is tried, if so: this rank's device did not write. It may yet,
  // to what stays for good, which of each further owner would be more.
  fabric::Refusal stands_;
};

// What is known of an incomplete round, by rank, as each said it.
template <typename T>
std::vector<absl::StatusOr<T>> ReadEach(
    const std::vector<absl::StatusOr<fabric::Bytes>>& records,
    absl::StatusOr<T> (*decode)(absl::Span<const std::uint8_t> bytes)) {
  std::vector<absl::StatusOr<T>> all;
  all.reserve(records.size());
  for (const absl::StatusOr<fabric::Bytes>& record : records) {
    all.push_back(record.ok() ? decode(*record)
                              : absl::StatusOr<T>(record.status()));
  }
  return all;
}

// The rows of one, with `why` in place of those that a matrix cannot have.
std::vector<absl::StatusOr<JobRow>> ReadEachRow(
    const std::vector<absl::StatusOr<fabric::Bytes>>& records,
    const absl::Status& why) {
  std::vector<absl::StatusOr<JobRow>> rows =
      ReadEach(records, &fabric::DecodeRow);
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    absl::StatusOr<JobRow>& row = rows[rank];
    if (row.ok() && (row->rank() != rank || row->size() != rows.size())) {
      row = why;
    }
  }
  return rows;
}

HandshakeResult Result(std::vector<absl::StatusOr<JobCard>> cards,
                       std::vector<absl::StatusOr<JobRow>> rows,
                       const absl::Status& status) {
  return {ReachMatrix(fabric::JobMatrix(std::move(cards), std::move(rows))),
          status};
}

}  // namespace

ReachMatrix::ReachMatrix(fabric::JobMatrix matrix)
    : matrix_(std::make_shared<const fabric::JobMatrix>(std::move(matrix))) {}

int ReachMatrix::size() const { return matrix_->size(); }

absl::Status ReachMatrix::Answered(int rank) const {
  return matrix_->card(rank).status();
}

std::optional<HandleKind> ReachMatrix::Chosen(int importer, int owner) const {
  const std::optional<CUmemAllocationHandleType> kind =
      matrix_->Chosen(importer, owner);
  if (!kind.has_value()) return std::nullopt;
  return static_cast<HandleKind>(*kind);
}

absl::Status ReachMatrix::WhyNot(int importer, int owner) const {
  return matrix_->WhyNot(importer, owner);
}

absl::Status ReachMatrix::AllReach() const { return matrix_->AllReach(); }

HandshakeResult Handshake(const absl::StatusOr<Device>& device,
                          fabric::Exchange& exchange,
                          const HandshakeOptions& options, Deadline deadline) {
  const absl::Duration time = deadline.Left();
  const Deadline tries_by = Deadline::In(time * 0.8);

  std::optional<RelaxedCapture> relaxed;
  if (device.ok()) relaxed.emplace(device->driver());
  Self self(device, exchange, options, Deadline::In(time / 4));
  fabric::Gathered gathered =
      fabric::Gather(exchange, "card", fabric::EncodeCard(self.card()),
                     Deadline::In(time / 2));
  const absl::StatusOr<std::vector<JobCard>> cards =
      gathered.status.ok() ? fabric::ReadCards(gathered.records)
                           : gathered.status;
  if (!cards.ok()) {
    return Result(ReadEach(gathered.records, &fabric::DecodeCard),
                  std::vector<absl::StatusOr<JobRow>>(gathered.records.size(),
                                                      cards.status()),
                  cards.status());
  }

  const JobRow row = self.TryEach(*cards, tries_by);
  gathered = fabric::Gather(exchange, "row", fabric::EncodeRow(row), deadline);
  const absl::StatusOr<std::vector<JobRow>> rows =
      gathered.status.ok() ? fabric::ReadRows(gathered.records)
                           : gathered.status;
  return Result({cards->begin(), cards->end()},
                rows.ok() ? std::vector<absl::StatusOr<JobRow>>(rows->begin(),
                                                                rows->end())
                          : ReadEachRow(gathered.records, rows.status()),
                rows.status());
}

}  // namespace vmm::job
