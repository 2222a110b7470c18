#include "vmm/job/symmetric.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fabric/job_card.h"
#include "fabric/job_matrix.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "vmm/job/internal/offer.h"

namespace vmm::job {
namespace {

using fabric::JobCard;
using fabric::Refusal;

// What all ranks conclude from the same cards, and so all alike.
absl::Status Agree(const std::vector<JobCard>& cards) {
  std::string sizes;
  bool differ = false;
  for (const JobCard& card : cards) {
    if (!card.trouble.empty()) return card.trouble.ToStatus(card.Describe());
    differ |= card.requested_size != cards.front().requested_size;
    absl::StrAppend(&sizes, sizes.empty() ? "" : ", ", card.Describe(), " ",
                    card.requested_size);
  }
  if (!differ) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "symmetric memory needs one size, and the ranks ask for bytes: ", sizes,
      ". Give SymmetricOptions::size (in Python nbytes) the same value on "
      "every rank."));
}

}  // namespace

// Builds one, on one rank, from everybody's cards.
class SymmetricMemory::Builder {
 public:
  Builder(const Device& device, const SymmetricOptions& options,
          const std::vector<JobCard>& cards, const JobCard& mine,
          Deadline deadline)
      : device_(device),
        options_(options),
        cards_(cards),
        mine_(mine),
        deadline_(deadline) {
    memory_.rank_ = static_cast<int>(mine.rank);
    memory_.size_ = mine.requested_size;
    memory_.parts_.resize(cards.size());
  }

  // Everything but the own memory, which is still being published.
  Refusal MapPeers() {
    if (options_.one_range) {
      absl::Status reserved = Reserve();
      if (!reserved.ok()) {
        return Refuse(
            reserved, "no-addresses",
            "Without one_range each rank's memory gets addresses of its own.");
      }
    }
    const std::size_t ranks = cards_.size();
    for (std::size_t step = 1; step < ranks; ++step) {
      Refusal refusal = MapPeer((mine_.rank + step) % ranks);
      if (!refusal.empty()) return refusal;
    }
    return {};
  }

  Refusal MapOwn(Allocation& own) {
    Part& part = memory_.parts_[mine_.rank];
    part.address = own.address();
    if (memory_.range_ == nullptr) return {};
    absl::Status moved = MoveIntoRange(own, part);
    if (moved.ok()) return {};
    return Refuse(moved, "no-mapping",
                  "docs/errors.md has the driver's results one by one.");
  }

  SymmetricMemory Finish(Allocation own) && {
    memory_.own_ = std::move(own);
    return std::move(memory_);
  }

