#include "vmm/share/internal/import_grants.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/exporter.h"

namespace vmm {
namespace {

// Of the driver's own allocators.
constexpr char kOnlyWhereSeen[] =
    "can be opened only where its device is seen. Set CUDA_VISIBLE_DEVICES so "
    "that this process sees it";

absl::Status CannotDo(const Ticket& ticket, absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat(ticket.Describe(), ", which ", what));
}

}  // namespace

bool AnyWrites(absl::Span<const AccessGrant> grants) {
  return std::any_of(grants.begin(), grants.end(), [](const AccessGrant& one) {
    return one.access == Access::kReadWrite;
  });
}

bool WantsToWrite(const ImportOptions& options) {
  if (options.host_access == Access::kReadWrite) return true;
  if (options.grants.empty()) return options.access == Access::kReadWrite;
  return AnyWrites(options.grants);
}

absl::StatusOr<Grants> GrantsFor(const Ticket& ticket,
                                 const std::optional<Device>& owner,
                                 const ImportOptions& options) {
  if (options.host_memory_only && !ticket.host_numa_node.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the CPU cannot access ", ticket.Describe(),
        ", which is a device's. ImportOptions::host_memory_only wants memory "
        "of the host, and so do fences: is this the string of another pool "
        "than FencePool::pool()?"));
  }
  Grants grants(options.grants.begin(), options.grants.end());
  if (grants.empty() && owner.has_value()) {
    grants.push_back({Location::On(*owner), options.access});
  }
  if (grants.empty()) {
    if (!IsVmm(ticket.kind)) return CannotDo(ticket, kOnlyWhereSeen);
    return absl::FailedPreconditionError(absl::StrCat(
        "this process does not see ", ticket.device.ToString(),
        ", with which the memory was created, so it cannot map it "
        "there. Name the device that shall access it in "
        "ImportOptions::grants (in C `devices`, in Python device=)."));
  }
  if (options.host_access != Access::kNone &&
      ticket.host_numa_node.has_value()) {
    grants.push_back(
        {Location::HostNuma(static_cast<int>(*ticket.host_numa_node)),
         options.host_access});
  }
  return grants;
}

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

}  // namespace vmm
