#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/base/annotate.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/internal/host_copy.h"
#include "vmm/share/internal/share_registry.h"
#include "vmm/share/restorable.h"

namespace vmm {

Fill FillFromFile(std::string path, std::uint64_t offset) {
  return [path = std::move(path), offset](const Allocation& memory) {
    return CopyFromFile(memory.device(), path, offset, memory.address(),
                        memory.requested_size());
  };
}

RestorableAllocation::RestorableAllocation(Endpoint& endpoint,
                                           Allocation memory, vmm::Share share)
    : endpoint_(&endpoint),
      memory_(std::move(memory)),
      share_(std::move(share)) {}
RestorableAllocation::~RestorableAllocation() = default;
RestorableAllocation::RestorableAllocation(RestorableAllocation&&) noexcept =
    default;
RestorableAllocation& RestorableAllocation::operator=(
    RestorableAllocation&&) noexcept = default;

absl::StatusOr<RestorableAllocation> RestorableAllocation::Share(
    Endpoint& endpoint, Allocation memory, const ShareOptions& options) {
  platform::Check(memory.is_mapped(),
                  "RestorableAllocation::Share of memory that is not mapped; "
                  "Remap() it first");
  if (memory.disclosed().size != 0) {
    return absl::UnimplementedError(
        absl::StrCat("RestorableAllocation::Share of memory ",
                     memory.id().ToString(), ", which is ", memory.weakness(),
                     "; only cuMemCreate()'s can be released and restored"));
  }
  ASSIGN_OR_RETURN(vmm::Share share,
                   endpoint.Publish(memory.shareable(), options));
  return RestorableAllocation(endpoint, std::move(memory), std::move(share));
}

absl::Status RestorableAllocation::Release(Keep keep, Deadline deadline) {
  RETURN_IF_ERROR(endpoint_->CheckIsOfThisProcess());
  if (is_released()) {
    return absl::FailedPreconditionError(
        "Release of memory that is released; Restore() it first");
  }
  // From here on nobody gets it, and whoever has it is in the book.
  std::shared_ptr<const PublishedMemory> served =
      share_.registry_->Exchange(share_.key_, nullptr);
  // Also when something is thrown, as where the host has no memory left.
  absl::Cleanup serve_again = [&] {
    share_.registry_->Exchange(share_.key_, std::move(served));
  };
  const absl::Status let_go = LetGo(keep, deadline);
  if (!let_go.ok()) {
    return platform::Annotate(
        let_go, absl::StrCat("Release of ", memory_.id().ToString()),
        "The memory is as it was.");
  }
  std::move(serve_again).Cancel();
  served.reset();  // The handles keep the memory as well.
  return memory_.Discard();
}

absl::Status RestorableAllocation::LetGo(Keep keep, Deadline deadline) {
  endpoint_->Recall(memory_.id(), absl::Now() + deadline.Left());
  RETURN_IF_ERROR(endpoint_->WaitUntilReturned(memory_.id(), deadline));
  if (keep == Keep::kNothing) return absl::OkStatus();
  ASSIGN_OR_RETURN(
      HostCopy copy,
      HostCopy::Of(memory_.device(), memory_.address(), memory_.size()));
  kept_ = std::make_unique<const HostCopy>(std::move(copy));
  return absl::OkStatus();
}

absl::Status RestorableAllocation::Restore(const Fill& fill) {
  RETURN_IF_ERROR(endpoint_->CheckIsOfThisProcess());
  if (!is_released()) {
    return absl::FailedPreconditionError(
        "Restore of memory that is not released");
  }
  if (fill == nullptr && kept_ == nullptr) {
    return absl::FailedPreconditionError(
        "Restore of memory of which Release() kept nothing, as it was told "
        "(Keep::kNothing, in Python keep=False). Give a Fill, such as "
        "FillFromFile() (in C `fill` or `path`, in Python fill= or path=): "
        "where the contents do not matter, one that writes nothing.");
  }
  // Also when something is thrown, as by a `fill` of the program's.
  absl::Cleanup release_again = [&] {
    // Nobody had it. What fails in giving it back is not the reason.
    platform::ReportReleaseFailure(memory_.Discard());
  };
  absl::Status restored = MakeAndServe(fill);
  if (restored.ok()) {
    std::move(release_again).Cancel();
    kept_.reset();
    return restored;
  }
  return platform::Annotate(
      restored, absl::StrCat("Restore of ", memory_.id().ToString()),
      "The memory is released as before.");
}

absl::Status RestorableAllocation::MakeAndServe(const Fill& fill) {
  RETURN_IF_ERROR(memory_.RemapToFill());
  RETURN_IF_ERROR(fill != nullptr ? fill(memory_)
                                  : kept_->WriteTo(memory_.address()));
  RETURN_IF_ERROR(memory_.EndFill());
  ASSIGN_OR_RETURN(std::shared_ptr<const PublishedMemory> served,
                   MakePublished(memory_.shareable()));
  share_.registry_->Exchange(share_.key_, std::move(served));
  return absl::OkStatus();
}

}  // namespace vmm
