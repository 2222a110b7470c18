#include "vmm/share/raw_handle.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/convert.h"
#include "vmm/c/internal/handles.h"
#include "vmm/c/memory.h"
#include "vmm/c/share.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::CheckGiven;
using vmm::c::Clear;
using vmm::c::Make;

struct vmmshare_fetched : vmm::c::Handle<vmm::c::HandleType::kFetched> {
  explicit vmmshare_fetched(vmm::FetchedHandles came)
      : handles(std::move(came)), taken(handles.chunks().size()) {}
  vmm::FetchedHandles handles;
  std::vector<bool> taken;
};

namespace {

absl::Status GiveNothing(vmmshare_raw_handle* handle) {
  RETURN_IF_ERROR(CheckGiven(handle, "handle"));
  *handle = vmmshare_raw_handle{};
  handle->os_handle = -1;
  return absl::OkStatus();
}

void Give(vmm::RawHandle raw, vmmshare_raw_handle* handle) {
  handle->kind = static_cast<std::uint32_t>(raw.kind);
  handle->size = raw.size;
  if (const vmm::HandleBytes* bytes = vmm::BytesOf(raw.handle)) {
    std::copy(bytes->begin(), bytes->end(), handle->fabric);
  }
  if (vmm::HasOsHandle(raw.kind)) {
    handle->os_handle = vmm::TakeOsHandle(std::move(raw.handle)).Relinquish();
  }
}

// The caller keeps what `given` refers to.
absl::StatusOr<vmm::RawHandle> Borrow(const vmmshare_raw_handle& given) {
  ASSIGN_OR_RETURN(const vmm::HandleKind kind, vmm::c::KindOf(given.kind));
  RETURN_IF_ERROR(vmm::c::CheckBits(given.reserved, 0, "reserved"));
  vmm::HandleBytes bytes{};
  std::copy(std::begin(given.fabric), std::end(given.fabric), bytes.begin());
  if (!vmm::HasOsHandle(kind)) {
    return vmm::RawHandle{kind, given.size, vmm::HandleOf(kind, {}, bytes)};
  }
  auto borrowed = vmm::platform::OsHandle::Adopt(given.os_handle);
  // Also when something is thrown.
  const absl::Cleanup give_back = [&borrowed] {
    static_cast<void>(std::move(borrowed).Relinquish());
  };
  ASSIGN_OR_RETURN(vmm::platform::OsHandle own,
                   vmm::platform::Duplicate(borrowed));
  return vmm::RawHandle{kind, given.size,
                        vmm::HandleOf(kind, std::move(own), bytes)};
}

}  // namespace

std::uint32_t vmmshare_memory_chunks(const vmmshare_memory* memory) {
  if (!Check(memory).ok()) return 0;
  const auto shareable = vmm::c::ShareableOf(memory);
  const vmm::ChunkLayout layout =
      shareable.ok()
          ? shareable->layout()
          : std::get<vmm::ImportedAllocation>(memory->memory).ticket().layout;
  return static_cast<std::uint32_t>(layout.count());
}

vmmshare_status vmmshare_memory_export(const vmmshare_memory* memory,
                                       std::uint32_t chunk, std::uint32_t kind,
                                       vmmshare_raw_handle* handle,
                                       vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(GiveNothing(handle));
    ASSIGN_OR_RETURN(const vmm::Shareable shareable,
                     vmm::c::ShareableOf(memory));
    ASSIGN_OR_RETURN(const vmm::HandleKind wanted, vmm::c::KindOf(kind));
    ASSIGN_OR_RETURN(vmm::RawHandle raw,
                     vmm::ExportRaw(shareable, chunk, wanted));
    Give(std::move(raw), handle);
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_memory_import(const vmmshare_device* device,
                                       const vmmshare_raw_handle* handles,
                                       std::uint32_t count, std::uint32_t flags,
                                       std::int32_t numa_node,
                                       const vmmshare_import_options* options,
                                       vmmshare_memory** memory,
                                       vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(memory, "memory"));
    RETURN_IF_ERROR(Check(device));
    RETURN_IF_ERROR(CheckGiven(handles, "handles"));
    RETURN_IF_ERROR(vmm::c::CheckBits(flags, VMMSHARE_ON_HOST, "flags"));
    ASSIGN_OR_RETURN(const vmm::ImportOptions import,
                     vmm::c::ImportOptionsOf(options));
    std::vector<vmm::RawHandle> chunks;
    for (std::uint32_t i = 0; i < count; ++i) {
      ASSIGN_OR_RETURN(vmm::RawHandle chunk, Borrow(handles[i]));
      chunks.push_back(std::move(chunk));
    }
    const vmm::Location where = (flags & VMMSHARE_ON_HOST) != 0
                                    ? vmm::Location::HostNuma(numa_node)
                                    : vmm::Location::On(device->device);
    return Make(memory, vmm::ImportRaw(device->device, where, std::move(chunks),
                                       import));
  });
}

vmmshare_status vmmshare_fetch(const vmmshare_driver* driver, const char* text,
                               std::int64_t timeout_ns,
                               vmmshare_fetched** fetched,
                               vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(fetched, "fetched"));
    RETURN_IF_ERROR(Check(driver));
    RETURN_IF_ERROR(CheckGiven(text, "text"));
    return Make(fetched, vmm::FetchRaw(driver->driver, text,
                                       vmm::c::DeadlineOf(timeout_ns)));
  });
}

void vmmshare_fetched_close(vmmshare_fetched* fetched) {
  vmm::c::Close(fetched);
}

std::uint32_t vmmshare_fetched_chunks(const vmmshare_fetched* fetched) {
  return Check(fetched).ok() ? static_cast<std::uint32_t>(fetched->taken.size())
                             : 0;
}

vmmshare_status vmmshare_fetched_take(vmmshare_fetched* fetched,
                                      std::uint32_t chunk,
                                      vmmshare_raw_handle* handle,
                                      vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(GiveNothing(handle));
    RETURN_IF_ERROR(Check(fetched));
    if (chunk >= fetched->taken.size()) {
      return absl::OutOfRangeError(
          absl::StrCat("chunk ", chunk, " of ", fetched->taken.size()));
    }
    if (fetched->taken[chunk]) {
      return absl::FailedPreconditionError(
          absl::StrCat("the handle of chunk ", chunk,
                       " was taken. Fetch it anew, or duplicate it."));
    }
    fetched->taken[chunk] = true;
    Give(std::move(fetched->handles.chunks()[chunk]), handle);
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_fetched_lease(const vmmshare_fetched* fetched,
                                       std::int64_t* return_in_ns,
                                       vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(return_in_ns, "return_in_ns", VMMSHARE_FOREVER));
    RETURN_IF_ERROR(Check(fetched));
    return vmm::c::ReportLease(fetched->handles.lease(), return_in_ns);
  });
}
