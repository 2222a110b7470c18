#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "vmm/share/restorable.h"
#include "vmm/share/ticket.h"

namespace vmm {

RestorableImport::RestorableImport(platform::Driver driver, std::string ticket,
                                   const ImportOptions& options,
                                   platform::PeerPolicy owners, Placement at)
    : driver_(std::move(driver)),
      ticket_(std::move(ticket)),
      options_(options),
      owners_(std::move(owners)),
      at_(std::move(at)) {
  options_.at = at_;
}

absl::StatusOr<RestorableImport> RestorableImport::Open(
    const platform::Driver& driver, absl::string_view ticket,
    const ImportOptions& options, Deadline deadline,
    const platform::PeerPolicy& owners) {
  ASSIGN_OR_RETURN(const AddressedTicket parsed, ParseTicketString(ticket));
  RETURN_IF_ERROR(CheckUsableHere(parsed.ticket, driver));
  if (!IsVmm(parsed.ticket.kind)) {
    return absl::UnimplementedError(absl::StrCat(
        "RestorableImport::Open of ", parsed.ticket.Describe(),
        "; only cuMemCreate()'s can be released and restored. Open it with "
        "OpenTicket(), and let go of it by destroying that."));
  }
  Placement at;
  if (options.at.has_value()) {
    at = *options.at;
  } else {
    ASSIGN_OR_RETURN(AddressRange range,
                     AddressRange::Reserve(driver, parsed.ticket.layout.size,
                                           options.alignment));
    at.range = std::make_shared<const AddressRange>(std::move(range));
  }
  RestorableImport made(driver, std::string(ticket), options, owners,
                        std::move(at));
  RETURN_IF_ERROR(made.Restore(deadline));
  made.size_ = made.memory_->size();
  made.requested_size_ = made.memory_->requested_size();
  return made;
}

const ImportedAllocation& RestorableImport::memory() const {
  platform::Check(memory_.has_value(),
                  "the import was released; Restore() it first");
  return *memory_;
}

LeaseStatus RestorableImport::lease() const {
  if (memory_.has_value()) return memory_->lease();
  return {absl::FailedPreconditionError(
              "the import is released, so its owner has no lease of it; "
              "Restore() it first"),
          std::nullopt};
}

absl::Status RestorableImport::Release() {
  if (is_released()) {
    return absl::FailedPreconditionError(
        "Release of an import that is released; Restore() it first");
  }
  const absl::Status unmapped = memory_->Unmap();
  memory_.reset();  // And only then the lease is returned.
  return unmapped;
}

absl::Status RestorableImport::Restore(Deadline deadline) {
  if (!is_released()) {
    return absl::FailedPreconditionError(
        "Restore of an import that is not released");
  }
  ASSIGN_OR_RETURN(memory_,
                   OpenTicket(driver_, ticket_, options_, deadline, owners_));
  return absl::OkStatus();
}

}  // namespace vmm