 private:
  absl::Status Reserve() {
    // Ranks may round differently: handles of another kind, other devices.
    for (const JobCard& card : cards_) {
      memory_.stride_ = std::max(memory_.stride_, card.mapped_size);
    }
    if (memory_.stride_ > UINT64_MAX / cards_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(cards_.size(), " ranks of ", memory_.stride_,
                       " bytes are more than there are addresses"));
    }
    ASSIGN_OR_RETURN(AddressRange range,
                     AddressRange::Reserve(device_.driver(),
                                           memory_.stride_ * cards_.size()));
    memory_.range_ = std::make_shared<AddressRange>(std::move(range));
    return absl::OkStatus();
  }

  Refusal MapPeer(std::size_t rank) {
    const JobCard& owner = cards_[rank];
    ImportOptions how;
    how.grants = {{Location::On(device_), options_.access}};
    if (memory_.range_ != nullptr) {
      how.at = Placement{memory_.range_, rank * memory_.stride_};
    }
    std::vector<fabric::JobTry> tries;
    for (HandleKind kind : JobKinds(options_.sharing)) {
      Refusal refusal = RefusedByCards(mine_, owner, kind);
      if (refusal.empty()) {
        const bool had_time = !deadline_.Passed();
        absl::StatusOr<ImportedAllocation> imported =
            ImportFrom(device_, owner, kind, how, options_.job, deadline_);
        if (imported.ok() && imported->size() != owner.mapped_size) {
          imported = absl::DataLossError(absl::StrCat(
              imported->size(), " bytes came; expected ", owner.mapped_size));
        }
        if (imported.ok()) {
          memory_.parts_[rank] = {imported->address(), kind,
                                  *std::move(imported)};
          return {};
        }
        refusal = Explain(imported.status(), mine_, owner, kind, had_time);
      }
      tries.push_back({CudaKind(kind), std::move(refusal)});
    }
    if (tries.empty()) {
      return {absl::StatusCode::kInvalidArgument,
              {"private", "symmetric memory cannot be private",
               "Name a kind in SymmetricOptions::sharing."}};
    }
    Refusal all = fabric::Telling(tries).refusal;
    all.finding.text =
        absl::StrCat("it cannot map memory of ", owner.Describe(), ": ",
                     fabric::ReasonsText(tries));
    return all;
  }

  // The address the memory was made at stays reserved, and is not used.
  absl::Status MoveIntoRange(Allocation& own, Part& part) {
    RETURN_IF_ERROR(own.Unmap());
    const CUdeviceptr to =
        memory_.range_->base() + mine_.rank * memory_.stride_;
    ASSIGN_OR_RETURN(
        OwnedMapping mapping,
        MapChunks(device_.driver(), to, *own.shareable().memory()));
    RETURN_IF_ERROR(SetAccess(mapping, Location::On(device_),
                              {{Location::On(device_), Access::kReadWrite}}));
    memory_.own_mapping_ = std::move(mapping);
    part.address = to;
    return absl::OkStatus();
  }

  const Device& device_;
  const SymmetricOptions& options_;
  const std::vector<JobCard>& cards_;
  const JobCard& mine_;
  Deadline deadline_;
  SymmetricMemory memory_;
};

absl::StatusOr<SymmetricMemory> SymmetricMemory::Create(
    const absl::StatusOr<Device>& device, fabric::Exchange& exchange,
    const SymmetricOptions& options, Deadline deadline) {
  const absl::Duration time = deadline.Left();
  Deadline map_by = Deadline::In(time * 0.8);

  Offer offer =
      Offer::Make(device, options.size, options.sharing, exchange, options.job);
  const Deadline come_by = Deadline::In(time / 2);
  fabric::Gathered gathered = fabric::Gather(
      exchange, "ticket", fabric::EncodeCard(offer.card()), come_by);
  RETURN_IF_ERROR(gathered.status);
  ASSIGN_OR_RETURN(const std::vector<JobCard> cards,
                   fabric::ReadCards(gathered.records));
  RETURN_IF_ERROR(Agree(cards));
  // MPI, say, waits for a rank as long as that takes, whatever it is told. The
  // others have come, and are not to be called dead for that: the other half of
  // the time begins here.
  if (come_by.Passed()) {
    map_by = Deadline::In(time * 0.3);
    deadline = Deadline::In(time / 2);
  }

  Builder builder(*device, options, cards, offer.card(), map_by);
  Refusal mapped = builder.MapPeers();
  if (mapped.empty()) mapped = builder.MapOwn(*offer.memory());
  // Nobody's endpoint ends before this round does, so all could import.
  gathered = fabric::Gather(exchange, "outcome", fabric::EncodeVerdict(mapped),
                            deadline);
  RETURN_IF_ERROR(gathered.status);
  for (std::size_t rank = 0; rank < gathered.records.size(); ++rank) {
    const std::string who = cards[rank].Describe();
    absl::StatusOr<Refusal> verdict =
        fabric::DecodeVerdict(*gathered.records[rank]);
    if (!verdict.ok()) return platform::Annotate(verdict.status(), who);
    if (!verdict->empty()) return verdict->ToStatus(who);
  }
  return std::move(builder).Finish(std::move(offer).TakeMemory());
}

}  // namespace vmm::job
