#include "vmm/mapping.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "platform/check.h"

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

}  // namespace

absl::StatusOr<Mapping> Mapping::Map(
    std::shared_ptr<const AddressRange> range, std::uint64_t offset,
    std::shared_ptr<const PhysicalMemory> memory) {
  if (offset > range->size() || memory->size() > range->size() - offset) {
    return absl::InvalidArgumentError(absl::StrCat(
        memory->size(), " bytes at offset ", offset,
        " do not fit into an address range of ", range->size(), " bytes"));
  }
  // Copies: the range and the memory may end with a mapping that failed.
  const Driver driver = range->driver();
  const ChunkLayout layout = memory->layout();
  Mapping mapping(std::move(range), offset, std::move(memory));
  std::uint64_t mapped = 0;
  for (std::size_t i = 0; i < layout.count(); ++i) {
    const std::uint64_t size = layout.SizeOf(i);
    const CUdeviceptr address = mapping.address() + mapped;
    // The driver maps whole handles only: offset 0, full size (measured).
    if (CUresult r =
            driver->cuMemMap(address, size, 0, mapping.memory_->handle(i), 0);
        r != CUDA_SUCCESS) {
      platform::ReportReleaseFailure(mapping.UnmapFirst(mapped));
      mapping.range_ = nullptr;
      return driver.Error(
          r, absl::StrCat("cuMemMap(address=0x", absl::Hex(address), ", size=",
                          size, "), chunk ", i + 1, " of ", layout.count()));
    }
    mapped += size;
  }
  return mapping;
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    Mapping old(std::move(*this));
    range_ = std::move(other.range_);
    offset_ = other.offset_;
    memory_ = std::move(other.memory_);
  }
  return *this;
}

Mapping::~Mapping() {
  if (range_ != nullptr) {
    platform::ReportReleaseFailure(UnmapFirst(memory_->size()));
  }
}

absl::Status Mapping::SetAccess(absl::Span<const AccessGrant> grants) {
  platform::Check(range_ != nullptr, "SetAccess on a mapping moved from");
  if (grants.empty()) return absl::OkStatus();
  if (memory_->where().has_value()) {
    absl::Status reachable = CheckReachable(*memory_->where(), grants);
    if (!reachable.ok()) return reachable;
  }
  std::vector<CUmemAccessDesc> descriptors;
  descriptors.reserve(grants.size());
  for (const AccessGrant& grant : grants) {
    CUmemAccessDesc descriptor{};
    descriptor.location = grant.who.ToCuda();
    descriptor.flags = static_cast<CUmemAccess_flags>(grant.access);
    descriptors.push_back(descriptor);
  }
  const Driver& driver = range_->driver();
  return driver.Error(
      driver->cuMemSetAccess(address(), size(), descriptors.data(),
                             descriptors.size()),
      absl::StrCat("cuMemSetAccess(address=0x", absl::Hex(address()),
                   ", size=", size(), ", ", Words(grants), ")"));
}

absl::Status Mapping::Unmap() && {
  platform::Check(range_ != nullptr, "Unmap of a mapping moved from");
  absl::Status status = UnmapFirst(memory_->size());
  range_ = nullptr;
  memory_ = nullptr;
  return status;
}

absl::Status Mapping::UnmapFirst(std::uint64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  const Driver& driver = range_->driver();
  return driver.Error(
      driver->cuMemUnmap(address(), bytes),
      absl::StrCat("cuMemUnmap(address=0x", absl::Hex(address()),
                   ", size=", bytes, ")"));
}

}  // namespace vmm
