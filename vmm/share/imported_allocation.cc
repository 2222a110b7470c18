#include "vmm/share/imported_allocation.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/exporter.h"
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

// Of the driver's own allocators.
constexpr char kOnlyWhereSeen[] =
    "can be opened only where its device is seen. Set CUDA_VISIBLE_DEVICES so "
    "that this process sees it";

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
  if (!IsVmm(ticket.kind)) {
    return absl::FailedPreconditionError(
        absl::StrCat(ticket.Describe(), ", which ", kOnlyWhereSeen));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "this process does not see ", ticket.device.ToString(),
      ", with which the memory was created, so it cannot map it "
      "there. Name the device that shall access it in "
      "ImportOptions::grants (in C `devices`, in Python device=)."));
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

absl::Status CannotDo(const Ticket& ticket, absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat(ticket.Describe(), ", which ", what));
}

// Memory of the driver's own allocators, which is opened and not mapped.
absl::StatusOr<OwnedOpenBlock> OpenBlockOf(const Ticket& ticket,
                                           const ExportedHandle& handle,
                                           const std::optional<Device>& owner,
                                           absl::Span<const AccessGrant> grants,
                                           const ImportOptions& options) {
  if (ticket.layout.count() != 1 || ticket.host_numa_node.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(ticket.layout.count(), " chunks of ", ticket.Describe(),
                     "; expected one, of a device"));
  }
  if (!owner.has_value()) {
    return CannotDo(ticket, kOnlyWhereSeen);
  }
  for (const AccessGrant& grant : grants) {
    if (grant.access != Access::kReadWrite) {
      return CannotDo(ticket,
                      "cannot be opened for reading alone. Ask for "
                      "Access::kReadWrite (in Python writable=True), or have "
                      "its owner share a copy");
    }
  }
  if (grants.size() != 1 || grants[0].who.is_host()) {
    return CannotDo(ticket,
                    "is opened for one device. Name one in "
                    "ImportOptions::grants, or none");
  }
  if (options.at.has_value() || options.alignment != 0) {
    return CannotDo(ticket,
                    "comes at an address that the driver chooses: give no "
                    "alignment and no place");
  }
  const Device& device = grants[0].who.device();
  RETURN_IF_ERROR(CheckReachable(Location::On(*owner), grants));
  absl::StatusOr<OwnedOpenBlock> opened =
      OpenSharedBlock(device, *owner, ticket.kind, handle, ticket.layout.size);
  if (opened.ok()) return opened;
  return platform::Annotate(opened.status(), ticket.Describe());
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
