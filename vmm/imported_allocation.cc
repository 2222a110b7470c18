#include "vmm/imported_allocation.h"

#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "platform/annotate.h"
#include "vmm/lease_connection.h"

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

using Grants = absl::InlinedVector<AccessGrant, 1>;

absl::StatusOr<Grants> GrantsFor(const Ticket& ticket,
                                 const std::optional<Device>& owner,
                                 const ImportOptions& options) {
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
  // Only mapping tells the size of what is behind a handle: the driver maps
  // whole handles and answers this to any other size (measured).
  if (platform::ResultOf(region.status()) == CUDA_ERROR_NOT_SUPPORTED) {
    return absl::InvalidArgumentError(
        absl::StrCat(region.status().message(),
                     ". The memory behind the handles has another "
                     "size than the ticket says: ",
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
  }
  return *this;
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
