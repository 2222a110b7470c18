#include "vmm/memory/restorable_region.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/internal/host_copy.h"

namespace vmm {
namespace {

absl::Status IsReleased(std::uint64_t bytes) {
  return absl::FailedPreconditionError(
      absl::StrCat("Allocate(", bytes,
                   ") from a region that is released. Restore() it first."));
}

}  // namespace

struct RestorableRegion::Impl {
  struct Piece {
    Allocation memory;
    std::unique_ptr<const HostCopy> kept;
  };

  Impl(Device on, const RestorableRegionOptions& as)
      : device(std::move(on)), options(as) {}

  absl::Status MakeAndFill() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  std::uint64_t Bytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  std::string What(absl::string_view call) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  const Device device;
  const RestorableRegionOptions options;
  platform::Mutex mutex;
  bool released ABSL_GUARDED_BY(mutex) = false;
  std::map<CUdeviceptr, Piece> pieces ABSL_GUARDED_BY(mutex);
};

RestorableRegion::RestorableRegion(Device device,
                                   const RestorableRegionOptions& options)
    : impl_(std::make_unique<Impl>(std::move(device), options)) {}
RestorableRegion::~RestorableRegion() = default;
RestorableRegion::RestorableRegion(RestorableRegion&&) noexcept = default;
RestorableRegion& RestorableRegion::operator=(RestorableRegion&&) noexcept =
    default;

const Device& RestorableRegion::device() const { return impl_->device; }

absl::StatusOr<CUdeviceptr> RestorableRegion::Allocate(std::uint64_t bytes) {
  {
    const platform::MutexLock lock(impl_->mutex);
    if (impl_->released) return IsReleased(bytes);
  }
  ASSIGN_OR_RETURN(
      Allocation made,
      Allocation::Create(impl_->device, {.size = bytes,
                                         .sharing = SharePolicy::Private(),
                                         .rdma = impl_->options.rdma}));
  const CUdeviceptr address = made.address();
  const platform::MutexLock lock(impl_->mutex);
  // Somebody may have released it meanwhile. What was made goes.
  if (impl_->released) return IsReleased(bytes);
  impl_->pieces.emplace(address, Impl::Piece{std::move(made), nullptr});
  return address;
}

absl::Status RestorableRegion::Free(CUdeviceptr address) {
  decltype(Impl::pieces)::node_type piece;  // Goes after the lock.
  const platform::MutexLock lock(impl_->mutex);
  piece = impl_->pieces.extract(address);
  if (!piece.empty()) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(
      "Free(0x", absl::Hex(address),
      "): no allocation of this region begins there. Pass what Allocate() "
      "returned, once."));
}

// It holds its lock over calls of the driver, as Restore() does and a pool never
// does: what others make or free in the middle would miss the copy or the
// giving back. They lose nothing by waiting, for there is no memory to be had.
absl::Status RestorableRegion::Release(Keep keep) {
  const platform::MutexLock lock(impl_->mutex);
  if (impl_->released) {
    return absl::FailedPreconditionError(
        "Release of a region that is released. Restore() it first.");
  }
  std::vector<std::unique_ptr<const HostCopy>> copies;
  if (keep == Keep::kHostMemory) {
    for (const auto& [address, piece] : impl_->pieces) {
      absl::StatusOr<HostCopy> copy =
          HostCopy::Of(impl_->device, address, piece.memory.size());
      if (!copy.ok()) {
        return platform::Annotate(copy.status(), impl_->What("Release"),
                                  "The region is as it was.");
      }
      copies.push_back(std::make_unique<const HostCopy>(*std::move(copy)));
    }
  }
  // From here on it is released, whatever fails.
  impl_->released = true;
  absl::Status discarded;
  std::size_t i = 0;
  for (auto& [address, piece] : impl_->pieces) {
    if (!copies.empty()) piece.kept = std::move(copies[i++]);
    discarded.Update(piece.memory.Discard());
  }
  if (discarded.ok()) return discarded;
  return platform::Annotate(discarded, impl_->What("Release"),
                            "The region is released all the same.");
}

absl::Status RestorableRegion::Restore() {
  const platform::MutexLock lock(impl_->mutex);
  if (!impl_->released) {
    return absl::FailedPreconditionError(
        "Restore of a region that is not released. Release() it first.");
  }
  auto* const pieces = &impl_->pieces;
  // Also when something is thrown, as where the host has no memory left.
  absl::Cleanup release_again = [pieces] {
    for (auto& [address, piece] : *pieces) {
      // What fails in giving it back is not the reason.
      platform::ReportReleaseFailure(piece.memory.Discard());
    }
  };
  absl::Status restored = impl_->MakeAndFill();
  if (restored.ok()) {
    std::move(release_again).Cancel();
    for (auto& [address, piece] : *pieces) piece.kept.reset();
    impl_->released = false;
    return restored;
  }
  return platform::Annotate(restored, impl_->What("Restore"),
                            "The region is released as before.");
}

// All memory first, which is what may be lacking, and then the copies.
absl::Status RestorableRegion::Impl::MakeAndFill() {
  for (auto& [address, piece] : pieces) {
    RETURN_IF_ERROR(piece.memory.Remap());
  }
  for (const auto& [address, piece] : pieces) {
    if (piece.kept == nullptr) continue;
    RETURN_IF_ERROR(piece.kept->WriteTo(address));
  }
  return absl::OkStatus();
}

// "Release of a region of 5 allocations, 31457280 bytes".
std::string RestorableRegion::Impl::What(absl::string_view call) const {
  return absl::StrCat(call, " of a region of ", pieces.size(),
                      pieces.size() == 1 ? " allocation, " : " allocations, ",
                      Bytes(), " bytes");
}

std::uint64_t RestorableRegion::Impl::Bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [address, piece] : pieces) bytes += piece.memory.size();
  return bytes;
}

RestorableRegionStatistics RestorableRegion::statistics() const {
  const platform::MutexLock lock(impl_->mutex);
  RestorableRegionStatistics now{.allocations = impl_->pieces.size(),
                                 .bytes = impl_->Bytes(),
                                 .is_released = impl_->released};
  for (const auto& [address, piece] : impl_->pieces) {
    if (piece.kept != nullptr) now.kept += piece.kept->size();
  }
  return now;
}

}  // namespace vmm
