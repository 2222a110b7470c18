#include "vmm/memory/mapping.h"

#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/stream_capture.h"

namespace vmm {
namespace {

using platform::Driver;

std::string Words(absl::Span<const AccessGrant> grants) {
  return absl::StrJoin(
      grants, ", ", [](std::string* out, const AccessGrant& g) {
        absl::StrAppend(out, g.who.Describe(),
                        g.access == Access::kNone   ? " no access"
                        : g.access == Access::kRead ? " read"
                                                    : " read-write");
      });
}

absl::Status UnmapAddresses(const MappedAddresses& mapped) {
  const Driver& driver = *mapped.driver;
  const RelaxedCapture relaxed(driver);
  const CUresult result = driver->cuMemUnmap(mapped.address, mapped.size);
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return driver.Error(
      result, absl::StrCat("cuMemUnmap(address=0x", absl::Hex(mapped.address),
                           ", size=", mapped.size, ")"));
}

}  // namespace

void MappedAddressesTraits::Close(const Value& value) {
  absl::Status unmapped = UnmapAddresses(value);
  if (!unmapped.ok()) platform::ReportReleaseFailure(unmapped);
}

absl::StatusOr<OwnedMapping> MapChunks(const Driver& driver,
                                       CUdeviceptr address,
                                       const PhysicalMemory& memory) {
  const RelaxedCapture relaxed(driver);
  const ChunkLayout& layout = memory.layout();
  MappedAddresses mapped{driver, address, 0};
  for (std::size_t i = 0; i < layout.count(); ++i) {
    const std::uint64_t size = layout.SizeOf(i);
    const CUdeviceptr at = address + mapped.size;
    // The driver maps whole handles only: offset 0, full size (measured).
    if (CUresult r = driver->cuMemMap(at, size, 0, memory.handle(i), 0);
        r != CUDA_SUCCESS) {
      OwnedMapping::Adopt(std::move(mapped)).Reset();
      return driver.Error(
          r, absl::StrCat("cuMemMap(address=0x", absl::Hex(at), ", size=", size,
                          "), chunk ", i + 1, " of ", layout.count()));
    }
    mapped.size += size;
  }
  return OwnedMapping::Adopt(std::move(mapped));
}

absl::Status Unmap(OwnedMapping mapping) {
  platform::Check(mapping.has_value(), "Unmap of a mapping moved from");
  return UnmapAddresses(std::move(mapping).Relinquish());
}

absl::Status SetAccess(const OwnedMapping& mapping,
                       const std::optional<Location>& where,
                       absl::Span<const AccessGrant> grants) {
  platform::Check(mapping.has_value(), "SetAccess on a mapping moved from");
  if (grants.empty()) return absl::OkStatus();
  if (where.has_value()) {
    RETURN_IF_ERROR(CheckReachable(*where, grants));
  }
  absl::InlinedVector<CUmemAccessDesc, 2> descriptors;
  for (const AccessGrant& grant : grants) {
    CUmemAccessDesc descriptor{};
    descriptor.location = grant.who.ToCuda();
    descriptor.flags = static_cast<CUmemAccess_flags>(grant.access);
    descriptors.push_back(descriptor);
  }
  const MappedAddresses& at = mapping.get();
  const Driver& driver = *at.driver;
  const RelaxedCapture relaxed(driver);
  const CUresult result = driver->cuMemSetAccess(
      at.address, at.size, descriptors.data(), descriptors.size());
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return driver.Error(
      result, absl::StrCat("cuMemSetAccess(address=0x", absl::Hex(at.address),
                           ", size=", at.size, ", ", Words(grants), ")"));
}

absl::StatusOr<Mapping> Mapping::Map(
    std::shared_ptr<const AddressRange> range, std::uint64_t offset,
    std::shared_ptr<const PhysicalMemory> memory) {
  if (offset > range->size() || memory->size() > range->size() - offset) {
    return absl::InvalidArgumentError(absl::StrCat(
        memory->size(), " bytes at offset ", offset,
        " do not fit into an address range of ", range->size(), " bytes"));
  }
  ASSIGN_OR_RETURN(OwnedMapping mapped,
                   MapChunks(range->driver(), range->base() + offset, *memory));
  return Mapping(std::move(range), std::move(memory), std::move(mapped));
}

// What was held before goes in the order of destruction: unmapped first.
Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    mapped_ = std::move(other.mapped_);
    range_ = std::move(other.range_);
    memory_ = std::move(other.memory_);
  }
  return *this;
}

absl::Status Mapping::SetAccess(absl::Span<const AccessGrant> grants) {
  platform::Check(mapped_.has_value(), "SetAccess on a mapping moved from");
  return vmm::SetAccess(mapped_, memory_->where(), grants);
}

absl::Status Mapping::Unmap() && {
  absl::Status status = vmm::Unmap(std::move(mapped_));
  range_ = nullptr;
  memory_ = nullptr;
  return status;
}

}  // namespace vmm
