#include "vmm/share/imported_allocation.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "vmm/share/internal/dial.h"
#include "vmm/share/internal/lease_connection.h"

namespace vmm {
namespace {

using platform::Driver;

// The device the memory lives on, if this process sees it.
absl::StatusOr<std::optional<Device>> FindOwner(const Driver& driver,
                                                const DeviceUuid& uuid) {
  absl::StatusOr<Device> device = Device::ByUuid(driver, uuid);
  if (device.ok()) return std::optional<Device>(*std::move(device));
  if (absl::IsNotFound(device.status())) return std::optional<Device>();
  return device.status();
}

std::optional<Location> WhereOf(const Ticket& ticket,
                                const std::optional<Device>& owner) {
  if (ticket.host_numa_node.has_value()) {
    return Location::HostNuma(static_cast<int>(*ticket.host_numa_node));
  }
  if (owner.has_value()) return Location::On(*owner);
  return std::nullopt;
}

bool AnyWrites(absl::Span<const AccessGrant> grants) {
  return std::any_of(grants.begin(), grants.end(), [](const AccessGrant& one) {
    return one.access == Access::kReadWrite;
  });
}

using Grants = absl::InlinedVector<AccessGrant, 1>;

absl::StatusOr<Grants> GrantsFor(const Ticket& ticket,
                                 const std::optional<Device>& owner,
                                 const ImportOptions& options) {
  if (options.host_memory_only && !ticket.host_numa_node.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the CPU cannot access ", ticket.Describe(),
        ", which is a device's. ImportOptions::host_memory_only wants memory "
        "of the host, and so do fences: is this the string of another pool "
        "than "
        "FencePool::pool()?"));
  }
  Grants grants(options.grants.begin(), options.grants.end());
  if (grants.empty() && owner.has_value()) {
    grants.push_back({Location::On(*owner), options.access});
  }
  if (!grants.empty()) {
    if (options.host_access != Access::kNone &&
        ticket.host_numa_node.has_value()) {
      grants.push_back(
          {Location::HostNuma(static_cast<int>(*ticket.host_numa_node)),
           options.host_access});
    }
    return grants;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("this process does not see ", ticket.device.ToString(),
                   ", with which the memory was created, so it cannot map it "
                   "there. Name the "
                   "device that shall access it in ImportOptions::grants."));
}

absl::StatusOr<MappedRegion> Map(const Driver& driver, PhysicalMemory memory,
                                 const ImportOptions& options,
                                 const Grants& grants) {
  if (options.at.has_value()) {
    return MappedRegion::CreateAt(*options.at, std::move(memory), grants);
  }
  return MappedRegion::Create(driver, std::move(memory), options.alignment,
                              grants);
}

}  // namespace

bool WantsToWrite(const ImportOptions& options) {
  if (options.host_access == Access::kReadWrite) return true;
  if (options.grants.empty()) return options.access == Access::kReadWrite;
  return AnyWrites(options.grants);
}

absl::StatusOr<ImportedAllocation> ImportedAllocation::Open(
    const Driver& driver, const Ticket& ticket,
    absl::Span<const ExportedHandle> handles, const ImportOptions& options) {
  absl::Status usable = CheckUsableHere(ticket, driver);
  if (!usable.ok()) return usable;
  if (handles.size() != ticket.layout.count()) {
    return absl::InvalidArgumentError(
        absl::StrCat(handles.size(), " handles came for ", ticket.Describe(),
                     "; expected ", ticket.layout.count()));
  }
  absl::StatusOr<const Exporter*> exporter = FindExporter(ticket.kind);
  if (!exporter.ok()) return exporter.status();
  absl::StatusOr<std::optional<Device>> owner =
      FindOwner(driver, ticket.device);
  if (!owner.ok()) return owner.status();
  absl::StatusOr<Grants> grants = GrantsFor(ticket, *owner, options);
  if (!grants.ok()) return grants.status();
  const std::optional<Location> where = WhereOf(ticket, *owner);
  if (where.has_value()) {
    absl::Status reachable = CheckReachable(*where, *grants);
    if (!reachable.ok()) return reachable;
  }

  MemoryHandles chunks;
  chunks.reserve(handles.size());
  for (std::size_t i = 0; i < handles.size(); ++i) {
    absl::StatusOr<OwnedMemoryHandle> chunk =
        (*exporter)->open(driver, handles[i], ticket.layout.SizeOf(i));
    if (!chunk.ok()) {
      return platform::Annotate(
          chunk.status(), absl::StrCat("chunk ", i + 1, " of ", handles.size(),
                                       " of ", ticket.Describe()));
    }
    chunks.push_back(*std::move(chunk));
  }
  PhysicalMemory memory =
      PhysicalMemory::FromHandles(std::move(chunks), ticket.layout, where, {});
  absl::StatusOr<MappedRegion> region =
      Map(driver, std::move(memory), options, *grants);
  // Only mapping tells the size of what is behind a handle, and only granting
  // access that it is the host's: the driver maps whole handles and grants the
  // CPU its own memory, and answers this to anything else (measured).
  if (platform::ResultOf(region.status()) == CUDA_ERROR_NOT_SUPPORTED) {
    return absl::InvalidArgumentError(
        absl::StrCat(region.status().message(),
                     ". The memory behind the handles has another size than "
                     "the ticket says, or is not the host's: ",
                     ticket.Describe()));
  }
  if (!region.ok()) return region.status();
  return ImportedAllocation(ticket, *std::move(region));
}

ImportedAllocation& ImportedAllocation::operator=(
    ImportedAllocation&& other) noexcept {
  if (this != &other) {
    region_ = std::move(other.region_);  // Unmaps the old memory first.
    lease_ = std::move(other.lease_);
    ticket_ = std::move(other.ticket_);
    granted_ = other.granted_;
  }
  return *this;
}

absl::Status ImportedAllocation::SetAccess(
    absl::Span<const AccessGrant> grants) {
  RETURN_IF_ERROR(CheckGranted(granted_, AnyWrites(grants)));
  return region_.SetAccess(grants);
}

LeaseStatus ImportedAllocation::lease() const {
  if (lease_ != nullptr) return lease_->status();
  return {absl::FailedPreconditionError(
              absl::StrCat(ticket_.Describe(),
                           " did not come from an endpoint (OpenTicket), so "
                           "its owner has no lease of it")),
          std::nullopt};
}

void ImportedAllocation::HoldLease(std::shared_ptr<const HeldLease> lease) {
  lease_ = std::move(lease);
}

}  // namespace vmm
