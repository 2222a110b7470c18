#include "platform/os/process.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "platform/base/check.h"

namespace vmm::platform {

std::uint64_t ProcessMark() {
  return ForksSoFar() << 32 | static_cast<std::uint32_t>(CurrentProcessId());
}

Process Process::FromHandle(OsHandle handle, std::int64_t pid) {
  return FromHandle(std::make_shared<const OsHandle>(std::move(handle)), pid);
}

Process Process::FromHandle(std::shared_ptr<const OsHandle> handle,
                            std::int64_t pid) {
  Check(handle != nullptr && handle->has_value(),
        "Process::FromHandle() needs an open handle");
  return Process(std::move(handle), pid);
}

absl::StatusOr<bool> Process::HasExited() const {
  absl::Status status = WaitForExit(absl::InfinitePast());
  if (absl::IsDeadlineExceeded(status)) return false;
  if (!status.ok()) return status;
  return true;
}

}  // namespace vmm::platform
