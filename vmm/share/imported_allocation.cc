#include "vmm/share/imported_allocation.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/share/internal/dial.h"
#include "vmm/share/internal/import_grants.h"
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

// Of what the ticket calls a device's: the CPUs would be granted none of it, and
// who asks the driver where it lives would take it for memory that they reach.
absl::Status CheckIsNoHostMemory(const Driver& driver, const Ticket& ticket,
                                 const OwnedMemoryHandle& chunk) {
  CUmemAllocationProp properties{};
  if (CUresult r = driver->cuMemGetAllocationPropertiesFromHandle(
          &properties, chunk.get().handle);
      r != CUDA_SUCCESS) {
    return driver.Error(
        r, "cuMemGetAllocationPropertiesFromHandle(imported memory)");
  }
  const std::optional<int> node = PlaceOf(properties.location).host_numa_node;
  if (!node.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the memory behind a handle is on host NUMA node ", *node,
                   ", and the ticket says otherwise: ", ticket.Describe()));
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
  RETURN_IF_ERROR(CheckUsableHere(ticket, driver));
  if (handles.size() != ticket.layout.count()) {
    return absl::InvalidArgumentError(
        absl::StrCat(handles.size(), " handles came for ", ticket.Describe(),
                     "; expected ", ticket.layout.count()));
  }
  ASSIGN_OR_RETURN(const std::optional<Device> owner,
                   FindOwner(driver, ticket.device));
  ASSIGN_OR_RETURN(const Grants grants, GrantsFor(ticket, owner, options));
  if (!IsVmm(ticket.kind)) {
    ASSIGN_OR_RETURN(OwnedOpenBlock block,
                     OpenBlockOf(ticket, handles[0], owner, grants, options));
    return ImportedAllocation(ticket, std::move(block));
  }
  ASSIGN_OR_RETURN(const Exporter* exporter, FindExporter(ticket.kind));
  const std::optional<Location> where = WhereOf(ticket, owner);
  if (where.has_value()) {
    RETURN_IF_ERROR(CheckReachable(*where, grants));
  }

  MemoryHandles chunks;
  chunks.reserve(handles.size());
  for (std::size_t i = 0; i < handles.size(); ++i) {
    absl::StatusOr<OwnedMemoryHandle> chunk =
        exporter->open(driver, handles[i], ticket.layout.SizeOf(i));
    if (!chunk.ok()) {
      return platform::Annotate(
          chunk.status(), absl::StrCat("chunk ", i + 1, " of ", handles.size(),
                                       " of ", ticket.Describe()));
    }
    if (options.host_access != Access::kNone &&
        !ticket.host_numa_node.has_value()) {
      RETURN_IF_ERROR(CheckIsNoHostMemory(driver, ticket, *chunk));
    }
    chunks.push_back(*std::move(chunk));
  }
  PhysicalMemory memory =
      PhysicalMemory::FromHandles(std::move(chunks), ticket.layout, where, {});
  absl::StatusOr<MappedRegion> region =
      Map(driver, std::move(memory), options, grants);
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
  ASSIGN_OR_RETURN(MappedRegion * region, Mapped("SetAccess"));
  return region->SetAccess(grants);
}

absl::Status ImportedAllocation::Unmap() {
  ASSIGN_OR_RETURN(MappedRegion * region, Mapped("Unmap"));
  return region->Unmap();
}

absl::Status ImportedAllocation::Remap() {
  ASSIGN_OR_RETURN(MappedRegion * region, Mapped("Remap"));
  return region->Remap();
}

absl::StatusOr<MappedRegion*> ImportedAllocation::Mapped(
    absl::string_view call) {
  if (auto* region = std::get_if<MappedRegion>(&region_)) return region;
  return absl::UnimplementedError(
      absl::StrCat(call, " of ", ticket_.Describe(),
                   ": it is open for reading and writing at one address until "
                   "it is closed"));
}

bool ImportedAllocation::is_mapped() const {
  const auto* region = std::get_if<MappedRegion>(&region_);
  return region == nullptr || region->is_mapped();
}

CUdeviceptr ImportedAllocation::address() const {
  if (const auto* block = std::get_if<OwnedOpenBlock>(&region_)) {
    return block->get().span.base;
  }
  return std::get<MappedRegion>(region_).address();
}

AddressSpan ImportedAllocation::disclosed() const {
  if (IsVmm(ticket_.kind)) return {};
  return DriverBlock{ticket_.kind, {address(), size()}}.Disclosed();
}

std::string ImportedAllocation::weakness() const {
  return DescribeWeakness(ticket_.kind, disclosed());
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
