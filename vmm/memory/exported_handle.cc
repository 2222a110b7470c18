#include <utility>

#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/handle_kind.h"

namespace vmm {

const platform::OsHandle* OsHandleOf(const ExportedHandle& handle) {
  if (const auto* pooled = std::get_if<StreamPoolHandle>(&handle)) {
    return &pooled->pool;
  }
  return std::get_if<platform::OsHandle>(&handle);
}

const HandleBytes* BytesOf(const ExportedHandle& handle) {
  if (const auto* fabric = std::get_if<fabric::Handle>(&handle)) {
    return &fabric->bytes;
  }
  if (const auto* legacy = std::get_if<LegacyHandle>(&handle)) {
    return &legacy->bytes;
  }
  const auto* pooled = std::get_if<StreamPoolHandle>(&handle);
  return pooled == nullptr ? nullptr : &pooled->pointer;
}

ExportedHandle HandleOf(HandleKind kind, platform::OsHandle os_handle,
                        const HandleBytes& bytes) {
  platform::Check(os_handle.has_value() == HasOsHandle(kind),
                  "a handle of other parts than its kind has");
  switch (kind) {
    case HandleKind::kFabric: {
      fabric::Handle handle;
      handle.bytes = bytes;
      return handle;
    }
    case HandleKind::kLegacyIpc:
      return LegacyHandle{bytes};
    case HandleKind::kStreamPool:
      return StreamPoolHandle{std::move(os_handle), bytes};
    case HandleKind::kPosixFd:
    case HandleKind::kWin32:
      break;
  }
  return os_handle;
}

platform::OsHandle TakeOsHandle(ExportedHandle handle) {
  if (auto* pooled = std::get_if<StreamPoolHandle>(&handle)) {
    return std::move(pooled->pool);
  }
  auto* os_handle = std::get_if<platform::OsHandle>(&handle);
  return os_handle == nullptr ? platform::OsHandle() : std::move(*os_handle);
}

absl::StatusOr<ExportedHandle> Duplicate(const ExportedHandle& handle) {
  platform::OsHandle copy;
  if (const platform::OsHandle* os_handle = OsHandleOf(handle)) {
    ASSIGN_OR_RETURN(copy, platform::Duplicate(*os_handle));
  }
  if (const auto* pooled = std::get_if<StreamPoolHandle>(&handle)) {
    return StreamPoolHandle{std::move(copy), pooled->pointer};
  }
  if (const auto* fabric = std::get_if<fabric::Handle>(&handle)) return *fabric;
  if (const auto* legacy = std::get_if<LegacyHandle>(&handle)) return *legacy;
  return copy;
}

}  // namespace vmm
