#include "platform/ipc/shared_memory.h"

#include "platform/base/check.h"

namespace vmm::platform {

const OsHandle& SharedMemory::handle() const {
  Check(handle_.has_value(),
        "SharedMemory::handle() of memory that another process made");
  return handle_;
}

absl::Span<std::uint8_t> SharedMemory::writable_bytes() const {
  Check(writable_, "SharedMemory::writable_bytes() of a read-only view");
  return view_.get();
}

}  // namespace vmm::platform
