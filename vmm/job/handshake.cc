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

// The nonce is in the memory when this returns: whoever is told of it next may
// be another rank, whose reads nothing else orders after ours.
absl::Status Write(const Driver& driver, CUdeviceptr to, const Nonce& nonce) {
  ASSIGN_OR_RETURN(const OwnedStream own, MakeOwnStream(driver));
  const CUstream stream = own.get().stream;
  absl::Status written = driver.Error(
      driver->cuMemcpyHtoDAsync(to, nonce.data(), nonce.size(), stream),
      "cuMemcpyHtoDAsync(trial memory)");
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

// This rank's part: its device, its context, its card.
class Self {
 public:
  Self(const absl::StatusOr<Device>& device, fabric::Exchange& exchange,
       const HandshakeOptions& options)
      : device_(device),
        options_(options),
        offer_(Offer::Make(device, kTrialBytes, JobSharing(), exchange,
                           options.job)) {
    if (!offer_.card().trouble.empty()) return;
    const absl::Status ready = Prepare();
    if (!ready.ok()) {
      offer_.card().trouble =
          Refuse(ready, "no-context",
                 "`vmmshare doctor --touch` on that host says more.");
    }
  }

  const JobCard& card() const { return offer_.card(); }

  // Tries every kind with `owner` until one works.
  std::vector<JobTry> TryAll(const JobCard& owner, Deadline deadline) {
    std::vector<JobTry> tries;
    const SharePolicy sharing = JobSharing();
    for (HandleKind kind : sharing.kinds()) {
      JobTry& one = tries.emplace_back();
      one.kind = CudaKind(kind);
      one.by_cards = !RefusedByCards(card(), owner, kind).empty();
      if (one.by_cards) continue;
      const bool had_time = !deadline.Passed();
      const absl::Status tried = Try(owner, kind, deadline);
      if (!tried.ok()) {
        one.refusal = Explain(tried, card(), owner, kind, had_time);
      }
      if (one.ok() && !options_.try_all_kinds) break;
    }
    return tries;
  }

 private:
  absl::Status Prepare() {
    ASSIGN_OR_RETURN(context_, PrimaryContext::Retain(*device_));
    ASSIGN_OR_RETURN(current_, context_->MakeCurrent());
    Nonce nonce{};
    RETURN_IF_ERROR(platform::FillRandom(absl::MakeSpan(nonce)));
    offer_.card().nonce = nonce;
    return Write(device_->driver(), offer_.memory()->address(), nonce);
  }

  absl::Status Try(const JobCard& owner, HandleKind kind, Deadline deadline) {
    const Driver& driver = device_->driver();
    ASSIGN_OR_RETURN(
        const ImportedAllocation memory,
        ImportFrom(*device_, owner, kind,
                   {.grants = {{Location::On(*device_), Access::kReadWrite}}},
                   options_.job, deadline));
    if (memory.size() < kTrialBytes) {
      return absl::DataLossError(absl::StrCat(
          memory.size(), " bytes of trial memory; expected ", kTrialBytes));
    }
    RETURN_IF_ERROR(Expect(driver, memory.address(), owner.nonce, "its owner"));
    Nonce mine{};
    RETURN_IF_ERROR(platform::FillRandom(absl::MakeSpan(mine)));
    const CUdeviceptr slot = memory.address() + SlotOf(card().rank);
    RETURN_IF_ERROR(Write(driver, slot, mine));
    return Expect(driver, slot, mine, "this rank");
  }

  absl::StatusOr<Device> device_;
  const HandshakeOptions& options_;
  Offer offer_;
  std::optional<PrimaryContext> context_;
  std::optional<CurrentContext> current_;
};

std::vector<absl::StatusOr<JobRow>> NoRows(std::size_t ranks,
                                           const absl::Status& why) {
  return std::vector<absl::StatusOr<JobRow>>(ranks, why);
}

// What is known of an incomplete round, by rank. `rank` and `ranks` of a card
// are checked as in a complete one.
template <typename T, typename Read>
std::vector<absl::StatusOr<T>> ReadEach(
    const std::vector<absl::StatusOr<fabric::Bytes>>& records, Read read) {
  std::vector<absl::StatusOr<T>> all;
  all.reserve(records.size());
  for (const absl::StatusOr<fabric::Bytes>& record : records) {
    all.push_back(record.ok() ? read(*record)
                              : absl::StatusOr<T>(record.status()));
  }
  return all;
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
  const auto ranks = static_cast<std::size_t>(exchange.size());

  std::optional<RelaxedCapture> relaxed;
  if (device.ok()) relaxed.emplace(device->driver());
  Self self(device, exchange, options);
  fabric::Gathered gathered =
      fabric::Gather(exchange, "card", fabric::EncodeCard(self.card()),
                     Deadline::In(time / 2));
  absl::StatusOr<std::vector<JobCard>> cards =
      fabric::ReadCards(gathered.records);
  if (!gathered.status.ok() || !cards.ok()) {
    const absl::Status& why =
        gathered.status.ok() ? cards.status() : gathered.status;
    return {ReachMatrix(fabric::JobMatrix(
                ReadEach<JobCard>(gathered.records, &fabric::DecodeCard),
                NoRows(ranks, why))),
            why};
  }

  const std::size_t own = self.card().rank;
  std::vector<std::vector<JobTry>> found(ranks);
  // Each begins with its right neighbour, so that not all go to one at once.
  // One that hangs gets its share of the time, not that of the others.
  for (std::size_t step = 1; step < ranks; ++step) {
    const std::size_t owner = (own + step) % ranks;
    const Deadline by =
        Deadline::In(tries_by.Left() / static_cast<double>(ranks - step));
    found[owner] = self.TryAll((*cards)[owner], by);
  }
  JobRow row(self.card().rank);
  for (std::vector<JobTry>& tries : found) row.Append(std::move(tries));

  gathered = fabric::Gather(exchange, "row", fabric::EncodeRow(row), deadline);
  std::vector<absl::StatusOr<JobCard>> all_cards(cards->begin(), cards->end());
  absl::StatusOr<std::vector<JobRow>> rows = fabric::ReadRows(gathered.records);
  if (!gathered.status.ok() || !rows.ok()) {
    const absl::Status& why =
        gathered.status.ok() ? rows.status() : gathered.status;
    std::vector<absl::StatusOr<JobRow>> known =
        ReadEach<JobRow>(gathered.records, &fabric::DecodeRow);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (known[rank].ok() &&
          (known[rank]->rank() != rank || known[rank]->size() != ranks)) {
        known[rank] = why;
      }
    }
    return {
        ReachMatrix(fabric::JobMatrix(std::move(all_cards), std::move(known))),
        why};
  }
  return {ReachMatrix(fabric::JobMatrix(
              std::move(all_cards),
              std::vector<absl::StatusOr<JobRow>>(rows->begin(), rows->end()))),
          absl::OkStatus()};
}

}  // namespace vmm::job
